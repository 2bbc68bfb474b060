package archive

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var moment = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

// entry is a tar entry of a test.
type entry struct {
	name, kind, text string // kind: file, dir, link, hard, fifo; text: content or target
	mode             int64
}

func stream(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	kinds := map[string]byte{"": tar.TypeReg, "file": tar.TypeReg, "dir": tar.TypeDir, "link": tar.TypeSymlink, "hard": tar.TypeLink, "fifo": tar.TypeFifo}
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Typeflag: kinds[e.kind], Mode: e.mode, ModTime: moment, Uid: 12345, Gid: 12345}
		if e.mode == 0 {
			h.Mode = 0o644
		}
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(e.text))
		} else {
			h.Linkname = e.text
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			_, _ = io.WriteString(w, e.text)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// unpack unpacks below dir and returns what was left out.
func unpack(dir, as string, data []byte) (left []string, err error) {
	r, err := NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	err = r.Unpack(root, as, func(name, _ string) { left = append(left, name) })
	return left, err
}

// tree lists what is below dir: name, kind or permissions, content or target.
func tree(t testing.TB, dir string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		name, _ := filepath.Rel(dir, p)
		info, err := d.Info()
		if err != nil {
			return err
		}
		text := ""
		switch {
		case info.Mode().IsRegular():
			data, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			text = string(data)
		case info.Mode().Type() == fs.ModeSymlink:
			if text, err = os.Readlink(p); err != nil {
				return err
			}
			out = append(out, fmt.Sprintf("%s -> %s", name, text))
			return nil
		}
		out = append(out, strings.TrimSpace(fmt.Sprintf("%s %v %s", name, info.Mode(), text)))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(out)
	return out
}

func TestUnpack(t *testing.T) {
	folder := []entry{
		{name: "data/", kind: "dir", mode: 0o750},
		{name: "data/run", text: "#!", mode: 0o4755},
		{name: "data/locked/", kind: "dir", mode: 0o555},
		{name: "data/locked/x", text: "in a folder that may not be written"},
		{name: "data/up", kind: "link", text: "locked/../run"},
		{name: "data/locked/run", kind: "link", text: "../run"},
		{name: "data/twin", kind: "hard", text: "data/run"},
	}
	tests := []struct {
		name    string
		before  map[string]string // files that are there
		as      string
		entries []entry
		want    []string
		left    []string
	}{
		{"a file", nil, "b", []entry{{name: "a", text: "1", mode: 0o640}}, []string{"b -rw-r----- 1"}, nil},
		{"an empty file", nil, "a", []entry{{name: "a"}}, []string{"a -rw-r--r--"}, nil},
		{"a file is replaced", map[string]string{"a": "old and longer"}, "a", []entry{{name: "a", text: "1"}}, []string{"a -rw-r--r-- 1"}, nil},
		{
			"a folder", nil, "copy", folder,
			[]string{
				"copy drwxr-x---", "copy/locked dr-xr-xr-x", "copy/locked/run -> ../run", "copy/locked/x -rw-r--r-- in a folder that may not be written",
				"copy/run -rwxr-xr-x #!", "copy/twin -rwxr-xr-x #!",
			},
			[]string{"copy/up"}, // ".." after a word: what that is may be a link
		},
		{
			"a folder's content",
			map[string]string{"run": "old", "mine": "stays"},
			".", folder[:3],
			[]string{"locked dr-xr-xr-x", "mine -rw------- stays", "run -rwxr-xr-x #!"},
			nil,
		},
		{
			"a folder without an entry of its own", nil, "d",
			[]entry{{name: "data/a/b", text: "1"}},
			[]string{"d drwxr-xr-x", "d/a drwxr-xr-x", "d/a/b -rw-r--r-- 1"},
			nil,
		},
		{
			"the root of a pod", nil, "all",
			[]entry{{name: "./", kind: "dir", mode: 0o755}, {name: "./etc/x", text: "1"}},
			[]string{"all drwxr-xr-x", "all/etc drwxr-xr-x", "all/etc/x -rw-r--r-- 1"},
			nil,
		},
		{
			"pipes are left out", nil, "d",
			[]entry{{name: "d/", kind: "dir", mode: 0o755}, {name: "d/p", kind: "fifo"}},
			[]string{"d drwxr-xr-x"},
			[]string{"d/p"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			t.Cleanup(func() { openAll(dir) })
			for name, text := range tt.before {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			left, err := unpack(dir, tt.as, stream(t, tt.entries...))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, tree(t, dir)); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(tt.left, left); diff != "" {
				t.Errorf("left out: %s", diff)
			}
		})
	}
}

// openAll lets what is below dir be removed.
func openAll(dir string) {
	_ = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			_ = os.Chmod(p, 0o700)
		}
		return nil
	})
}

func TestTimesAreKept(t *testing.T) {
	dir := t.TempDir()
	if _, err := unpack(dir, "d", stream(t, entry{name: "d/", kind: "dir", mode: 0o755}, entry{name: "d/a", text: "1"})); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"d", "d/a"} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || !info.ModTime().Equal(moment) {
			t.Errorf("%s: %v %v", name, info.ModTime(), err)
		}
	}
}

// TestHostileStreams sends what a pod may send to get out of its place. Beside the folder that is unpacked into lies
// one whose file must stay as it is.
func TestHostileStreams(t *testing.T) {
	top := entry{name: "d/", kind: "dir", mode: 0o755}
	tests := []struct {
		name    string
		entries []entry
		hostile bool // else: it is left out, or refused by what is there
		left    int
	}{
		{"absolute name", []entry{{name: "/outside/secret", text: "x"}}, true, 0},
		{"dots at the start", []entry{{name: "../outside/secret", text: "x"}}, true, 0},
		{"dots in the middle", []entry{top, {name: "d/../../outside/secret", text: "x"}}, true, 0},
		{"dots alone", []entry{{name: "..", kind: "dir"}}, true, 0},
		{"another top", []entry{top, {name: "e", text: "x"}}, true, 0},
		{"a top with the same beginning", []entry{top, {name: "dd/x", text: "x"}}, true, 0},
		{"a link out, then a file through it", []entry{top, {name: "d/l", kind: "link", text: "../../outside"}, {name: "d/l/secret", text: "x"}}, false, 1},
		{"an absolute link, then a file through it", []entry{top, {name: "d/l", kind: "link", text: "/"}, {name: "d/l/secret", text: "x"}}, false, 1},
		{"a link inside, then a file through it", []entry{top, {name: "d/l", kind: "link", text: "."}, {name: "d/l/x", text: "x"}}, false, 0},
		{"a link to a file, then the file", []entry{top, {name: "d/l", kind: "link", text: "../../outside/secret"}, {name: "d/l", text: "x"}}, false, 1},
		{"two links that together lead out", []entry{
			top,
			{name: "d/a/", kind: "dir", mode: 0o755},
			{name: "d/a/l", kind: "link", text: ".."},
			{name: "d/m", kind: "link", text: "a/l/../../outside"},
			{name: "d/m/secret", text: "x"},
		}, false, 1},
		{"the top is a link", []entry{{name: "d", kind: "link", text: "../outside"}, {name: "d/secret", text: "x"}}, false, 1},
		{"a second name of a file outside", []entry{top, {name: "d/h", kind: "hard", text: "../outside/secret"}, {name: "d/h", text: "x"}}, true, 0},
		{"a second name by an absolute path", []entry{top, {name: "d/h", kind: "hard", text: "/etc/passwd"}}, true, 0},
		{"a second name of a link", []entry{top, {name: "d/l", kind: "link", text: "x"}, {name: "d/h", kind: "hard", text: "d/l"}}, false, 1},
		{"a second name of nothing", []entry{top, {name: "d/h", kind: "hard", text: "d/nothing"}}, false, 1},
		{"a folder in the place of a file", []entry{top, {name: "d/x", text: "1"}, {name: "d/x/", kind: "dir"}}, false, 0},
		{"a file in the place of a folder", []entry{top, {name: "d/x/", kind: "dir"}, {name: "d/x", text: "1"}}, false, 0},
		{"a file below a file", []entry{top, {name: "d/x", text: "1"}, {name: "d/x/y", text: "1"}}, false, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			base := t.TempDir()
			check := guard(t, base)
			left, err := unpack(filepath.Join(base, "in"), "d", stream(t, tt.entries...))
			if errors.Is(err, ErrHostile) != tt.hostile {
				t.Errorf("got %v", err)
			}
			if !tt.hostile && tt.left == 0 && err == nil {
				t.Error("it was taken over")
			}
			if len(left) != tt.left {
				t.Errorf("left out %q", left)
			}
			check()
		})
	}
}

// guard makes the folders in and outside below base, and returns what checks that outside is as it was, and that no
// link below in leads out of it.
func guard(t testing.TB, base string) func() {
	t.Helper()
	for _, name := range []string{"in", "outside"} {
		if err := os.Mkdir(filepath.Join(base, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(base, "outside", "secret"), []byte("untouched"), 0o600); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		openAll(filepath.Join(base, "in"))
		if diff := cmp.Diff([]string{"secret -rw------- untouched"}, tree(t, filepath.Join(base, "outside"))); diff != "" {
			t.Errorf("outside: %s", diff)
		}
		beside, err := os.ReadDir(base)
		if err != nil || len(beside) != 2 {
			t.Errorf("beside: %v %v", beside, err)
		}
		root, err := os.OpenRoot(filepath.Join(base, "in"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = root.Close() }()
		_ = filepath.WalkDir(filepath.Join(base, "in"), func(p string, d fs.DirEntry, err error) error {
			name, _ := filepath.Rel(filepath.Join(base, "in"), p)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				return nil
			}
			if strings.HasPrefix(d.Name(), ".gantry-part-") {
				t.Errorf("%s was left behind", name)
			}
			if _, err := root.Stat(name); err != nil && strings.Contains(err.Error(), "escapes") {
				t.Errorf("%s leads out", name)
			}
			return nil
		})
	}
}

// TestExistingLinksAreNotFollowed has links of this machine in the folder that is copied into.
func TestExistingLinksAreNotFollowed(t *testing.T) {
	for _, entries := range [][]entry{
		{{name: "d/", kind: "dir", mode: 0o755}, {name: "d/l/secret", text: "x"}},
		{{name: "d/", kind: "dir", mode: 0o755}, {name: "d/l/", kind: "dir", mode: 0o700}},
		{{name: "d/", kind: "dir", mode: 0o755}, {name: "d/f", text: "x"}},
	} {
		base := t.TempDir()
		check := guard(t, base)
		in := filepath.Join(base, "in")
		for name, target := range map[string]string{"l": "../outside", "f": "../outside/secret"} {
			if err := os.Symlink(target, filepath.Join(in, name)); err != nil {
				t.Fatal(err)
			}
		}
		_, err := unpack(in, ".", stream(t, entries...))
		if last := entries[len(entries)-1].name; (err == nil) != (last == "d/f") {
			t.Errorf("%s: %v", last, err)
		}
		for _, name := range []string{"l", "f"} {
			_ = os.Remove(filepath.Join(in, name)) // ours, or the file that took its place
		}
		check()
	}
}

func TestSpecialFilesAreNotReplaced(t *testing.T) {
	dir := t.TempDir()
	if err := mkfifo(filepath.Join(dir, "p")); err != nil {
		t.Fatal(err)
	}
	if _, err := unpack(dir, "p", stream(t, entry{name: "p", text: "x"})); err == nil {
		t.Error("a pipe was replaced")
	}
}

func TestBrokenStreams(t *testing.T) {
	whole := stream(t, entry{name: "d/", kind: "dir", mode: 0o755}, entry{name: "d/a", text: strings.Repeat("x", 3000)})
	// The file's header begins at 512, its 3000 bytes at 1024; it is padded to 4096, where the end's mark begins.
	for _, cut := range []int{0, 100, 512, 600, 1024, 1100, 2000, 4023} {
		dir := t.TempDir()
		if _, err := unpack(dir, "d", whole[:cut]); err == nil {
			t.Errorf("%d bytes were taken for a whole stream", cut)
		}
		if err := Copy(io.Discard, bytes.NewReader(whole[:cut])); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%d bytes were copied as a whole stream: %v", cut, err)
		}
		if _, err := os.Stat(filepath.Join(dir, "d", "a")); err == nil {
			t.Errorf("%d bytes: a part of a file is there under its name", cut)
		}
		if entries, _ := os.ReadDir(filepath.Join(dir, "d")); len(entries) > 0 {
			t.Errorf("%d bytes: %v was left behind", cut, entries)
		}
	}
	for _, cut := range []int{4096, 4608, 5119} { // every file is there, and the end is not
		if _, err := unpack(t.TempDir(), "d", whole[:cut]); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%d bytes were taken for a whole stream: %v", cut, err)
		}
	}
	var copied bytes.Buffer
	if err := Copy(&copied, bytes.NewReader(whole)); err != nil || !bytes.Equal(copied.Bytes(), whole) {
		t.Errorf("copied %d of %d bytes: %v", copied.Len(), len(whole), err)
	}
	broken := errors.New("broken")
	r, err := NewReader(io.MultiReader(bytes.NewReader(whole), failing{broken}))
	if err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	if err := r.Unpack(root, "d", func(string, string) {}); !errors.Is(err, broken) {
		t.Errorf("a stream that broke off after its end: %v", err)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }
