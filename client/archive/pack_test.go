package archive

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func mkfifo(path string) error { return unix.Mkfifo(path, 0o600) }

// sample makes a folder with one of everything.
func sample(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "site")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(filepath.Join(dir, "sub", "empty"), 0o755))
	must(os.WriteFile(filepath.Join(dir, "index.html"), []byte("hello"), 0o644))
	must(os.WriteFile(filepath.Join(dir, "sub", "run"), []byte("#!"), 0o755))
	must(os.Symlink("../index.html", filepath.Join(dir, "sub", "link")))
	must(os.Chmod(filepath.Join(dir, "sub"), 0o750))
	return dir
}

func TestPackAndUnpackAgain(t *testing.T) {
	src := sample(t)
	for _, name := range []string{"other", "."} {
		var buf bytes.Buffer
		if err := Pack(&buf, src, name, func(name, why string) { t.Errorf("left out %s: %s", name, why) }); err != nil {
			t.Fatal(err)
		}
		data := buf.Bytes()
		if name == "." { // as a pod would send it: a folder below a top
			data = below(t, "top", data)
		}
		dst := t.TempDir()
		as := map[string]string{"other": "copy", ".": "copy"}[name]
		if _, err := unpack(dst, as, data); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tree(t, src), tree(t, filepath.Join(dst, "copy"))); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// below puts all entries of a stream below a folder.
func below(t *testing.T, top string, data []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for r := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		h.Name = top + "/" + h.Name
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(w, r); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestPackedEntries(t *testing.T) {
	src := sample(t)
	link := filepath.Join(t.TempDir(), "to-a-file")
	if err := os.Symlink(filepath.Join(src, "index.html"), link); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		src, name string
		want      []string
	}{
		"folder":             {src, "s", []string{"s/ 755", "s/index.html 644", "s/sub/ 750", "s/sub/empty/ 755", "s/sub/link -> ../index.html", "s/sub/run 755"}},
		"content":            {src, ".", []string{"index.html 644", "sub/ 750", "sub/empty/ 755", "sub/link -> ../index.html", "sub/run 755"}},
		"file":               {filepath.Join(src, "index.html"), "x", []string{"x 644"}},
		"link at the top":    {link, "x", []string{"x 644"}},
		"a slash at the end": {src + "/sub/", "s", []string{"s/ 750", "s/empty/ 755", "s/link -> ../index.html", "s/run 755"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var buf bytes.Buffer
			if err := Pack(&buf, tt.src, tt.name, func(string, string) {}); err != nil {
				t.Fatal(err)
			}
			var got []string
			for r := tar.NewReader(&buf); ; {
				h, err := r.Next()
				if err != nil {
					break
				}
				line := fmt.Sprintf("%s %o", h.Name, h.Mode)
				if h.Typeflag == tar.TypeSymlink {
					line = h.Name + " -> " + h.Linkname
				}
				if h.Uid != 0 || h.Gid != 0 || h.Uname != "" || h.Gname != "" {
					line += " belongs to somebody"
				}
				got = append(got, line)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestPackLeavesOutWhatIsNoFile(t *testing.T) {
	dir := t.TempDir()
	if err := mkfifo(filepath.Join(dir, "pipe")); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(dir, "socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	var left []string
	if err := Pack(io.Discard, dir, "d", func(name, _ string) { left = append(left, filepath.Base(name)) }); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"pipe", "socket"}, left); diff != "" {
		t.Error(diff)
	}
}

func TestPackFails(t *testing.T) {
	if err := Pack(io.Discard, filepath.Join(t.TempDir(), "nothing"), "x", func(string, string) {}); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("missing: %v", err)
	}
	full := errors.New("full")
	if err := Pack(refusing{full}, sample(t), "x", func(string, string) {}); !errors.Is(err, full) {
		t.Errorf("nowhere to write: %v", err)
	}
}

type refusing struct{ err error }

func (r refusing) Write([]byte) (int, error) { return 0, r.err }
