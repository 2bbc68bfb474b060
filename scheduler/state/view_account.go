package state

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"gantry/fleet"
)

// Template returns a template, whoever owns it.
func (v *View) Template(id fleet.TemplateID) (fleet.Template, bool) {
	t := v.tb.templates.rows[id]
	if t == nil {
		return fleet.Template{}, false
	}
	return cloneTemplate(t), true
}

// TemplatesOf returns the templates of an account in the order in which they were created.
func (v *View) TemplatesOf(account fleet.AccountID) []fleet.Template {
	return byAgeOf(v.tb.templates.of[account], templateAge, cloneTemplate)
}

// PublicTemplates returns the templates that every account may use, in the order in which they were
// created.
func (v *View) PublicTemplates() []fleet.Template {
	return byAgeOf(v.tb.public, templateAge, cloneTemplate)
}

func templateAge(t *fleet.Template) (time.Time, string) { return t.CreatedAt, string(t.ID) }

// Registry returns a registry credential, whoever owns it.
func (v *View) Registry(id fleet.RegistryID) (fleet.Registry, bool) {
	r := v.tb.registries.rows[id]
	if r == nil {
		return fleet.Registry{}, false
	}
	return cloneRegistry(r), true
}

// RegistriesOf returns the registry credentials of an account in the order in which they were created.
func (v *View) RegistriesOf(account fleet.AccountID) []fleet.Registry {
	return byAgeOf(v.tb.registries.of[account], func(r *fleet.Registry) (time.Time, string) { return r.CreatedAt, string(r.ID) }, cloneRegistry)
}

// SSHKeys returns the SSH public keys of an account as it set them.
func (v *View) SSHKeys(account fleet.AccountID) []string {
	if keys := v.tb.sshKeys.rows[account]; keys != nil {
		return slices.Clone(*keys)
	}
	return []string{}
}

// Secret returns a secret of an account.
func (v *View) Secret(account fleet.AccountID, name string) (fleet.AccountSecret, bool) {
	s := v.tb.secrets.rows[secretKey(account, name)]
	if s == nil {
		return fleet.AccountSecret{}, false
	}
	return cloneSecret(s), true
}

// Secrets returns the secrets of an account by name.
func (v *View) Secrets(account fleet.AccountID) []fleet.AccountSecret {
	out := []fleet.AccountSecret{}
	for _, key := range sortedKeys(v.tb.secrets.of[account]) {
		out = append(out, cloneSecret(v.tb.secrets.rows[key]))
	}
	return out
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
	h := v.tb.hosts.rows[host]
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

// S3Key returns a key pair of the S3 interface by its access key, whoever owns it.
func (v *View) S3Key(id string) (fleet.S3Key, bool) {
	k := v.tb.s3Keys.rows[id]
	if k == nil {
		return fleet.S3Key{}, false
	}
	return cloneS3Key(k), true
}

// S3KeysOf returns the key pairs of an account, oldest first.
func (v *View) S3KeysOf(account fleet.AccountID) []fleet.S3Key {
	return byAgeOf(v.tb.s3Keys.of[account], func(k *fleet.S3Key) (time.Time, string) { return k.CreatedAt, k.ID }, cloneS3Key)
}

// Limits returns the limits, by their names, of accounts that have none of their own.
func (v *View) Limits() fleet.Limits {
	if row := v.tb.limits.rows[onlyKey]; row != nil {
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

// MayRun refuses a pod that is to run with a specification, at what is rented per hour, when its account may not have that on top
// of what it has, as Apply does. Old is the pod as it is, stopped; nil: there is none yet. Errors: quota_exceeded.
func (v *View) MayRun(account fleet.AccountID, old *fleet.Pod, spec *fleet.PodSpec, compute fleet.Money) error {
	used := v.Used(account)
	more := rented(old, spec, compute, storagePrices(v.tb.catalog.rows[onlyKey]))
	return checkLimits(limitsOf(v.tb.accounts.rows[account], v.tb.limits.rows[onlyKey]), &used, &more)
}
