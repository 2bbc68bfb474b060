package state

import (
	"cmp"
	priority "container/heap"
	"errors"
	"fmt"
	"sort"
	"strings"
	"time"

	"gantry/fleet"
	"gantry/scheduler/state/table"
)

// The type numbers of commands about the audit log; see numbers.go.
const (
	numRecordAudit uint64 = 100 + iota
	numPurgeAudit
)

func (RecordAudit) number() uint64 { return numRecordAudit }
func (PurgeAudit) number() uint64  { return numPurgeAudit }

const (
	// maxAuditBytes bounds the lines of one account: about 40,000. Older ones go first.
	maxAuditBytes = 8 << 20
	maxAuditText  = 256 // bytes of one member
	auditOverhead = 64  // bytes of a line beside its texts
	maxAuditScan  = 10_000
)

// RecordAudit adds a line to the audit log. With one that belongs to the command before it in the entry, the two stand or fall
// together: nothing is added, without error, when that was refused or is a Replay. Errors: invalid (no account).
type RecordAudit struct {
	Line fleet.AuditLine `cbor:"1,keyasint"` // without Number
	With bool            `cbor:"2,keyasint,omitempty"`
}

// PurgeAudit deletes up to Limit lines of before or at Before, oldest first within an account. Value: int, how many. Errors: as of
// PurgePods.
type PurgeAudit struct {
	Before time.Time `cbor:"1,keyasint"`
	Limit  int       `cbor:"2,keyasint"`
	At     time.Time `cbor:"3,keyasint"`
}

// auditSpan is which lines an account has: those from First up to, but without, Next.
type auditSpan struct {
	First  uint64    `cbor:"1,keyasint"`
	Next   uint64    `cbor:"2,keyasint"`
	Bytes  int       `cbor:"3,keyasint"`
	Oldest time.Time `cbor:"4,keyasint"` // of the line at First
}

func auditText(account fleet.AccountID, at uint64) string {
	return usageOf(account) + fmt.Sprintf("%016x", at)
}

func auditSize(l *fleet.AuditLine) int {
	return auditOverhead + len(l.Account) + len(l.Key) + len(l.KeyName) + len(l.Operation) + len(l.Object) + len(l.Face) + len(l.Address)
}

func (c RecordAudit) apply(t *txn) (any, error) {
	line := c.Line
	switch {
	case c.With && !t.changed:
		return nil, nil
	case line.Account == "" || len(line.Account) > maxAuditText:
		return nil, fleet.Invalid("$.account", "must have 1 to 256 bytes")
	}
	for _, text := range []*string{&line.Key, &line.KeyName, &line.Operation, &line.Object, &line.Face, &line.Address} {
		*text = strings.ToValidUTF8((*text)[:min(len(*text), maxAuditText)], "")
	}
	if last := t.base.auditLast.Get(t.Txn, onlyKey); last != nil {
		line.Number = *last
	}
	line.Number++
	var span auditSpan
	if row := t.base.auditSpans.Get(t.Txn, line.Account); row != nil {
		span = *row
	}
	t.base.audit.Put(t.Txn, auditText(line.Account, span.Next), &line)
	if span.First == span.Next {
		span.Oldest = line.At
	}
	span.Next++
	span.Bytes += auditSize(&line)
	for span.Bytes > maxAuditBytes {
		t.dropAudit(line.Account, &span)
	}
	t.base.auditLast.Put(t.Txn, onlyKey, &line.Number)
	t.base.auditSpans.Put(t.Txn, line.Account, &span)
	return nil, nil
}

// dropAudit deletes the oldest line of an account, which has one.
func (t *txn) dropAudit(account fleet.AccountID, span *auditSpan) {
	key := auditText(account, span.First)
	if row := t.base.audit.Get(t.Txn, key); row != nil {
		span.Bytes -= auditSize(row)
	}
	t.base.audit.Put(t.Txn, key, nil)
	span.First++
	span.Oldest = time.Time{}
	if row := t.base.audit.Get(t.Txn, auditText(account, span.First)); row != nil {
		span.Oldest = row.At
	}
}

func (c PurgeAudit) apply(t *txn) (any, error) {
	if err := t.forgetting(c.At, c.Before); err != nil {
		return nil, err
	}
	limit, n := min(max(c.Limit, 0), maxPurge), 0
	due := func(s *auditSpan) bool { return s.First < s.Next && !s.Oldest.After(c.Before) }
	for _, account := range t.base.auditSpans.Keys(t.Txn, limit, due) {
		span := *t.base.auditSpans.Get(t.Txn, account)
		for ; n < limit && due(&span); n++ {
			t.dropAudit(account, &span)
		}
		t.base.auditSpans.Put(t.Txn, account, &span)
	}
	return n, nil
}

// auditHead is where a query is in the lines of an account: at is the one to be looked at next.
type auditHead struct {
	account fleet.AccountID
	first   uint64
	at      uint64
	line    *fleet.AuditLine
}

// auditHeads has the account with the newest line at the top.
type auditHeads []*auditHead

func (h auditHeads) Len() int           { return len(h) }
func (h auditHeads) Less(i, j int) bool { return h[i].line.Number > h[j].line.Number }
func (h auditHeads) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *auditHeads) Push(x any)        { *h = append(*h, x.(*auditHead)) } //nolint:forcetypeassert // Push is not called
func (h *auditHeads) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

// Audit returns the newest lines that a query selects. It looks at 10,000 lines at most, so a page may have fewer than Limit and
// still a Next. It reads the file without holding up commands.
func (s *Store) Audit(q fleet.AuditQuery) (page fleet.AuditPage, err error) {
	var rows *table.ColdView
	var log *table.Cold[fleet.AuditLine]
	spans := map[fleet.AccountID]auditSpan{}
	err = s.View(func(v *View) (err error) {
		for account, span := range v.tb.auditSpans.Rows {
			if q.Account == "" || q.Account == account {
				spans[account] = *span
			}
		}
		log = &v.tb.audit
		rows, err = v.store.Cold()
		return err
	})
	if err != nil {
		return page, fmt.Errorf("read the audit log: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	heads := auditHeads{}
	for account, span := range spans {
		head, err := auditHeadOf(log, rows, q, account, span)
		if err != nil {
			return page, fmt.Errorf("read the audit log: %w", err)
		}
		if head.line != nil {
			heads = append(heads, head)
		}
	}
	priority.Init(&heads)
	for seen := 0; len(heads) > 0; seen++ {
		head := heads[0]
		line := head.line
		if len(page.Lines) == q.Limit || seen == maxAuditScan {
			page.Next = line.Number + 1
			return page, nil
		}
		if (q.Operation == "" || q.Operation == line.Operation) && (q.Object == "" || q.Object == line.Object) {
			page.Lines = append(page.Lines, *line)
		}
		if err := head.next(log, rows, q); err != nil {
			return page, fmt.Errorf("read the audit log: %w", err)
		}
		if head.line == nil {
			priority.Pop(&heads)
		} else {
			priority.Fix(&heads, 0)
		}
	}
	return page, nil
}

// next goes on to the line before; there is none when line is nil.
func (h *auditHead) next(log *table.Cold[fleet.AuditLine], rows *table.ColdView, q fleet.AuditQuery) (err error) {
	h.line = nil
	if h.at == h.first {
		return nil
	}
	h.at--
	line, err := log.At(rows, auditText(h.account, h.at))
	if line != nil && !line.At.Before(q.From) {
		h.line = line
	}
	return err
}

// auditHeadOf finds the newest line of an account that a query may select.
func auditHeadOf(
	log *table.Cold[fleet.AuditLine], rows *table.ColdView, q fleet.AuditQuery, account fleet.AccountID, span auditSpan,
) (*auditHead, error) {
	var failed error
	n := int(span.Next - span.First) //nolint:gosec // as many as 8 MiB hold
	if q.Before != 0 || !q.To.IsZero() {
		n = sort.Search(n, func(i int) bool {
			line, err := log.At(rows, auditText(account, span.First+uint64(i))) //nolint:gosec // not negative
			failed = cmp.Or(failed, err)
			return line == nil || q.Before != 0 && line.Number >= q.Before || !q.To.IsZero() && !line.At.Before(q.To)
		})
	}
	head := &auditHead{account: account, first: span.First, at: span.First + uint64(n)} //nolint:gosec // not negative
	return head, cmp.Or(failed, head.next(log, rows, q))
}

// Subject returns the id of what a command makes; empty for one that makes nothing with an id.
func Subject(cmd Command) string {
	switch c := cmd.(type) {
	case CreatePods:
		if len(c.Pods) > 0 {
			return string(c.Pods[0].Pod.ID)
		}
	case CreateCluster:
		return string(c.Cluster.ID)
	case CreateVolume:
		return string(c.Volume.ID)
	case PutKey:
		return string(c.Key.ID)
	case PutAccount:
		return string(c.Account.ID)
	case PutToken:
		return string(c.Token.ID)
	case PutBackend:
		return string(c.Backend.ID)
	case PutModel:
		return string(c.Model.ID)
	case PutPerson:
		return string(c.Person.ID)
	case Put[fleet.Template]:
		return string(c.Record.ID)
	case Put[fleet.Registry]:
		return string(c.Record.ID)
	case Put[fleet.S3Key]:
		return c.Record.ID
	case Put[fleet.Endpoint]:
		return string(c.Record.ID)
	}
	return ""
}
