package fleet

import "time"

// ChargeKind is what a charge is for.
type ChargeKind string

// The kinds.
const (
	ChargePod      ChargeKind = "pod"
	ChargeVolume   ChargeKind = "volume"
	ChargeEndpoint ChargeKind = ChargeKind(OwnerEndpoint) // of all its workers
	ChargeCluster  ChargeKind = ChargeKind(OwnerCluster)  // of all its members
	ChargeModel    ChargeKind = "model"                   // public; with what its owner earned
)

// Amounts are what was charged, by component.
type Amounts struct {
	GPU      Money `cbor:"1,keyasint,omitempty"`
	CPU      Money `cbor:"2,keyasint,omitempty"`
	Disk     Money `cbor:"3,keyasint,omitempty"` // container disk and host-local mounts
	Standard Money `cbor:"4,keyasint,omitempty"` // network volumes of the standard tier
	Fast     Money `cbor:"5,keyasint,omitempty"` // of the high-performance tier
	Calls    Money `cbor:"6,keyasint,omitempty"` // of public models
	Revenue  Money `cbor:"7,keyasint,omitempty"` // of others' calls of the account's public models
}

// Total sums what was charged, of which revenue is none.
func (a Amounts) Total() Money { return a.GPU + a.CPU + a.Disk + a.Standard + a.Fast + a.Calls }

// Plus adds amounts component by component.
func (a Amounts) Plus(b Amounts) Amounts {
	return Amounts{
		GPU: a.GPU + b.GPU, CPU: a.CPU + b.CPU, Disk: a.Disk + b.Disk, Standard: a.Standard + b.Standard, Fast: a.Fast + b.Fast,
		Calls: a.Calls + b.Calls, Revenue: a.Revenue + b.Revenue,
	}
}

// BucketSize is the length of a bucket of charges.
type BucketSize string

// The sizes. Buckets begin on whole hours, days, Mondays, months and years of UTC.
const (
	BucketHour  BucketSize = "hour"
	BucketDay   BucketSize = "day"
	BucketWeek  BucketSize = "week"
	BucketMonth BucketSize = "month"
	BucketYear  BucketSize = "year"
)

// BillingQuery selects charges of an account.
type BillingQuery struct {
	Kind   ChargeKind // empty: all kinds, told apart by kind and not by resource
	ID     string     // of one resource; empty: all of the kind
	Start  time.Time  // zero: 30 days before End; snapped down to a bucket
	End    time.Time  // zero: now; snapped up to a bucket
	LastN  int        // the last buckets, the present one among them; excludes Start and End
	Bucket BucketSize // empty: day
}

// BillingRecord is what was charged in one bucket.
type BillingRecord struct {
	Start, End time.Time
	Kind       ChargeKind
	ID         string // of the resource; empty when they are not told apart
	Amounts    Amounts
}

// BillingView is the answer to a BillingQuery. Records are ordered by time, kind and id; buckets without
// charges have none.
type BillingView struct {
	Start, End time.Time // as snapped
	Bucket     BucketSize
	Records    []BillingRecord
}

// AccountView is an account with its money.
type AccountView struct {
	Account    Account
	Balance    Money // what is left of its credit now; negative when it was not prepaid or storage went on
	HourlyRate Money // what it spends per hour now, storage included
	Used       Counts
	Defaults   Limits    // of accounts that have none of their own
	LowSince   time.Time // since when its owner is told that the balance is low; zero: it is not
	Webhook    WebhookState
}

// AccountUpdate changes an account; nil leaves a field as it is.
type AccountUpdate struct {
	Name    *string
	Prepaid *bool
	Quotas  *Quotas // the zero value: the daemon's again
	Egress  *Egress
	Limits  map[string]*int64 // by name; nil: that of all accounts again
	AccountSettings
}

// AccountSettings are what an account says of itself; nil leaves one as it is. See Account.
type AccountSettings struct {
	SpendLimit, LowBalance *Money // below 0 takes it back
	Webhook                *WebhookRequest
}

// WebhookRequest asks for another webhook of an account; without URL for none.
type WebhookRequest struct {
	URL    string
	Kinds  []EventKind
	Secret *Secret // nil: as it is; empty: calls are not signed
}

// KeyRequest asks for a key.
type KeyRequest struct {
	Name      string
	Preset    string           // "all", "readOnly", "restricted" or, by operators, "admin"
	Can       map[Group]Access // replaces the preset's access group by group; with AccessNone it takes one away
	Invoke    []string         // endpoints, or InvokeAll; nil: all when the preset is "all", else none
	ExpiresAt time.Time
	Person    PersonID // whose command line gets it; empty: it is the account's
	Device    bool     // it is for a command line
}

// KeyUpdate changes a key; nil leaves a field as it is.
type KeyUpdate struct {
	Name     *string
	Disabled *bool
}
