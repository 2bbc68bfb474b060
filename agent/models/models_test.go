package models

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/test/modelhub"
)

const (
	first  = "1111111111111111111111111111111111111111"
	second = "2222222222222222222222222222222222222222"
	mb     = 1_000_000
)

// world is a cache with its hub.
type world struct {
	*testing.T
	hub     *modelhub.Hub
	cache   *Cache
	dir     string
	ended   sync.Map // pods that have
	changed atomic.Int64
	counts  counts
	log     text
	end     func()
}

// counts are Metrics.
type counts struct{ fetched, good, bad, removed, used atomic.Int64 }

func (c *counts) Models(used, _ int64) { c.used.Store(used) }
func (c *counts) Fetched(n int64)      { c.fetched.Add(n) }
func (c *counts) ModelsRemoved(n int)  { c.removed.Add(int64(n)) }
func (c *counts) ModelFetch(ok bool) {
	if ok {
		c.good.Add(1)
	} else {
		c.bad.Add(1)
	}
}

// text is what was logged.
type text struct {
	mu sync.Mutex
	bytes.Buffer
}

func (l *text) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Buffer.Write(b)
}

func (l *text) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Buffer.String()
}

func newWorld(t *testing.T, size int64) *world {
	t.Helper()
	w := &world{T: t, hub: modelhub.New(), dir: filepath.Join(t.TempDir(), "cache")}
	t.Cleanup(w.hub.Close)
	w.start(size)
	t.Cleanup(func() { w.end() })
	return w
}

// start begins the life of an agent on the world's folder.
func (w *world) start(size int64) {
	w.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cache, err := New(ctx, Config{
		Settings: Settings{Size: size}, Dir: w.dir, Metrics: &w.counts, Changed: func() { w.changed.Add(1) },
		InUse: func(id fleet.PodID) bool { _, over := w.ended.Load(id); return !over },
		Log:   slog.New(slog.NewTextHandler(&w.log, nil)), stall: 2 * time.Second, pause: time.Millisecond,
	})
	if err != nil {
		cancel()
		w.Fatal(err)
	}
	w.cache, w.end = cache, sync.OnceFunc(func() { cancel(); cache.Wait() })
}

func (w *world) order(token, ref string) pod.ModelOrder {
	w.Helper()
	parsed, err := fleet.ParseModelRef(fleet.DefaultModelHub + "/" + ref)
	if err != nil {
		w.Fatal(err)
	}
	return pod.ModelOrder{Hub: w.hub.URL, Models: []fleet.ModelRef{parsed}, Token: fleet.Secret(token)}
}

// get gets a model for a pod.
func (w *world) get(id, token, ref string) (string, error) {
	w.Helper()
	out, err := w.cache.Get(w.Context(), fleet.PodID(id), w.order(token, ref), func(string, int64, int64) {})
	if err != nil {
		return "", err
	}
	return out[0].Dir, nil
}

// must gets a model and returns its folder.
func (w *world) must(id, token, ref string) string {
	w.Helper()
	dir, err := w.get(id, token, ref)
	if err != nil {
		w.Fatal(err)
	}
	return dir
}

// refuses expects a sentence, and whether it is final.
func (w *world) refuses(id, token, ref, says string, class pod.Class) {
	w.Helper()
	_, err := w.get(id, token, ref)
	var e *pod.Error
	if !errors.As(err, &e) || e.Class != class || !strings.Contains(e.Sentence, says) {
		w.Errorf("%s: %v (%+v), want class %d and %q", ref, err, e, class, says)
	}
}

func (w *world) holds(path, want string) {
	w.Helper()
	if got, err := os.ReadFile(path); err != nil || string(got) != want {
		w.Errorf("%s: %d bytes, %v", path, len(got), err)
	}
}

// A model lies as the hub's own clients look for it: a blob for each content, a link for each file, a file for the branch. All may
// read it and nobody may write it, whatever the mask of the agent's process.
func TestAModelLiesAsTheHubsClientsLookForIt(t *testing.T) {
	w := newWorld(t, mb)
	files := map[string][]byte{
		"config.json": []byte(`{"a":1}`), "model.safetensors": bytes.Repeat([]byte("w"), 5000), "sub/deep/tokenizer.json": []byte("tok"),
		"same.bin": bytes.Repeat([]byte("w"), 5000), "empty": {}, "with blank+%.txt": []byte("x"),
	}
	c := &modelhub.Commit{ID: first, Files: files, Large: []string{"model.safetensors", "same.bin"}}
	w.hub.Put("org/name", modelhub.Model{Revisions: map[string]*modelhub.Commit{"main": c, "refs/pr/1": c, first: c}})
	var seen []string
	out, err := w.cache.Get(t.Context(), "p1", w.order("", "org/name"), func(model string, done, total int64) {
		seen = append(seen, model)
		if done > total || total != 5000+7+3+1 {
			t.Errorf("%d of %d", done, total)
		}
	})
	if err != nil || len(out) != 1 || out[0].Folder != "models--org--name" || len(seen) == 0 || seen[0] != "org/name" {
		t.Fatalf("%+v, %v, told of %v", out, err, seen)
	}
	dir := out[0].Dir
	for name, content := range files {
		path := filepath.Join(dir, "snapshots", first, name)
		w.holds(path, string(content))
		if to, err := os.Readlink(path); err != nil || filepath.IsAbs(to) || !strings.HasPrefix(filepath.Join(filepath.Dir(path), to), filepath.Join(dir, "blobs")+"/") {
			t.Errorf("%s links to %s, %v", name, to, err)
		}
	}
	w.holds(filepath.Join(dir, "blobs", modelhub.Digest(files["model.safetensors"], true)), string(files["model.safetensors"]))
	w.holds(filepath.Join(dir, "blobs", modelhub.Digest(files["config.json"], false)), string(files["config.json"]))
	w.holds(filepath.Join(dir, "refs/main"), first)
	if blobs := names(filepath.Join(dir, "blobs")); len(blobs) != 5 {
		t.Errorf("blobs %v", blobs)
	}
	if w.must("p2", "", "org/name:refs/pr/1") != dir || w.must("p3", "", "org/name:"+first) != dir {
		t.Error("another folder")
	}
	w.holds(filepath.Join(dir, "refs/refs/pr/1"), first)
	if _, err := os.Stat(filepath.Join(dir, "refs", first)); err == nil {
		t.Error("a commit is a branch")
	}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		st, serr := d.Info()
		if err = errors.Join(err, serr); err != nil {
			return err
		}
		if want := map[bool]fs.FileMode{true: 0o755, false: 0o444}[d.IsDir()]; d.Type() != fs.ModeSymlink && st.Mode().Perm() != want {
			t.Errorf("%s has mode %v", path, st.Mode())
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if n := len(w.hub.Files()); n != 4 { // no empty one, and none twice
		t.Errorf("%d files were read", n)
	}
	if got := w.cache.Names(); len(got) != 3 || !strings.HasPrefix(got[0], "https://huggingface.co/org/name:") {
		t.Errorf("names %v", got)
	}
	if w.changed.Load() != 1 || w.counts.good.Load() != 1 || w.counts.fetched.Load() != 5011 || w.counts.used.Load() != 5011 || w.cache.Used() != 5011 {
		t.Errorf("changed %d, %+v", w.changed.Load(), &w.counts)
	}
}

// Whoever wants a model at the same time waits for one fetch of it.
func TestAModelIsFetchedOnce(t *testing.T) {
	w := newWorld(t, mb)
	w.hub.Put("org/name", modelhub.One(first, map[string][]byte{"a": bytes.Repeat([]byte("a"), 1000), "b": []byte("b")}))
	gate := make(chan struct{})
	var asked atomic.Int64
	w.hub.Handle(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodHead && asked.Add(1) == 10 {
			close(gate)
		}
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/resolve/") {
			<-gate
		}
		return false
	})
	var wg sync.WaitGroup
	for i := range 10 {
		wg.Go(func() {
			if _, err := w.get("p"+string(rune('0'+i)), "", "org/name"); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := len(w.hub.Files()); n != 2 || w.counts.good.Load() != 1 {
		t.Errorf("%d files were read in %d fetches", n, w.counts.good.Load())
	}
}

// broken answers a file's first requests with a part of it, then breaks off.
func (w *world) broken(after int, times int64) {
	var n atomic.Int64
	w.hub.Handle(func(rw http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/resolve/") || n.Add(1) > times {
			return false
		}
		cut := &cutWriter{ResponseWriter: rw, left: after}
		defer func() { _ = recover(); panic(http.ErrAbortHandler) }()
		r2 := r.Clone(r.Context())
		w.serveRest(cut, r2)
		return true
	})
}

// serveRest answers a request for the one file of org/name.
func (w *world) serveRest(rw http.ResponseWriter, r *http.Request) {
	http.ServeContent(rw, r, "", time.Time{}, bytes.NewReader(weights))
}

var weights = bytes.Repeat([]byte("0123456789"), 100_000)

type cutWriter struct {
	http.ResponseWriter
	left int
}

func (c *cutWriter) Write(b []byte) (int, error) {
	if len(b) > c.left {
		_, _ = c.ResponseWriter.Write(b[:c.left])
		c.ResponseWriter.(http.Flusher).Flush() //nolint:forcetypeassert // net/http's is one
		panic("cut")
	}
	c.left -= len(b)
	return c.ResponseWriter.Write(b)
}

// What broke off goes on where it ended: while bytes come in the same fetch, and with another agent on what the one before left.
func TestABrokenFetchGoesOn(t *testing.T) {
	w := newWorld(t, 10*mb)
	w.hub.Put("org/name", modelhub.One(first, map[string][]byte{"w": weights}))
	w.broken(150_000, 5)
	dir := w.must("p1", "", "org/name")
	w.holds(filepath.Join(dir, "snapshots", first, "w"), string(weights))
	files := w.hub.Files()
	if len(files) != 6 || files[0].Range != "" || files[5].Range == "" || w.counts.fetched.Load() != int64(len(weights)) {
		t.Errorf("%d bytes came in %+v", w.counts.fetched.Load(), files)
	}

	w.hub.Put("org/other", modelhub.One(second, map[string][]byte{"w": weights}))
	reached, hold := make(chan struct{}), make(chan struct{})
	w.hub.Handle(func(rw http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/resolve/") {
			return false
		}
		rw.Header().Set("Content-Length", "1000000")
		_, _ = rw.Write(weights[:400_000])
		rw.(http.Flusher).Flush() //nolint:forcetypeassert // net/http's is one
		close(reached)
		select {
		case <-hold:
		case <-r.Context().Done():
		}
		return true
	})
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error)
	go func() {
		_, err := w.cache.Get(ctx, "p2", w.order("", "org/other"), func(string, int64, int64) {})
		over <- err
	}()
	<-reached
	part := filepath.Join(w.dir, partialDir, "models--org--other@"+second, "hub/blobs", modelhub.Digest(weights, true)+".incomplete")
	for bytesBelow(filepath.Dir(part)) < 400_000 {
		if t.Context().Err() != nil {
			t.Fatal("nothing came")
		}
	}
	cancel()
	if err := <-over; err == nil {
		t.Error("it was there")
	}
	w.end()
	close(hold)
	w.hub.Handle(nil)
	before := w.counts.fetched.Load()
	w.start(10 * mb)
	dir = w.must("p2", "", "org/other")
	w.holds(filepath.Join(dir, "snapshots", second, "w"), string(weights))
	if came := w.counts.fetched.Load() - before; came != 600_000 {
		t.Errorf("%d bytes came to the next agent", came)
	}
	// The first model is known to the next agent, and not fetched again.
	n := len(w.hub.Files())
	w.must("p3", "", "org/name")
	if len(w.hub.Files()) != n {
		t.Error("it was fetched again")
	}
}

// A part that the disk lost, or that somebody changed, costs one more read of the file.
func TestAWrongPartIsReadAgain(t *testing.T) {
	w := newWorld(t, 10*mb)
	w.hub.Put("org/name", modelhub.One(first, map[string][]byte{"w": weights}))
	part := filepath.Join(w.dir, partialDir, "models--org--name@"+first, "hub/blobs", modelhub.Digest(weights, true)+".incomplete")
	if err := errors.Join(os.MkdirAll(filepath.Dir(part), 0o700), os.WriteFile(part, make([]byte, 5000), 0o600)); err != nil {
		t.Fatal(err)
	}
	w.holds(filepath.Join(w.must("p1", "", "org/name"), "snapshots", first, "w"), string(weights))
	if files := w.hub.Files(); len(files) != 2 || files[0].Range != "bytes=5000-" || files[1].Range != "" {
		t.Errorf("%+v", files)
	}
}

// A revision that shares files with one that is here shares their data: nothing of them comes again. Who has the earlier one finds it
// as it was.
func TestRevisionsShareFiles(t *testing.T) {
	w := newWorld(t, 10*mb)
	w.hub.Put("org/name", modelhub.One(first, map[string][]byte{"w": weights, "c": []byte("1")}))
	old := w.must("p1", "", "org/name")
	w.hub.Put("org/name", modelhub.One(second, map[string][]byte{"w": weights, "c": []byte("2")}))
	now := w.must("p2", "", "org/name")
	w.holds(filepath.Join(old, "refs/main"), first)
	w.holds(filepath.Join(now, "refs/main"), second)
	w.holds(filepath.Join(now, "snapshots", second, "c"), "2")
	w.holds(filepath.Join(now, "snapshots", second, "w"), string(weights))
	if w.counts.fetched.Load() != int64(len(weights))+2 {
		t.Errorf("%d bytes came", w.counts.fetched.Load())
	}
	if got := strings.Join(w.cache.Names(), " "); strings.Count(got, ":main") != 1 {
		t.Errorf("names %s", got)
	}
	w.hub.Close() // then main is what it was last
	if got := w.must("p3", "", "org/name"); got != now {
		t.Errorf("main is %s", got)
	}
}

// holdFiles has each file wait for gate, and says that it is read.
func (w *world) holdFiles(gate, reading chan struct{}) {
	w.hub.Handle(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/resolve/") {
			reading <- struct{}{}
			<-gate
		}
		return false
	})
}
