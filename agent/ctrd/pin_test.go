package ctrd

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gantry/agent/ctrd/ctrdtest"
	"gantry/agent/pod"
)

// TestImageByItsDigest finds an image by its digest after its tag has moved, pulls that very one when it is not here, and
// says when the registry has it no more.
func TestImageByItsDigest(t *testing.T) {
	b := setup(t)
	reg := newRegistryServer(t)
	const echo = "sh -c 'echo is=$WHAT.'"
	ref := reg.push(t, "app:1", withEnv(t, "WHAT=old"))
	first := b.pull(ref)
	pinned := ref + "@" + first
	reg.push(t, "app:1", withEnv(t, "WHAT=new"))
	if second := b.pull(ref); second == first {
		t.Fatal("the tag did not move")
	}
	reg.setFault(func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { w.WriteHeader(http.StatusBadGateway) })
	for _, name := range []string{pinned, reg.host + "/app@" + first, "elsewhere.example/other:2@" + first} {
		if d, err := b.r.Image(b.ctx, name); err != nil || d != first {
			t.Errorf("%s is %q, %v", name, d, err)
		}
	}
	b.run(pinned, first, echo, "is=old.")
	reg.setFault(nil)
	if err := b.r.Clean(b.ctx, true); err != nil {
		t.Fatal(err)
	}
	if d, err := b.r.Image(b.ctx, pinned); err != nil || d != "" {
		t.Fatalf("%q, %v", d, err)
	}
	if d := b.pull(pinned); d != first {
		t.Errorf("pulled %s, want %s", d, first)
	}
	b.run(pinned, first, echo, "is=old.")
	if err := b.r.Clean(b.ctx, true); err != nil {
		t.Fatal(err)
	}
	reg.setFault(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if strings.HasSuffix(r.URL.Path, first) {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		next.ServeHTTP(w, r)
	})
	_, err := b.r.Pull(b.ctx, pinned, nil, nil)
	wantFault(t, err, pod.Fatal, "does not exist in its registry")
	if !errors.Is(err, pod.ErrNotInRegistry) {
		t.Errorf("%v does not say so", err)
	}
}

// TestPrivateImageIsNotFoundByItsDigest keeps what came with a credential from who knows its digest.
func TestPrivateImageIsNotFoundByItsDigest(t *testing.T) {
	b := setup(t)
	reg := newRegistryServer(t)
	ref := reg.push(t, "private:1", withEnv(t, "WHAT=old-secret"))
	reg.setFault(needsBasic)
	first, err := b.r.Pull(b.ctx, ref, good(), nil)
	if err != nil {
		t.Fatal(err)
	}
	pinned := reg.host + "/private@" + first
	if again, err := b.r.Pull(b.ctx, pinned, good(), nil); err != nil || again != first {
		t.Fatalf("%q, %v", again, err)
	}
	none := func() {
		t.Helper()
		for _, name := range []string{ref, pinned, ref + "@" + first, "other.example/x@" + first} {
			if d, err := b.r.Image(b.ctx, name); err != nil || d != "" {
				t.Errorf("%s is %q, %v", name, d, err)
			}
		}
	}
	none()
	_, err = b.r.Pull(b.ctx, pinned, nil, nil)
	wantFault(t, err, pod.Fatal, "may not be read")
	wantFault(t, b.r.Prefetch(b.ctx, ref), pod.Fatal, "may not be read")
	// The tag moves: what it was is not kept for everybody.
	reg.setFault(nil)
	reg.push(t, "private:1", withEnv(t, "WHAT=new-public"))
	b.pull(ref)
	if d, err := b.r.Image(b.ctx, pinned); err != nil || d != "" {
		t.Errorf("%q, %v", d, err)
	}
}

// TestPrefetchMakesWay prefetches an image while a pod pulls another, and has a pod join the prefetch.
func TestPrefetchMakesWay(t *testing.T) {
	b := setup(t)
	reg := newRegistryServer(t)
	slow, ahead := reg.push(t, "slow:1", fat(t, "slow", 1)), reg.push(t, "ahead:1", fat(t, "ahead", 1))
	release := make(chan struct{})
	var asked, blobs atomic.Int32
	reg.setFault(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		switch isBlob := strings.Contains(r.URL.Path, "/blobs/"); {
		case isBlob && strings.Contains(r.URL.Path, "/slow/"):
			asked.Add(1)
			<-release
		case isBlob && strings.Contains(r.URL.Path, "/ahead/"):
			blobs.Add(1)
		}
		next.ServeHTTP(w, r)
	})
	result := func(f func() error) chan error {
		done := make(chan error, 1)
		go func() { done <- f() }()
		return done
	}
	slowDone := result(func() error { _, err := b.r.Pull(b.ctx, slow, nil, nil); return err })
	wait := func(what string, ready func() bool) {
		t.Helper()
		err := ctrdtest.Eventually(time.Minute, func() error {
			if !ready() {
				return errors.New("not yet")
			}
			return nil
		})
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	wait("the pod's pull", func() bool { return asked.Load() > 0 })
	prefetched := result(func() error { return b.r.Prefetch(b.ctx, ahead) })
	wait("the prefetch", func() bool {
		b.r.mu.Lock()
		defer b.r.mu.Unlock()
		return len(b.r.pulls) == 2
	})
	// It has asked what the tag names, and waits with all of it until no pod waits, or one waits for it.
	joined := result(func() error {
		if n := blobs.Load(); n != 0 {
			return errors.New("blobs were read while a pod waited")
		}
		ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
		defer cancel()
		_, err := b.r.Pull(ctx, ahead, nil, nil)
		return err
	})
	if err := <-joined; err != nil {
		t.Fatal(err)
	}
	n := blobs.Load()
	if err := <-prefetched; err != nil || n == 0 {
		t.Errorf("%d blobs, %v", n, err)
	}
	close(release)
	if err := <-slowDone; err != nil {
		t.Error(err)
	}
	// A second time there is nothing to get; the record says that it is wanted.
	if err := b.r.Prefetch(b.ctx, ahead); err != nil || blobs.Load() != n {
		t.Errorf("%d blobs, then %d, %v", n, blobs.Load(), err)
	}
	record, err := b.r.client.ImageService().Get(b.r.in(b.ctx), ahead)
	if err != nil || record.Labels[labelPrefetched] == "" || record.Labels[labelUsed] == "" {
		t.Errorf("%v, %v", record.Labels, err)
	}
	wantFault(t, b.r.Prefetch(b.ctx, "a b"), pod.Fatal, "not a valid image reference")
	wantFault(t, b.r.Prefetch(b.ctx, reg.host+"/nothing:1"), pod.Fatal, "does not exist in its registry")
}

// TestUseOfAnImageIsWrittenDown has an image found twice: within the hour it is written down once.
func TestUseOfAnImageIsWrittenDown(t *testing.T) {
	b := setup(t)
	reg := newRegistryServer(t)
	ref := reg.push(t, "app:1", withEnv(t, "WHAT=x"))
	b.pull(ref)
	b.age(ref, 5*time.Hour)
	if _, err := b.r.Image(b.ctx, ref); err != nil {
		t.Fatal(err)
	}
	used := func() time.Duration {
		t.Helper()
		record, err := b.r.client.ImageService().Get(b.r.in(b.ctx), ref)
		if err != nil {
			t.Fatal(err)
		}
		return time.Since(lastUse(record))
	}
	err := ctrdtest.Eventually(time.Minute, func() error {
		if used() > time.Minute {
			return errors.New("not written down")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if b.r.touched.claim(ref, time.Now()) || !b.r.touched.claim(ref, time.Now().Add(touchEvery)) {
		t.Error("written down again within the hour, or never again")
	}
}
