package state

import (
	"errors"
	"fmt"
	"strconv"

	"gantry/fleet"
	"gantry/scheduler/meter"
)

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

// addUsage adds to an hour. One that comes to nothing has no row.
func (t *txn) addUsage(k usageKey, amounts fleet.Amounts) {
	key := k.text()
	if row := t.base.usage.Get(t.Txn, key); row != nil {
		amounts = row.Plus(amounts)
	}
	if amounts == (fleet.Amounts{}) {
		t.base.usage.Put(t.Txn, key, nil)
		return
	}
	t.base.usage.Put(t.Txn, key, &amounts)
}

// maxPurge bounds what one PurgeUsage deletes.
const maxPurge = 16 << 10

func (c PurgeUsage) apply(t *txn) (any, error) {
	if err := t.forgetting(c.At, c.Before); err != nil {
		return nil, err
	}
	keys := t.usageBefore(meter.Hour(meter.Seconds(c.Before)), min(max(c.Limit, 0), maxPurge))
	for _, key := range keys {
		t.base.usage.Put(t.Txn, key, nil)
	}
	return len(keys), nil
}

// usageBefore returns the first limit keys of hours before an hour, as the batch has them before the
// command at hand.
func (t *txn) usageBefore(hour int64, limit int) []string {
	return t.base.usage.Keys(t.Txn, limit, func(key string) (to string, err error) {
		k, err := parseUsage(key)
		if err == nil && k.hour >= hour {
			to = usageOf(k.account) + afterHours
		}
		return to, err
	})
}
