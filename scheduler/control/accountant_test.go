package control

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gantry/fleet"
	"gantry/scheduler/entry"
	"gantry/scheduler/state"
)

// cluster is a store with a log of its own: the edge to the replicas is all that is not real.
type cluster struct {
	t     *testing.T
	store *state.Store

	mu       sync.Mutex
	index    uint64
	proposed []state.Command
	fault    error
}

func (c *cluster) Propose(ctx context.Context, cmds ...state.Command) ([]entry.Result, error) {
	if _, ok := ctx.Deadline(); !ok {
		c.t.Error("a proposal without a deadline")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fault != nil {
		return nil, c.fault
	}
	c.proposed = append(c.proposed, cmds...)
	if _, ok := cmds[0].(state.PurgeOnce); ok {
		return []entry.Result{{Value: 0}}, nil // what it does is tested where it is done
	}
	return c.apply(cmds...), nil
}

func (c *cluster) apply(cmds ...state.Command) []entry.Result {
	c.t.Helper()
	data, err := state.Encode(cmds...)
	if err != nil {
		c.t.Fatal(err)
	}
	c.index++
	res, err := c.store.Apply([]entry.Entry{{Index: c.index, Term: 1, Data: data}})
	if err != nil {
		c.t.Fatal(err)
	}
	return res[0]
}

func (c *cluster) must(cmds ...state.Command) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, r := range c.apply(cmds...) {
		if r.Err != nil {
			c.t.Fatalf("%T: %v", cmds[i], r.Err)
		}
	}
}

// fail makes proposals fail from now on, or with nil no longer.
func (c *cluster) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fault = err
}

// count returns the commands of a type that were proposed.
func count[C state.Command](c *cluster) (out []C) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, cmd := range c.proposed {
		if cmd, ok := cmd.(C); ok {
			out = append(out, cmd)
		}
	}
	return out
}

// newCluster has one host and n pods of the prepaid account acme, each for one dollar an hour.
func newCluster(t *testing.T, n int) *cluster {
	t.Helper()
	store, err := state.Open(filepath.Join(t.TempDir(), "state.db"), state.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	c, now := &cluster{t: t, store: store}, time.Now()
	tok := fleet.JoinToken{ID: "t", Hash: []byte("h"), DataCenter: "dc", Cloud: fleet.CloudSecure, ExpiresAt: now.Add(time.Hour)}
	c.must(
		state.Bootstrap{ClusterID: "c", At: now},
		state.PutAccount{Account: fleet.Account{ID: "acme", Prepaid: true, Limits: fleet.Limits{"runningPods": fleet.MaxLimit}}},
		state.PutToken{Token: tok, At: now},
		state.JoinHost{Token: "t", Hash: tok.Hash, Host: fleet.Host{ID: "host", MachineID: "m"}, At: now},
		state.ConnectHost{Host: "host", MachineID: "m", BootID: "boot", At: now},
		state.AddCredit{Account: "acme", Amount: 3 * fleet.Money(n) * fleet.Dollar, At: now},
	)
	for i := range n {
		c.must(state.CreatePods{Pods: []state.NewPod{{HostEpoch: 1, Pod: fleet.Pod{
			ID: fleet.PodID(fmt.Sprintf("pod%011d", i)), Account: "acme", Host: "host", CreatedAt: now, HourlyRate: fleet.Dollar,
			Spec: fleet.PodSpec{CPU: &fleet.CPURequest{VCPU: 1}},
		}}}})
	}
	return c
}

func (c *cluster) usage(from, to time.Time) []state.UsageHour {
	c.t.Helper()
	out, err := c.store.UsageBy("acme", "", "", from, to, time.Now(), nil, true)
	if err != nil {
		c.t.Fatal(err)
	}
	return out
}

// books runs an accountant until it is stopped.
func (c *cluster) books(keep time.Duration, log *slog.Logger) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- (&Accountant{Store: c.store, Node: c, Keep: keep, Audit: keep, Every: 5 * time.Second, Log: log}).Run(ctx)
	}()
	return func() {
		cancel()
		if err := <-done; err != nil {
			c.t.Error(err)
		}
	}
}

func TestAccountantSettlesEachHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pods = settleBatch + 1
		c := newCluster(t, pods)
		start := time.Now() // a full hour: the bubble's clock begins at one
		stop := c.books(48*time.Hour, slog.New(slog.DiscardHandler))
		synctest.Wait()
		if got := count[state.SettleMeters](c); len(got) != 0 {
			t.Errorf("nothing has run yet: %+v", got)
		}
		time.Sleep(59*time.Minute + 59*time.Second)
		synctest.Wait()
		if got := count[state.SettleMeters](c); len(got) != 0 {
			t.Errorf("settled within the hour: %+v", got)
		}
		time.Sleep(6 * time.Second)
		synctest.Wait()
		got := count[state.SettleMeters](c)
		if len(got) != 2 || len(got[0].Meters) != settleBatch || len(got[1].Meters) != 1 || !got[1].At.Equal(start.Add(time.Hour)) {
			t.Fatalf("%d commands after an hour", len(got))
		}
		if hours := c.usage(start, start.Add(time.Hour)); len(hours) != pods || hours[0].Amounts.CPU != fleet.Dollar {
			t.Errorf("%d hours of usage", len(hours))
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if got := count[state.SettleMeters](c); len(got) != 4 {
			t.Errorf("%d commands after two hours", len(got))
		}
		stop()
	})
}

// The owner of a low balance is told at the next look, once, also by the next leader.
func TestAccountantNotesLowBalances(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2)
		for range 2 {
			stop := c.books(48*time.Hour, slog.New(slog.DiscardHandler))
			time.Sleep(time.Minute)
			synctest.Wait()
			stop()
			if got := count[state.NoteBalances](c); len(got) != 1 || len(got[0].Accounts) != 1 {
				t.Fatalf("noted %+v", got)
			}
		}
		c.must(state.AddCredit{Account: "acme", Amount: 100 * fleet.Dollar, At: time.Now()})
		stop := c.books(48*time.Hour, slog.New(slog.DiscardHandler))
		time.Sleep(time.Minute)
		synctest.Wait()
		stop()
		if got := count[state.NoteBalances](c); len(got) != 2 {
			t.Errorf("noted %+v", got)
		}
	})
}

func TestAccountantEndsWhatHasNoCredit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2)
		start := time.Now()
		stop := c.books(48*time.Hour, slog.New(slog.DiscardHandler))
		time.Sleep(3*time.Hour - time.Second)
		synctest.Wait()
		if got := count[state.ExhaustAccounts](c); len(got) != 0 {
			t.Fatalf("too early: %+v", got)
		}
		time.Sleep(11 * time.Second) // two looks
		synctest.Wait()
		got := count[state.ExhaustAccounts](c)
		if len(got) != 1 || len(got[0].Accounts) != 1 || got[0].At.Sub(start) < 3*time.Hour {
			t.Fatalf("got %+v", got)
		}
		err := c.store.View(func(v *state.View) error {
			for _, p := range v.PodsOf("acme") {
				if p.Status != fleet.StatusTerminated || p.Reason == "" {
					t.Errorf("pod %s is %s: %q", p.ID, p.Status, p.Reason)
				}
			}
			if left := v.Balance("acme", time.Now().Add(time.Hour)); left > 0 || left < -2*10*fleet.Dollar/3600 {
				t.Errorf("balance is %d: more than ten seconds late", left)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := count[state.ExhaustAccounts](c); len(got) != 1 {
			t.Errorf("ended again: %+v", got)
		}
		stop()
	})
}

// A clock that is ahead for one look ends nothing, settles nothing and forgets nothing; one look without
// credit ends nothing either.
func TestAccountantMistrustsAClockThatJumps(t *testing.T) {
	for name, ahead := range map[string]time.Duration{"jumps": 10 * time.Hour, "drifts": 3 * time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, 2)
				var mu sync.Mutex
				var off time.Duration
				set := func(d time.Duration) {
					mu.Lock()
					defer mu.Unlock()
					off = d
				}
				books := &Accountant{
					Store: c.store, Node: c, Keep: 48 * time.Hour, Every: 5 * time.Second, Log: slog.New(slog.DiscardHandler),
					Clock: func() time.Time { mu.Lock(); defer mu.Unlock(); return time.Now().Add(off) },
				}
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- books.Run(ctx) }()
				defer func() {
					cancel()
					if err := <-done; err != nil {
						t.Error(err)
					}
				}()
				// Up to the look before the credit ends, three hours after the start.
				time.Sleep(3*time.Hour - time.Second)
				synctest.Wait()
				settled, purged := len(count[state.SettleMeters](c)), len(count[state.PurgeUsage](c))
				for range 10 { // the clock is ahead at every other look
					c.must(state.AddCredit{Account: "acme", Amount: fleet.Dollar, At: time.Now()})
					set(ahead)
					time.Sleep(5 * time.Second)
					synctest.Wait()
					set(0)
					time.Sleep(5 * time.Second)
					synctest.Wait()
				}
				if got := count[state.ExhaustAccounts](c); len(got) != 0 {
					t.Fatalf("ended: %+v", got)
				}
				if s, p := len(count[state.SettleMeters](c))-settled, len(count[state.PurgeUsage](c))-purged; s > 1 || p > 1 {
					t.Errorf("settled %d times, purged %d times within two minutes", s, p)
				}
				c.must(state.AddCredit{Account: "acme", Amount: -100 * fleet.Dollar, At: time.Now()})
				time.Sleep(5 * time.Second)
				synctest.Wait()
				if got := count[state.ExhaustAccounts](c); len(got) != 0 {
					t.Fatalf("ended at the first look: %+v", got)
				}
				time.Sleep(5 * time.Second)
				synctest.Wait()
				if got := count[state.ExhaustAccounts](c); len(got) != 1 {
					t.Fatalf("%d times ended after two looks", len(got))
				}
			})
		})
	}
}

func TestAccountantForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pods = 100
		c := newCluster(t, pods)
		c.must(state.PutAccount{Account: fleet.Account{ID: "acme"}})
		start := time.Now()
		for i := range usageBatch + 1 {
			c.must(state.RecordAudit{Line: fleet.AuditLine{Account: "acme", At: start.Add(time.Duration(i) * time.Second)}})
		}
		c.must(state.RecordAudit{Line: fleet.AuditLine{Account: "acme", Operation: "kept", At: start.Add(90 * time.Hour)}})
		stop := c.books(48*time.Hour, slog.New(slog.DiscardHandler))
		time.Sleep(30*time.Minute + 4*24*time.Hour)
		synctest.Wait()
		stop()
		now := time.Now().Truncate(time.Hour)
		hours := c.usage(start, now)
		if len(hours) != pods*48 || !hours[0].Hour.Equal(start.Add(48*time.Hour)) {
			t.Errorf("%d records are left, from %s", len(hours), hours[0].Hour)
		}
		if page, err := c.store.Audit(fleet.AuditQuery{Limit: 10}); err != nil || len(page.Lines) != 1 || page.Lines[0].Operation != "kept" {
			t.Errorf("of the audit log %+v are left: %v", page, err)
		}
		once := count[state.PurgeOnce](c)
		if len(once) != 1+4*24 || !once[0].Before.Equal(start.Add(-24*time.Hour)) {
			t.Errorf("keys were purged %d times", len(once))
		}
		// A leader that keeps less has more than a batch to catch up with.
		before := len(count[state.PurgeUsage](c))
		stop = c.books(time.Nanosecond, slog.New(slog.DiscardHandler))
		synctest.Wait()
		stop()
		if hours := c.usage(start, now); len(hours) != 0 {
			t.Errorf("%d records are left", len(hours))
		}
		if n := len(count[state.PurgeUsage](c)) - before; n != 2 {
			t.Errorf("%d commands", n)
		}
	})
}

func TestAccountantGoesOnAfterFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1)
		c.fail(errors.New("no quorum"))
		var log bytes.Buffer
		stop := c.books(48*time.Hour, slog.New(slog.NewTextHandler(&log, nil)))
		time.Sleep(time.Hour + 2*time.Second)
		synctest.Wait()
		if !strings.Contains(log.String(), "no quorum") {
			t.Errorf("the log says %q", log.String())
		}
		c.fail(nil)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if len(count[state.SettleMeters](c)) != 1 || len(count[state.PurgeUsage](c)) != 1 {
			t.Errorf("proposed %+v", c.proposed)
		}
		stop()
	})
}
