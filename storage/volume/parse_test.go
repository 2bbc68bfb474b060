package volume

import (
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"gantry/internal/ipc"
	"gantry/storage/helper"
)

func TestNFSOptions(t *testing.T) {
	const always = unix.MS_NODEV | unix.MS_NOSUID
	for text, want := range map[string]struct {
		flags   uintptr
		options string
		version string
	}{
		"":                               {always, "", ""},
		"vers=4.1, timeo=100":            {always, "timeo=100", "vers=4.1"},
		"nfsvers=4,noatime,sec=sys":      {always | unix.MS_NOATIME, "sec=sys", "vers=4"},
		"defaults,_netdev,rw,soft,bg":    {always, "", ""},
		"dev,suid,exec,x-systemd.x=1,ro": {always | unix.MS_RDONLY, "", ""},
		"addr=10.0.0.1,rsize=1048576":    {always, "rsize=1048576", ""},
	} {
		flags, options, version := nfsOptions(text)
		if got := strings.Join(options, ","); flags != want.flags || got != want.options || version != want.version {
			t.Errorf("%q: flags %x, options %q, version %q", text, flags, got, version)
		}
	}
}

func TestParseMounts(t *testing.T) {
	const text = `25 1 0:23 / /run rw,nosuid shared:5 - tmpfs tmpfs rw
31 25 0:41 /a\040b /run/x\134y/1 ro,nosuid - fuse.ceph-fuse ceph-fuse rw
32 25 0:42 / /run/x\134y/2 ro master:1 propagate_from:2 - nfs4 h:/e rw
33 31 0:43 / /run/x\134y/1 rw - tmpfs none rw
`
	all, err := parseMounts(text)
	must(t, err)
	if m := all[1]; m.id != 31 || m.dev != "0:41" || m.root != "/a b" || m.at != `/run/x\y/1` || !m.readOnly || m.fsType != "fuse.ceph-fuse" {
		t.Errorf("%+v", m)
	}
	if m, ok := topAt(all, `/run/x\y/1`); !ok || m.id != 33 {
		t.Errorf("on top is %+v", m)
	}
	if got := mountedIn(all, `/run/x\y`); !slices.Equal(got, []string{"1", "2"}) {
		t.Errorf("in the folder: %v", got)
	}
	for _, bad := range []string{"x\n", "a b c d e f - g h\n", "1 2 3 - tmpfs\n"} {
		if _, err := parseMounts(bad); err == nil {
			t.Errorf("%q passed", bad)
		}
	}
}

func FuzzParseMounts(f *testing.F) {
	f.Add("25 1 0:23 / /run rw,nosuid shared:5 - tmpfs tmpfs rw\n")
	f.Fuzz(func(_ *testing.T, text string) { _, _ = parseMounts(text) })
}

// TestSentences: each kind of failure has its sentence, which says what to do.
func TestSentences(t *testing.T) {
	for err, want := range map[error]string{
		helper.ErrStuck: sentenceDead, helper.ErrTooManyStuck: sentenceDead, unix.EHOSTUNREACH: sentenceDead,
		unix.EACCES: sentenceRefused, unix.EKEYREJECTED: sentenceRefused, unix.ENODEV: sentenceCannot, unix.EINVAL: sentenceOther,
	} {
		if got := sentence(&ipc.Error{Text: "x", Errno: errnoOf(err)}); errnoOf(err) != 0 && got != want {
			t.Errorf("%v: %s", err, got)
		}
		if got := sentence(err); got != want {
			t.Errorf("%v: %s", err, got)
		}
	}
	if got := sentence(ipc.Mark(kindMarker, unix.ENOENT)); got != sentenceMarker {
		t.Error(got)
	}
}

func errnoOf(err error) unix.Errno {
	errno, _ := err.(unix.Errno) //nolint:errorlint // those of the table are bare
	return errno
}
