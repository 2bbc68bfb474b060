package limit

import (
	"strconv"
	"time"

	"gantry/fleet"
)

// maxAccounts bounds what a Limiter remembers: about 130 bytes each.
const maxAccounts = 1 << 18

// Limiter counts the requests of accounts. It is safe for concurrent use.
type Limiter struct {
	table  *table[fleet.AccountID]
	quotas Quotas
}

// New returns a Limiter that has counted nothing; q are the quotas of accounts that have none of their own. now is the
// clock; it is called once per request, and concurrently.
func New(q Quotas, now func() time.Time) *Limiter {
	return &Limiter{table: newTable[fleet.AccountID](maxAccounts, now), quotas: q}
}

// Take counts a request of the account, unless a window is used up: then it counts in none. A window
// begins with the first request after the one before has passed. own are the account's own quotas; nil: the
// Limiter's. What was counted before they changed counts on.
func (l *Limiter) Take(account fleet.AccountID, own *fleet.Quotas) Verdict {
	if own != nil {
		return l.table.take(account, Quotas(*own))
	}
	return l.table.take(account, l.quotas)
}

// Size returns how many accounts are remembered.
func (l *Limiter) Size() int { return l.table.size() }

// Verdict is what was decided about one request. The zero Verdict allows it and knows no windows.
type Verdict struct {
	windows [windows]window // without a quota: not limited
	left    [windows]int64
	reset   [windows]int64 // seconds, rounded up, at least 1
	refused bool
}

// Refused reports whether a window was used up before the request.
func (v Verdict) Refused() bool { return v.refused }

// Exceeded returns the name of the window that was used up and how many seconds to wait until it
// passes, at least 1; of several the one that takes longest. It returns "" and 0 when the request was not refused.
func (v Verdict) Exceeded() (name string, wait int) {
	if !v.refused {
		return "", 0
	}
	for i, w := range v.windows {
		if v.left[i] <= 0 && int(v.reset[i]) > wait {
			name, wait = w.name, int(v.reset[i])
		}
	}
	return name, wait
}

// Header returns the value of the header RateLimit: of each window the requests that are left and the
// seconds until it passes. It is "" when no window has a quota.
func (v Verdict) Header() string {
	var buf [160]byte
	out := buf[:0]
	for i, w := range v.windows {
		if w.quota == 0 {
			continue
		}
		out = member(out, w.name)
		out = strconv.AppendInt(append(out, ";r="...), v.left[i], 10)
		out = strconv.AppendInt(append(out, ";t="...), v.reset[i], 10)
	}
	return string(out)
}

// Policy returns the value of the header RateLimit-Policy: of each window its quota and its length in seconds. It is ""
// when no window has a quota.
func (v Verdict) Policy() string {
	var buf [160]byte
	out := buf[:0]
	for _, w := range v.windows {
		if w.quota == 0 {
			continue
		}
		out = member(out, w.name)
		out = strconv.AppendInt(append(out, ";q="...), w.quota, 10)
		out = strconv.AppendInt(append(out, ";w="...), int64(w.length/time.Second), 10)
	}
	return string(out)
}

// member begins a member of a structured-field list; name has no character that needs an escape.
func member(out []byte, name string) []byte {
	if len(out) > 0 {
		out = append(out, ", "...)
	}
	out = append(out, '"')
	out = append(out, name...)
	return append(out, '"')
}
