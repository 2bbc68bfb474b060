package state

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"gantry/fleet"
	"gantry/scheduler/meter"
	"gantry/scheduler/state/table"
)

// UsageHour is what was charged for one resource in one hour, or in one bucket of hours.
type UsageHour struct {
	Hour    time.Time // its beginning, UTC
	Kind    fleet.ChargeKind
	ID      string // empty where resources are not told apart
	Amounts fleet.Amounts
}

// Usage returns what an account was charged in the hours that begin in [from, to), running charges up
// to now included; from is rounded down to its hour, to up. Kind and id select; empty ones do not. It
// is ordered by hour, kind and id. It holds every hour of every resource: Store.UsageBy sums up.
func (v *View) Usage(account fleet.AccountID, kind fleet.ChargeKind, id string, from, to, now time.Time) ([]UsageHour, error) {
	q, err := v.usageQuery(account, MeterID{kind, id}, from, to, now, newUsageSums(nil, true))
	if err != nil {
		return nil, err
	}
	return q.run()
}

// UsageBy is Usage of a view of now, summed up; it reads the file after that view has ended. Bucket gives the beginning of the bucket that an hour's beginning is in, nil
// makes each hour one; kinds are told apart, and resources when perResource says so. It is ordered by the
// beginnings of the buckets, which are the Hour of the answer, then kind and id; sums of 0 are left out.
// It holds no more in memory than the answer. Bucket is called under the store's lock: it must be pure.
func (s *Store) UsageBy(account fleet.AccountID, kind fleet.ChargeKind, id string, from, to, now time.Time,
	bucket func(hour time.Time) time.Time, perResource bool,
) ([]UsageHour, error) {
	var q *usageQuery
	err := s.View(func(v *View) (err error) {
		q, err = v.usageQuery(account, MeterID{kind, id}, from, to, now, newUsageSums(bucket, perResource))
		return err
	})
	if err != nil {
		return nil, err
	}
	return q.run()
}

// sumKey is a bucket by the second at which it begins, and a resource by its meter's key; with an empty id: all of its kind.
type sumKey struct {
	start    int64
	resource string
}

// usageSums adds hours up by bucket.
type usageSums struct {
	bucket      func(time.Time) time.Time
	perResource bool
	hour, start int64 // the latest hour, and when its bucket begins
	sums        map[sumKey]*fleet.Amounts
}

func newUsageSums(bucket func(time.Time) time.Time, perResource bool) *usageSums {
	return &usageSums{bucket: bucket, perResource: perResource, hour: -1, sums: map[sumKey]*fleet.Amounts{}}
}

// add adds to an hour of a resource, which is a meter's key.
func (u *usageSums) add(hour int64, resource []byte, amounts fleet.Amounts) {
	if hour != u.hour {
		u.hour, u.start = hour, hour*meter.HourSeconds
		if u.bucket != nil {
			u.start = u.bucket(meter.HourTime(hour)).Unix()
		}
	}
	if !u.perResource {
		resource = resource[:bytes.IndexByte(resource, '/')+1]
	}
	sum := u.sums[sumKey{u.start, string(resource)}]
	if sum == nil {
		sum = new(fleet.Amounts)
		u.sums[sumKey{u.start, string(resource)}] = sum
	}
	*sum = sum.Plus(amounts)
}

// answer returns what was added up, in order.
func (u *usageSums) answer() []UsageHour {
	out := make([]UsageHour, 0, len(u.sums))
	for key, sum := range u.sums {
		if *sum != (fleet.Amounts{}) {
			id := meterIDOf(key.resource)
			out = append(out, UsageHour{Hour: time.Unix(key.start, 0).UTC(), Kind: id.Kind, ID: id.ID, Amounts: *sum})
		}
	}
	slices.SortFunc(out, func(a, b UsageHour) int {
		return cmp.Or(a.Hour.Compare(b.Hour), strings.Compare(string(a.Kind), string(b.Kind)), strings.Compare(a.ID, b.ID))
	})
	return out
}

// usageQuery is a question about usage with all that answers it, of one index: the file as it was then,
// what to read otherwise than it stands there, and what ran, which is added up already.
type usageQuery struct {
	account  fleet.AccountID
	want     MeterID // empty fields: any
	from, to int64   // hours
	usage    *table.Cold[fleet.Amounts]
	rows     *table.ColdView
	sums     *usageSums
}

// usageQuery begins a query, which run ends.
func (v *View) usageQuery(account fleet.AccountID, want MeterID, from, to, now time.Time, sums *usageSums) (*usageQuery, error) {
	q := &usageQuery{
		account: account, want: want, from: meter.Hour(meter.Seconds(from)), usage: &v.tb.usage,
		to: meter.Hour(meter.Seconds(to.Add(time.Hour - time.Nanosecond))), sums: sums,
	}
	second := v.seconds(now)
	for key, m := range v.tb.metersOf.Rows[account] {
		if resource := []byte(m.resource(meterIDOf(key)).key()); q.wants(resource) {
			q.running(resource, m, second)
		}
	}
	var err error
	if q.rows, err = v.store.Cold(); err != nil {
		return nil, fmt.Errorf("read usage: %w", err)
	}
	return q, nil
}

// wants reports whether a resource is asked for.
func (q *usageQuery) wants(resource []byte) bool {
	kind, id, _ := bytes.Cut(resource, []byte("/"))
	return (q.want.Kind == "" || string(q.want.Kind) == string(kind)) && (q.want.ID == "" || q.want.ID == string(id))
}

// running adds what a meter has run up.
func (q *usageQuery) running(resource []byte, m *openMeter, now int64) {
	for hour, amounts := range m.interval().Hours(m.Settled, max(now, m.Begin)) {
		if hour >= q.from && hour < q.to {
			q.sums.add(hour, resource, amounts)
		}
	}
}

// run adds what the file says.
func (q *usageQuery) run() (out []UsageHour, err error) {
	if err := q.usage.Range(q.rows, usageFrom(q.account, q.from), usageFrom(q.account, q.to), q.row); err != nil {
		return nil, fmt.Errorf("read usage: %w", err)
	}
	return q.sums.answer(), nil
}

// row adds a record of the account's, if it is asked for.
func (q *usageQuery) row(key []byte, amounts *fleet.Amounts) error {
	at := accountDigits + len(q.account)
	if len(key) < at+hourDigits {
		return errUsageKey
	}
	hour, err := strconv.ParseInt(string(key[at:at+hourDigits]), 10, 64)
	if err != nil {
		return errUsageKey
	}
	if resource := key[at+hourDigits:]; q.wants(resource) {
		q.sums.add(hour, resource, *amounts)
	}
	return nil
}
