package state

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"go.etcd.io/bbolt"

	"gantry/fleet"
	"gantry/scheduler/meter"
)

// coldTable is a bucket of which no row is kept in memory: there are too many.
type coldTable[T any] struct{ bucket string }

// cold marks a rowStore of which nothing is loaded.
type cold interface{ cold() }

func (t *coldTable[T]) name() string    { return t.bucket }
func (t *coldTable[T]) cold()           {}
func (t *coldTable[T]) set(string, any) {}
func (t *coldTable[T]) row(string) any  { return nil }

func (t *coldTable[T]) decode(c *codec, value []byte) (any, error) {
	row := new(T)
	if err := c.Dec.Unmarshal(value, row); err != nil {
		return nil, err
	}
	return row, nil
}

// usageKey is one hour of one resource. Its text has the account behind its length, so that no account's
// rows are among another's, and an hour of fixed width, so that an account's rows are in the order of
// time, then kind and id.
type usageKey struct {
	account fleet.AccountID
	hour    int64 // since 1970
	id      MeterID
}

const (
	accountDigits = 3 // of an account's length
	hourDigits    = 8
)

func (k usageKey) text() string { return usageFrom(k.account, k.hour) + k.id.key() }

// usageOf is what the keys of an account begin with, usageFrom those of an hour of it. afterHours is
// above all that may follow usageOf.
func usageOf(account fleet.AccountID) string {
	return fmt.Sprintf("%0*x%s", accountDigits, len(account), account)
}

func usageFrom(account fleet.AccountID, hour int64) string {
	return usageOf(account) + fmt.Sprintf("%0*d", hourDigits, hour)
}

const afterHours = ":"

// parseUsage reads a key. What is no key is a damaged file.
func parseUsage(text string) (usageKey, error) {
	if len(text) < accountDigits {
		return usageKey{}, errUsageKey
	}
	n, err := strconv.ParseUint(text[:accountDigits], 16, 16)
	if err != nil || len(text) < accountDigits+int(n)+hourDigits {
		return usageKey{}, errUsageKey
	}
	account, rest := text[accountDigits:accountDigits+n], text[accountDigits+n:]
	hour, err := strconv.ParseInt(rest[:hourDigits], 10, 64)
	if err != nil {
		return usageKey{}, errUsageKey
	}
	return usageKey{fleet.AccountID(account), hour, meterIDOf(rest[hourDigits:])}, nil
}

var errUsageKey = errors.New("a record of usage has a damaged key")

// coldReader reads rows of usage from the file while a batch is decided. It keeps what it read: those
// are the rows before the batch.
type coldReader struct {
	db    *bbolt.DB
	codec *codec
	rows  map[string]*fleet.Amounts // nil: not there
	err   error                     // the file cannot be read: the batch must not be
}

// get reads a row; nil when it is not there.
func (r *coldReader) get(bucket, key string) *fleet.Amounts {
	if row, ok := r.rows[key]; ok {
		return row
	}
	err := r.db.View(func(tx *bbolt.Tx) error {
		value := tx.Bucket([]byte(bucket)).Get([]byte(key))
		if value == nil {
			r.rows[key] = nil
			return nil
		}
		row := new(fleet.Amounts)
		r.rows[key] = row
		return r.codec.Dec.Unmarshal(value, row)
	})
	if err != nil {
		r.err = errors.Join(r.err, fmt.Errorf("read usage: %w", err))
	}
	return r.rows[key]
}

// usageRow reads a row of usage as the batch has it; nil when it is not there.
func (t *txn) usageRow(key string) *fleet.Amounts {
	at := slot{t.base.usage.bucket, key}
	if i, ok := t.latest[at]; ok {
		row, _ := t.staged[i].row.(*fleet.Amounts)
		return row
	}
	if row, ok := t.batch[at]; ok {
		row, _ := row.(*fleet.Amounts)
		return row
	}
	return t.cold.get(at.bucket, key)
}

// addUsage adds to an hour. One that comes to nothing has no row.
func (t *txn) addUsage(k usageKey, amounts fleet.Amounts) {
	key := k.text()
	if row := t.usageRow(key); row != nil {
		amounts = row.Plus(amounts)
	}
	if amounts == (fleet.Amounts{}) {
		t.stage(slot{t.base.usage.bucket, key}, nil)
		return
	}
	t.stage(slot{t.base.usage.bucket, key}, &amounts)
}

// maxPurge bounds what one PurgeUsage deletes.
const maxPurge = 16 << 10

func (c PurgeUsage) apply(t *txn) (any, error) {
	if err := t.forgetting(c.At, c.Before); err != nil {
		return nil, err
	}
	keys := t.usageBefore(meter.Hour(meter.Seconds(c.Before)), min(max(c.Limit, 0), maxPurge))
	for _, key := range keys {
		t.usageRow(key)
		t.stage(slot{t.base.usage.bucket, key}, nil)
	}
	return len(keys), nil
}

// usageBefore returns the first limit keys of hours before an hour, as the batch has them before the
// command at hand.
func (t *txn) usageBefore(hour int64, limit int) []string {
	bucket, out := t.base.usage.bucket, []string{}
	for at, row := range t.batch {
		if k, err := parseUsage(at.key); at.bucket == bucket && row != nil && err == nil && k.hour < hour {
			out = append(out, at.key)
		}
	}
	left := limit
	err := t.cold.db.View(func(tx *bbolt.Tx) error {
		c := tx.Bucket([]byte(bucket)).Cursor()
		for key, _ := c.First(); key != nil && left > 0; {
			k, err := parseUsage(string(key))
			if err != nil {
				return err
			}
			if k.hour >= hour {
				key, _ = c.Seek([]byte(usageOf(k.account) + afterHours))
				continue
			}
			if _, ok := t.batch[slot{bucket, string(key)}]; !ok {
				out = append(out, string(key))
				left--
			}
			key, _ = c.Next()
		}
		return nil
	})
	if err != nil {
		t.cold.err = errors.Join(t.cold.err, fmt.Errorf("read usage: %w", err))
	}
	slices.Sort(out)
	return out[:min(len(out), limit)]
}

// undo is what the rows of usage that a batch writes were before. The file has a batch a moment before
// the tables have it; a view of that moment reads the file through this.
type undo struct {
	index uint64 // of the batch
	rows  map[string]*fleet.Amounts
}

// shade makes ready for a batch's rows to appear in the file.
func (s *Store) shade(t *txn, index uint64) {
	if len(t.cold.rows) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.undo = &undo{index, t.cold.rows}
}
