package webhooks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"gantry/fleet"
	"gantry/scheduler/entry"
	"gantry/scheduler/state"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a store with a log of its own, and whoever is called.
type world struct {
	t     *testing.T
	store *state.Store

	mu     sync.Mutex
	index  uint64
	notes  int
	down   map[string]bool // URLs that take nothing
	calls  []string        // what was sent where, in order: "URL: objects", with the seconds since the beginning
	began  time.Time
	stop   context.CancelFunc
	ended  chan struct{}
	refuse error // what proposals are answered with
}

func newWorld(t *testing.T) *world {
	t.Helper()
	store, err := state.Open(filepath.Join(t.TempDir(), "state.db"), state.Options{})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, store: store, down: map[string]bool{}, began: time.Now()}
	w.must(state.Bootstrap{ClusterID: "c", At: w.began})
	for _, id := range []fleet.AccountID{"acme", "other"} {
		w.must(state.PutAccount{Account: fleet.Account{ID: id}})
	}
	return w
}

func (w *world) close() {
	w.end()
	if err := w.store.Close(); err != nil {
		w.t.Error(err)
	}
}

// lead has a new leader call webhooks.
func (w *world) lead() {
	w.end()
	ctx, cancel := context.WithCancel(w.t.Context())
	w.stop, w.ended = cancel, make(chan struct{})
	c := New(Config{
		Store: w.store, Node: w, Send: w.send, Now: time.Now, Log: slog.New(slog.DiscardHandler),
		Secret: func(h fleet.AccountWebhook, id fleet.AccountID) (fleet.Secret, error) {
			if string(h.Key) == "damaged" {
				return "", errors.New("cannot be opened")
			}
			return fleet.Secret(string(h.Key) + " of " + string(id)), nil
		},
		Body: func(events []fleet.Event) ([]byte, error) {
			var what []string
			for _, e := range events {
				what = append(what, strings.TrimSpace(string(e.Type)+" "+e.Object))
			}
			return json.Marshal(what)
		},
	})
	ended := w.ended
	go func() {
		defer close(ended)
		if err := c.Run(ctx); err != nil {
			w.t.Error(err)
		}
	}()
}

func (w *world) end() {
	if w.stop != nil {
		w.stop()
		<-w.ended
	}
}

func (w *world) send(_ context.Context, to string, body []byte, secret fleet.Secret) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls = append(w.calls, fmt.Sprintf("%s after %d s: %s, %s", to, int(time.Since(w.began).Seconds()), body, secret.Reveal()))
	if w.down[to] {
		return errors.New("call webhook: the answer was status 500")
	}
	return nil
}

// Propose implements Proposer.
func (w *world) Propose(_ context.Context, cmds ...state.Command) ([]entry.Result, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refuse != nil {
		return nil, w.refuse
	}
	w.notes++
	return w.apply(cmds...), nil
}

func (w *world) apply(cmds ...state.Command) []entry.Result {
	data, err := state.Encode(cmds...)
	if err != nil {
		w.t.Fatal(err)
	}
	w.index++
	res, err := w.store.Apply([]entry.Entry{{Index: w.index, Term: 1, Data: data}})
	if err != nil {
		w.t.Fatal(err)
	}
	return res[0]
}

func (w *world) must(cmds ...state.Command) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, r := range w.apply(cmds...) {
		if r.Err != nil {
			w.t.Fatalf("%T: %v", cmds[i], r.Err)
		}
	}
}

func (w *world) secret(account fleet.AccountID, name string) {
	w.t.Helper()
	w.must(state.Put[fleet.AccountSecret]{Record: fleet.AccountSecret{
		Account: account, Name: name, Sealed: []byte("s"), CreatedAt: time.Now(), UpdatedAt: time.Now(),
	}})
}

func (w *world) hook(account fleet.AccountID, url, key string) {
	w.t.Helper()
	w.must(state.UpdateAccount{Account: account, Webhook: &fleet.AccountWebhook{
		URL: url, Kinds: []fleet.EventKind{fleet.EventSecret}, Key: []byte(key),
	}})
}

// called waits for a time and compares the calls since it was asked last.
func (w *world) called(wait time.Duration, want ...string) {
	w.t.Helper()
	time.Sleep(wait)
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Equal(w.calls, want) {
		w.t.Errorf("called were\n%s\nwant\n%s", strings.Join(w.calls, "\n"), strings.Join(want, "\n"))
	}
	w.calls = nil
}

// state returns how far the calls for acme are.
func (w *world) state() (out fleet.WebhookState) {
	w.t.Helper()
	if err := w.store.View(func(v *state.View) error { out = v.WebhookState("acme"); return nil }); err != nil {
		w.t.Fatal(err)
	}
	return out
}

// TestEventsAreSentInOrder has two accounts; what is not of a kind that is asked for, or of before, is not sent.
func TestEventsAreSentInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.close()
		w.lead()
		w.secret("acme", "before")
		w.hook("acme", "https://a", "k")
		w.called(time.Second)
		w.secret("acme", "one")
		w.secret("other", "theirs")
		w.must(state.SetSSHKeys{Account: "acme", Keys: []string{"k"}})
		w.called(time.Second, `https://a after 1 s: ["created one"], k of acme`)
		if s := w.state(); s.Error != "" || s.At.IsZero() {
			t.Errorf("after a call: %+v", s)
		}
		var many []string
		for i := range 70 {
			name := fmt.Sprintf("s%02d", i)
			many = append(many, fmt.Sprintf("%q", "created "+name))
		}
		for i := range 70 {
			w.must(state.Put[fleet.AccountSecret]{Record: fleet.AccountSecret{Account: "acme", Name: fmt.Sprintf("s%02d", i), Sealed: []byte("s")}})
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		w.mu.Lock()
		all := strings.Join(w.calls, "\n")
		w.calls = nil
		w.mu.Unlock()
		last := -1
		for _, text := range many {
			at := strings.Index(all, text)
			if at <= last || strings.Count(all, text) != 1 {
				t.Fatalf("%s is not there once, behind the one before:\n%s", text, all)
			}
			last = at
		}
		notes := w.notes
		w.called(time.Hour)
		if w.notes != notes {
			t.Errorf("%d notes while nothing happened", w.notes-notes)
		}
		w.must(state.UpdateAccount{Account: "acme", Webhook: &fleet.AccountWebhook{}})
		w.secret("acme", "two")
		w.called(time.Minute)
	})
}

// TestACallThatIsNotTaken is made twice more, and then once for what comes next; the calls of others go on.
func TestACallThatIsNotTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.close()
		w.hook("acme", "https://a", "k")
		w.hook("other", "https://b", "l")
		w.down["https://a"] = true
		w.lead()
		w.secret("acme", "one")
		w.called(5*time.Second, `https://a after 0 s: ["created one"], k of acme`)
		w.secret("acme", "two")
		w.secret("other", "theirs")
		w.called(25*time.Second,
			`https://b after 5 s: ["created theirs"], l of other`, `https://a after 10 s: ["created one"], k of acme`,
			`https://a after 20 s: ["created one"], k of acme`, `https://a after 20 s: ["created two"], k of acme`)
		if s := w.state(); s.Error != "call webhook: the answer was status 500" || s.At.IsZero() {
			t.Errorf("after calls that were given up: %+v", s)
		}
		w.mu.Lock()
		w.down["https://a"] = false
		w.mu.Unlock()
		w.secret("acme", "three")
		w.called(5*time.Second, `https://a after 30 s: ["created three"], k of acme`)
		if s := w.state(); s.Error != "" {
			t.Errorf("after one that was taken: %+v", s)
		}
		w.hook("acme", "https://a", "damaged")
		w.secret("acme", "four")
		w.called(5 * time.Second)
		if s := w.state(); s.Error != "cannot be opened" {
			t.Errorf("with a secret that cannot be opened: %+v", s)
		}
	})
}

// TestTheNextLeaderGoesOn loses no event, and sends those again of which nobody committed that they were sent.
func TestTheNextLeaderGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.close()
		w.lead()
		w.hook("acme", "https://a", "k")
		w.hook("other", "https://b", "l")
		w.secret("acme", "one")
		w.called(2*time.Second, `https://a after 0 s: ["created one"], k of acme`)
		w.lead()
		w.called(2 * time.Second) // that is on record
		w.end()
		w.secret("acme", "two")
		w.lead()
		w.called(2*time.Second, `https://a after 4 s: ["created two"], k of acme`)
		w.mu.Lock()
		w.refuse, w.down["https://b"] = errors.New("no leader"), true
		w.mu.Unlock()
		w.secret("acme", "three")
		w.secret("other", "theirs")
		time.Sleep(2 * time.Second)
		w.end() // before the first call of other is given up
		w.mu.Lock()
		w.refuse, w.down["https://b"] = nil, false
		slices.Sort(w.calls)
		w.mu.Unlock()
		w.called(0, `https://a after 6 s: ["created three"], k of acme`, `https://b after 6 s: ["created theirs"], l of other`)
		w.lead()
		time.Sleep(2 * time.Second)
		w.mu.Lock()
		slices.Sort(w.calls)
		w.mu.Unlock()
		w.called(0, `https://a after 8 s: ["created three"], k of acme`, `https://b after 8 s: ["created theirs"], l of other`)
	})
}

// TestWhoWasAwayForTooLong is told, once, that events are missing: also after another copy of the control plane was put back.
func TestWhoWasAwayForTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.close()
		w.lead()
		w.hook("acme", "https://a", "k")
		w.secret("acme", "one")
		w.called(2*time.Second, `https://a after 0 s: ["created one"], k of acme`)
		w.end()
		w.must(state.RestoreCluster{ID: "d", Lineage: 1, Member: fleet.Member{ID: "m", Address: "127.0.0.1:1"}, SnapshotAt: w.began, At: time.Now()})
		w.lead()
		w.called(3*time.Second, `https://a after 2 s: ["reset"], k of acme`)
		w.secret("acme", "two")
		w.called(3*time.Second, `https://a after 5 s: ["created two"], k of acme`)
		w.lead()
		w.called(3 * time.Second)
	})
}
