package images

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gantry/agent/pod"
	"gantry/fleet"
)

// stockroom is a host's images on a disk of 1000 bytes, where each image takes 100 of them.
type stockroom struct {
	mu      sync.Mutex
	others  int64 // bytes
	images  []string
	got     []string
	err     error // what a prefetch says
	gate    chan struct{}
	wanted  pod.WantedImages
	collect int
}

func (s *stockroom) Prefetch(ctx context.Context, ref string) error {
	if s.gate != nil {
		select {
		case <-s.gate:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.got = append(s.got, ref)
	return s.err
}

func (s *stockroom) Room(context.Context) (used, size int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.others + 100*int64(len(s.images)), 1000, nil
}

func (s *stockroom) Collect(_ context.Context, free int64, wanted func() pod.WantedImages) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.collect++
	s.wanted = wanted()
	var removed, left []string
	for _, image := range s.images {
		if free > 0 && !slices.Contains(s.wanted.Ordered, image) {
			removed, free = append(removed, image), free-100
		} else {
			left = append(left, image)
		}
	}
	s.images = left
	return removed, nil
}

// counted is what metrics are told.
type counted struct{ used, size, removed int64 }

func (c *counted) Room(used, size int64) { c.used, c.size = used, size }
func (c *counted) Collected(images int)  { c.removed += int64(images) }

func keeperOf(s *stockroom, records ...pod.Record) *Keeper {
	return New(Config{
		Store: s, Marks: Marks{High: 85, Low: 75}, Records: func() []pod.Record { return records }, Metrics: &counted{},
		Log: slog.New(slog.DiscardHandler),
	})
}

func TestImagesAreRemovedFromTheHighMarkToTheLow(t *testing.T) {
	order := func(image string, goal fleet.Goal) pod.Record {
		return pod.Record{Assignment: pod.Assignment{Pod: "p", Image: image, Goal: goal, Incarnation: 1}}
	}
	at := time.Unix(0, 0)
	s := &stockroom{others: 400, images: []string{"a", "b", "c", "d"}}
	k := keeperOf(s, order("a", fleet.GoalRun), order("b", fleet.GoalStop), order("c", fleet.GoalGone))
	if k.collect(t.Context(), at) || s.collect != 0 {
		t.Error("images were removed below the high mark")
	}
	s.others = 450
	if !k.collect(t.Context(), at) || !slices.Equal(s.images, []string{"a", "c", "d"}) {
		t.Errorf("left are %v", s.images)
	}
	if !slices.Equal(s.wanted.Ordered, []string{"a"}) || !slices.Equal(s.wanted.Known, []string{"a", "b"}) {
		t.Errorf("wanted are %+v", s.wanted)
	}
	// What is left cannot make enough room: it is not tried again at once.
	s.others = 900
	k.collect(t.Context(), at)
	tries := s.collect
	if k.collect(t.Context(), at.Add(collectPause-1)) || s.collect != tries || !slices.Equal(s.images, []string{"a"}) {
		t.Errorf("%d rounds after %d, left are %v", s.collect, tries, s.images)
	}
	k.collect(t.Context(), at.Add(collectPause))
	if s.collect == tries {
		t.Error("it is never tried again")
	}
	off := keeperOf(s)
	off.Marks = Marks{}
	if off.collect(t.Context(), at) {
		t.Error("images were removed where that is switched off")
	}
}

func TestPrefetchesWaitInABoundedQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stockroom{gate: make(chan struct{})}
		k := keeperOf(s)
		ctx, cancel := context.WithCancel(t.Context())
		fresh, done := 0, make(chan struct{})
		go func() { k.run(ctx, func() { fresh++ }); close(done) }()
		k.ask("busybox")
		synctest.Wait() // it is being got
		k.ask("docker.io/library/busybox:latest")
		k.ask("no image")
		for i := range maxPrefetches + 3 {
			k.ask(fmt.Sprintf("app:%d", i))
			k.ask(fmt.Sprintf("app:%d", i))
		}
		close(s.gate)
		synctest.Wait()
		s.mu.Lock()
		if len(s.got) != maxPrefetches+1 || s.got[0] != "docker.io/library/busybox:latest" || s.got[1] != "docker.io/library/app:0" {
			t.Errorf("got %d: %v", len(s.got), s.got)
		}
		s.mu.Unlock()
		if fresh != maxPrefetches+1 || len(k.waiting) != 0 {
			t.Errorf("%d were told of, %d wait", fresh, len(k.waiting))
		}
		cancel()
		<-done
	})
}

// TestAFailedPrefetchIsACondition: with its reason, for an hour, or until the image is asked for again.
func TestAFailedPrefetchIsACondition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stockroom{err: &pod.Error{Class: pod.Fatal, Sentence: "the image does not exist in its registry or may not be read"}}
		k := keeperOf(s)
		ctx, cancel := context.WithCancel(t.Context())
		told, done := 0, make(chan struct{})
		go func() { k.run(ctx, func() { told++ }); close(done) }()
		for i := range prefetchesTold + 2 {
			k.ask(fmt.Sprintf("gone:%d", i))
			synctest.Wait()
			time.Sleep(time.Second) // of the bubble's clock
		}
		got := k.Conditions(time.Now())
		last := fmt.Sprintf("image docker.io/library/gone:%d was not prefetched at ", prefetchesTold+1)
		if len(got) != prefetchesTold || told != prefetchesTold+2 || got[0].Code != fleet.ConditionPrefetchFailed || got[0].Severe ||
			!strings.HasPrefix(got[0].Text, last) || !strings.HasSuffix(got[0].Text, ": the image does not exist in its registry or may not be read") {
			t.Errorf("told %d times: %+v", told, got)
		}
		s.mu.Lock()
		s.err = nil
		s.mu.Unlock()
		k.ask(fmt.Sprintf("gone:%d", prefetchesTold+1))
		synctest.Wait()
		if again := k.Conditions(time.Now()); strings.HasPrefix(again[0].Text, last) {
			t.Errorf("%+v", again)
		}
		if old := k.Conditions(time.Now().Add(prefetchToldFor + time.Minute)); len(old) != 0 {
			t.Errorf("after an hour: %+v", old)
		}
		cancel()
		<-done
	})
}

func TestPrefetchIsTriedAgainWhenThatCanHelp(t *testing.T) {
	for _, tc := range []struct {
		err   error
		tries int
	}{
		{nil, 1}, {&pod.Error{Class: pod.Fatal}, 1}, {&pod.Error{Class: pod.Retry}, prefetchTries}, {errors.New("other"), prefetchTries},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &stockroom{err: tc.err}
			if why := keeperOf(s).get(t.Context(), "x"); (why == "") != (tc.err == nil) || len(s.got) != tc.tries {
				t.Errorf("%v: %d tries, %s", tc.err, len(s.got), why)
			}
		})
	}
	none := keeperOf(&stockroom{})
	none.Store = nil
	none.ask("busybox")
	if len(none.queue) != 0 {
		t.Error("a host that gets no images has one in its queue")
	}
}
