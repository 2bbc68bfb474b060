package state

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"gantry/fleet"
)

// PublicTemplates returns the templates that every account may use, in the order in which they were
// created.
func (v *View) PublicTemplates() []fleet.Template {
	return byAgeOf(v.tb.public, templateAge, cloneTemplate)
}

func templateAge(t *fleet.Template) (time.Time, string) { return t.CreatedAt, string(t.ID) }

// SSHKeys returns the SSH public keys of an account as it set them.
func (v *View) SSHKeys(account fleet.AccountID) []string {
	if keys := v.tb.sshKeys.Rows[account]; keys != nil {
		return slices.Clone(*keys)
	}
	return []string{}
}

// byAgeOf returns copies of rows by age, then id; an empty list rather than nil.
func byAgeOf[K ~string, T any](rows map[K]*T, age func(*T) (time.Time, string), clone func(*T) T) []T {
	sorted := slices.SortedFunc(maps.Values(rows), func(a, b *T) int {
		aAt, aID := age(a)
		bAt, bID := age(b)
		return cmp.Or(aAt.Compare(bAt), cmp.Compare(aID, bID))
	})
	out := make([]T, 0, len(sorted))
	for _, row := range sorted {
		out = append(out, clone(row))
	}
	return out
}

// FreePorts returns n public ports of a host that no pod holds. The search begins start ports after the
// first, modulo the size of the host's range. It is false when the host has not as many, or does not
// exist.
func (v *View) FreePorts(host fleet.HostID, n, start int) ([]int, bool) {
	h := v.tb.hosts.Rows[host]
	if h == nil {
		return nil, false
	}
	out := []int{}
	if from, size := h.Inventory.PortFrom, portRange(h); size > 0 {
		taken := heldPorts(v.tb.occupants(host), "")
		start = (start%size + size) % size
		for i := 0; i < size && len(out) < n; i++ {
			if port := from + (start+i)%size; !taken[port] {
				out = append(out, port)
			}
		}
	}
	return out, len(out) >= n
}

// Limits returns the limits, by their names, of accounts that have none of their own.
func (v *View) Limits() fleet.Limits {
	if row := v.tb.limits.Rows[onlyKey]; row != nil {
		return maps.Clone(*row)
	}
	return nil
}

// Used returns what an account has of everything that there is a limit of.
func (v *View) Used(account fleet.AccountID) fleet.Counts {
	if y := v.tb.tallies[account]; y != nil {
		return y.used()
	}
	return fleet.Counts{}
}

// MayRun refuses a pod of nobody but its account that is to run with a specification, at what is rented per hour, when its account
// may not have that on top of what it has, as Apply does. Old is the pod as it is, stopped; nil: there is none yet. Errors: quota_exceeded.
func (v *View) MayRun(account fleet.AccountID, old *fleet.Pod, spec *fleet.PodSpec, compute fleet.Money) error {
	return v.mayHave(account, rented(old, fleet.Owner{}, spec, compute, storagePrices(v.tb.catalog.Rows[onlyKey])))
}

// MayMake refuses a new endpoint that its account may not have on top of what it has, as Apply does. Errors: quota_exceeded.
func (v *View) MayMake(e *fleet.Endpoint) error { return v.mayHave(e.Account, countsOfEndpoint(e)) }

// WorkerRoom returns how many more workers an account may have.
func (v *View) WorkerRoom(account fleet.AccountID) int {
	limits := limitsOf(v.tb.accounts.Rows[account], v.tb.limits.Rows[onlyKey])
	return int(fleet.LimitWorkers.Of(limits...) - v.Used(account)[fleet.LimitWorkers])
}

func (v *View) mayHave(account fleet.AccountID, more fleet.Counts) error {
	used := v.Used(account)
	return checkLimits(v.tb.accounts.Rows[account], v.tb.limits.Rows[onlyKey], &used, &more)
}
