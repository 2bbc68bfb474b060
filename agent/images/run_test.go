package images

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/internal/agentrpc"
)

// TestARunOfTheKeeper loads archives before anything is got, looks whenever there may be another image, and every few seconds, and makes
// room on the disk.
func TestARunOfTheKeeper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		archives := []string{filepath.Join(dir, "a"), filepath.Join(dir, "none"), filepath.Join(dir, "bad"), filepath.Join(dir, "b")}
		for _, path := range []string{archives[0], archives[2], archives[3]} {
			if err := os.WriteFile(path, []byte(filepath.Base(path)), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		var mu sync.Mutex
		var loaded []string
		looks := 0
		s := &stockroom{others: 900, images: []string{"x"}}
		k := New(Config{
			Store: s, Marks: Marks{High: 85, Low: 75}, Records: func() []pod.Record { return nil }, Metrics: &counted{}, Archives: archives,
			Import: func(_ context.Context, archive io.Reader) ([]string, error) {
				text, err := io.ReadAll(archive)
				mu.Lock()
				defer mu.Unlock()
				if loaded = append(loaded, string(text)); string(text) == "bad" {
					return nil, errors.New("no archive")
				}
				s.mu.Lock()
				defer s.mu.Unlock()
				if len(s.got) > 0 {
					t.Error("an image is got before the archives are loaded")
				}
				return []string{string(text)}, err
			},
			Look: func(context.Context) { mu.Lock(); looks++; mu.Unlock() },
			Log:  slog.New(slog.DiscardHandler),
		})
		looked := func() int { mu.Lock(); defer mu.Unlock(); return looks }
		if up, err := k.Take(t.Context(), &agentrpc.Down_Prefetch{Prefetch: &agentrpc.Prefetch{Image: "busybox"}}); up != nil || err != nil {
			t.Errorf("%v, %v", up, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { k.Run(ctx); close(done) }()
		synctest.Wait()
		select {
		case <-k.Imported():
		default:
			t.Error("the archives are not told to be loaded")
		}
		if !slices.Equal(loaded, []string{"a", "bad", "b"}) {
			t.Errorf("loaded are %v", loaded)
		}
		if !slices.Equal(s.got, []string{"docker.io/library/busybox:latest"}) {
			t.Errorf("got are %v", s.got)
		}
		if n := looked(); n < 1 {
			t.Error("nobody looks for what was loaded")
		}
		before := looked()
		time.Sleep(3*lookEvery + time.Second) // of the bubble's clock
		synctest.Wait()
		if n := looked() - before; n != 3 {
			t.Errorf("it looked %d times in three times %s", n, lookEvery)
		}
		if s.mu.Lock(); len(s.images) != 0 {
			t.Errorf("the disk is full, and %v are left", s.images)
		}
		s.mu.Unlock()
		before = looked()
		k.ask("other")
		synctest.Wait()
		if n := looked() - before; n != 1 {
			t.Errorf("after another image it looked %d times", n)
		}
		cancel()
		<-done
	})
}

func TestAHostWithoutArchivesHasNothingToWaitFor(t *testing.T) {
	k := keeperOf(&stockroom{})
	if k.Imported() != nil {
		t.Error("it waits for archives that nobody named")
	}
	k.importArchives(t.Context())
}

// TestArchivesAreNamed in the log, those that cannot be loaded as errors, and what they held is looked for when all were tried.
func TestArchivesAreNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		for _, name := range []string{"good", "bad"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		var said bytes.Buffer
		looked := make(chan struct{}, 2)
		k := New(Config{
			Store: &stockroom{}, Archives: []string{filepath.Join(dir, "good"), filepath.Join(dir, "bad"), filepath.Join(dir, "none")},
			Import: func(_ context.Context, archive io.Reader) ([]string, error) {
				if text, _ := io.ReadAll(archive); string(text) == "bad" {
					return nil, errors.New("no archive")
				}
				return []string{"app:1"}, nil
			},
			Look: func(context.Context) { looked <- struct{}{} },
			Log:  slog.New(slog.NewTextHandler(&said, nil)),
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { k.Run(ctx); close(done) }()
		synctest.Wait()
		cancel()
		<-done
		if len(looked) != 1 {
			t.Errorf("it looked %d times", len(looked))
		}
		for i, line := range strings.Split(strings.TrimSpace(said.String()), "\n") {
			level, name := "ERROR", []string{"good", "bad", "none"}[min(i, 2)]
			if name == "good" {
				level = "INFO"
			}
			if !strings.Contains(line, "level="+level) || !strings.Contains(line, "/"+name) {
				t.Errorf("line %d of the log: %s", i, line)
			}
		}
	})
}

// TestAPrefetchEndsWithTheAgent, also between two tries, and nobody is told of it then.
func TestAPrefetchEndsWithTheAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stockroom{err: errors.New("away")}
		k := keeperOf(s)
		ctx, cancel := context.WithCancel(t.Context())
		told, done := 0, make(chan struct{})
		go func() { k.run(ctx, func() { told++ }); close(done) }()
		k.ask("busybox")
		synctest.Wait()
		if len(s.got) != 1 {
			t.Errorf("%d tries", len(s.got))
		}
		cancel()
		<-done
		if len(s.got) != 1 || told != 0 {
			t.Errorf("%d tries, told %d times", len(s.got), told)
		}
	})
}

// TestFailuresAreBounded: of more images than those that can wait none is remembered.
func TestFailuresAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stockroom{err: &pod.Error{Class: pod.Fatal, Sentence: "gone"}}
		k := keeperOf(s)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { k.run(ctx, func() {}); close(done) }()
		for i := range maxPrefetches + 10 {
			k.ask("app:" + string(fleet.NewID()) + string(rune('a'+i%26)))
			synctest.Wait()
		}
		k.mu.Lock()
		if len(k.failed) != maxPrefetches {
			t.Errorf("%d are remembered", len(k.failed))
		}
		k.mu.Unlock()
		cancel()
		<-done
	})
}

// slow is a stockroom of which a collection removes one image, or fails.
type slow struct {
	stockroom
	rounds int
	faults map[int]error // by round
	room   error
}

func (s *slow) Room(ctx context.Context) (int64, int64, error) {
	used, size, _ := s.stockroom.Room(ctx)
	return used, size, s.room
}

func (s *slow) Collect(context.Context, int64, func() pod.WantedImages) ([]string, error) {
	s.rounds++
	if err := s.faults[s.rounds]; err != nil {
		return nil, err
	}
	if len(s.images) == 0 {
		return nil, nil
	}
	gone := s.images[0]
	s.images = s.images[1:]
	return []string{gone}, nil
}

// TestACollectionGoesOnUntilTheLowMark, no further, and not when nothing goes.
func TestACollectionGoesOnUntilTheLowMark(t *testing.T) {
	for what, c := range map[string]struct {
		others int64
		images int
		fault  map[int]error
		room   error
		rounds int
		gone   bool
	}{
		"one is enough":               {750, 1, nil, nil, 1, true},
		"to just the low mark":        {650, 2, nil, nil, 1, true}, // 850, then 750
		"below the high mark":         {749, 1, nil, nil, 0, false},
		"at most three rounds":        {700, 4, nil, nil, 3, true},
		"no more can go":              {800, 1, nil, nil, 2, true},
		"none can go":                 {900, 0, nil, nil, 1, false},
		"it fails at once":            {900, 3, map[int]error{1: errors.New("away")}, nil, 1, false},
		"it fails after one":          {900, 3, map[int]error{2: errors.New("away")}, nil, 2, true},
		"nobody knows how full it is": {900, 3, nil, errors.New("away"), 0, false},
	} {
		s := &slow{stockroom: stockroom{others: c.others}, faults: c.fault, room: c.room}
		for range c.images {
			s.images = append(s.images, "x")
		}
		k := keeperOf(&s.stockroom)
		k.Store = s
		if gone := k.collect(t.Context(), time.Unix(0, 0)); gone != c.gone || s.rounds != c.rounds {
			t.Errorf("%s: %d rounds, %v is gone", what, s.rounds, gone)
		}
		if k.collect(t.Context(), time.Unix(0, 0)); c.fault != nil && s.rounds == c.rounds {
			t.Errorf("%s: it is not tried again at the next look", what)
		}
	}
	none := keeperOf(&stockroom{others: 990})
	none.Store = nil
	if none.collect(t.Context(), time.Unix(0, 0)) {
		t.Error("a host that gets no images removes some")
	}
}
