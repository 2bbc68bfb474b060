package ctrd

import (
	"archive/tar"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"gantry/agent/ctrd/ctrdtest"
	"gantry/agent/pod"
)

// TestFilesOfAPodAreItsOwn: they are root's, with their modes, on the pod's own disk, where a program changes them; links of the image
// lead within the image.
func TestFilesOfAPodAreItsOwn(t *testing.T) {
	b := setup(t)
	img, err := mutate.AppendLayers(ctrdtest.BusyboxImage(t, nil), layer(t, map[string]tar.Header{
		"config": {Typeflag: tar.TypeDir, Mode: 0o755}, "etc/gantry": {Typeflag: tar.TypeSymlink, Linkname: "/config"},
		"config/there": {Mode: 0o600}, "config/link": {Typeflag: tar.TypeSymlink, Linkname: "/bin/busybox"},
	}, map[string]string{"config/there": "old"}))
	b.must(err)
	b.load("example/files:1", img)
	s := b.spec("example/files:1", `sh -c "for f in /etc/gantry/new/key /config/there /config/link /root/.ssh/id; do stat -c 'at %n %u:%g %a' \$f; cat \$f; done;
		chmod 700 /root/.ssh/id && echo changed; ls -l /config/link; busybox true && echo whole; echo end-of-test"`)
	s.Files = []pod.File{
		{Path: "/etc/gantry/new/key", Text: []byte("text of key\n"), Mode: 0o600},
		{Path: "/etc/gantry/there", Text: []byte("text of there\n"), Mode: 0o644},
		{Path: "/config/link", Text: []byte("text of link\n"), Mode: 0o640},
		{Path: "/root/.ssh/id", Text: []byte("text of id\n"), Mode: 0o600},
	}
	for name, base := range map[string]uint32{"the host's ids": 0, "ids of its own": testBase} {
		t.Run(name, func(t *testing.T) {
			b.give(&s, base)
			s.LogDir = t.TempDir()
			b.start(s)
			b.missing(b.log(s, "end-of-test"), "at /etc/gantry/new/key 0:0 600", "text of key", "at /config/there 0:0 644", "text of there", "at /config/link 0:0 640",
				"text of link", "at /root/.ssh/id 0:0 600", "text of id", "changed", "whole")
			b.finish(s.Pod)
			b.remove(s.Pod)
		})
	}
}

// TestAnImageInTheWayOfFiles: a pod whose files cannot be put where they belong does not start, and says why; the host's files stay.
func TestAnImageInTheWayOfFiles(t *testing.T) {
	b := setup(t)
	outside := filepath.Join(t.TempDir(), "victim")
	b.must(os.Mkdir(outside, 0o755))
	img, err := mutate.AppendLayers(ctrdtest.BusyboxImage(t, nil), layer(t, map[string]tar.Header{
		"file": {Mode: 0o644}, "nowhere": {Typeflag: tar.TypeSymlink, Linkname: "nowhere"}, "out": {Typeflag: tar.TypeSymlink, Linkname: "../../../.." + outside},
	}, map[string]string{"file": "x"}))
	b.must(err)
	b.load("example/way:1", img)
	for path, says := range map[string]string{"/file/x": "/file/x", "/nowhere/x": "/nowhere/x", "/bin": "/bin", "/out/x": "/out/x"} {
		s := b.spec("example/way:1", "true")
		s.Files = []pod.File{{Path: path, Text: []byte("x"), Mode: 0o600}}
		b.give(&s, testBase)
		err := b.r.Define(b.ctx, s)
		if err == nil || !strings.Contains(err.Error(), "stand in the way") || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", path, err)
		}
		b.remove(s.Pod)
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
		t.Errorf("outside there is %v, %v", left, err)
	}
}
