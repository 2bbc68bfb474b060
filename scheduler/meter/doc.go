// Package meter is the arithmetic of charges: what an interval of time costs, in which hours, and at
// which rates. It is pure: no clock, no I/O, integers alone.
//
// Time is whole Unix seconds; a time is truncated to its second. An interval [begin, end) has one rate
// per hour for each component of fleet.Amounts. After x seconds it has cost
//
//	F(x) = rate * x / 3600, rounded down, for each component by itself,
//
// and the part [a, b) of it costs F(b-begin) - F(a-begin), cut at the full hours of UTC. So an interval
// may be settled in any pieces, and they add up to F(end-begin): nothing is lost or won by rounding
// but the less than 10^-9 dollar at the end. A part with b before a is what takes [b, a) back, hour by
// hour, exactly as it was charged.
//
// Storage is priced per GB and month, a year having 12 of them: an hour is 1/730 of it, rounded to the
// nearest 10^-9 dollar when the interval begins.
//
// The package also knows the buckets in which charges are shown: hours, days, weeks that begin on
// Mondays, months and years of UTC.
package meter
