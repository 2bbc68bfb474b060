package bodies

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"pgregory.net/rapid"

	"gantry/serverless/queue"
)

func open(t testing.TB, dir string, full int64) *Store {
	t.Helper()
	s, err := Open(dir, full)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func put(t testing.TB, s *Store, id byte, body string) queue.Body {
	t.Helper()
	b, err := s.Put(queue.ID{id}, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func want(t testing.TB, s *Store, b queue.Body, body string) {
	t.Helper()
	if got, err := s.Get(b); err != nil || string(got) != body {
		t.Fatalf("%v has %q, want %q: %v", b, got, body, err)
	}
}

func files(t testing.TB, dir string) int {
	t.Helper()
	names, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

func mark(t testing.TB, s *Store) Mark {
	t.Helper()
	m := s.Mark()
	if err := s.Sync(m); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestWhatIsPutIsThere(t *testing.T) {
	s := open(t, t.TempDir(), 1<<20)
	if b := put(t, s, 1, ""); b != (queue.Body{}) {
		t.Errorf("nothing is at %v", b)
	}
	want(t, s, queue.Body{}, "")
	one, two := put(t, s, 1, "one"), put(t, s, 2, "twenty")
	want(t, s, two, "twenty")
	want(t, s, one, "one")
	for _, b := range []queue.Body{{At: one.At, Size: 2}, {At: one.At, Size: 4}, {At: one.At + 1, Size: 3}, {At: two.At + 30, Size: 3}, {At: 9 << 32, Size: 3}} {
		if got, err := s.Get(b); !errors.Is(err, ErrDamaged) {
			t.Errorf("%v has %q, %v", b, got, err)
		}
	}
}

func TestDamageIsFound(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, 1<<20)
	b := put(t, s, 1, "some words")
	path := s.path(1)
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := 16; i < len(raw); i++ {
		changed := bytes.Clone(raw)
		changed[i] ^= 1
		if err := os.WriteFile(path, changed, 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Get(b); !errors.Is(err, ErrDamaged) {
			t.Fatalf("byte %d: %q, %v", i, got, err)
		}
	}
	if err := os.WriteFile(path, raw[:len(raw)-1], 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(b); !errors.Is(err, ErrDamaged) {
		t.Fatalf("cut: %v", err)
	}
}

func TestAFileGoesWhenNothingInItIsNeeded(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, 40)
	a, b, c := put(t, s, 1, "twenty bytes of text"), put(t, s, 2, "another twenty bytes"), put(t, s, 3, "x")
	if files(t, dir) != 3 {
		t.Fatalf("%d files", files(t, dir))
	}
	before := mark(t, s)
	s.Drop(a)
	if err := s.Checkpoint(before); err != nil || files(t, dir) != 3 {
		t.Fatalf("%d files: the snapshot refers to all of them; %v", files(t, dir), err)
	}
	want(t, s, a, "twenty bytes of text") // until then: a restart may need it
	m := mark(t, s)
	s.Drop(b)
	if err := s.Checkpoint(m); err != nil || files(t, dir) != 2 {
		t.Fatalf("%d files, %v", files(t, dir), err)
	}
	if _, err := s.Get(a); !errors.Is(err, ErrDamaged) {
		t.Errorf("what was removed: %v", err)
	}
	want(t, s, c, "x")
	d := put(t, s, 4, "y")
	if d.At>>32 == c.At>>32 {
		t.Error("a file that a snapshot refers to is written to")
	}
}

func TestAfterARestart(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, 1<<20)
	kept := put(t, s, 1, "kept")
	mark(t, s)
	lost := put(t, s, 2, "put since, and in the log")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir, 1<<20)
	for _, none := range []queue.Body{{At: 9 << 32, Size: 1}, {At: kept.At, Size: 1000}} {
		if err := s.Keep(none); !errors.Is(err, ErrDamaged) {
			t.Errorf("keep %v: %v", none, err)
		}
	}
	if err := errors.Join(s.Keep(kept), s.Keep(queue.Body{}), s.Swept()); err != nil || files(t, dir) != 1 {
		t.Fatalf("%d files, %v", files(t, dir), err)
	}
	want(t, s, kept, "kept")
	again := put(t, s, 2, "put since, and in the log")
	want(t, s, again, "put since, and in the log")
	if again.At>>32 == lost.At>>32 {
		t.Log("the number of a file was used again") // it is gone: nothing can refer to it
	}
	if err := os.WriteFile(filepath.Join(dir, "other"+suffix), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, 1); err == nil {
		t.Error("a folder with another file was opened")
	}
}

func TestAFullDiskLosesNothing(t *testing.T) {
	s := open(t, t.TempDir(), 1<<20)
	a := put(t, s, 1, "first")
	broken, err := os.Open(s.path(1)) // for reading alone, as if the disk took nothing
	if err != nil {
		t.Fatal(err)
	}
	whole := s.active.f
	s.active.f = broken
	if b, err := s.Put(queue.ID{2}, []byte("second")); err == nil {
		t.Fatalf("put at %v", b)
	}
	want(t, s, a, "first")
	s.active.f = whole
	_ = broken.Close()
	want(t, s, put(t, s, 3, "third"), "third")
	want(t, s, a, "first")
}

// TestAnyUse draws puts, drops, snapshots, compaction and restarts; what is referred to is there after each, and in the end
// nothing is left.
func TestAnyUse(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		dir, err := os.MkdirTemp(t.TempDir(), "")
		if err != nil {
			t.Fatal(err)
		}
		s := open(t, dir, 300)
		type body struct {
			at   queue.Body
			text string
		}
		live, snapshot := map[byte]body{}, map[byte]body{}
		next := byte(0)
		checkpoint := func() {
			m := s.Mark()
			if err := s.Sync(m); err != nil {
				r.Fatal(err)
			}
			snapshot = map[byte]body{}
			for id, b := range live {
				snapshot[id] = b
			}
			if err := s.Checkpoint(m); err != nil {
				r.Fatal(err)
			}
		}
		r.Repeat(map[string]func(*rapid.T){
			"put": func(r *rapid.T) {
				next++
				text := rapid.StringN(1, 100, 200).Draw(r, "text")
				if old, ok := live[next]; ok {
					s.Drop(old.at)
				}
				live[next] = body{put(t, s, next, text), text}
			},
			"drop": func(r *rapid.T) {
				if len(live) > 0 {
					id := rapid.Byte().Draw(r, "id")
					s.Drop(live[id].at)
					delete(live, id)
				}
			},
			"snapshot": func(*rapid.T) { checkpoint() },
			"compact": func(r *rapid.T) {
				err := s.Compact(int64(rapid.IntRange(0, 500).Draw(r, "most")), func(id queue.ID, from, to queue.Body) bool {
					if b := live[id[0]]; b.at == from {
						live[id[0]] = body{to, b.text}
						return true
					}
					return false
				})
				if err != nil {
					r.Fatal(err)
				}
			},
			"restart": func(r *rapid.T) {
				if err := s.Close(); err != nil {
					r.Fatal(err)
				}
				s = open(t, dir, 300)
				for _, b := range snapshot {
					if err := s.Keep(b.at); err != nil {
						r.Fatal(err)
					}
				}
				if err := s.Swept(); err != nil {
					r.Fatal(err)
				}
				since := live
				live = map[byte]body{}
				for id, b := range snapshot {
					live[id] = b
				}
				for id, b := range since { // from the log
					if old, ok := live[id]; !ok || old.text != b.text {
						s.Drop(old.at)
						live[id] = body{put(t, s, id, b.text), b.text}
					}
				}
				for id, b := range live {
					if _, ok := since[id]; !ok {
						s.Drop(b.at)
						delete(live, id)
					}
				}
			},
			"": func(*rapid.T) {
				for _, b := range live {
					want(t, s, b.at, b.text)
				}
			},
		})
		for id, b := range live {
			s.Drop(b.at)
			delete(live, id)
		}
		checkpoint()
		if n := files(t, dir); n != 0 {
			r.Fatalf("%d files are left", n)
		}
	})
}

func TestCompactMovesWhatIsNeeded(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, 1000)
	var all []queue.Body
	for i := range 12 {
		all = append(all, put(t, s, byte(i), fmt.Sprintf("%0100d", i)))
	}
	for _, b := range all[1:9] {
		s.Drop(b)
	}
	move := func(id queue.ID, from, to queue.Body) bool {
		if all[id[0]] != from || id[0] != 0 {
			return false
		}
		all[0] = to
		return true
	}
	if err := s.Compact(1<<20, move); err != nil {
		t.Fatal(err)
	}
	if err := s.Checkpoint(mark(t, s)); err != nil {
		t.Fatal(err)
	}
	want(t, s, all[0], fmt.Sprintf("%0100d", 0))
	if _, err := os.Stat(s.path(1)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the old file is there: %v", err)
	}
	want(t, s, all[11], fmt.Sprintf("%0100d", 11))
}

// BenchmarkPut puts and reads bodies of a kilobyte and a megabyte, beside plain writes to a file.
func BenchmarkPut(b *testing.B) {
	for _, size := range []int{1 << 10, 1 << 20} {
		text := make([]byte, size)
		_, _ = rand.Read(text)
		b.Run(fmt.Sprintf("%d/put", size), func(b *testing.B) {
			s := open(b, b.TempDir(), 64<<20)
			b.SetBytes(int64(size))
			for range b.N {
				at, err := s.Put(queue.ID{1}, text)
				if err != nil {
					b.Fatal(err)
				}
				s.Drop(at)
			}
		})
		b.Run(fmt.Sprintf("%d/plain", size), func(b *testing.B) {
			f, err := os.Create(filepath.Join(b.TempDir(), "file"))
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = f.Close() }()
			b.SetBytes(int64(size))
			for i := range b.N {
				if _, err := f.WriteAt(text, int64(i%64)*int64(size)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestABodyInParts is one like others once it is complete, also when the process that began it is gone.
func TestABodyInParts(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, 100)
	first := put(t, s, 1, "before")
	p, err := s.Reserve(queue.ID{7}, 9)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Write(&p, []byte("three")); err != nil {
		t.Fatal(err)
	}
	after := put(t, s, 2, "after")
	if _, err := s.Get(p.Body); !errors.Is(err, ErrDamaged) {
		t.Errorf("a body that is not complete was read: %v", err)
	}
	if _, err := s.Seal(p); !errors.Is(err, ErrDamaged) {
		t.Errorf("a body that is not complete was sealed: %v", err)
	}
	if err := s.Write(&p, []byte("and more than it has")); !errors.Is(err, ErrDamaged) || p.Have != 5 {
		t.Errorf("more was written than there is room for: %v, %+v", err, p)
	}
	mark(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	s = open(t, dir, 100)
	for _, err := range []error{s.Keep(first), s.Keep(after), s.Resume(p), s.Swept(), s.Write(&p, []byte("four"))} {
		if err != nil {
			t.Fatal(err)
		}
	}
	s.Drop(first)
	s.Drop(after)
	if err := s.Compact(1<<20, func(queue.ID, queue.Body, queue.Body) bool { t.Error("moved"); return false }); err != nil {
		t.Error("a file with an open part was emptied:", err)
	}
	body, err := s.Seal(p)
	if err != nil {
		t.Fatal(err)
	}
	want(t, s, body, "threefour")
	s.Drop(body)
	if err := s.Checkpoint(mark(t, s)); err != nil || files(t, dir) != 0 {
		t.Errorf("%d files are left: %v", files(t, dir), err)
	}
}

func TestAPartThatIsAbandoned(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, 100)
	p, err := s.Reserve(queue.ID{7}, 9)
	if err != nil {
		t.Fatal(err)
	}
	s.Abandon(p)
	if err := s.Checkpoint(mark(t, s)); err != nil || files(t, dir) != 0 {
		t.Errorf("%d files are left: %v", files(t, dir), err)
	}
	if err := s.Write(&p, []byte("late")); !errors.Is(err, ErrDamaged) {
		t.Error("written to a file that is gone:", err)
	}
	if _, err := s.Seal(p); !errors.Is(err, ErrDamaged) {
		t.Error("sealed in a file that is gone:", err)
	}
}

// TestAnAbandonedPart does not hinder that its file is emptied.
func TestAnAbandonedPart(t *testing.T) {
	s := open(t, t.TempDir(), 1000)
	first := put(t, s, 1, "before")
	p, err := s.Reserve(queue.ID{7}, 500)
	if err != nil {
		t.Fatal(err)
	}
	after := put(t, s, 2, "after")
	s.Abandon(p)
	s.Drop(first)
	mark(t, s)
	moved := 0
	err = s.Compact(1<<20, func(id queue.ID, from, to queue.Body) bool {
		moved++
		if id == (queue.ID{2}) && from == after {
			return true
		}
		return false
	})
	if err != nil || moved != 2 {
		t.Errorf("%d moved: %v", moved, err)
	}
}

// TestPinnedBodies can be read until the last pin is gone.
func TestPinnedBodies(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, 100)
	b := put(t, s, 1, "body")
	one, two := s.Pin(), s.Pin()
	s.Drop(b)
	if err := s.Checkpoint(mark(t, s)); err != nil {
		t.Fatal(err)
	}
	for range 2 { // releasing twice is releasing once
		if err := one(); err != nil {
			t.Fatal(err)
		}
	}
	want(t, s, b, "body")
	if err := two(); err != nil || files(t, dir) != 0 {
		t.Errorf("%d files are left: %v", files(t, dir), err)
	}
}

// TestWhatIsWrittenAfterAMarkIsSyncedByTheNext, also in a file that the mark has.
func TestWhatIsWrittenAfterAMarkIsSyncedByTheNext(t *testing.T) {
	s := open(t, t.TempDir(), 100)
	p, err := s.Reserve(queue.ID{7}, 4)
	if err != nil {
		t.Fatal(err)
	}
	mark(t, s)
	if m := s.Mark(); len(m.written) != 0 {
		t.Errorf("%d files are to be synced again", len(m.written))
	}
	if err := s.Write(&p, []byte("four")); err != nil {
		t.Fatal(err)
	}
	if m := mark(t, s); len(m.written) != 1 {
		t.Errorf("%d files are to be synced, want 1", len(m.written))
	}
	if _, err := s.Seal(p); err != nil {
		t.Fatal(err)
	}
	m := s.Mark()
	if len(m.written) != 1 {
		t.Errorf("%d files are to be synced, want 1", len(m.written))
	}
	_ = m.written[0].f.Close()
	if err := s.Sync(m); err == nil {
		t.Error("a file that cannot be synced was")
	}
	if m := s.Mark(); len(m.written) != 1 {
		t.Error("what was not synced is forgotten")
	}
}
