package fleet

import (
	"cmp"
	"time"
)

// Placement is the operator's setting of where pods go.
type Placement struct {
	// KeepPercent is how much of a free GPU's fair share of its host's processors and memory pods without GPUs leave to it: 0 to
	// 100 percent.
	KeepPercent int `cbor:"1,keyasint"`
	// NoticeSeconds is how long an interruptible pod may go on after the notice that another takes its place; 0: DefaultNotice.
	NoticeSeconds int `cbor:"2,keyasint,omitempty"`
}

// DefaultNotice is how long an interruptible pod may go on where no operator chose another time, MaxNotice the longest.
const (
	DefaultNotice = 30 * time.Second
	MaxNotice     = 10 * time.Minute
)

// Notice returns how long an interruptible pod may go on.
func (p Placement) Notice() time.Duration {
	return cmp.Or(time.Duration(p.NoticeSeconds)*time.Second, DefaultNotice)
}

// DefaultPlacement is the setting where no operator chose another. Half of it lets each free GPU of a host that has 4 cores and
// 16 GB for each GPU go to a pod of the least that pods with GPUs hold.
func DefaultPlacement() Placement { return Placement{KeepPercent: 50} }
