package scheduler

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"gantry/fleet"
)

func TestKeysOfASuspendedAccountAreRefusedWithTheReason(t *testing.T) {
	w := newWorld(t)
	w.addHost("host-a", "dc-1", h100, 8)
	ctx := context.Background()
	_, text, err := w.svc.CreateAccountKey(ctx, acme, fleet.KeyRequest{Name: "k"})
	if err != nil {
		t.Fatal(err)
	}
	pod := w.rent(acme)
	own, err := w.svc.podKey(pod)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.svc.SuspendAccount(ctx, acme, "unpaid", false); err != nil {
		t.Fatal(err)
	}
	for name, key := range map[string]fleet.Secret{"key": text, "pod's key": own} {
		_, err := w.svc.Authenticate(ctx, key)
		var e *fleet.Error
		if !errors.As(err, &e) || e.Code != fleet.CodeSuspended || !slices.Equal(e.Details, []string{"unpaid"}) {
			t.Errorf("%s: %v", name, err)
		}
		if _, known := w.svc.KnownKey(key); known {
			t.Errorf("%s passes where it is only looked up", name)
		}
	}
	if p := w.pod(pod); !p.Status.Active() || p.Goal != fleet.GoalRun {
		t.Errorf("the suspension touched a pod: %+v", p)
	}
	if view, err := w.svc.ResumeAccount(ctx, acme); err != nil || view.Account.Suspended != nil {
		t.Fatalf("%+v %v", view, err)
	}
	for name, key := range map[string]fleet.Secret{"key": text, "pod's key": own} {
		if _, err := w.svc.Authenticate(ctx, key); err != nil {
			t.Errorf("%s after the suspension: %v", name, err)
		}
	}
	_, err = w.svc.ResumeAccount(ctx, "none")
	refused(t, err, fleet.CodeNotFound, "account")
}

func TestASuspensionStopsPodsOnlyWhenItIsToldTo(t *testing.T) {
	w := newWorld(t)
	w.addHost("host-a", "dc-1", h100, 8)
	ctx := context.Background()
	first, second, others := w.rent(acme), w.rent(acme), w.rent(other)
	for range 2 { // the second finds nothing to stop
		if _, err := w.svc.SuspendAccount(ctx, acme, "abuse", true); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range []fleet.PodID{first, second} {
		if p := w.pod(id); p.Goal != fleet.GoalStop {
			t.Errorf("%s goes on: %s", id, p.Goal)
		}
	}
	if p := w.pod(others); p.Goal != fleet.GoalRun {
		t.Errorf("another account's pod: %s", p.Goal)
	}
}

func TestTheTimeOfTheNewestBackUpIsTold(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	for _, saved := range []time.Time{w.clock().Add(-time.Minute), w.clock().Add(-time.Hour)} {
		got, err := w.svc.NoteBackup(ctx, saved)
		if err != nil || !got.Equal(w.clock().Add(-time.Minute)) {
			t.Errorf("%v %v", got, err)
		}
	}
}

// rent makes a pod of an account.
func (w *world) rent(id fleet.AccountID) fleet.PodID {
	w.t.Helper()
	view, err := w.svc.CreatePod(context.Background(), member(id), gpuPod(1))
	if err != nil {
		w.t.Fatal(err)
	}
	return view.Pod.ID
}
