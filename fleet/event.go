package fleet

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// EventKind is what an event is about.
type EventKind string

// The kinds of an account's events, and what their Object is.
const (
	EventPod      EventKind = "pod"      // pod id
	EventWorker   EventKind = "worker"   // pod id of a worker; its Parent is the endpoint
	EventEndpoint EventKind = "endpoint" // endpoint id
	EventCluster  EventKind = "cluster"  // cluster id
	EventVolume   EventKind = "volume"   // network volume id
	EventNetwork  EventKind = "network"  // overlay id
	EventTemplate EventKind = "template" // template id
	EventRegistry EventKind = "registry" // registry credential id
	EventSecret   EventKind = "secret"   // name
	EventS3Key    EventKind = "s3-key"   // access key
	EventKey      EventKind = "key"      // API key id
	EventSSHKeys  EventKind = "ssh-keys" // account id
	EventBalance  EventKind = "balance"  // account id
	EventAccount  EventKind = "account"  // account id

	EventLowBalance EventKind = "low-balance" // account id; created when the balance becomes low, deleted when it no longer is
)

// The kinds of operators' events, beside EventAccount.
const (
	EventHost       EventKind = "host"           // host id
	EventDataCenter EventKind = "datacenter"     // data center id
	EventBackend    EventKind = "volume-backend" // backend id
	EventScheduler  EventKind = "scheduler"      // member id
)

// EventKinds returns the kinds that accounts may ask for and, by itself, what a key must read for each.
func EventKinds() map[EventKind]Group {
	return map[EventKind]Group{
		EventPod: GroupPods, EventWorker: GroupServerless, EventEndpoint: GroupServerless, EventCluster: GroupPods,
		EventVolume: GroupVolumes, EventNetwork: GroupPods, EventTemplate: GroupTemplates, EventRegistry: GroupRegistries,
		EventSecret: GroupAccount, EventS3Key: GroupS3, EventKey: GroupAccount, EventSSHKeys: GroupAccount,
		EventBalance: GroupBilling, EventLowBalance: GroupBilling, EventAccount: GroupAccount,
	}
}

// OperatorEventKinds returns the kinds that operators may ask for.
func OperatorEventKinds() []EventKind {
	return []EventKind{EventHost, EventDataCenter, EventBackend, EventScheduler, EventAccount}
}

// EventType is what happened to an object.
type EventType string

// The types. A reset says that events are missing: whoever keeps copies of records reads them again.
const (
	EventCreated EventType = "created"
	EventChanged EventType = "changed"
	EventDeleted EventType = "deleted"
	EventReady   EventType = "ready"
	EventReset   EventType = "reset"
)

// BalanceLow and the others are statuses of EventBalance; see Account.Low.
const (
	BalanceOK  = "ok"
	BalanceLow = "low"
	BalanceOut = "out"
)

// Event says that an object changed. EventReady and EventReset are about no object: only their Place is set.
type Event struct {
	Place   EventPlace
	Kind    EventKind
	Type    EventType
	Account AccountID // empty: the object is the operators'
	Object  string
	Parent  string // what it is part of; see the kinds
	At      time.Time
	Status  string // the object's then; empty: it has none
	Reason  string // of that status; may be empty
}

// EventPlace is where an event is in the log: the id of an event. The zero value is before all.
type EventPlace struct {
	Lineage uint64 `cbor:"1,keyasint,omitempty"` // of the cluster
	Index   uint64 `cbor:"2,keyasint"`
	Seq     uint32 `cbor:"3,keyasint"`
}

// Before reports whether a place is before another one of the same lineage, or of another lineage.
func (p EventPlace) Before(o EventPlace) bool {
	return p.Lineage != o.Lineage || p.Index < o.Index || p.Index == o.Index && p.Seq < o.Seq
}

// EventPlaceForm is the form of an event's id.
const EventPlaceForm = `^(0|[1-9][0-9]{0,19})-(0|[1-9][0-9]{0,19})-(0|[1-9][0-9]{0,9})$`

// String returns the event's id.
func (p EventPlace) String() string { return fmt.Sprintf("%d-%d-%d", p.Lineage, p.Index, p.Seq) }

// ParseEventPlace reads an event's id; false when it is none.
func ParseEventPlace(id string) (EventPlace, bool) {
	parts := strings.Split(id, "-")
	if len(parts) != 3 {
		return EventPlace{}, false
	}
	var n [3]uint64
	for i, bits := range []int{64, 64, 32} {
		var err error
		if n[i], err = strconv.ParseUint(parts[i], 10, bits); err != nil {
			return EventPlace{}, false
		}
	}
	p := EventPlace{n[0], n[1], uint32(n[2])}
	return p, p.String() == id
}

// Whole reports whether the place is behind all changes of its entry.
func (p EventPlace) Whole() bool { return p.Seq == math.MaxUint32 }

// EventReader reads events one after the other. One goroutine uses it; it must be closed.
type EventReader interface {
	// Next waits for the next events and returns them, oldest first; never none. The first of all is EventReady, or EventReset
	// when events after the query's place are no longer known; EventReset comes again whenever the reader was too slow. The error
	// is that of ctx.
	Next(ctx context.Context) ([]Event, error)
	// Place returns from where on the reader has not been told of events that it wants.
	Place() EventPlace
	Close()
}

// EventQuery asks for events.
type EventQuery struct {
	After    *EventPlace // nil: from now on
	Kinds    []EventKind
	Objects  []string // empty: all
	Operator bool     // operators' events instead of an account's
}

// Wants reports whether an event of an account is asked for.
func (q *EventQuery) Wants(account AccountID, e *Event) bool {
	return (q.Operator || e.Account == account) && slices.Contains(q.Kinds, e.Kind) &&
		(len(q.Objects) == 0 || slices.Contains(q.Objects, e.Object) || e.Parent != "" && slices.Contains(q.Objects, e.Parent))
}
