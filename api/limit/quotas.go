package limit

import (
	"errors"
	"fmt"
	"time"
)

// MaxQuota is the highest quota of a window. It keeps every number of the headers a structured-field integer.
const MaxQuota = 1_000_000_000

// Quotas are how many requests an account may make in each window; 0: any number.
type Quotas struct{ Minute, Hour, Day int }

// Default returns the quotas of a cluster for which nothing else was said.
func Default() Quotas { return Quotas{Minute: 180, Hour: 7200, Day: 100_000} }

// Validate reports every quota that is below 0, above MaxQuota, or below that of a shorter window,
// which then could never be used up.
func (q Quotas) Validate() error {
	var faults []error
	shorter := window{}
	for _, w := range q.every() {
		switch {
		case w.quota < 0 || w.quota > MaxQuota:
			faults = append(faults, fmt.Errorf("the quota per %s must be 0 to %d", w.name, MaxQuota))
		case w.quota == 0:
		case w.quota < shorter.quota:
			faults = append(faults, fmt.Errorf("the quota per %s must be 0, or at least that per %s", w.name, shorter.name))
		default:
			shorter = w
		}
	}
	return errors.Join(faults...)
}

// window is a fixed window of length and the requests that fit in it.
type window struct {
	name   string
	length time.Duration
	quota  int64
}

func (q Quotas) every() [windows]window {
	return [windows]window{
		{"minute", time.Minute, int64(q.Minute)},
		{"hour", time.Hour, int64(q.Hour)},
		{"day", 24 * time.Hour, int64(q.Day)},
	}
}

// Class says how the requests to a route are limited. The zero Class says nothing: a route must not have it.
type Class string

// The classes.
const (
	PerAccount Class = "account" // every authenticated request counts for its account, failed ones for their address
	Exempt     Class = "none"    // not limited
)

// Declared reports whether the class says anything.
func (c Class) Declared() bool { return c == PerAccount || c == Exempt }
