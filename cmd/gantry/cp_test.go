package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gantry/client/archive"
)

// box is an API whose one pod has a folder of this machine as its root.
type box struct {
	t    *testing.T
	root string
	url  string
	raw  []byte // what is answered instead of a file; nil: the file
}

func newBox(t *testing.T) *box {
	b := &box{t: t, root: t.TempDir()}
	srv := httptest.NewServer(b)
	t.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
	})
	b.url = srv.URL
	return b
}

func (b *box) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	at := filepath.Join(b.root, r.URL.Query().Get("path"))
	switch r.Method + " " + r.URL.Path {
	case "GET /v2/pods":
		_, _ = io.WriteString(w, `{"pods":[`+podJSON(map[string]any{"status": "RUNNING"})+`]}`)
	case "GET /v2/pods/" + podID:
		_, _ = io.WriteString(w, podJSON(map[string]any{"status": "RUNNING"}))
	case "GET /v2/pods/" + podID + "/files":
		if _, err := os.Stat(at); err != nil && b.raw == nil {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", "application/x-tar")
		if b.raw != nil {
			_, _ = w.Write(b.raw)
			return
		}
		name := filepath.Base(at)
		if at == b.root {
			name = "root"
		}
		_ = archive.Pack(w, at, name, func(string, string) {})
	case "PUT /v2/pods/" + podID + "/files":
		if info, err := os.Stat(at); err != nil || !info.IsDir() {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		if err := extract(at, r.Body); err != nil {
			b.t.Errorf("unpack in the pod: %v", err)
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

// extract unpacks a stream that this test's own command line made.
func extract(dir string, r io.Reader) error {
	for in := tar.NewReader(r); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		at := filepath.Join(dir, h.Name)
		switch h.Typeflag {
		case tar.TypeDir:
			err = os.MkdirAll(at, 0o700)
		case tar.TypeSymlink:
			err = os.Symlink(h.Linkname, at)
		default:
			var data []byte
			if data, err = io.ReadAll(in); err == nil {
				_ = os.Remove(at)
				err = os.WriteFile(at, data, fs.FileMode(h.Mode))
			}
		}
		if err != nil {
			return err
		}
	}
}

// cp runs pod cp in a folder. $POD and $HERE in the arguments are the pod and that folder.
func (b *box) cp(here string, stdin io.Reader, args ...string) (result, []byte) {
	b.t.Helper()
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "$HERE", here)
	}
	env := map[string]string{"GANTRY_API": b.url, "GANTRY_API_KEY": "gk_user", "HOME": here}
	var out, errOut bytes.Buffer
	code := run(context.Background(), append([]string{"pod", "cp"}, args...), system{
		in: stdin, out: &out, err: &errOut, now: time.Now, width: func() int { return 80 },
		env: func(name string) (string, bool) { v, ok := env[name]; return v, ok },
	})
	return result{Code: code, Err: strings.ReplaceAll(errOut.String(), here, "$HERE")}, out.Bytes()
}

// fill makes files, folders (a slash at the end) and links ("a -> b") below a folder.
func fill(t *testing.T, dir string, entries ...string) {
	t.Helper()
	for _, e := range entries {
		name, target, isLink := strings.Cut(e, " -> ")
		at := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(at), 0o755)
		switch {
		case err != nil:
		case isLink:
			err = os.Symlink(target, at)
		case strings.HasSuffix(e, "/"):
			err = os.MkdirAll(at, 0o755)
		default:
			err = os.WriteFile(at, []byte("text of "+filepath.Base(name)), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// found lists what is below a folder, as fill takes it.
func found(t *testing.T, dir string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		name, _ := filepath.Rel(dir, p)
		switch {
		case d.IsDir():
			name += "/"
		case d.Type() == fs.ModeSymlink:
			target, _ := os.Readlink(p)
			name += " -> " + target
		}
		out = append(out, name)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(out)
	return out
}

// TestCopies copies down and up: both ways have the same meaning.
func TestCopies(t *testing.T) {
	tests := []struct {
		name     string
		src, dst []string // what is there on the two sides
		from, to string
		want     []string // on the receiving side
		code     int
	}{
		{"a file to a new name", []string{"a"}, nil, "/a", "/b", []string{"b"}, 0},
		{"a file over a file", []string{"a"}, []string{"b"}, "/a", "/b", []string{"b"}, 0},
		{"a file into a folder", []string{"a"}, []string{"d/"}, "/a", "/d", []string{"d/", "d/a"}, 0},
		{"a file into a folder, with a slash", []string{"x/a"}, []string{"d/"}, "/x/a", "/d/", []string{"d/", "d/a"}, 0},
		{"a file into a folder that is not there", []string{"a"}, nil, "/a", "/d/", nil, 2},
		{"a file into the root", []string{"a"}, nil, "/a", "/", []string{"a"}, 0},
		{"a folder to a new name", []string{"s/a", "s/e/", "s/l -> a"}, nil, "/s", "/d", []string{"d/", "d/a", "d/e/", "d/l -> a"}, 0},
		{"a folder to a new name, with a slash", []string{"s/a"}, nil, "/s", "/d/", []string{"d/", "d/a"}, 0},
		{"a folder into a folder", []string{"s/a"}, []string{"d/x"}, "/s", "/d", []string{"d/", "d/s/", "d/s/a", "d/x"}, 0},
		{"a folder's content into a folder", []string{"s/a", "s/b/c"}, []string{"d/x"}, "/s/.", "/d", []string{"d/", "d/a", "d/b/", "d/b/c", "d/x"}, 0},
		{"a folder's content to a new name", []string{"s/a"}, nil, "/s/.", "/d", []string{"d/", "d/a"}, 0},
		{"a folder over a file", []string{"s/a"}, []string{"d"}, "/s", "/d", []string{"d"}, 2},
		{"a file as a folder", []string{"a"}, nil, "/a/", "/b", nil, 2},
		{"a file's content", []string{"a"}, nil, "/a/.", "/b", nil, 2},
		{"below a file", []string{"a"}, []string{"f"}, "/a", "/f/b", []string{"f"}, 2},
		{"into a folder that is not there", []string{"a"}, nil, "/a", "/no/b", nil, 2},
		{"nothing", []string{"a"}, nil, "/b", "/c", nil, 2},
	}
	for _, tt := range tests {
		for _, way := range []string{"down", "up"} {
			t.Run(tt.name+", "+way, func(t *testing.T) {
				b, here := newBox(t), t.TempDir()
				src, dst := b.root, here
				args := []string{podID + ":" + tt.from, "$HERE" + tt.to}
				if way == "up" {
					src, dst = here, b.root
					args = []string{"$HERE" + tt.from, podID + ":" + tt.to}
				}
				fill(t, src, tt.src...)
				fill(t, dst, tt.dst...)
				got, _ := b.cp(here, nil, args...)
				want := tt.code
				if want != 0 && got.Code == exitNotFound { // of a path in the pod
					want = exitNotFound
				}
				if got.Code != want {
					t.Errorf("%+v", got)
				}
				if diff := cmp.Diff(tt.want, found(t, dst)); diff != "" {
					t.Errorf("%s\n%s", diff, got.Err)
				}
			})
		}
	}
}

func TestCopyFollowsTheCurrentFolder(t *testing.T) {
	b, here := newBox(t), t.TempDir()
	fill(t, b.root, "srv/model")
	t.Chdir(here)
	if got, _ := b.cp(here, nil, "web:/srv/model", "."); got.Code != 0 {
		t.Errorf("%+v", got)
	}
	if got, _ := b.cp(here, nil, ".", "web:/srv"); got.Code != 0 {
		t.Errorf("%+v", got)
	}
	if got, _ := b.cp(here, nil, "./model", "web:/copy"); got.Code != 0 {
		t.Errorf("%+v", got)
	}
	if diff := cmp.Diff([]string{"copy", "srv/", "srv/model"}, found(t, b.root)); diff != "" {
		t.Error(diff)
	}
	text, err := os.ReadFile(filepath.Join(here, "model"))
	if err != nil || string(text) != "text of model" {
		t.Errorf("%q %v", text, err)
	}
}

func TestCopyStreams(t *testing.T) {
	b, here := newBox(t), t.TempDir()
	fill(t, b.root, "s/a", "s/b/c", "d/")
	got, out := b.cp(here, nil, "web:/s", "-")
	if got.Code != 0 {
		t.Fatalf("%+v", got)
	}
	if got, _ := b.cp(here, bytes.NewReader(out), "-", "web:/d"); got.Code != 0 {
		t.Errorf("%+v", got)
	}
	if diff := cmp.Diff([]string{"d/", "d/s/", "d/s/a", "d/s/b/", "d/s/b/c", "s/", "s/a", "s/b/", "s/b/c"}, found(t, b.root)); diff != "" {
		t.Error(diff)
	}
	b.raw = out[:len(out)-1024]
	if got, _ := b.cp(here, nil, "web:/s", "-"); got.Code != exitFailed || !strings.Contains(got.Err, "unexpected EOF") {
		t.Errorf("cut off: %+v", got)
	}
}

func TestCopyTellsWhatItLeftOut(t *testing.T) {
	b, here := newBox(t), t.TempDir()
	fill(t, b.root, "s/a", "s/out -> ../../etc", "s/abs -> /etc/passwd", "s/in -> a")
	got, _ := b.cp(here, nil, "web:/s", "$HERE/d")
	want := result{Code: 1, Err: `gantry: left out d/abs: a link that leads out of what is copied
gantry: left out d/out: a link that leads out of what is copied
gantry: 2 entries left out; the rest was copied
`}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"d/", "d/a", "d/in -> a"}, found(t, here)); diff != "" {
		t.Error(diff)
	}
}

// TestCopyOfAHostilePod asks for a harmless file and is sent something else.
func TestCopyOfAHostilePod(t *testing.T) {
	b, here := newBox(t), t.TempDir()
	fill(t, here, "in/", "beside")
	for _, name := range []string{"../beside", "/tmp/x", "a/../../beside", "\x1b[2J/../x"} {
		var raw bytes.Buffer
		w := tar.NewWriter(&raw)
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: 4}); err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(w, "evil")
		_ = w.Close()
		b.raw = raw.Bytes()
		got, _ := b.cp(here, nil, "web:/a", "$HERE/in")
		if got.Code != exitFailed || !strings.Contains(got.Err, "a path outside the requested folder") || strings.Contains(got.Err, "\x1b") {
			t.Errorf("%q: %+v", name, got)
		}
	}
	if diff := cmp.Diff([]string{"beside", "in/"}, found(t, here)); diff != "" {
		t.Error(diff)
	}
}

func TestCopyWhereNothingIs(t *testing.T) {
	b, here := newBox(t), t.TempDir()
	fill(t, here, "a")
	for want, args := range map[string][]string{
		"/no: no such file or folder in the pod":   {"web:/no", "$HERE"},
		"/no/b: no such file or folder in the pod": {"$HERE/a", "web:/no/b/c"},
		"no pod has the id or name other":          {"other:/a", "$HERE"},
		"no pod has the id or name zzzzzzzzzzzzzz": {"zzzzzzzzzzzzzz:/a", "$HERE"},
	} {
		if got, _ := b.cp(here, nil, args...); got.Code != exitNotFound || !strings.Contains(got.Err, want) {
			t.Errorf("%q: %+v, want %s", args, got, want)
		}
	}
}

func TestPodPath(t *testing.T) {
	for text, want := range map[string]string{
		"web:/a": "web /a", "web:/": "web /", "my:pod:/a:/b": "my:pod /a:/b", "web:a": "", "./web:/a": "", "/web:/a": "", ":/a": "", "web": "", "": "",
	} {
		pod, p, ok := podPath(text)
		got := ""
		if ok {
			got = fmt.Sprint(pod, " ", p)
		}
		if got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
