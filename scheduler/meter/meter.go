package meter

import (
	"iter"
	"math/bits"
	"time"

	"gantry/fleet"
)

const (
	// HourSeconds is the length of an hour.
	HourSeconds = 3600
	// MaxCharge bounds each component of what one interval costs, so that sums of components do not
	// overflow: 1.15 * 10^9 dollars.
	MaxCharge fleet.Money = 1 << 60
	// MaxHours is into how many hours a part is cut at most. Of a longer one, what lies before goes
	// with the first of them. Meters are settled every hour: only a clock that jumped gets here.
	MaxHours = 20_000

	maxSecond = 253_402_300_799 // of the year 9999, the last that the log can hold
	// hoursPerMonth is a twelfth of a year of 365 days.
	hoursPerMonth = 730
	// stepGB is the size up to which a network volume costs the first price.
	stepGB = 1000
)

// Seconds returns a time in whole Unix seconds, rounded down; times before 1970 are 0, those after the
// year 9999 its last second.
func Seconds(t time.Time) int64 { return min(max(t.Unix(), 0), maxSecond) }

// Hour returns the hour of a second, in hours since 1970.
func Hour(second int64) int64 { return second / HourSeconds }

// HourTime returns when an hour begins.
func HourTime(hour int64) time.Time { return time.Unix(hour*HourSeconds, 0).UTC() }

// Interval is a stretch of time with one rate. It has no end until it is over.
type Interval struct {
	Begin int64         // Unix seconds
	Rates fleet.Amounts // per hour; what is below 0 counts as 0
}

// Cost returns what the interval costs from its beginning to a second; 0 up to its beginning.
func (iv Interval) Cost(to int64) fleet.Amounts {
	x := to - iv.Begin
	return fleet.Amounts{
		GPU: portion(iv.Rates.GPU, x), CPU: portion(iv.Rates.CPU, x),
		Disk: portion(iv.Rates.Disk, x), Standard: portion(iv.Rates.Standard, x),
		Fast: portion(iv.Rates.Fast, x),
	}
}

// Part returns what [from, to) of the interval costs; what lies before its beginning costs nothing.
// When to is before from, it is what takes [to, from) back: 0 or negative.
func (iv Interval) Part(from, to int64) fleet.Amounts { return Minus(iv.Cost(to), iv.Cost(from)) }

// Hours cuts a part, as Part takes it, at the full hours: pairs of an hour since 1970 and what is
// charged in it, in the order of time, at most MaxHours of them and none that is 0. They add up to Part.
func (iv Interval) Hours(from, to int64) iter.Seq2[int64, fleet.Amounts] {
	return iv.HoursWithin(from, to, MaxHours)
}

// HoursWithin is Hours with at most so many hours; most is 1 to MaxHours.
func (iv Interval) HoursWithin(from, to, most int64) iter.Seq2[int64, fleet.Amounts] {
	return func(yield func(int64, fleet.Amounts) bool) {
		back := to < from
		from, to := max(min(from, to), iv.Begin), max(from, to)
		if from >= to {
			return
		}
		last := Hour(to - 1)
		paid := iv.Cost(from)
		for hour := max(Hour(from), last-most+1); hour <= last; hour++ {
			cost := iv.Cost(min(to, (hour+1)*HourSeconds))
			amounts := Minus(cost, paid)
			if back {
				amounts = Minus(paid, cost)
			}
			paid = cost
			if amounts != (fleet.Amounts{}) && !yield(hour, amounts) {
				return
			}
		}
	}
}

// Minus subtracts amounts component by component.
func Minus(a, b fleet.Amounts) fleet.Amounts {
	return fleet.Amounts{GPU: a.GPU - b.GPU, CPU: a.CPU - b.CPU, Disk: a.Disk - b.Disk, Standard: a.Standard - b.Standard, Fast: a.Fast - b.Fast}
}

// portion returns what a rate per hour comes to in so many seconds.
func portion(rate fleet.Money, seconds int64) fleet.Money {
	quotient, _ := divide(rate, seconds, HourSeconds)
	return quotient
}

// divide returns price * n / unit, rounded down and at most MaxCharge, and the rest; 0 unless price and
// n are above 0.
func divide(price fleet.Money, n int64, unit uint64) (quotient fleet.Money, rest uint64) {
	if price <= 0 || n <= 0 {
		return 0, 0
	}
	high, low := bits.Mul64(uint64(price), uint64(n))
	if high >= unit {
		return MaxCharge, 0
	}
	q, rest := bits.Div64(high, low, unit)
	if q >= uint64(MaxCharge) {
		return MaxCharge, 0
	}
	return fleet.Money(q), rest
}

// Storage returns what a number of GB costs per hour at a price per GB and month.
func Storage(gb int, price fleet.Money) fleet.Money {
	quotient, rest := divide(price, int64(gb), hoursPerMonth)
	if 2*rest >= hoursPerMonth {
		quotient++
	}
	return quotient
}

// Running returns what a pod costs per hour while it is charged: compute, its container's disk and its
// host-local mount. Without prices storage is free.
func Running(spec *fleet.PodSpec, compute fleet.Money, prices *fleet.StoragePrices) fleet.Amounts {
	var out fleet.Amounts
	if spec.GPU != nil {
		out.GPU = max(compute, 0)
	} else {
		out.CPU = max(compute, 0)
	}
	if prices == nil {
		return out
	}
	out.Disk = Storage(spec.DiskGB, prices.ContainerDisk)
	if spec.Persistent != nil {
		out.Disk += Storage(spec.Persistent.SizeGB, prices.PersistentRunning)
	}
	return out
}

// Stopped returns what a pod costs per hour while it is stopped: its host-local mount.
func Stopped(spec *fleet.PodSpec, prices *fleet.StoragePrices) fleet.Amounts {
	if prices == nil || spec.Persistent == nil {
		return fleet.Amounts{}
	}
	return fleet.Amounts{Disk: Storage(spec.Persistent.SizeGB, prices.PersistentStopped)}
}

// Volume returns what a network volume costs per hour.
func Volume(v *fleet.Volume, prices *fleet.StoragePrices) fleet.Amounts {
	if prices == nil {
		return fleet.Amounts{}
	}
	first, beyond := min(v.SizeGB, stepGB), max(v.SizeGB-stepGB, 0)
	if v.Type == fleet.VolumeFast {
		return fleet.Amounts{Fast: Storage(first, prices.FastFirst) + Storage(beyond, prices.FastBeyond)}
	}
	return fleet.Amounts{Standard: Storage(first, prices.VolumeFirst) + Storage(beyond, prices.VolumeBeyond)}
}
