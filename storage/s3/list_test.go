package s3

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// model is what a listing of keys must be.
func model(keys []string, prefix, delimiter, after string, most int) (out []string, truncated bool) {
	sort.Strings(keys)
	done := ""
	for _, k := range keys {
		if !strings.HasPrefix(k, prefix) || k <= after {
			continue
		}
		name := k
		if i := strings.Index(k[len(prefix):], delimiter); delimiter != "" && i >= 0 {
			cp := k[:len(prefix)+i+len(delimiter)]
			if cp == done || cp == after {
				continue
			}
			name, done = "PRE "+cp, cp
		}
		if len(out) == most {
			return out, true
		}
		out = append(out, name)
	}
	return out, false
}

// unordered compares a page with the model: an answer has keys and prefixes apart.
func sameNames(a, b []string) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	sort.Strings(a)
	sort.Strings(b)
	return slices.Equal(a, b)
}

func TestListingsAreThoseOfTheModel(t *testing.T) {
	f := newFixture(t)
	round := 0
	rapid.Check(t, func(rt *rapid.T) {
		round++
		f := *f
		base := fmt.Sprintf("r%d/", round)
		part := rapid.SampledFrom([]string{"a", "b", "a-", "a.b", "a0", "ä", "z z", "A", "aa"})
		keys := map[string]bool{}
		for range rapid.IntRange(0, 12).Draw(rt, "files") {
			key := base + strings.Join(rapid.SliceOfN(part, 1, 3).Draw(rt, "path"), "/")
			if rapid.IntRange(0, 4).Draw(rt, "folder") == 0 {
				_ = os.MkdirAll(f.file(key), 0o755)
				continue
			}
			if os.MkdirAll(filepath.Dir(f.file(key)), 0o755) == nil {
				_ = os.WriteFile(f.file(key), nil, 0o644)
			}
		}
		all := walkModel(rt, f.dir, base)
		for _, k := range all {
			keys[k] = true
		}
		prefix := base + rapid.SampledFrom([]string{"", "a", "a/", "a/a", "b", "a-", "none/"}).Draw(rt, "prefix")
		delimiter := rapid.SampledFrom([]string{"", "/", "a", "-", "/a"}).Draw(rt, "delimiter")
		after := rapid.SampledFrom(append([]string{"", base + "a", base + "a/", base + "a/a", base + "a/b/"}, all...)).Draw(rt, "after")
		most := rapid.IntRange(1, 5).Draw(rt, "most")
		l := f.lister(prefix, delimiter, after, most)
		defer l.p.release()
		if err := l.page(); err != nil {
			rt.Fatal(err)
		}
		var got []string
		for _, it := range l.out {
			if it.prefix {
				got = append(got, "PRE "+it.key)
			} else {
				got = append(got, it.key)
			}
		}
		want, truncated := model(all, prefix, delimiter, after, most)
		if !slices.Equal(got, want) || l.truncated != truncated {
			rt.Fatalf("prefix %q delimiter %q after %q most %d of %q:\n got %q %v\nwant %q %v", prefix, delimiter, after, most, all, got, l.truncated, want, truncated)
		}
		// Page by page it is the same as at once.
		want, _ = model(all, prefix, delimiter, "", 1<<30)
		got = nil
		for token := ""; len(got) <= len(want); {
			l := f.lister(prefix, delimiter, token, most)
			err := l.page()
			l.p.release()
			if err != nil {
				rt.Fatal(err)
			}
			for _, it := range l.out {
				name := it.key
				if it.prefix {
					name = "PRE " + name
				}
				got = append(got, name)
			}
			if token = l.last; !l.truncated {
				break
			}
		}
		if !slices.Equal(got, want) {
			rt.Fatalf("pages of %d, prefix %q delimiter %q of %q:\n got %q\nwant %q", most, prefix, delimiter, all, got, want)
		}
	})
}

func (f *fixture) lister(prefix, delimiter, after string, most int) *lister {
	f.t.Helper()
	x := &exchange{h: f.h, access: Access{Volumes: f.source.volumes}, sig: &signature{key: testKey}, r: f.signed(call{method: "GET", path: "/"})}
	p, err := x.open("vol1")
	if err != nil {
		f.t.Fatal(err)
	}
	return &lister{p: p, cache: f.h.names, mostEntries: 1000, prefix: prefix, delimiter: delimiter, after: after, most: most}
}

// walkModel returns the keys of a tree in another way than the code under test.
func walkModel(t *rapid.T, dir, base string) []string {
	var out []string
	_ = filepath.WalkDir(filepath.Join(dir, base), func(path string, e os.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			t.Fatal(err)
		}
		if !e.IsDir() {
			out = append(out, rel)
		} else if inside, _ := os.ReadDir(path); len(inside) == 0 {
			out = append(out, rel+"/")
		}
		return nil
	})
	return out
}

func TestListCalls(t *testing.T) {
	f := newFixture(t)
	for _, key := range []string{"a", "a b+ü", "d/x", "d/y", "e/f/g", "z"} {
		f.put(key, "x")
	}
	f.want(call{method: "PUT", path: "/vol1/made/"}, 200, "")
	f.put("made/in", "x")
	if err := os.Mkdir(f.file("empty"), 0o755); err != nil {
		t.Fatal(err)
	}
	if got := f.list("list-type=2").names(); !slices.Equal(got, []string{"a", "a b+ü", "d/x", "d/y", "e/f/g", "empty/", "made/", "made/in", "z"}) {
		t.Errorf("%q", got)
	}
	p := f.list("delimiter=/&encoding-type=url")
	if !slices.Equal(p.names(), []string{"a", "a%20b%2B%C3%BC", "z", "PRE d/", "PRE e/", "PRE empty/", "PRE made/"}) || p.Contents[0].Owner == nil || p.MaxKeys != 1000 {
		t.Errorf("%q", p.names())
	}
	if p := f.list("list-type=2&prefix=e/f/g"); !slices.Equal(p.names(), []string{"e/f/g"}) || p.KeyCount != 1 || p.Contents[0].Owner != nil {
		t.Errorf("%q", p.names())
	}
	if p := f.list("list-type=2&fetch-owner=true&max-keys=1"); p.Contents[0].Owner == nil || !p.IsTruncated {
		t.Errorf("%v", p)
	}
	if p := f.list("list-type=2&max-keys=0"); p.IsTruncated || len(p.Contents) != 0 {
		t.Errorf("%v", p)
	}
	for _, prefix := range []string{"none/", "a/", "../", "//", hidden + "/", strings.Repeat("n", 300) + "/"} {
		if got := f.list("list-type=2&prefix=" + prefix).names(); len(got) != 0 {
			t.Errorf("%s: %q", prefix, got)
		}
	}
	f.want(call{method: "GET", path: "/vol1", query: "max-keys=x"}, 400, "InvalidArgument")
	f.want(call{method: "GET", path: "/vol1", query: "list-type=2&continuation-token=x!"}, 400, "InvalidArgument")
	f.want(call{method: "GET", path: "/vol1", query: "encoding-type=x"}, 400, "InvalidArgument")
	// The first version's pages, with prefixes.
	var got []string
	for marker, pages := "", 0; pages < 10; pages++ {
		p := f.list("delimiter=/&max-keys=2&marker=" + marker)
		got = append(got, p.names()...)
		if marker = p.NextMarker; !p.IsTruncated {
			break
		}
	}
	if !sameNames(got, []string{"a", "a b+ü", "PRE d/", "PRE e/", "PRE empty/", "PRE made/", "z"}) {
		t.Errorf("%q", got)
	}
}

func TestListingOddities(t *testing.T) {
	f := newFixture(t)
	f.write("blobs/b", "blob")
	f.write("snapshots/x", "x")
	for link, to := range map[string]string{
		"snapshots/link": "../blobs/b", "snapshots/out": "/etc/passwd", "snapshots/up": "../../../../../etc/passwd", "snapshots/none": "nothing",
		"snapshots/loop": "loop", "snapshots/dir": "../blobs", "snapshots/self": ".",
	} {
		if err := os.Symlink(to, f.file(link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(f.file("snapshots/pipe"), 0o644); err != nil {
		t.Fatal(err)
	}
	p := f.list("list-type=2")
	if !slices.Equal(p.names(), []string{"blobs/b", "snapshots/link", "snapshots/x"}) {
		t.Errorf("%q", p.names())
	}
	if f.get("snapshots/link") != "blob" || f.get("snapshots/dir/b") != "blob" {
		t.Error("a link inside the volume is not followed")
	}
	for _, key := range []string{"snapshots/out", "snapshots/up", "snapshots/loop"} {
		f.want(call{method: "GET", path: "/vol1/" + key}, 403, "AccessDenied")
	}
	for _, key := range []string{"snapshots/none", "snapshots/pipe", "snapshots/dir"} {
		f.want(call{method: "GET", path: "/vol1/" + key}, 404, "NoSuchKey")
	}
	f.delete("snapshots/link")
	f.put("snapshots/out", "inside now")
	if raw, err := os.ReadFile(f.file("blobs/b")); err != nil || string(raw) != "blob" {
		t.Errorf("%q %v", raw, err)
	}
}

// many is a folder with many empty files, on a file system in memory.
func many(t testing.TB, f *fixture, n int) {
	t.Helper()
	f.write("many/first", "")
	for i := range n {
		if err := os.Link(f.file("many/first"), f.file(fmt.Sprintf("many/%07d", i))); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(f.file("many/first")); err != nil {
		t.Fatal(err)
	}
	// Names are kept only of folders that are at rest.
	long := time.Now().Add(-time.Hour)
	if err := os.Chtimes(f.file("many"), long, long); err != nil {
		t.Fatal(err)
	}
}

func memory(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "gantry-s3-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func TestManyFilesAreListedOnce(t *testing.T) {
	const n = 100_000
	f := newFixtureIn(t, memory(t), Limits{})
	many(t, f, n)
	next := 0
	for _, from := range []int{0, 40_000, n - 2500} {
		token := ""
		if next = from; from > 0 {
			token = fmt.Sprintf("many/%07d", from-1)
		}
		for range 3 {
			l := f.lister("many/", "", token, 1000)
			l.mostEntries = n + 1
			err := l.page()
			l.p.release()
			if err != nil {
				t.Fatal(err)
			}
			for _, it := range l.out {
				if want := fmt.Sprintf("many/%07d", next); it.key != want {
					t.Fatalf("%s, not %s", it.key, want)
				}
				next++
			}
			if token = l.last; l.truncated != (next < n) {
				t.Fatalf("truncated %v after %d", l.truncated, next)
			}
			// Another process goes on from a token.
			if next == 1000 {
				f.h.names = newNameCache(f.h.limits.CacheEntries)
			}
		}
	}
	if next != n {
		t.Errorf("%d of %d", next, n)
	}
	first := f.list("list-type=2&prefix=many/0099&max-keys=3")
	if !slices.Equal(first.names(), []string{"many/0099000", "many/0099001", "many/0099002"}) {
		t.Errorf("%q", first.names())
	}
	raw, err := base64.RawURLEncoding.DecodeString(first.NextContinuationToken)
	if err != nil || string(raw) != "1many/0099002" {
		t.Errorf("%q %v", raw, err)
	}
	second := f.list("list-type=2&prefix=many/0099&max-keys=3&continuation-token=" + first.NextContinuationToken)
	if !slices.Equal(second.names(), []string{"many/0099003", "many/0099004", "many/0099005"}) {
		t.Errorf("%q", second.names())
	}
	f.h.limits.FolderEntries = 10
	f.h.names = newNameCache(0)
	f.want(call{method: "GET", path: "/vol1", query: "prefix=many/"}, 400, "InvalidRequest")
}

func TestWhatVanishesIsLeftOut(t *testing.T) {
	f := newFixture(t)
	for i := range 50 {
		f.write(fmt.Sprintf("d/%02d", i), "")
	}
	root, err := os.OpenRoot(f.file("d"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	l := f.lister("d/", "", "", 1000)
	defer l.p.release()
	var names []entry
	for i := range 60 { // ten more than there are
		names = append(names, entry{name: fmt.Sprintf("%02d", i)})
	}
	if err := l.files(root, "d/", names); err != nil || len(l.out) != 50 {
		t.Fatalf("%d, %v", len(l.out), err)
	}
}

func TestNameCache(t *testing.T) {
	c := newNameCache(10)
	key := func(ino uint64) folderKey { return folderKey{volume: "v", ino: ino} }
	for i := range uint64(5) {
		c.put(key(i), make([]entry, 3))
		_, _ = c.get(key(0))
	}
	_, first := c.get(key(0))
	_, second := c.get(key(1))
	if c.held > 10 || !first || second {
		t.Errorf("held %d, first %v, second %v", c.held, first, second)
	}
	c.put(key(9), make([]entry, 11))
	if _, ok := c.get(key(9)); ok {
		t.Error("more than fits was kept")
	}
}
