package state

import (
	"strings"
	"testing"
	"time"

	"gantry/fleet"
)

func TestASuspensionStaysWithItsFirstTimeUntilResumed(t *testing.T) {
	w := newWorld(t).settle()
	first := w.must(SuspendAccount{Account: "acme", Reason: "unpaid", At: at(5)}).(fleet.Account)
	if s := first.Suspended; s == nil || s.Reason != "unpaid" || !s.At.Equal(at(5)) {
		t.Fatalf("%+v", first)
	}
	again := w.must(SuspendAccount{Account: "acme", Reason: "abuse", At: at(6)}).(fleet.Account)
	if s := again.Suspended; s.Reason != "abuse" || !s.At.Equal(at(5)) {
		t.Errorf("suspended again: %+v", s)
	}
	if kept := w.must(UpdateAccount{Account: "acme", Name: ptr("new")}).(fleet.Account); kept.Suspended == nil {
		t.Error("a change of the account ended its suspension")
	}
	for range 2 {
		if got := w.must(SuspendAccount{Account: "acme", Resume: true, At: at(7)}).(fleet.Account); got.Suspended != nil {
			t.Errorf("resumed: %+v", got.Suspended)
		}
	}
}

func TestSuspensionsThatAreRefused(t *testing.T) {
	w := newWorld(t).settle()
	w.refused(fleet.CodeNotFound, SuspendAccount{Account: "nobody", Reason: "unpaid", At: at(5)})
	w.refused(fleet.CodeInvalid, SuspendAccount{Account: "acme", At: at(5)})
	w.refused(fleet.CodeInvalid, SuspendAccount{Account: "acme", Reason: strings.Repeat("x", maxSuspension+1), At: at(5)})
	w.must(PutKey{fleet.Key{ID: "kop", Account: "acme", Hash: []byte("operator"), Can: map[fleet.Group]fleet.Access{fleet.GroupAdmin: fleet.AccessRead}}})
	w.refused(fleet.CodeNotAllowed, SuspendAccount{Account: "acme", Reason: "unpaid", At: at(5)})
}

func TestTheNewestBackUpIsRemembered(t *testing.T) {
	w := newWorld(t).settle()
	for _, c := range []struct {
		saved, now, want time.Time
	}{
		{at(5), at(6), at(5)},
		{at(4), at(7), at(5)},  // an older one, reported late
		{at(99), at(8), at(8)}, // none is of the future
		{at(9), at(10), at(9)},
	} {
		if got := w.must(NoteBackup{SavedAt: c.saved, At: c.now}).(time.Time); !got.Equal(c.want) {
			t.Errorf("saved at %v, reported at %v: %v, want %v", c.saved, c.now, got, c.want)
		}
	}
	w.view(func(v *View) {
		if c := v.Counts(at(10)); !c.BackupAt.Equal(at(9)) {
			t.Errorf("metrics are told %v", c.BackupAt)
		}
	})
	w.refused(fleet.CodeInvalid, NoteBackup{At: at(11)})
}
