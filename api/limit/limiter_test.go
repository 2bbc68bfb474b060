package limit

import (
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dunglas/httpsfv"

	"gantry/fleet"
)

// clock is a time that tests move. It is safe for concurrent use.
type clock struct{ ns atomic.Int64 }

func (c *clock) now() time.Time          { return time.Unix(1_800_000_000, c.ns.Load()) }
func (c *clock) advance(d time.Duration) { c.ns.Add(int64(d)) }

func TestWindowEdges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Quotas{Minute: 2, Hour: 3, Day: 4}, time.Now)
		for _, step := range []struct {
			wait     time.Duration
			header   string
			exceeded string
			retry    int
		}{
			{90 * time.Second, `"minute";r=1;t=60, "hour";r=2;t=3600, "day";r=3;t=86400`, "", 0}, // begins with the first request
			{500 * time.Millisecond, `"minute";r=0;t=60, "hour";r=1;t=3600, "day";r=2;t=86400`, "", 0},
			{500 * time.Millisecond, `"minute";r=0;t=59, "hour";r=1;t=3599, "day";r=2;t=86399`, "minute", 59},
			{59*time.Second - 1, `"minute";r=0;t=1, "hour";r=1;t=3541, "day";r=2;t=86341`, "minute", 1}, // a nanosecond is left
			{1, `"minute";r=1;t=60, "hour";r=0;t=3540, "day";r=1;t=86340`, "", 0},                       // refused ones did not count
			{0, `"minute";r=1;t=60, "hour";r=0;t=3540, "day";r=1;t=86340`, "hour", 3540},
			{59 * time.Minute, `"minute";r=1;t=60, "hour";r=2;t=3600, "day";r=0;t=82800`, "", 0},
			{0, `"minute";r=1;t=60, "hour";r=2;t=3600, "day";r=0;t=82800`, "day", 82800},
			{23 * time.Hour, `"minute";r=1;t=60, "hour";r=2;t=3600, "day";r=3;t=86400`, "", 0},
			{72 * time.Hour, `"minute";r=1;t=60, "hour";r=2;t=3600, "day";r=3;t=86400`, "", 0}, // nothing is saved up
		} {
			time.Sleep(step.wait)
			v := l.Take("a", nil)
			name, retry := v.Exceeded()
			if v.Header() != step.header || name != step.exceeded || retry != step.retry || v.Refused() != (step.retry > 0) {
				t.Errorf("after %s:\n%s %q %d\nwant:\n%s %q %d", step.wait, v.Header(), name, retry, step.header, step.exceeded, step.retry)
			}
		}
	})
}

func TestExceededNamesLongestWait(t *testing.T) {
	l := New(Quotas{Minute: 1, Hour: 1, Day: 1}, new(clock).now)
	l.Take("a", nil)
	if name, wait := l.Take("a", nil).Exceeded(); name != "day" || wait != 86400 {
		t.Error(name, wait)
	}
	// The hour passes before the minute does, and what has no quota is not waited for.
	var c clock
	l = New(Quotas{Minute: 1, Hour: 2}, c.now)
	l.Take("a", nil)
	c.advance(time.Hour - 30*time.Second)
	l.Take("a", nil)
	if name, wait := l.Take("a", nil).Exceeded(); name != "minute" || wait != 60 {
		t.Error(name, wait)
	}
}

// TestWhatIsCountedIsNotForgotten while its window runs, however many others come and go.
func TestWhatIsCountedIsNotForgotten(t *testing.T) {
	var c clock
	l := New(Quotas{Hour: 1}, c.now)
	l.Take("a", nil)
	for i := range 3 * parts {
		c.advance(sweepEvery)
		l.Take(fleet.AccountID(strconv.Itoa(i)), nil)
	}
	if !l.Take("a", nil).Refused() {
		t.Error("a counted request was forgotten")
	}
}

func TestWindowWithoutQuotaIsAbsent(t *testing.T) {
	for _, c := range []struct {
		quotas         Quotas
		header, policy string
	}{
		{Quotas{}, "", ""},
		{Quotas{Minute: 100_000}, `"minute";r=99999;t=60`, `"minute";q=100000;w=60`},
		{Quotas{Minute: 60, Day: 70}, `"minute";r=59;t=60, "day";r=69;t=86400`, `"minute";q=60;w=60, "day";q=70;w=86400`},
		{Default(), `"minute";r=179;t=60, "hour";r=7199;t=3600, "day";r=99999;t=86400`, `"minute";q=180;w=60, "hour";q=7200;w=3600, "day";q=100000;w=86400`},
	} {
		l := New(c.quotas, new(clock).now)
		v := l.Take("a", nil)
		if v.Header() != c.header || v.Policy() != c.policy || v.Refused() {
			t.Errorf("%+v: %s %s", c.quotas, v.Header(), v.Policy())
		}
	}
	l := New(Quotas{}, new(clock).now)
	for range 1000 {
		if l.Take("a", nil).Refused() || l.Size() != 0 {
			t.Fatal("a limiter without quotas limits, or remembers")
		}
	}
}

// TestOwnQuotas gives an account quotas of its own, changes them in the middle of a window and takes them away.
func TestOwnQuotas(t *testing.T) {
	var c clock
	l := New(Quotas{Minute: 3, Day: 10}, c.now)
	for i, step := range []struct {
		own            *fleet.Quotas
		header, policy string
		exceeded       string
	}{
		{nil, `"minute";r=2;t=60, "day";r=9;t=86400`, `"minute";q=3;w=60, "day";q=10;w=86400`, ""},
		{&fleet.Quotas{Minute: 5}, `"minute";r=3;t=60`, `"minute";q=5;w=60`, ""}, // what was counted counts on
		{&fleet.Quotas{Minute: 1}, `"minute";r=0;t=60`, `"minute";q=1;w=60`, "minute"},
		{&fleet.Quotas{}, "", "", ""}, // any number
		{&fleet.Quotas{Hour: 1}, `"hour";r=0;t=3600`, `"hour";q=1;w=3600`, ""},
		{&fleet.Quotas{Hour: 1}, `"hour";r=0;t=3600`, `"hour";q=1;w=3600`, "hour"},
		{nil, `"minute";r=0;t=60, "day";r=8;t=86400`, `"minute";q=3;w=60, "day";q=10;w=86400`, ""},
		{nil, `"minute";r=0;t=60, "day";r=8;t=86400`, `"minute";q=3;w=60, "day";q=10;w=86400`, "minute"},
	} {
		v := l.Take("a", step.own)
		if name, _ := v.Exceeded(); v.Header() != step.header || v.Policy() != step.policy || name != step.exceeded {
			t.Errorf("step %d: %s, %s, exceeded %q", i, v.Header(), v.Policy(), name)
		}
	}
	if v := l.Take("b", &fleet.Quotas{Minute: MaxQuota}); v.Header() != `"minute";r=999999999;t=60` {
		t.Error(v.Header())
	}
}

// limited returns the windows that have a quota, shortest first.
func limited(q Quotas) []window {
	var out []window
	for _, w := range q.every() {
		if w.quota > 0 {
			out = append(out, w)
		}
	}
	return out
}

func TestAccountsDoNotShare(t *testing.T) {
	l := New(Quotas{Minute: 3}, new(clock).now)
	for range 3 {
		l.Take("a", nil)
	}
	if !l.Take("a", nil).Refused() || l.Take("b", nil).Refused() {
		t.Error("two accounts share a window")
	}
}

// TestBurstGetsQuota sends more at once than the quota, window after window.
func TestBurstGetsQuota(t *testing.T) {
	var c clock
	l := New(Quotas{Minute: 50, Day: 120}, c.now)
	for i, want := range []int64{50, 50, 20, 0} {
		var passed atomic.Int64
		var wg sync.WaitGroup
		for range 200 {
			wg.Go(func() {
				if !l.Take("a", nil).Refused() {
					passed.Add(1)
				}
			})
		}
		wg.Wait()
		if passed.Load() != want {
			t.Errorf("window %d: %d passed, want %d", i, passed.Load(), want)
		}
		c.advance(time.Minute)
	}
}

// TestClockReadEarlier takes with a moment before the window's begin, as a request may that was overtaken.
func TestClockReadEarlier(t *testing.T) {
	var c clock
	l := New(Quotas{Minute: 3}, c.now)
	l.Take("a", nil)
	c.advance(-time.Second)
	if got := l.Take("a", nil).Header(); got != `"minute";r=1;t=60` {
		t.Error(got)
	}
}

func TestMemoryIsBounded(t *testing.T) {
	const accounts, perAccount = 100_000, 400
	names := make([]fleet.AccountID, accounts)
	for i := range names {
		names[i] = fleet.AccountID(fmt.Sprintf("a%013d", i))
	}
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	var c clock
	l := New(Default(), c.now)
	before := heap()
	for _, name := range names {
		l.Take(name, nil)
	}
	if used := heap() - before; l.Size() != accounts || used > accounts*perAccount {
		t.Errorf("%d accounts in %d bytes", l.Size(), used)
	}
	c.advance(24 * time.Hour)
	for range parts {
		c.advance(sweepEvery)
		l.Take("active", nil)
	}
	if l.Size() != 1 || l.Take("active", nil).left[0] == int64(Default().Minute)-1 {
		t.Errorf("%d accounts are remembered after a day", l.Size())
	}
	runtime.KeepAlive(names)
}

func TestFullTableGivesUpLeastRecent(t *testing.T) {
	var c clock
	daily := Quotas{Day: 1_000_000}
	tab := newTable[string](10*parts, c.now)
	for i := range 10_000 {
		c.advance(time.Millisecond)
		tab.take(strconv.Itoa(i), daily)
		tab.take("busy", daily)
		if n := tab.size(); i%100 == 0 && n > 10*parts {
			t.Fatalf("%d entries", n)
		}
	}
	if v := tab.take("busy", daily); v.left[2] != 1_000_000-10_001 {
		t.Errorf("the busiest entry was given up: %d left", v.left[0])
	}
}

func TestGuard(t *testing.T) {
	var c clock
	g := NewGuard(2, c.now)
	fail := func(remote string) int { g.Failed(remote); return g.Blocked(remote) }
	for _, step := range []struct {
		remote string
		want   int
	}{
		{"192.0.2.1:1000", 0},
		{"192.0.2.1:2000", 60},
		{"192.0.2.2:1000", 0},
		{"[::ffff:192.0.2.2]:1", 60},
		{"[2001:db8::1]:1", 0},
		{"[2001:db8::ffff:2]:1", 60},
		{"[2001:db8:0:1::1]:1", 0},
		{"[fe80::1%eth0]:1", 0},
		{"[fe80::2%eth1]:1", 60},
		{"@", 0},
		{"", 60},
	} {
		if got := fail(step.remote); got != step.want {
			t.Errorf("%s: blocked for %d, want %d", step.remote, got, step.want)
		}
	}
	if got := g.Blocked("198.51.100.1:1"); got != 0 {
		t.Errorf("who never failed is blocked for %d", got)
	}
	c.advance(30 * time.Second)
	if got := fail("192.0.2.1:1"); got != 30 {
		t.Errorf("a failure while blocked prolongs to %d", got)
	}
	c.advance(30 * time.Second)
	if got := g.Blocked("192.0.2.1:1"); got != 0 {
		t.Errorf("still blocked for %d", got)
	}
	for i := range 3 * maxAddresses {
		g.Failed(fmt.Sprintf("10.%d.%d.%d:1", i>>16, i>>8&255, i&255))
	}
	if n := g.Size(); n > maxAddresses {
		t.Errorf("%d addresses are remembered", n)
	}
	none := NewGuard(0, c.now)
	for range 1000 {
		if none.Failed("192.0.2.1:1"); none.Blocked("192.0.2.1:1") != 0 || none.Size() != 0 {
			t.Fatal("a guard without a limit blocks, or remembers")
		}
	}
}

func TestQuotasAreValidated(t *testing.T) {
	const bounds, order = "must be 0 to 1000000000", "at least that per"
	for _, c := range []struct {
		q    Quotas
		says string // empty: it is taken
	}{
		{Quotas{}, ""},
		{Default(), ""},
		{Quotas{Minute: 5}, ""},
		{Quotas{Minute: 5, Day: 5}, ""},
		{Quotas{Hour: 5}, ""},
		{Quotas{Day: MaxQuota}, ""},
		{Quotas{Minute: -1}, bounds},
		{Quotas{Day: MaxQuota + 1}, bounds},
		{Quotas{Minute: 5, Hour: 4}, order},
		{Quotas{Minute: 5, Day: 4}, order},
		{Quotas{Hour: 5, Day: 4}, order},
	} {
		if err := c.q.Validate(); (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v, want %q in it", c.q, err, c.says)
		}
	}
}

// FuzzHeaders compares the headers, as a structured-field parser reads them, with what was counted.
func FuzzHeaders(f *testing.F) {
	f.Add(180, 7200, 100_000, uint16(3), int64(time.Second))
	f.Add(0, 0, 1, uint16(2), int64(-time.Hour))
	f.Add(1, 1, MaxQuota, uint16(9), int64(25*time.Hour))
	f.Fuzz(func(t *testing.T, minute, hour, day int, requests uint16, step int64) {
		q := Quotas{minute, hour, day}
		own := fleet.Quotas(q)
		if q.Validate() != nil {
			return
		}
		var c clock
		l := New(Default(), c.now)
		var v Verdict
		for range requests%500 + 1 {
			v = l.Take("a", &own)
			c.advance(time.Duration(step % int64(48*time.Hour)))
		}
		left, policies := readList(t, v.Header()), readList(t, v.Policy())
		if len(left) != len(limited(q)) || len(policies) != len(left) {
			t.Fatalf("%d windows, %q, %q", len(limited(q)), v.Header(), v.Policy())
		}
		full := false
		for i, w := range limited(q) {
			r, reset := param(t, left[i], "r"), param(t, left[i], "t")
			if left[i].Value != w.name || r < 0 || r > w.quota || reset < 1 || reset > int64(w.length/time.Second) {
				t.Errorf("%+v: %q", w, v.Header())
			}
			if policies[i].Value != w.name || param(t, policies[i], "q") != w.quota || param(t, policies[i], "w") != int64(w.length/time.Second) {
				t.Errorf("%+v: %q", w, v.Policy())
			}
			full = full || r == 0
		}
		if v.Refused() && !full {
			t.Errorf("refused with %q", v.Header())
		}
	})
}

func readList(t *testing.T, text string) []httpsfv.Item {
	t.Helper()
	list, err := httpsfv.UnmarshalList([]string{text})
	if err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	again, err := httpsfv.Marshal(list)
	if err != nil || again != text {
		t.Fatalf("%q becomes %q: %v", text, again, err)
	}
	out := make([]httpsfv.Item, len(list))
	for i, m := range list {
		out[i] = m.(httpsfv.Item)
	}
	return out
}

func param(t *testing.T, item httpsfv.Item, name string) int64 {
	t.Helper()
	v, _ := item.Params.Get(name)
	n, ok := v.(int64)
	if !ok {
		t.Fatalf("%v has no number %s", item, name)
	}
	return n
}

// Quotas that a benchmark cannot use up, so that every request takes the longer way.
var benchQuotas = Quotas{Minute: MaxQuota, Hour: MaxQuota, Day: MaxQuota}

func BenchmarkTake(b *testing.B) {
	for _, accounts := range []int{1, 100_000} {
		b.Run(fmt.Sprintf("accounts=%d", accounts), func(b *testing.B) {
			l := New(benchQuotas, time.Now)
			names := make([]fleet.AccountID, accounts)
			for i := range names {
				names[i] = fleet.AccountID(fmt.Sprintf("a%013d", i))
			}
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for i := 0; pb.Next(); i++ {
					l.Take(names[i*7919%accounts], nil)
				}
			})
		})
	}
}

func BenchmarkHeader(b *testing.B) {
	v := New(Default(), time.Now).Take("a", nil)
	b.ReportAllocs()
	for b.Loop() {
		_ = v.Header()
	}
}

func BenchmarkBlocked(b *testing.B) {
	g := NewGuard(DefaultFailures, time.Now)
	g.Failed("192.0.2.1:1000")
	b.ReportAllocs()
	for b.Loop() {
		g.Blocked("192.0.2.1:1000")
	}
}
