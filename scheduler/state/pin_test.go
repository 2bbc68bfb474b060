package state

import (
	"testing"

	"gantry/fleet"
)

// TestDigestBelongsToAnImage changes the image of a pod in every way: later starts have the digest of the first
// one as long as the reference is the same, and never another image's, whatever its host says of it late.
func TestDigestBelongsToAnImage(t *testing.T) {
	const pod, first, second = "pod-1", "sha256:1", "sha256:2"
	said := func(w *world, event fleet.Trigger, digest string) {
		cmd := w.report(pod, event)
		cmd.Reports[0].Incarnation, cmd.Reports[0].Digest = w.pod(pod).Incarnation, digest
		w.must(cmd)
	}
	image := func(ref string, restart bool) func(*world) {
		return func(w *world) {
			w.must(w.update(pod).but(func(c *UpdatePod) { c.Spec.Image, c.Restart = ref, restart }))
		}
	}
	stop := func(w *world) {
		w.must(w.act(pod, fleet.ActionStop))
		said(w, fleet.EventExited, first)
	}
	start := func(w *world) { w.must(w.act(pod, fleet.ActionStart)) }
	restart := func(w *world) { w.must(w.act(pod, fleet.ActionRestart)) }
	reboot := func(w *world) { said(w, fleet.EventReboot, "") }
	for name, tc := range map[string]struct {
		do   []func(*world)
		want string
	}{
		"restart":                      {[]func(*world){restart}, first},
		"stop and start":               {[]func(*world){stop, start}, first},
		"reboot":                       {[]func(*world){reboot}, first},
		"another name":                 {[]func(*world){image("busybox", true)}, first},
		"changed":                      {[]func(*world){image("alpine", true)}, ""},
		"changed for the next start":   {[]func(*world){image("alpine", false), stop, start}, ""},
		"changed before a reboot":      {[]func(*world){image("alpine", false), reboot}, ""},
		"changed while it was stopped": {[]func(*world){stop, image("alpine", false), start}, ""},
		"changed and changed back":     {[]func(*world){image("alpine", false), image("busybox", false), stop, start}, first},
		"changed, run, changed back": {[]func(*world){
			image("alpine", true), func(w *world) { said(w, fleet.EventStarting, second) }, image("busybox", true),
		}, ""},
		"changed and run": {[]func(*world){image("alpine", true), func(w *world) { said(w, fleet.EventStarting, second); said(w, fleet.EventRunning, second) }, restart}, second},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t).settle()
			w.create(pod, "host-a", 0)
			said(w, fleet.EventStarting, first)
			said(w, fleet.EventRunning, first)
			for _, f := range tc.do {
				f(w)
			}
			got := w.pod(pod)
			if got.Digest != tc.want || got.Image != got.Spec.Image {
				t.Errorf("%q of %q, the specification says %q; want %q", got.Digest, got.Image, got.Spec.Image, tc.want)
			}
			w.check()
		})
	}
}

// After a restore, a host may run an incarnation that this state knows nothing of: its digest may be another image's.
func TestADigestOfAnUnknownIncarnationIsNotPinned(t *testing.T) {
	const pod = "pod-1"
	w := newWorld(t).settle()
	w.create(pod, "host-a", 0)
	cmd := w.report(pod, fleet.EventRunning)
	cmd.Reports[0].Incarnation, cmd.Reports[0].Digest = w.pod(pod).Incarnation+1, "sha256:other"
	w.must(cmd)
	if got := w.pod(pod); got.Image == got.Spec.Image || got.Incarnation != cmd.Reports[0].Incarnation {
		t.Errorf("incarnation %d is said to be of %q", got.Incarnation, got.Image)
	}
	w.must(w.act(pod, fleet.ActionRestart))
	if got := w.pod(pod); got.Digest != "" || got.Image != got.Spec.Image {
		t.Errorf("the next start has %q of %q", got.Digest, got.Image)
	}
	w.check()
}
