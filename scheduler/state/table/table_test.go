package table

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"gantry/scheduler/entry"
)

// word is a row; a red one is in an index.
type word struct {
	Text, Owner string
	Red         bool
}

// words is a Set of two tables, with a sum that is derived of one.
type words struct {
	words   Table[string, word]
	of, red *Index[string, string, word]
	cold    Cold[word]
	letters int
	settled int
}

func newWords() *words {
	s := &words{words: New[string, word]("words"), cold: Cold[word]{"cold"}}
	s.of = NewIndex(&s.words, "owner", func(w *word) string { return w.Owner })
	s.red = NewIndex(&s.words, "red", func(w *word) string {
		if w.Red {
			return w.Owner
		}
		return ""
	})
	return s
}

func (s *words) Tables() []Any { return []Any{&s.words, &s.cold} }
func (s *words) Settled()      { s.settled++ }
func (s *words) Usable() error { return nil }

func (s *words) Derive(at Slot, old, row any) {
	if at.Bucket == "words" {
		was, _ := old.(*word)
		is, _ := row.(*word)
		s.letters += length(is) - length(was)
	}
}

func length(w *word) int {
	if w == nil {
		return 0
	}
	return len(w.Text)
}

type fataler interface {
	Helper()
	Fatal(args ...any)
}

func openWords(t fataler, path string) *Store[*words] {
	t.Helper()
	codec, err := entry.NewCodec(1<<20, func(struct{}) uint64 { return 1 }, []struct{}{{}})
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(path, Options{BootID: "boot"}, codec.Encoding, newWords)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func closeWords(t testing.TB, s *Store[*words]) {
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// apply decides the next entry.
func apply(t fataler, s *Store[*words], decide func(*words, *Txn)) {
	t.Helper()
	_, err := s.Apply([]entry.Entry{{Index: s.Index() + 1}}, func(set *words, b *Txn) func(entry.Entry) ([]entry.Result, error) {
		return func(entry.Entry) ([]entry.Result, error) {
			decide(set, b)
			return nil, nil
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

var errStep = errors.New("this step fails")

// drawWrites writes rows and deletes some, in the model too.
func drawWrites(t *rapid.T, set *words, b *Txn, model map[string]word) {
	for range rapid.IntRange(1, 4).Draw(t, "writes") {
		key := rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}).Draw(t, "key")
		if rapid.IntRange(0, 3).Draw(t, "drop") == 0 {
			set.words.Drop(b, key)
			delete(model, key)
			continue
		}
		w := word{
			Text: rapid.StringMatching(`[a-z]{0,5}`).Draw(t, "text"), Owner: rapid.SampledFrom([]string{"", "x", "y"}).Draw(t, "owner"),
			Red: rapid.Bool().Draw(t, "red"),
		}
		set.words.Put(b, key, &w)
		model[key] = w
	}
}

// drawCommand decides a command that is kept or refused, at once or after some steps, and returns the model after it.
func drawCommand(t *rapid.T, set *words, b *Txn, model map[string]word) map[string]word {
	b.Discard()
	next := maps.Clone(model)
	steps := rapid.IntRange(0, 3).Draw(t, "steps")
	fails := rapid.Bool().Draw(t, "fails")
	err := b.Steps(steps, func(i int) error {
		drawWrites(t, set, b, next)
		if fails && i == steps-1 {
			return errStep
		}
		return nil
	})
	if err == nil {
		drawWrites(t, set, b, next)
		check(t, set, b, next)
		if !fails {
			b.Keep()
			return next
		}
	}
	b.Discard()
	check(t, set, b, model)
	return model
}

// check compares what the command at hand reads with the model.
func check(t *rapid.T, set *words, b *Txn, model map[string]word) {
	for _, key := range []string{"a", "b", "c", "d", "e"} {
		want, there := model[key]
		if got := set.words.Get(b, key); (got != nil) != there || there && *got != want {
			t.Fatalf("%s is %+v, want %+v", key, got, want)
		}
	}
	for _, owner := range []string{"x", "y"} {
		var all, red []string
		for _, key := range slices.Sorted(maps.Keys(model)) {
			if w := model[key]; w.Owner == owner {
				if all = append(all, key); w.Red {
					red = append(red, key)
				}
			}
		}
		isRed := func(w *word) bool { return w.Red }
		if got := set.of.Keys(b, owner); !slices.Equal(got, all) || set.of.Count(b, owner) != len(all) || set.of.CountIf(b, owner, isRed) != len(red) {
			t.Fatalf("%s has %v, want %v", owner, got, all)
		}
		if got := set.red.Keys(b, owner); !slices.Equal(got, red) || set.red.Count(b, owner) != len(red) {
			t.Fatalf("%s has red %v, want %v", owner, got, red)
		}
	}
}

// checkPublished compares what a view shows with the model.
func checkPublished(t *rapid.T, s *Store[*words], model map[string]word) {
	err := s.View(func(set *words, _ uint64) error {
		letters, values := 0, map[string]int{}
		for key, w := range model {
			letters += len(w.Text)
			values[w.Owner]++
			if got := set.words.Rows[key]; got == nil || *got != w || w.Owner != "" && set.of.Rows[w.Owner][key] != got {
				return fmt.Errorf("%s is %+v, want %+v", key, got, w)
			}
		}
		delete(values, "")
		if len(set.words.Rows) != len(model) || set.letters != letters || len(set.of.Rows) != len(values) {
			return fmt.Errorf("%d rows with %d letters, want %d with %d; of %v, want %v", len(set.words.Rows), set.letters, len(model), letters, set.of.Rows, values)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Whatever a batch writes, keeps and refuses, commands read it as it is, by key and by index; then views do, and so does a store
// that a snapshot restored.
func TestABatchIsReadAsItIs(t *testing.T) {
	dir := t.TempDir()
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		n++
		s := openWords(rt, filepath.Join(dir, fmt.Sprintf("%d.db", n)))
		defer closeWords(t, s)
		model := map[string]word{}
		for range rapid.IntRange(1, 4).Draw(rt, "batches") {
			apply(rt, s, func(set *words, b *Txn) {
				for range rapid.IntRange(1, 5).Draw(rt, "commands") {
					model = drawCommand(rt, set, b, model)
				}
				b.Discard()
				if got := set.words.Keys(b, 0, All); !slices.Equal(got, slices.Sorted(maps.Keys(model))) || set.words.Count(b, All) != len(model) {
					rt.Fatalf("keys %v, want those of %v", got, model)
				}
			})
			checkPublished(rt, s, model)
		}
		again := openWords(rt, filepath.Join(dir, fmt.Sprintf("%d.again", n)))
		defer closeWords(t, again)
		if err := again.Restore(bytes.NewReader(snapshotOf(rt, s))); err != nil {
			rt.Fatal(err)
		}
		checkPublished(rt, again, model)
	})
}

func snapshotOf(t fataler, s *Store[*words]) []byte {
	t.Helper()
	snap, err := s.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if _, err := snap.WriteTo(&out); errors.Join(err, snap.Release()) != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// lockedReader looks, whenever it is read, whether others could write.
type lockedReader struct {
	io.Reader
	s    *Store[*words]
	open bool
}

func (r *lockedReader) Read(p []byte) (int, error) {
	if r.s.writing.TryLock() {
		r.s.writing.Unlock()
		r.open = true
	}
	return r.Reader.Read(p)
}

// Nobody writes while a snapshot takes the place of the state: what was written meanwhile would be lost, or in a file that is gone.
func TestARestoreLetsNobodyWrite(t *testing.T) {
	from, to := openWords(t, filepath.Join(t.TempDir(), "from.db")), openWords(t, filepath.Join(t.TempDir(), "to.db"))
	defer closeWords(t, from)
	defer closeWords(t, to)
	apply(t, from, func(set *words, b *Txn) { set.words.Put(b, "a", &word{Text: "a"}); b.Keep() })
	r := &lockedReader{Reader: bytes.NewReader(snapshotOf(t, from)), s: to}
	if err := to.Restore(r); err != nil {
		t.Fatal(err)
	}
	if r.open {
		t.Error("others could write while the snapshot was read")
	}
	if to.Index() != from.Index() {
		t.Errorf("index %d, want %d", to.Index(), from.Index())
	}
}

// coldRows reads all cold rows in a view.
func coldRows(t *testing.T, s *Store[*words]) map[string]string {
	t.Helper()
	out := map[string]string{}
	var rows *ColdView
	var cold *Cold[word]
	err := s.View(func(set *words, _ uint64) (err error) {
		cold = &set.cold
		rows, err = s.Cold()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	err = cold.Range(rows, "", "z", func(key []byte, w *word) error {
		if _, twice := out[string(key)]; twice {
			return fmt.Errorf("%s is there twice", key)
		}
		out[string(key)] = w.Text
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// A view of the moment at which the file has a batch and the tables do not yet have it shows cold rows as the tables are.
func TestAViewIsOfOneIndexThoughTheFileIsAhead(t *testing.T) {
	s := openWords(t, filepath.Join(t.TempDir(), "state.db"))
	defer closeWords(t, s)
	apply(t, s, func(set *words, b *Txn) {
		for _, key := range []string{"changed", "deleted", "left"} {
			set.cold.Put(b, key, &word{Text: "old"})
		}
		b.Keep()
	})
	want := coldRows(t, s)
	ahead := s.begin()
	cold := &s.set.cold
	for key, row := range map[string]*word{"changed": {Text: "new"}, "deleted": nil, "made": {Text: "new"}} {
		cold.Put(ahead, key, row)
	}
	ahead.Keep()
	ahead.Discard()
	if keys := cold.Keys(ahead, 9, func(string) (string, error) { return "", nil }); !slices.Equal(keys, []string{"changed", "left", "made"}) {
		t.Errorf("the batch has %v", keys)
	}
	s.shade(ahead, s.index+1)
	if err := s.write(ahead, s.index+1); err != nil {
		t.Fatal(err)
	}
	if got := coldRows(t, s); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	s.publish(ahead, s.index+1)
	if got := coldRows(t, s); !maps.Equal(got, map[string]string{"changed": "new", "left": "old", "made": "new"}) {
		t.Errorf("the batch does not show: %v", got)
	}
}

// Keys goes on where skip says, and its error stops the replica before anything is written.
func TestColdKeys(t *testing.T) {
	s := openWords(t, filepath.Join(t.TempDir(), "state.db"))
	defer func() { _ = s.Close() }()
	apply(t, s, func(set *words, b *Txn) {
		for _, key := range []string{"a1", "a2", "b1", "b2", "c1"} {
			set.cold.Put(b, key, &word{})
		}
		b.Keep()
	})
	apply(t, s, func(set *words, b *Txn) {
		asked := 0
		got := set.cold.Keys(b, 2, func(key string) (string, error) {
			if asked++; key[0] == 'a' {
				return "b", nil
			}
			return "", nil
		})
		if !slices.Equal(got, []string{"b1", "b2"}) || asked != 3 {
			t.Errorf("got %v after %d questions", got, asked)
		}
	})
	index := s.Index()
	_, err := s.Apply([]entry.Entry{{Index: index + 1}}, func(set *words, b *Txn) func(entry.Entry) ([]entry.Result, error) {
		return func(entry.Entry) ([]entry.Result, error) {
			set.cold.Keys(b, 9, func(string) (string, error) { return "", errStep })
			return nil, nil
		}
	})
	if !errors.Is(err, errStep) || s.Index() != index {
		t.Errorf("index %d, error %v", s.Index(), err)
	}
}
