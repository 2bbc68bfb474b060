package models

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/test/modelhub"
)

// model puts a public model of so many bytes, and returns its name.
func (w *world) model(n, size int) string {
	repo := fmt.Sprintf("org/m%d", n)
	w.hub.Put(repo, modelhub.One(fmt.Sprintf("%040d", n), map[string][]byte{"w": bytes.Repeat([]byte{byte('a' + n)}, size)}))
	return repo
}

func (w *world) has(n int) bool {
	_, err := os.Stat(filepath.Join(w.dir, entriesDir, fmt.Sprintf("models--org--m%d@%040d", n, n)))
	return err == nil
}

// aged makes the use of a model older.
func (w *world) aged(n int, by time.Duration) {
	w.cache.mu.Lock()
	defer w.cache.mu.Unlock()
	e := w.cache.entries[fmt.Sprintf("models--org--m%d@%040d", n, n)]
	e.used = e.used.Add(-by)
}

// When room is short, what nobody goes on with goes first, then the least recently used model that no pod uses; what a pod uses stays,
// also over another start, until the pod has ended.
func TestTheLeastRecentlyUsedGo(t *testing.T) {
	w := newWorld(t, 1000)
	w.refuses("p0", "", w.model(0, 1001), "does not fit into the host's cache of 0.0 GB", pod.Fatal)
	for n := 1; n <= 3; n++ {
		w.must(fmt.Sprintf("p%d", n), "", w.model(n, 300))
	}
	w.ended.Store(fleet.PodID("p1"), true)
	w.ended.Store(fleet.PodID("p2"), true)
	w.aged(2, time.Hour)
	part := filepath.Join(w.dir, partialDir, "models--org--gone@"+first)
	if err := errors.Join(os.MkdirAll(part, 0o700), os.WriteFile(filepath.Join(part, "x"), make([]byte, 90), 0o600)); err != nil {
		t.Fatal(err)
	}
	w.must("p4", "", w.model(4, 100))
	if _, err := os.Stat(part); err == nil || !w.has(1) || !w.has(2) || !w.has(3) {
		t.Error("what nobody goes on with did not go first")
	}
	w.must("p5", "", w.model(5, 200))
	if !w.has(1) || w.has(2) || !w.has(3) || !w.has(4) {
		t.Error("the least recently used did not go")
	}
	w.refuses("p6", "", w.model(6, 800), "has no room in the host's cache", pod.Retry)
	if w.has(1) {
		t.Error("what nobody uses stayed")
	}
	w.end()
	w.start(1000)
	w.refuses("p6", "", "org/m6", "has no room in the host's cache", pod.Retry)
	if !w.has(3) || !w.has(4) || !w.has(5) {
		t.Error("what pods use went after another start")
	}
	for _, id := range []fleet.PodID{"p3", "p4", "p5"} {
		w.ended.Store(id, true)
	}
	w.must("p6", "", "org/m6")
	if w.has(3) || !w.has(6) || w.counts.removed.Load() < 4 || len(w.cache.Names()) != 2*len(names(filepath.Join(w.dir, entriesDir))) {
		t.Errorf("%d were removed, there are %v", w.counts.removed.Load(), w.cache.Names())
	}
	if left := names(filepath.Join(w.dir, pinsDir)); len(left) != 1 || left[0] != "p6" {
		t.Errorf("kept for %v", left)
	}
}

// A pod that asks again, for other models, keeps those alone.
func TestAPodKeepsWhatItAskedForLast(t *testing.T) {
	w := newWorld(t, 1000)
	w.must("p1", "", w.model(1, 600))
	w.must("p1", "", w.model(2, 600))
	if w.has(1) || !w.has(2) {
		t.Error("it keeps what it does not use any more")
	}
}

// What is being fetched counts as a whole, so that two fetches do not take one room.
func TestWhatIsFetchedCounts(t *testing.T) {
	w := newWorld(t, 1000)
	a, b := w.model(1, 600), w.model(2, 600)
	f := &flight{name: "x", manifest: &manifest{total: 600}}
	w.cache.mu.Lock()
	w.cache.flights["x"] = f
	w.cache.mu.Unlock()
	w.refuses("p1", "", a, "has no room", pod.Retry)
	w.cache.mu.Lock()
	delete(w.cache.flights, "x")
	w.cache.mu.Unlock()
	w.must("p1", "", b)
}

// What a crash left half-made or half-removed is not taken for a model, and a description of something else neither.
func TestWhatIsNotWholeIsRemoved(t *testing.T) {
	w := newWorld(t, mb)
	w.must("p1", "", w.model(1, 10))
	w.must("p1", "", w.model(2, 10))
	w.end()
	dir := filepath.Join(w.dir, entriesDir)
	one, two := filepath.Join(dir, fmt.Sprintf("models--org--m1@%040d", 1)), filepath.Join(dir, fmt.Sprintf("models--org--m2@%040d", 2))
	text, err := os.ReadFile(filepath.Join(two, description))
	if err := errors.Join(err, os.Remove(filepath.Join(one, description)), os.Mkdir(filepath.Join(dir, "other"), 0o700),
		os.WriteFile(filepath.Join(dir, "other", description), text, 0o600)); err != nil {
		t.Fatal(err)
	}
	w.start(mb)
	if got := names(dir); len(got) != 1 || len(w.cache.Names()) != 2 {
		t.Errorf("%v, %v", got, w.cache.Names())
	}
	w.must("p1", "", "org/m1")
}

// What nobody has gone on with for a day is removed, and what somebody does is not.
func TestOldPartsAreRemoved(t *testing.T) {
	w := newWorld(t, mb)
	now := time.Now()
	for name, age := range map[string]time.Duration{"old": 25 * time.Hour, "young": 23 * time.Hour, "flying": 48 * time.Hour} {
		dir := filepath.Join(w.dir, partialDir, name)
		file := filepath.Join(dir, "x")
		at := now.Add(-age)
		if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(file, nil, 0o600), os.Chtimes(file, at, at), os.Chtimes(dir, at, at)); err != nil {
			t.Fatal(err)
		}
	}
	w.cache.mu.Lock()
	w.cache.flights["flying"] = &flight{manifest: &manifest{}}
	w.cache.mu.Unlock()
	w.cache.sweep(now)
	if got := strings.Join(names(filepath.Join(w.dir, partialDir)), " "); got != "flying young" {
		t.Errorf("there is %s", got)
	}
}

// ahead asks for models as a scheduler does.
func (w *world) ahead(refs ...string) {
	w.Helper()
	m := &agentrpc.Down_Prefetch{Prefetch: &agentrpc.Prefetch{ModelHub: w.hub.URL}}
	for _, ref := range refs {
		m.Prefetch.Models = append(m.Prefetch.Models, fleet.DefaultModelHub+"/"+ref)
	}
	if up, err := w.cache.Take(w.Context(), m); up != nil || err != nil {
		w.Errorf("%v, %v", up, err)
	}
}

// What a scheduler asks for ahead is there for the pod that comes, what not everybody may have is not, and pods go first.
func TestModelsThatAreAskedForAhead(t *testing.T) {
	w := newWorld(t, mb)
	over := w.cache.begins()
	w.restricted(modelhub.Private, "good")
	w.ahead(w.model(1, 10), w.model(2, 10), "org/name")
	w.ahead("org/m1")
	w.ahead("../x")
	w.must("p1", "", w.model(3, 10))
	if w.has(1) || w.has(2) || w.counts.good.Load() != 1 {
		t.Error("a model was fetched ahead while a pod waited")
	}
	over()
	for w.counts.good.Load() < 3 || len(w.hub.Seen("HEAD")) < 3 {
		if w.Context().Err() != nil {
			t.Fatal("nothing was fetched ahead")
		}
	}
	n := len(w.hub.Files())
	w.must("p1", "", "org/m1")
	if len(w.hub.Files()) != n || !w.has(2) {
		t.Error("it was not there")
	}
	over = w.cache.begins()
	defer over()
	for n := range maxAhead + 10 {
		w.ahead(fmt.Sprintf("org/q%d", n))
	}
	if got := strings.Count(w.log.String(), "too many models are queued"); got < 9 || got > 10 { // one may be out of the queue
		t.Errorf("%d were refused", got)
	}
}

// A fetch that is ahead of pods reads one file at a time; a pod that comes makes it read several.
func TestAPodHurriesAFetch(t *testing.T) {
	w := newWorld(t, mb)
	files := map[string][]byte{}
	for _, name := range strings.Split("abcdefgh", "") {
		files[name] = []byte(name)
	}
	w.hub.Put("org/name", modelhub.One(first, files))
	gate := make(chan struct{})
	reading := make(chan struct{}, len(files))
	w.holdFiles(gate, reading)
	w.ahead("org/name")
	<-reading
	w.cache.mu.Lock()
	slots := len(w.cache.flights["models--org--name@"+first].slots)
	w.cache.mu.Unlock()
	if slots != ofFlight || len(reading) != 0 {
		t.Errorf("%d places are taken", slots)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	over := make(chan error)
	go func() {
		_, err := w.cache.Get(ctx, "p1", w.order("", "org/name"), func(string, int64, int64) {})
		over <- err
	}()
	for range ofFlight - 1 {
		<-reading
	}
	close(gate)
	if err := <-over; err != nil {
		t.Error(err)
	}
}
