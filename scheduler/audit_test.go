package scheduler

import (
	"context"
	"testing"

	"gantry/fleet"
	"gantry/scheduler/dispatch"
	"gantry/scheduler/entry"
	"gantry/scheduler/state"
)

// watched counts what is proposed together.
type watched struct {
	dispatch.Proposer
	lines   int // entries with a change and its line
	changes int // entries with anything else
}

func (w *watched) Propose(ctx context.Context, cmds ...state.Command) ([]entry.Result, error) {
	if line, ok := cmds[len(cmds)-1].(state.RecordAudit); ok && line.With && len(cmds) == 2 {
		w.lines++
	} else {
		w.changes++
	}
	return w.Proposer.Propose(ctx, cmds...)
}

// TestAChangeIsProposedWithItsLine has a request change something twice: its line is in the entry of the first that succeeds.
func TestAChangeIsProposedWithItsLine(t *testing.T) {
	w := newWorld(t)
	node := &watched{Proposer: w.svc.Node}
	w.svc.Node = node
	ctx := fleet.WithAudit(t.Context(), fleet.AuditLine{Account: acme, Key: "k1", Operation: "createKey", Face: "v2"})
	if err := w.svc.DeleteKey(ctx, member(acme), "none"); fleet.CodeOf(err) != fleet.CodeNotFound || !fleet.AuditOf(ctx).Pending() {
		t.Fatal(err)
	}
	key, _, err := w.svc.CreateAccountKey(ctx, acme, fleet.KeyRequest{Name: "ci"})
	if err != nil || fleet.AuditOf(ctx).Pending() {
		t.Fatal(err)
	}
	if err := w.svc.DeleteKey(ctx, member(acme), key.ID); err != nil {
		t.Fatal(err)
	}
	if err := w.svc.NoteAudit(ctx); err != nil { // it is on record
		t.Fatal(err)
	}
	if err := w.svc.DeleteKey(t.Context(), member(acme), "none"); fleet.CodeOf(err) != fleet.CodeNotFound {
		t.Fatal(err)
	}
	page, err := w.svc.Audit(t.Context(), fleet.AuditQuery{Account: acme, Limit: 9})
	if err != nil || len(page.Lines) != 1 || page.Lines[0].Object != string(key.ID) || page.Lines[0].At.IsZero() {
		t.Errorf("%+v %v", page, err)
	}
	if node.lines != 2 || node.changes != 2 {
		t.Errorf("%d entries with a line, %d without", node.lines, node.changes)
	}
}
