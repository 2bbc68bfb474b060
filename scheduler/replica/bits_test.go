package replica

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"gantry/scheduler/state"
)

// TestReachOfALog: the entries behind a snapshot up to the last, between which none is missing.
func TestReachOfALog(t *testing.T) {
	for name, c := range map[string]struct {
		indexes     []uint64
		snapshot    uint64
		first, last uint64
	}{
		"none": {nil, 5, 0, 0}, "all before": {[]uint64{3, 4}, 5, 0, 0}, "up to it": {[]uint64{4, 5}, 5, 0, 0}, "one behind": {[]uint64{4, 5, 6}, 5, 4, 6},
		"a gap": {[]uint64{1, 2, 4, 5}, 0, 4, 5}, "two gaps": {[]uint64{1, 3, 5}, 0, 5, 5}, "whole": {[]uint64{1, 2, 3}, 0, 1, 3},
	} {
		if first, last := reach(c.indexes, c.snapshot); first != c.first || last != c.last {
			t.Errorf("%s: from %d to %d", name, first, last)
		}
	}
}

// TestASumIsOfAllThatIsUsed: another entry, or another value or key, has another sum.
func TestASumIsOfAllThatIsUsed(t *testing.T) {
	base := raft.Log{Index: 7, Term: 3, Type: raft.LogCommand, Data: []byte("data"), Extensions: []byte("ext")}
	want := entrySum(&base, base.Extensions)
	for name, change := range map[string]func(*raft.Log){
		"index": func(e *raft.Log) { e.Index++ }, "term": func(e *raft.Log) { e.Term++ }, "type": func(e *raft.Log) { e.Type = raft.LogNoop },
		"data": func(e *raft.Log) { e.Data = []byte("Data") }, "extensions": func(e *raft.Log) { e.Extensions = []byte("Ext") },
		"where data ends": func(e *raft.Log) { e.Data, e.Extensions = []byte("datae"), []byte("xt") },
	} {
		other := base
		if change(&other); bytes.Equal(entrySum(&other, other.Extensions), want) {
			t.Errorf("another %s has the same sum", name)
		}
	}
	value := append([]byte("value"), valueSum([]byte("key"), []byte("value"))...)
	for name, c := range map[string]struct {
		key   string
		value []byte
		ok    bool
	}{
		"good": {"key", value, true}, "another key": {"kez", value, false}, "cut": {"key", value[:len(value)-1], false},
		"too short": {"key", value[:sumSize-1], false}, "nothing": {"key", nil, false}, "empty": {"key", valueSum([]byte("key"), nil), true},
	} {
		got, ok := unsum([]byte(c.key), c.value)
		if ok != c.ok || ok && name == "good" && string(got) != "value" {
			t.Errorf("%s: %q, %v", name, got, ok)
		}
	}
}

// TestTheLogGivesBackWhatItWasGiven, entry by entry and value by value, and says when it has none or another.
func TestTheLogGivesBackWhatItWasGiven(t *testing.T) {
	dir := t.TempDir()
	l, err := openLog(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	given := []*raft.Log{{Index: 1, Term: 1, Data: []byte("a")}, {Index: 2, Term: 1, Data: []byte("b"), Extensions: []byte("x")}}
	if err := errors.Join(l.StoreLogs(given), l.StoreLog(&raft.Log{Index: 3, Term: 2}), l.SetUint64([]byte(keyTerm), 9), l.Set([]byte(keyVote), []byte("me"))); err != nil {
		t.Fatal(err)
	}
	if given[0].Extensions != nil || string(given[1].Extensions) != "x" {
		t.Errorf("what it was given is another now: %v", given)
	}
	for i, want := range []*raft.Log{given[0], given[1], {Index: 3, Term: 2}} {
		var e raft.Log
		if err := l.GetLog(uint64(i+1), &e); err != nil || e.Term != want.Term || !bytes.Equal(e.Data, want.Data) || !reflect.DeepEqual(e.Extensions, want.Extensions) {
			t.Errorf("entry %d is %+v, %v", i+1, e, err)
		}
	}
	var e raft.Log
	if err := l.GetLog(4, &e); !errors.Is(err, raft.ErrLogNotFound) || errors.Is(err, ErrDamaged) {
		t.Errorf("one that is not there: %v", err)
	}
	if term, err := l.GetUint64([]byte(keyTerm)); term != 9 || err != nil {
		t.Errorf("the term is %d, %v", term, err)
	}
	if _, err := l.GetUint64([]byte(keyVote)); !errors.Is(err, ErrDamaged) {
		t.Errorf("what is no number: %v", err)
	}
	bare := raft.Log{Index: 5, Term: 2, Data: []byte("bare")}
	if err := errors.Join(l.BoltStore.StoreLog(&bare), l.BoltStore.Set([]byte(keyVoteTerm), []byte("odd"))); err != nil {
		t.Fatal(err)
	}
	if err := l.GetLog(5, &e); !errors.Is(err, ErrDamaged) {
		t.Errorf("an entry without a sum: %v", err)
	}
	l.from = 6 // it may have been written before there were sums
	if err := l.GetLog(5, &e); err != nil || string(e.Data) != "bare" {
		t.Errorf("an entry of before: %v, %v", e, err)
	}
	if _, err := l.Get([]byte(keyVoteTerm)); !errors.Is(err, ErrDamaged) {
		t.Errorf("a value without a sum: %v", err)
	}
	if _, err := openLog(dir); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("opened twice: %v", err)
	}
}

// TestKeysOfALog refuses one that is unknown, has a wrong sum, is no number, or is missing beside entries.
func TestKeysOfALog(t *testing.T) {
	summed := func(key string, value []byte) []byte {
		return append(bytes.Clone(value), valueSum([]byte(key), value)...)
	}
	number := func(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }
	good := func() map[string][]byte {
		return map[string][]byte{keySums: summed(keySums, number(4)), keyTerm: summed(keyTerm, number(2))}
	}
	for name, c := range map[string]struct {
		change  func(map[string][]byte)
		indexes []uint64
		says    string
	}{
		"good":       {func(map[string][]byte) {}, []uint64{1}, ""},
		"unknown":    {func(m map[string][]byte) { m["odd"] = summed("odd", nil) }, nil, "unknown key"},
		"wrong sum":  {func(m map[string][]byte) { m[keyTerm] = number(2) }, nil, "wrong sum"},
		"no number":  {func(m map[string][]byte) { m[keySums] = summed(keySums, number(4)[1:]) }, nil, "is damaged"},
		"no term":    {func(m map[string][]byte) { delete(m, keyTerm) }, []uint64{1}, "entries but no term"},
		"quite new":  {func(m map[string][]byte) { delete(m, keyTerm) }, nil, ""},
		"with votes": {func(m map[string][]byte) { m[keyVote] = summed(keyVote, []byte("x")) }, []uint64{1}, ""},
	} {
		l, conf := &sumLog{}, good()
		c.change(conf)
		err := l.checkKeys(boltContent{conf: conf, indexes: c.indexes})
		if (err == nil) != (c.says == "") || err != nil && (!errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), c.says)) || err == nil && l.from != 4 {
			t.Errorf("%s: %v, sums from %d on", name, err, l.from)
		}
	}
}

// TestTheDiskIsTested: what cannot be written, and what takes too long, are refused, and nothing of the test stays.
func TestTheDiskIsTested(t *testing.T) {
	dir := t.TempDir()
	if err := selfTest(dir, patience); err != nil {
		t.Error(err)
	}
	if list, _ := os.ReadDir(dir); len(list) != 0 {
		t.Errorf("left: %v", list)
	}
	if err := selfTest(filepath.Join(dir, "none"), patience); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "failed its test") {
		t.Errorf("a folder that is not there: %v", err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, testFile), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := selfTest(dir, 20*time.Millisecond); err == nil || !strings.Contains(err.Error(), "within 20ms") { // nobody reads
		t.Errorf("a disk that hangs: %v", err)
	}
	r, err := os.OpenFile(filepath.Join(dir, testFile), os.O_RDWR, 0) // lets the writer go
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the test of the disk that hung is over", func() bool {
		_, err := os.Stat(filepath.Join(dir, testFile))
		return errors.Is(err, os.ErrNotExist)
	})
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// TestWhatARunningNodeKnowsOfItsDisk: the share, and from which on nothing is accepted, until it has fallen by more than the gap.
func TestWhatARunningNodeKnowsOfItsDisk(t *testing.T) {
	n := &Node{cfg: Config{DiskLimit: 95}, log: slog.New(slog.DiscardHandler)}
	for i, c := range []struct {
		used  int
		err   error
		full  bool
		knows int64
	}{
		{94, nil, false, 94},
		{95, nil, true, 95},
		{93, nil, true, 93},
		{10, errors.New("no answer"), true, 93},
		{92, nil, false, 92},
		{94, nil, false, 94},
		{99, errors.New("no answer"), false, 94},
	} {
		if n.setDisk(c.used, c.err); n.diskFull.Load() != c.full || n.diskUsed.Load() != c.knows {
			t.Errorf("%d: full %v, %d %% used", i, n.diskFull.Load(), n.diskUsed.Load())
		}
	}
}

// TestTheWatchdogNamesTheSlowest, of the calls under way, and only what takes longer than it may.
func TestTheWatchdogNamesTheSlowest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fatal := make(chan error, 2)
		w := newWatchdog(10*time.Second, func(err error) { fatal <- err })
		ctx, cancel := context.WithCancel(t.Context())
		go w.run(ctx)
		over := w.begin("read log")
		time.Sleep(5 * time.Second)
		end := w.begin("write log")
		over()
		time.Sleep(3 * time.Second)
		w.begin("cut log")
		if name, d := w.slowest(time.Now()); name != "write log" || d != 3*time.Second {
			t.Errorf("%s takes %v", name, d)
		}
		time.Sleep(7 * time.Second)
		synctest.Wait()
		if end(); len(fatal) != 0 {
			t.Errorf("it ended by what took as long as it may: %v", <-fatal)
		}
		time.Sleep(3*time.Second + 2*time.Second)
		if err := <-fatal; !strings.Contains(err.Error(), "cut log hangs") {
			t.Errorf("got %v", err)
		}
		cancel()
		synctest.Wait()
		idle := newWatchdog(10*time.Second, func(err error) { t.Error(err) })
		ctx, cancel = context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { idle.run(ctx); close(ended) }()
		cancel()
		<-ended
	})
}

// brokenLog fails at each call, or panics.
type brokenLog struct {
	Log
	err    error
	panics bool
}

func (b *brokenLog) fail() error {
	if b.panics {
		panic("page 7 is torn")
	}
	return b.err
}
func (b *brokenLog) FirstIndex() (uint64, error)          { return 3, b.fail() }
func (b *brokenLog) LastIndex() (uint64, error)           { return 4, b.fail() }
func (b *brokenLog) GetLog(uint64, *raft.Log) error       { return b.fail() }
func (b *brokenLog) StoreLogs([]*raft.Log) error          { return b.fail() }
func (b *brokenLog) DeleteRange(uint64, uint64) error     { return b.fail() }
func (b *brokenLog) Set([]byte, []byte) error             { return b.fail() }
func (b *brokenLog) Get([]byte) ([]byte, error)           { return []byte("v"), b.fail() }
func (b *brokenLog) SetUint64([]byte, uint64) error       { return b.fail() }
func (b *brokenLog) GetUint64(key []byte) (uint64, error) { return 5, b.fail() }

// TestWhatALogSaysIsHandedOn, and a fault of its database, or a damaged entry, ends the process.
func TestWhatALogSaysIsHandedOn(t *testing.T) {
	plain, torn := errors.New("no room"), damaged("entry 4")
	for name, c := range map[string]struct {
		log   brokenLog
		fatal int // ends of the process that are asked for; reading an entry asks twice
	}{
		"good": {brokenLog{}, 0}, "an error": {brokenLog{err: plain}, 0}, "a damaged entry": {brokenLog{err: torn}, 1}, "a torn page": {brokenLog{panics: true}, 10},
	} {
		fatal := 0
		l := &watchedLog{store: &c.log, watch: newWatchdog(time.Hour, func(error) { fatal++ })}
		_, first := l.FirstIndex()
		_, last := l.LastIndex()
		_, value := l.Get(nil)
		_, number := l.GetUint64(nil)
		for i, err := range []error{first, last, value, number, l.GetLog(4, nil), l.StoreLog(&raft.Log{}), l.DeleteRange(1, 2), l.Set(nil, nil), l.SetUint64(nil, 1)} {
			if (err == nil) != (name == "good") || c.log.err != nil && !errors.Is(err, c.log.err) || c.log.panics && !errors.Is(err, ErrDamaged) {
				t.Errorf("%s, call %d: %v", name, i, err)
			}
		}
		if fatal != c.fatal {
			t.Errorf("%s: %d ends of the process are asked for", name, fatal)
		}
		if len(l.watch.calls) != 0 {
			t.Errorf("%s: under way are %v", name, l.watch.calls)
		}
		l.size = newLogSize(1000)
		if _ = l.StoreLogs([]*raft.Log{{Index: 1}, {Index: 2}}); l.size.total() > 0 != (name == "good") {
			t.Errorf("%s: %d bytes are noted", name, l.size.total())
		}
		l.size.found([]uint64{1, 2}, []int64{100, 100}, 0)
		want := int64(200)
		if name == "good" {
			want = 100
		}
		if _ = l.DeleteRange(1, 1); l.size.total() != want {
			t.Errorf("%s: %d bytes are noted after a cut", name, l.size.total())
		}
	}
}

// TestASnapshotIsDueFromTheStart, when the log that was found is too long behind it.
func TestASnapshotIsDueFromTheStart(t *testing.T) {
	for snapshot, due := range map[uint64]bool{0: true, 10: true, 11: false, 12: false} {
		s := newLogSize(100)
		s.found([]uint64{10, 11, 12}, []int64{60, 60, 60}, snapshot)
		if (len(s.due) > 0) != due {
			t.Errorf("behind %d one is due: %v", snapshot, !due)
		}
	}
	s := newLogSize(100)
	s.found([]uint64{10, 11, 12}, []int64{1, 2, 4}, 0)
	for _, c := range []struct {
		from, to uint64
		left     int64
	}{{1, 9, 7}, {1, 5, 7}, {13, 20, 7}, {1, 10, 6}, {11, 11, 4}, {12, 12, 0}, {12, 12, 0}} {
		if s.deleted(c.from, c.to); s.total() != c.left {
			t.Errorf("without %d to %d there are %d bytes", c.from, c.to, s.total())
		}
	}
}

// TestAnIndexIsReachedOnce: who waits for it or for an earlier one goes on, and it never falls.
func TestAnIndexIsReachedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p progress
		p.init()
		got := make(chan uint64, 2)
		for _, index := range []uint64{5, 6} {
			go func() {
				if p.wait(t.Context(), index) == nil {
					got <- index
				}
			}()
		}
		synctest.Wait()
		p.reach(5)
		synctest.Wait()
		if len(got) != 1 || <-got != 5 {
			t.Error("who waits for entry 5 does not go on alone")
		}
		before := p.changed
		if p.reach(5); p.changed != before {
			t.Error("who waits is woken by what is no news")
		}
		p.reach(3)
		if p.at() != 5 {
			t.Errorf("it fell to %d", p.at())
		}
		p.reach(6)
		if <-got != 6 {
			t.Error("another one goes on")
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := p.wait(ctx, 7); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
}

// TestRaftsMessagesAreSaidNowAndThen, and none below the level of the log.
func TestRaftsMessagesAreSaidNowAndThen(t *testing.T) {
	s := &said{at: map[string]time.Time{}}
	now := time.Unix(1000, 0)
	for i, c := range []struct {
		msg   string
		after time.Duration
		again bool
	}{{"a", 0, false}, {"b", 0, false}, {"a", repeatAfter - 1, true}, {"a", repeatAfter, false}, {"a", repeatAfter + 1, true}} {
		if got := s.recently(c.msg, now.Add(c.after)); got != c.again {
			t.Errorf("%d: %q was said a moment ago: %v", i, c.msg, got)
		}
	}
	var out bytes.Buffer
	l := newLogger(slog.New(slog.NewTextHandler(&out, nil)))
	for _, level := range []hclog.Level{hclog.Trace, hclog.Debug, hclog.Info, hclog.Warn, hclog.Error} {
		l.Log(level, "m-"+level.String())
	}
	if l.Warn("m-warn"); strings.Count(out.String(), "\n") != 2 || len(l.said.at) != 2 || !strings.Contains(out.String(), "level=WARN msg=raft what=m-error") {
		t.Errorf("said %s, remembered %v", out.String(), l.said.at)
	}
	out.Reset()
	newLogger(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))).Info("m-info")
	if !strings.Contains(out.String(), "level=DEBUG msg=raft what=m-info") {
		t.Errorf("said %q", out.String())
	}
}

// TestConnectionsAreForgottenWhenTheyEnd, all of them end with their layer, and it gives out none then.
func TestConnectionsAreForgottenWhenTheyEnd(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &streams{StreamLayer: loopback{listener}, known: "me:1", open: map[*stream]struct{}{}}
	var conns []net.Conn
	for range 2 {
		c, err := s.Dial(raft.ServerAddress(listener.Addr().String()), patience)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	if len(s.open) != 2 || conns[0].Close() != nil || len(s.open) != 1 || s.Addr().String() != "me:1" {
		t.Errorf("%d are open, at %s", len(s.open), s.Addr())
	}
	if err := conns[0].Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("closed once more: %v", err)
	}
	if err := errors.Join(s.Close(), s.Close()); err != nil || len(s.open) != 0 {
		t.Errorf("%v, %d are open", err, len(s.open))
	}
	if _, err := conns[1].Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a connection of before: %v", err)
	}
	a, b := net.Pipe()
	defer func() { _ = b.Close() }()
	if _, err := s.keep(a, nil); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a connection that comes late: %v", err)
	}
	if _, err := a.Write(nil); err == nil {
		t.Error("one that came late is still open")
	}
}

// TestWhatAConfigurationNeeds: each of its fields, by itself.
func TestWhatAConfigurationNeeds(t *testing.T) {
	good := Config{Dir: "d", ID: "a", Address: "x:1", Store: &state.Store{}, Log: slog.New(slog.DiscardHandler), Fatal: func(error) {}}
	if c, err := good.withDefaults(); err != nil || c.HeartbeatTimeout != 200*time.Millisecond || c.ElectionTimeout != c.HeartbeatTimeout || c.DiskLimit != 95 || c.DiskUsed == nil {
		t.Errorf("%+v, %v", c, err)
	}
	for name, change := range map[string]func(*Config){
		"Dir": func(c *Config) { c.Dir = "" }, "ID": func(c *Config) { c.ID = "" }, "Address": func(c *Config) { c.Address = "" },
		"Store": func(c *Config) { c.Store = nil }, "Log": func(c *Config) { c.Log = nil }, "Fatal": func(c *Config) { c.Fatal = nil },
	} {
		c := good
		if change(&c); func() error { _, err := c.withDefaults(); return err }() == nil {
			t.Errorf("it needs no %s", name)
		}
	}
}

// TestWhatASnapshotIsNamed must be what its description says, and its description as it was written.
func TestWhatASnapshotIsNamed(t *testing.T) {
	dir := t.TempDir()
	snaps, err := openSnapshots(dir, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	sink, err := snaps.Create(1, 20, 3, raft.Configuration{}, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sink.Write([]byte("state")); err != nil || sink.Close() != nil || sink.Close() != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(snaps.dir, "a-file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(snaps.dir, "3-30-1"+snapSuffix), 0o700); err != nil {
		t.Fatal(err)
	}
	if good, lost, err := snaps.check(); good != 20 || lost != 0 || err != nil || len(snaps.damaged) != 0 {
		t.Errorf("good to %d, lost to %d, %v, damaged %v", good, lost, err, snaps.damaged)
	}
	at := filepath.Join(snaps.dir, sink.ID())
	for name, lost := range map[string]uint64{"3-21-1": 21, "4-20-1": 20, "odd": 0, "x-22-1": 0, "3-x-1": 0, "3-20-" + strings.Repeat("9", 5): 20} {
		if err := os.Rename(at, filepath.Join(snaps.dir, name)); err != nil {
			t.Fatal(err)
		}
		snaps.damaged = nil
		if good, got, err := snaps.check(); good != 0 || got != lost || err != nil || fmt.Sprint(snaps.damaged) != "["+name+"]" {
			t.Errorf("%s: good to %d, lost to %d, %v, damaged %v", name, good, got, err, snaps.damaged)
		}
		if err := os.Rename(filepath.Join(snaps.dir, name), at); err != nil {
			t.Fatal(err)
		}
	}
}
