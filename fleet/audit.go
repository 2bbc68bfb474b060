package fleet

import (
	"context"
	"sync/atomic"
	"time"
)

// AuditLine says who changed what, and from where. It holds no secret and nothing of a request's body.
type AuditLine struct {
	At        time.Time `cbor:"1,keyasint"`
	Account   AccountID `cbor:"2,keyasint"`           // of the key
	Key       string    `cbor:"3,keyasint"`           // its id; of a pod's own key the pod's, of a session that one's
	KeyName   string    `cbor:"4,keyasint,omitempty"` // as it was then
	Operator  bool      `cbor:"5,keyasint,omitempty"` // the operation is one of operators
	Operation string    `cbor:"6,keyasint"`           // operationId, or the field of a GraphQL mutation
	Object    string    `cbor:"7,keyasint,omitempty"` // what was changed, or made
	Face      string    `cbor:"8,keyasint"`
	Address   string    `cbor:"9,keyasint,omitempty"`  // of the client
	Status    int       `cbor:"10,keyasint"`           // of the operation's success
	Number    uint64    `cbor:"11,keyasint"`           // grows with each line of any account
	Person    PersonID  `cbor:"12,keyasint,omitempty"` // whose session or command line it was
}

// AuditQuery selects lines. What is empty selects nothing.
type AuditQuery struct {
	Account           AccountID // empty: all accounts
	From, To          time.Time // From is included, To is not
	Operation, Object string
	Before            uint64 // only lines with smaller numbers; 0: any
	Limit             int
}

// AuditPage is a part of the lines that a query selects, newest first.
type AuditPage struct {
	Lines []AuditLine
	Next  uint64 // Before of the query that goes on; 0: that was all
}

// Audit is the line of a request that is under way. Its methods may be called on nil, which is that of no change.
type Audit struct {
	Line AuditLine
	done atomic.Bool
}

type auditKey struct{}

// WithAudit returns ctx carrying a line that is to be recorded with what the request changes first.
func WithAudit(ctx context.Context, line AuditLine) context.Context {
	return context.WithValue(ctx, auditKey{}, &Audit{Line: line})
}

// AuditOf returns what ctx carries; nil: nothing.
func AuditOf(ctx context.Context) *Audit {
	a, _ := ctx.Value(auditKey{}).(*Audit)
	return a
}

// Begin begins another line, once what belongs to the one before is done.
func (a *Audit) Begin(line AuditLine) {
	if a != nil {
		a.Line = line
		a.done.Store(false)
	}
}

// Pending reports whether the line is whole, and not recorded so far.
func (a *Audit) Pending() bool { return a != nil && a.Line.Account != "" && !a.done.Load() }

// Recorded says that the line is on record.
func (a *Audit) Recorded() {
	if a != nil {
		a.done.Store(true)
	}
}
