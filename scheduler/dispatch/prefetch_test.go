package dispatch

import (
	"log/slog"
	"testing"

	"gantry/fleet"
	"gantry/internal/agentrpc"
)

// TestPrefetchIsSoft asks a host that is there, one that is away, and one that takes nothing.
func TestPrefetchIsSoft(t *testing.T) {
	s := New(Config{Log: slog.New(slog.DiscardHandler)})
	x := newSession(s, "h", &agentrpc.Hello{}, nil)
	s.sessions["h"] = x
	if s.Prefetch("h", "busybox") || s.Prefetch("other", "busybox") {
		t.Error("a host without a session was asked")
	}
	x.welcomed.Store(true)
	for i := range downQueue {
		if !s.Prefetch("h", "busybox") {
			t.Fatalf("refused after %d", i)
		}
	}
	if s.Prefetch("h", "busybox") {
		t.Error("more was queued than the host takes")
	}
	if msg := <-x.down; msg.GetPrefetch().GetImage() != "busybox" || msg.GetPrefetch().GetModelHub() != "" {
		t.Errorf("the host is told %v", msg)
	}
	for len(x.down) > 0 {
		<-x.down
	}
	s.Prefetch("h", "", "https://huggingface.co/o/n")
	if got := (<-x.down).GetPrefetch(); got.GetImage() != "" || len(got.GetModels()) != 1 || got.GetModelHub() != fleet.DefaultModelHub {
		t.Errorf("the host is told %v", got)
	}
}

// TestDigestIsSentForItsImageOnly leaves a digest out that belongs to another image than the one that is wanted now.
func TestDigestIsSentForItsImageOnly(t *testing.T) {
	for _, tc := range []struct{ image, spec, want string }{
		{"busybox", "busybox", "sha256:1"}, {"busybox", "alpine", ""}, {"", "busybox", ""},
	} {
		p := &fleet.Pod{Image: tc.image, Digest: "sha256:1", Spec: fleet.PodSpec{Image: tc.spec}}
		if got := encodeAssignment(p, 0).GetDigest(); got != tc.want {
			t.Errorf("image %q, specification %q: %q, want %q", tc.image, tc.spec, got, tc.want)
		}
	}
}
