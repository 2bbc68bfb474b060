package state

import (
	"slices"
	"strings"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/scheduler/entry"
)

func auditOf(account fleet.AccountID, operation string, at time.Time) fleet.AuditLine {
	return fleet.AuditLine{At: at, Account: account, Key: "k1", Operation: operation, Object: "o-" + operation, Face: "v2", Status: 200}
}

// operations returns those of the lines that a query selects, page by page.
func (w *world) operations(q fleet.AuditQuery) (out []string) {
	w.t.Helper()
	for {
		page, err := w.s.Audit(q)
		if err != nil || len(page.Lines) > q.Limit {
			w.t.Fatal(len(page.Lines), err)
		}
		for _, l := range page.Lines {
			out = append(out, l.Operation)
		}
		if page.Next == 0 {
			return out
		}
		q.Before = page.Next
	}
}

func (w *world) recorded(want ...string) {
	w.t.Helper()
	if got := w.operations(fleet.AuditQuery{Limit: 2}); !slices.Equal(got, want) {
		w.t.Errorf("recorded is %v, want %v", got, want)
	}
}

// TestAChangeAndItsLineStandOrFallTogether puts changes and their lines into one entry: those that are refused, and those that were
// made before, leave none.
func TestAChangeAndItsLineStandOrFallTogether(t *testing.T) {
	w := newWorld(t).priced()
	line := func(operation string) Command {
		return RecordAudit{Line: auditOf("acme", operation, at(5)), With: true}
	}
	credit := AddCredit{Account: "acme", Amount: fleet.Dollar, At: at(5), Once: &fleet.Once{Key: "a", Fingerprint: []byte("f")}}
	first := w.entry(
		line("nothing"), credit, line("made"), credit, line("again"), DeleteKey{Account: "acme", Key: "none"}, line("refused"),
		RecordAudit{Line: auditOf("acme", "alone", at(6))},
	)
	res, err := w.s.Apply([]entry.Entry{first})
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range res[0] {
		if (r.Err != nil) != (i == 5) {
			t.Errorf("%d: %v", i, r.Err)
		}
	}
	if _, ok := res[0][3].Value.(Replay); !ok {
		t.Errorf("%+v is no replay", res[0][3])
	}
	w.recorded("alone", "made")
	batch := []entry.Entry{w.entry(PutAccount{fleet.Account{ID: "acme", Name: "Acme", CreatedAt: at(0)}}), w.entry(line("of another entry"))}
	if _, err := w.s.Apply(batch); err != nil {
		t.Fatal(err)
	}
	w.recorded("alone", "made")
	w.refused(fleet.CodeInvalid, RecordAudit{Line: auditOf("", "x", at(6))})
	w.check()
}

func TestAuditIsSelected(t *testing.T) {
	w := newWorld(t)
	for i, operation := range []string{"a", "b", "c", "a", "b", "c"} {
		w.must(RecordAudit{Line: auditOf([]fleet.AccountID{"acme", "other"}[i%2], operation, at(i))})
	}
	for _, c := range []struct {
		q    fleet.AuditQuery
		want string
	}{
		{fleet.AuditQuery{}, "cbacba"},
		{fleet.AuditQuery{Account: "acme"}, "bca"},
		{fleet.AuditQuery{Account: "other"}, "cab"},
		{fleet.AuditQuery{Account: "none"}, ""},
		{fleet.AuditQuery{Operation: "a"}, "aa"},
		{fleet.AuditQuery{Object: "o-b", Account: "other"}, "b"},
		{fleet.AuditQuery{From: at(1), To: at(4)}, "acb"},
		{fleet.AuditQuery{Account: "other", To: at(3)}, "b"},
		{fleet.AuditQuery{From: at(6)}, ""},
	} {
		for c.q.Limit = 1; c.q.Limit < 8; c.q.Limit++ {
			if got := strings.Join(w.operations(c.q), ""); got != c.want {
				t.Errorf("%+v gives %q, want %q", c.q, got, c.want)
			}
		}
	}
}

// TestAuditLooksAtSoManyLines gives up a page when it has seen many lines that are not asked for, and says where to go on.
func TestAuditLooksAtSoManyLines(t *testing.T) {
	w := newWorld(t)
	cmds := []Command{RecordAudit{Line: auditOf("acme", "first", at(0))}}
	for range maxAuditScan {
		cmds = append(cmds, RecordAudit{Line: auditOf("acme", "more", at(1))})
	}
	if _, err := w.s.Apply([]entry.Entry{w.entry(cmds...)}); err != nil {
		t.Fatal(err)
	}
	page, err := w.s.Audit(fleet.AuditQuery{Operation: "first", Limit: 1})
	if err != nil || len(page.Lines) != 0 || page.Next == 0 {
		t.Errorf("%+v %v", page, err)
	}
	if got := w.operations(fleet.AuditQuery{Operation: "first", Limit: 1}); len(got) != 1 {
		t.Errorf("found %v", got)
	}
}

// TestAPurgedLineIsGone from the file, too.
func TestAPurgedLineIsGone(t *testing.T) {
	w := newWorld(t)
	w.must(RecordAudit{Line: auditOf("acme", "a", at(0))}, RecordAudit{Line: auditOf("acme", "b", at(1))}, PurgeAudit{Before: at(0), Limit: 9, At: at(9)})
	w.inTxn(at(9), func(tx *txn) {
		for place, there := range map[uint64]bool{0: false, 1: true} {
			if row := tx.base.audit.Get(tx.Txn, auditText("acme", place)); (row != nil) != there {
				t.Errorf("line %d is there: %t", place, row != nil)
			}
		}
	})
}

func TestAuditIsPurged(t *testing.T) {
	w := newWorld(t)
	for i, operation := range []string{"a", "b", "c", "d"} {
		w.must(RecordAudit{Line: auditOf([]fleet.AccountID{"acme", "other"}[i%2], operation, at(i))})
	}
	purge := func(before, limit, want int) {
		t.Helper()
		if got := w.must(PurgeAudit{Before: at(before), Limit: limit, At: at(100)}); got != want {
			t.Errorf("%v lines were purged, want %d", got, want)
		}
		w.check()
	}
	purge(1, 0, 0)
	purge(1, 1, 1)
	w.recorded("d", "c", "b")
	purge(1, 10, 1)
	w.recorded("d", "c")
	purge(50, 10, 2)
	w.recorded()
	purge(50, 10, 0)
	w.must(RecordAudit{Line: auditOf("acme", "e", at(60))})
	w.recorded("e")
	w.must(TickClock{At: at(100), Leap: time.Minute})
	w.refused(fleet.CodeInvalid, PurgeAudit{Before: at(101), Limit: 1, At: at(100)})
	w.refused(fleet.CodeNotAllowed, PurgeAudit{Before: at(1), Limit: 1, At: at(100_000)})
}

// TestAuditOfAnAccountIsBounded records more than an account may keep: the oldest lines go, those of others stay.
func TestAuditOfAnAccountIsBounded(t *testing.T) {
	w := newWorld(t)
	w.must(RecordAudit{Line: auditOf("other", "stays", at(0))})
	long := auditOf("acme", strings.Repeat("x", 300), at(1))
	long.Object, long.KeyName, long.Face, long.Address = long.Operation, "\xff"+long.Operation, long.Operation, long.Operation
	fits := 0
	w.must(RecordAudit{Line: long})
	w.view(func(v *View) { fits = maxAuditBytes / v.tb.auditSpans.Rows["acme"].Bytes })
	for left := fits + 10; left > 0; left -= 1000 {
		cmds := make([]Command, min(left, 1000))
		for i := range cmds {
			cmds[i] = RecordAudit{Line: long}
		}
		if _, err := w.s.Apply([]entry.Entry{w.entry(cmds...)}); err != nil {
			t.Fatal(err)
		}
	}
	lines := 0
	for q := (fleet.AuditQuery{Account: "acme", Limit: 1000}); ; {
		page, err := w.s.Audit(q)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range page.Lines {
			if len(l.Object) != maxAuditText || len(l.KeyName) != maxAuditText-1 {
				t.Fatalf("a line has texts of %d and %d bytes", len(l.Object), len(l.KeyName))
			}
		}
		lines += len(page.Lines)
		if q.Before = page.Next; q.Before == 0 {
			break
		}
	}
	w.view(func(v *View) {
		span := v.tb.auditSpans.Rows["acme"]
		if lines != fits || span.Bytes > maxAuditBytes || span.First != 11 || int(span.Next-span.First) != lines {
			t.Errorf("%d lines, %d fit: %+v", lines, fits, span)
		}
	})
	if got := w.operations(fleet.AuditQuery{Account: "other", Limit: 1}); !slices.Equal(got, []string{"stays"}) {
		t.Errorf("another's lines are %v", got)
	}
	w.check()
}
