package state

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gantry/fleet"
)

// onceWorld has what every create needs.
func onceWorld(t *testing.T) *world {
	w := newWorld(t).settle()
	w.furnish()
	return w
}

// creates returns the creates under an idempotency key, each of another thing than name was before.
func creates(id string, once *fleet.Once) map[string]Command {
	template := fleet.Template{ID: fleet.TemplateID("t" + id), Account: "acme", Name: id, CreatedAt: at(10)}
	volume := newVolume(fleet.VolumeID("v"+id), "b-std")
	volume.CreatedAt = at(10)
	return map[string]Command{
		"pod":      CreatePods{Pods: []NewPod{{Pod: podOn(fleet.PodID("p"+id), "host-a"), HostEpoch: 1}}, Once: once},
		"template": Put[fleet.Template]{Record: template, Once: once},
		"registry": Put[fleet.Registry]{Record: fleet.Registry{ID: fleet.RegistryID("r" + id), Account: "acme", CreatedAt: at(10)}, Once: once},
		"volume":   CreateVolume{Volume: volume, Once: once},
	}
}

func (w *world) onceRows() (n int) {
	w.view(func(v *View) { n = len(v.tb.once.Rows) })
	return n
}

func TestACreateUnderAKeyHappensOnce(t *testing.T) {
	w := onceWorld(t)
	for kind := range creates("1", nil) {
		t.Run(kind, func(t *testing.T) {
			w.t = t
			once := &fleet.Once{Key: "key", Fingerprint: []byte("a")}
			first := w.must(creates("1", once)[kind])
			before, index := w.hash(), w.s.Index()
			again, ok := w.must(creates("2", once)[kind]).(Replay)
			if !ok {
				t.Fatal("the second create is no replay")
			}
			if d := cmp.Diff(first, again.Value); d != "" {
				t.Error(d)
			}
			if evs, _, _ := w.s.Events(index); string(before) != string(w.hash()) || len(evs) > 0 {
				t.Error("a replay wrote something")
			}

			r := w.do(creates("3", &fleet.Once{Key: "key", Fingerprint: []byte("b")})[kind])
			e, ok := r.Err.(*fleet.Error) //nolint:errorlint // a result holds the error itself
			if !ok || e.Code != fleet.CodeInvalid || len(e.Details) != 1 || e.Details[0] != "Idempotency-Key: was used with another request" {
				t.Errorf("another request: got %v", r.Err)
			}
			w.refused(fleet.CodeInvalid, creates("4", &fleet.Once{Fingerprint: []byte("a")})[kind])
			w.refused(fleet.CodeInvalid, creates("4", &fleet.Once{Key: strings.Repeat("k", 256)})[kind])
			w.must(creates("5", &fleet.Once{Key: "key2", Fingerprint: []byte("a")})[kind], creates("6", nil)[kind])
		})
	}
	w.t = t
	w.check()
}

// A key is of one account and of one kind of thing; no two rows are written alike.
func TestKeysOfAccountsAndKindsAreApart(t *testing.T) {
	w := onceWorld(t)
	w.must(PutAccount{fleet.Account{ID: "acme1"}})
	put := func(id fleet.RegistryID, account fleet.AccountID, key string) any {
		w.t.Helper()
		return w.must(Put[fleet.Registry]{Record: fleet.Registry{ID: id, Account: account}, Once: &fleet.Once{Key: key, Fingerprint: []byte("a")}})
	}
	put("r1", "acme", "1x")
	for _, got := range []any{put("r2", "other", "1x"), put("r3", "acme1", "x")} {
		if _, ok := got.(Replay); ok {
			t.Error("a key of another account was taken for the same")
		}
	}
	for kind, cmd := range creates("9", &fleet.Once{Key: "1x", Fingerprint: []byte("b")}) {
		if r := w.do(cmd); (r.Err != nil) != (kind == "registry") {
			t.Errorf("%s: got %v", kind, r.Err)
		}
	}
	w.check()
}

func TestAReplayOfWhatIsGoneIsRefused(t *testing.T) {
	w := onceWorld(t)
	once := &fleet.Once{Key: "key", Fingerprint: []byte("a")}
	for _, cmd := range creates("1", once) {
		w.must(cmd)
	}
	// The answer is the record as it is now.
	w.must(w.act("p1", fleet.ActionTerminate))
	got, _ := w.must(creates("2", once)["pod"]).(Replay)
	if pods, ok := got.Value.([]fleet.Pod); !ok || pods[0].Status != fleet.StatusTerminated {
		t.Errorf("got %+v", got)
	}
	w.must(
		w.report("p1", ReportGone), PurgePods{Pods: []fleet.PodID{"p1"}, Before: at(100)},
		Delete[fleet.Template]{Account: "acme", ID: "t1"}, Delete[fleet.Registry]{Account: "acme", ID: "r1"},
		DeleteVolume{Account: "acme", Volume: "v1"},
	)
	for _, cmd := range creates("3", once) {
		w.refused(fleet.CodeExists, cmd)
	}
	if n := w.must(PurgeOnce{Before: at(9)}); n != 0 || w.onceRows() != 4 {
		t.Errorf("%v keys were forgotten too early", n)
	}
	for _, left := range []int{3, 2} {
		if n := w.must(PurgeOnce{Before: at(10), Limit: 1}); n != 1 || w.onceRows() != left {
			t.Errorf("%v keys were forgotten, %d are left", n, w.onceRows())
		}
	}
	if n := w.must(PurgeOnce{Before: at(10)}); n != 2 || w.onceRows() != 0 {
		t.Errorf("%v keys were forgotten, %d are left", n, w.onceRows())
	}
	for _, cmd := range creates("4", once) {
		w.must(cmd)
	}
	w.check()
}

// A create that is refused does not use its key up.
func TestARefusedCreateLeavesTheKey(t *testing.T) {
	w := onceWorld(t)
	once := &fleet.Once{Key: "key", Fingerprint: []byte("a")}
	bad := CreatePods{Pods: []NewPod{{Pod: podOn("p1", "host-a"), HostEpoch: 7}}, Once: once}
	w.refused(fleet.CodeStale, bad)
	bad.Pods[0].HostEpoch = 1
	if _, ok := w.must(bad).([]fleet.Pod); !ok {
		t.Error("the first create that was accepted is a replay")
	}
	for _, none := range []Command{
		Put[fleet.AccountSecret]{Record: fleet.AccountSecret{Account: "acme", Name: "a"}, Once: once},
		Put[fleet.S3Key]{Record: sampleS3Key(), Once: once},
	} {
		w.refused(fleet.CodeInvalid, none) // which have no idempotency keys
	}
	// An update is no create: its key is not looked at.
	update := Put[fleet.Template]{Record: fleet.Template{ID: "tpl-1", Account: "acme", Rev: 1}, Once: once}
	w.must(update)
	if n := w.onceRows(); n != 1 {
		t.Errorf("%d keys", n)
	}
}
