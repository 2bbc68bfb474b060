package s3

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const outsideSecret = "what lies outside of the volume"

// TestNoLinkLeadsOut has a tenant who turns names into links, folders, pipes and files while S3 works on them.
func TestNoLinkLeadsOut(t *testing.T) {
	dir := memory(t)
	f := newFixtureIn(t, dir, Limits{})
	outside := filepath.Join(dir, "outside")
	if err := os.MkdirAll(filepath.Join(outside, "in"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"file", "in/file"} {
		if err := os.WriteFile(filepath.Join(outside, name), []byte(outsideSecret), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	before := tree(t, outside)
	ctx, cancel := context.WithTimeout(context.Background(), 1500*time.Millisecond)
	defer cancel()
	var all sync.WaitGroup
	for _, spare := range []string{"pipe1", "pipe2"} {
		all.Go(func() {
			if err := flip(ctx, f.dir, outside, spare); err != nil {
				t.Error(err)
			}
		})
	}
	for i := range 6 {
		all.Go(func() {
			for n := i; ctx.Err() == nil; n++ {
				f.attackedCall(n)
			}
		})
	}
	all.Wait()
	if after := tree(t, outside); after != before {
		t.Errorf("outside the volume:\n%s\nbefore:\n%s", after, before)
	}
}

// flip turns names of a volume into one thing after the other. It takes care not to leave the volume itself.
func flip(ctx context.Context, dir, outside string, spare string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	names := []string{"a", "a/in", "a/file", hidden, hidden + "/in"}
	write := func(name string) {
		if f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755); err == nil {
			_, _ = f.WriteString("inside")
			_ = f.Close()
		}
	}
	for ctx.Err() == nil {
		name := names[rand.IntN(len(names))]
		_ = root.RemoveAll(name)
		switch rand.IntN(7) {
		case 0:
			_ = root.Symlink(outside, name)
		case 1:
			_ = root.Symlink(filepath.Join(outside, "file"), name)
		case 2:
			_ = root.Symlink("../outside", name)
		case 3:
			write(name)
		case 4:
			_ = unix.Mkfifo(filepath.Join(dir, spare), 0o644)
			_ = root.Rename(spare, name)
		case 5:
			_ = root.Symlink("a/..", name)
		case 6:
			_ = root.MkdirAll(name+"/in", 0o755)
			write(name + "/file")
		}
	}
	return nil
}

// attackedCall does a call whose result is whatever the tenant made of it, but never what lies outside.
func (f *fixture) attackedCall(n int) {
	keys := []string{"a", "a/file", "a/in/file", "a/in/", "a/file/x"}
	path := "/vol1/" + keys[rand.IntN(len(keys))]
	calls := []call{
		{method: "GET", path: path},
		{method: "PUT", path: path, body: []byte("from s3")},
		{method: "DELETE", path: path},
		{method: "GET", path: "/vol1", query: "list-type=2"},
		{method: "GET", path: "/vol1", query: "list-type=2&prefix=a/&delimiter=/"},
		{method: "PUT", path: path, header: headers("X-Amz-Copy-Source", "/vol1/a/file")},
		{method: "PUT", path: "/vol1/a/file", header: headers("X-Amz-Copy-Source", "/vol1/a/file", "X-Amz-Metadata-Directive", "REPLACE")},
		{method: "POST", path: path, query: "uploads="},
		{method: "GET", path: "/vol1", query: "uploads="},
		{method: "POST", path: "/vol1", query: "delete=", body: []byte("<Delete><Object><Key>a/file</Key></Object><Object><Key>a/in/</Key></Object></Delete>")},
	}
	got, err := testClient.Do(f.signed(calls[n%len(calls)]))
	if err != nil {
		f.t.Error(err)
		return
	}
	defer func() { _ = got.Body.Close() }()
	// A file that was cut while it was sent ends early.
	raw, err := io.ReadAll(got.Body)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		f.t.Error(err)
	}
	if strings.Contains(string(raw), outsideSecret) {
		f.t.Errorf("%s %s read %s", calls[n%len(calls)].method, path, raw)
	}
	if got.StatusCode == http.StatusInternalServerError {
		f.t.Errorf("%s %s: %s", calls[n%len(calls)].method, path, raw)
	}
}

// tree describes all of a folder.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		var raw []byte
		if info.Mode().IsRegular() {
			raw, err = os.ReadFile(path)
		}
		st := info.Sys().(*syscall.Stat_t) //nolint:forcetypeassert // Linux
		b.WriteString(path + " " + info.Mode().String() + " " + info.ModTime().String() + " " + string(raw) + " " + time.Unix(st.Ctim.Unix()).String() + "\n")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestNothingBlocksOnAPipe(t *testing.T) {
	f := newFixture(t)
	for _, name := range []string{"pipe", "pipes"} {
		if err := unix.Mkfifo(f.file(name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	f.want(call{method: "GET", path: "/vol1/pipe"}, 404, "NoSuchKey")
	f.want(call{method: "GET", path: "/vol1/pipe/a"}, 404, "NoSuchKey")
	f.want(call{method: "PUT", path: "/vol1/pipe/a"}, 409, "ObjectParentIsFile")
	f.want(call{method: "PUT", path: "/vol1/pipe/"}, 409, "ObjectParentIsFile")
	if got := f.list("list-type=2&prefix=pipe/").names(); len(got) != 0 {
		t.Errorf("%q", got)
	}
	root, err := os.OpenRoot(f.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	// The name was a folder when it was read, and is a pipe when it is opened.
	if sub, err := openRoot(root, "pipe/"); err == nil {
		_ = sub.Close()
		t.Error("a pipe was opened as a folder")
	}
	f.put("pipe", "a file now")
	f.delete("pipes")
	if f.get("pipe") != "a file now" || f.exists("pipes") {
		t.Error("the pipes are still there")
	}
}

const testOwner = 0x80010000

func TestFilesBelongToTheVolume(t *testing.T) {
	f := newFixture(t)
	f.source.owner = testOwner
	if err := os.Chown(f.dir, testOwner, testOwner); err != nil {
		t.Fatal(err)
	}
	f.put("d/a", "x")
	f.want(call{method: "PUT", path: "/vol1/folder/"}, 200, "")
	id := f.create("u")
	f.want(partCall("u", id, 1, "one"), 200, "")
	f.want(partCall("u", id, 2, "two"), 200, "")
	f.want(completeCall("u", id, map[int]string{1: md5Of("one"), 2: md5Of("two")}, 1, 2), 200, "")
	f.want(call{method: "PUT", path: "/vol1/copy", header: headers("X-Amz-Copy-Source", "/vol1/d/a")}, 200, "")
	for _, name := range []string{hidden, "d", "d/a", "folder", "u", "copy"} {
		var st unix.Stat_t
		if err := unix.Lstat(f.file(name), &st); err != nil {
			t.Fatal(err)
		}
		if st.Uid != testOwner || st.Gid != testOwner {
			t.Errorf("%s belongs to %d:%d", name, st.Uid, st.Gid)
		}
		if mode := st.Mode & 0o7777; mode != 0o644 && mode != 0o755 && name != hidden {
			t.Errorf("%s has mode %o", name, mode)
		}
	}
	// A pod's user 1000 made a file and a folder for himself.
	f.write("private/file", "private")
	for name, mode := range map[string]os.FileMode{"private/file": 0o600, "private": 0o700} {
		if err := os.Chmod(f.file(name), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(f.file(name), testOwner+1000, testOwner+1000); err != nil {
			t.Fatal(err)
		}
	}
	if f.get("private/file") != "private" {
		t.Error("a private file cannot be read")
	}
	if got := f.list("list-type=2&prefix=private/").names(); len(got) != 1 {
		t.Errorf("%q", got)
	}
	f.want(call{method: "PUT", path: "/vol1/private/file", header: headers("X-Amz-Copy-Source", "/vol1/private/file", "X-Amz-Metadata-Directive", "REPLACE", "X-Amz-Meta-A", "1")}, 200, "")
	f.put("private/file", "replaced")
	f.delete("private/file")
	// No thread keeps the ids.
	for range 64 {
		if uid, _ := unix.SetfsuidRetUid(-1); uid != os.Geteuid() {
			t.Fatalf("a thread is %d", uid)
		}
	}
}

func TestADeadVolumeTakesFewThreads(t *testing.T) {
	f := newFixtureIn(t, t.TempDir(), Limits{VolumeRequests: 2, Wait: 100 * time.Millisecond})
	f.source.hang = make(chan struct{})
	results := make(chan string, 6)
	for range cap(results) {
		r := f.signed(call{method: "GET", path: "/vol1/a"})
		go func() {
			got, err := testClient.Do(r)
			if err != nil {
				results <- err.Error()
				return
			}
			raw, _ := io.ReadAll(got.Body)
			_ = got.Body.Close()
			results <- reply{body: raw}.code()
		}()
	}
	for range cap(results) - 2 {
		if code := <-results; code != "SlowDown" {
			t.Errorf("refused with %s", code)
		}
	}
	close(f.source.hang)
	for range 2 {
		if code := <-results; code != "NoSuchKey" {
			t.Errorf("answered with %s", code)
		}
	}
}

// TestAStuckRequestLetsOthersIn: a request that a dead file system keeps is not counted among those of all volumes.
func TestAStuckRequestLetsOthersIn(t *testing.T) {
	h := New(Config{Limits: Limits{Requests: 1, Stall: 40 * time.Millisecond}})
	if err := h.requests.take(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	s := &seat{h: h}
	p := &place{ctx: t.Context(), stall: h.limits.Stall, seat: s, threads: make(tokens, 1), folder: &Folder{}}
	hang, done := make(chan struct{}), make(chan error)
	go func() { done <- p.act(func() error { <-hang; return nil }) }()
	if err := h.requests.take(t.Context(), 10*time.Second); err != nil {
		t.Error(err)
	}
	close(hang)
	if err := <-done; err != nil {
		t.Error(err)
	}
	s.end()
	if len(h.requests) != 1 || len(h.stuck) != 0 {
		t.Errorf("%d requests, %d stuck", len(h.requests), len(h.stuck))
	}
}

// TestAnAccountIsNotAll: one with many volumes leaves room for others.
func TestAnAccountIsNotAll(t *testing.T) {
	f := newFixtureIn(t, t.TempDir(), Limits{AccountRequests: 1, Wait: 50 * time.Millisecond})
	f.source.hang = make(chan struct{})
	first := f.signed(call{method: "GET", path: "/vol1/a"})
	done := make(chan struct{})
	go func() {
		defer close(done)
		if got, err := testClient.Do(first); err == nil {
			_ = got.Body.Close()
		}
	}()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		f.h.mu.Lock()
		account := f.h.volumes["/acc1"]
		f.h.mu.Unlock()
		if account != nil && len(account.requests) == 1 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the first request did not come")
		}
	}
	f.want(call{method: "GET", path: "/vol2/a"}, 503, "SlowDown")
	close(f.source.hang)
	<-done
}

// TestABrokenFolderIsToldOf: one of a server that was set up anew is of no use however long it is kept.
func TestABrokenFolderIsToldOf(t *testing.T) {
	told := 0
	for code, want := range map[error]int{unix.ESTALE: 1, unix.ENOTCONN: 1, unix.ENOENT: 0, unix.ENOSPC: 0} {
		told = 0
		x := &exchange{
			h: New(Config{}), w: httptest.NewRecorder(), r: httptest.NewRequest(http.MethodGet, "/vol1/a", nil),
			place: &place{folder: &Folder{Broken: func() { told++ }}},
		}
		x.control = http.NewResponseController(x.w)
		x.fail(&os.PathError{Op: "openat", Path: "a", Err: code})
		if told != want {
			t.Errorf("%v: told %d times", code, told)
		}
	}
}

func TestAFullVolumeSaysSo(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	f := newFixtureIn(t, dir, Limits{})
	f.put("small", "x")
	f.want(call{method: "PUT", path: "/vol1/big", body: make([]byte, 2<<20)}, 507, "QuotaExceeded")
	f.want(call{method: "PUT", path: "/vol1/big", body: make([]byte, 2<<20), payload: streamingUnsigned, chunk: 100_000}, 507, "QuotaExceeded")
	f.leftovers()
	f.put("small2", "x")
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	f.want(call{method: "PUT", path: "/vol1/a"}, 403, "AccessDenied")
	f.want(call{method: "DELETE", path: "/vol1/small"}, 403, "AccessDenied")
}
