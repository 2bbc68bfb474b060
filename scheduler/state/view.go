package state

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"gantry/fleet"
)

// View is the state at one index. Everything that it returns is the caller's to keep and to change,
// but for Candidates, which are read-only.
type View struct {
	store *Store
	tb    *tables
	index uint64
}

// View calls fn with a consistent view, which ends when fn returns. fn should be short: an Apply waits
// for it before its changes show, and views that come later wait for that Apply. fn must not call
// the store.
func (s *Store) View(fn func(*View) error) error {
	return s.Store.View(func(tb *tables, index uint64) error { return fn(&View{store: s, tb: tb, index: index}) })
}

// Index returns the index of the view.
func (v *View) Index() uint64 { return v.index }

// Cluster returns the cluster's identity; false before Bootstrap.
func (v *View) Cluster() (Cluster, bool) {
	c := v.tb.cluster.Rows[onlyKey]
	if c == nil {
		return Cluster{}, false
	}
	return cloneCluster(c), true
}

// Catalog returns the catalog; it is empty before Bootstrap.
func (v *View) Catalog() fleet.Catalog {
	if c := v.tb.catalog.Rows[onlyKey]; c != nil {
		return cloneCatalog(c)
	}
	return fleet.Catalog{}
}

// DataCenters returns all data centers by id.
func (v *View) DataCenters() []fleet.DataCenter {
	out := make([]fleet.DataCenter, 0, len(v.tb.centers.Rows))
	for _, id := range sortedKeys(v.tb.centers.Rows) {
		out = append(out, cloneCenter(v.tb.centers.Rows[id]))
	}
	return out
}

// Account returns an account.
func (v *View) Account(id fleet.AccountID) (fleet.Account, bool) {
	a := v.tb.accounts.Rows[id]
	if a == nil {
		return fleet.Account{}, false
	}
	return cloneAccount(a), true
}

// Accounts returns all accounts by id.
func (v *View) Accounts() []fleet.Account {
	out := make([]fleet.Account, 0, len(v.tb.accounts.Rows))
	for _, id := range sortedKeys(v.tb.accounts.Rows) {
		out = append(out, cloneAccount(v.tb.accounts.Rows[id]))
	}
	return out
}

// AccountIDs returns the ids of all accounts, in no order.
func (v *View) AccountIDs() []fleet.AccountID { return slices.Collect(maps.Keys(v.tb.accounts.Rows)) }

// KeyByHash returns the key whose secret has the hash. It does not look at whether the key has expired
// or is disabled.
func (v *View) KeyByHash(hash []byte) (fleet.Key, bool) {
	k := v.tb.keysByHash.One(string(hash))
	if k == nil {
		return fleet.Key{}, false
	}
	return v.tb.key(k), true
}

// Key returns a key, whoever owns it.
func (v *View) Key(id fleet.KeyID) (fleet.Key, bool) {
	k := v.tb.keys.Rows[id]
	if k == nil {
		return fleet.Key{}, false
	}
	return v.tb.key(k), true
}

// key returns a copy of a key's record with its last use.
func (tb *tables) key(k *fleet.Key) fleet.Key {
	out := cloneKey(k)
	if used := tb.keyUse.Rows[k.ID]; used != nil {
		out.LastUsedAt = *used
	}
	return out
}

// Keys returns the keys of an account by id.
func (v *View) Keys(account fleet.AccountID) []fleet.Key {
	out := []fleet.Key{}
	for _, id := range sortedKeys(v.tb.keysOf.Rows[account]) {
		out = append(out, v.tb.key(v.tb.keys.Rows[id]))
	}
	return out
}

// Token returns a join token, which may have expired.
func (v *View) Token(id fleet.TokenID) (fleet.JoinToken, bool) {
	t := v.tb.tokens.Rows[id]
	if t == nil {
		return fleet.JoinToken{}, false
	}
	return cloneToken(t), true
}

// Pod returns a pod, whoever owns it.
func (v *View) Pod(id fleet.PodID) (fleet.Pod, bool) {
	p := v.tb.pods.Rows[id]
	if p == nil {
		return fleet.Pod{}, false
	}
	return clonePod(p), true
}

// PodsOf returns the pods of an account in the order in which they were created, terminated ones too.
func (v *View) PodsOf(account fleet.AccountID) []fleet.Pod { return clonePods(v.tb.ofAccount[account]) }

// PodRows returns the pods of an account in the order in which they were created, terminated ones too. They are the state's own and
// must not be changed, nor what they lead to; they stay as they are after the view.
func (v *View) PodRows(account fleet.AccountID) []*fleet.Pod {
	return slices.Clone(v.tb.ofAccount[account])
}

// HostPods returns the assignments of a host by id: its pods that hold something or keep data there, or are being moved from
// there, and of each other leftover the order to remove it. A host that is behind must not be sent them.
func (v *View) HostPods(host fleet.HostID) []fleet.Pod {
	out := clonePods(v.tb.onHost[host])
	h := v.tb.host(host)
	if h == nil {
		return out
	}
	for _, left := range h.Leftovers {
		i, there := slices.BinarySearchFunc(out, left.Pod, func(p fleet.Pod, id fleet.PodID) int { return cmp.Compare(p.ID, id) })
		if there {
			out[i].Incarnation = max(out[i].Incarnation, left.Incarnation)
			continue
		}
		p := fleet.Pod{
			ID: left.Pod, Status: fleet.StatusExited, Goal: fleet.GoalStop, Incarnation: left.Incarnation,
			Generation: h.Generation, Host: host, DataCenter: h.DataCenter,
		}
		if left.Gone {
			p.Status, p.Goal = fleet.StatusTerminated, fleet.GoalGone
		}
		out = slices.Insert(out, i, p)
	}
	return out
}

// HeldPods returns the pods that hold something of a host or keep data there, and those that are being moved
// from there, by id.
func (v *View) HeldPods(host fleet.HostID) []fleet.Pod {
	return clonePods(v.tb.onHost[host])
}

// Draining returns the hosts that are being drained, by id.
func (v *View) Draining() []fleet.HostID { return sortedKeys(v.tb.draining) }

// Forgettable returns how many hosts PurgeHosts with the same time would delete.
func (v *View) Forgettable(before time.Time) (n int) {
	for _, h := range v.tb.hosts.Rows {
		if forgettable(h, before) {
			n++
		}
	}
	return n
}

// Moving returns the pods that are being moved, by id; see fleet.Pod.
func (v *View) Moving() []fleet.Pod {
	out := make([]fleet.Pod, 0, len(v.tb.moving))
	for _, id := range sortedKeys(v.tb.moving) {
		out = append(out, clonePod(v.tb.moving[id]))
	}
	return out
}

func clonePods(pods []*fleet.Pod) []fleet.Pod {
	out := make([]fleet.Pod, 0, len(pods))
	for _, p := range pods {
		out = append(out, clonePod(p))
	}
	return out
}

// TerminatedRows returns the terminated pods in no order, as PodRows does.
func (v *View) TerminatedRows() []*fleet.Pod { return slices.Collect(maps.Values(v.tb.terminated)) }

// Host returns a host.
func (v *View) Host(id fleet.HostID) (fleet.Host, bool) {
	h := v.tb.host(id)
	if h == nil {
		return fleet.Host{}, false
	}
	return cloneHost(h), true
}

// host returns a copy of a host's record with its generation; what it points to is shared.
func (tb *tables) host(id fleet.HostID) *fleet.Host {
	h := tb.hosts.Rows[id]
	if h == nil {
		return nil
	}
	out := *h
	if g := tb.generations.Rows[id]; g != nil {
		out.Generation = *g
	}
	out.Behind = out.Lineage != tb.lineage()
	out.Crowded = len(tb.onHost[id]) >= fleet.MostPods
	return &out
}

// Hosts returns all hosts by id.
func (v *View) Hosts() []fleet.Host {
	out := make([]fleet.Host, 0, len(v.tb.hosts.Rows))
	for _, id := range sortedKeys(v.tb.hosts.Rows) {
		out = append(out, cloneHost(v.tb.host(id)))
	}
	return out
}

// HostRows returns every host, in no order and without its generation. They are the state's own and must not be changed, nor what
// they lead to; they stay as they are after the view.
func (v *View) HostRows() []*fleet.Host { return slices.Collect(maps.Values(v.tb.hosts.Rows)) }

// HostRow returns one of HostRows; nil: there is no such host.
func (v *View) HostRow(id fleet.HostID) *fleet.Host { return v.tb.hosts.Rows[id] }

// HostsOf returns the hosts with a machine id, by id.
func (v *View) HostsOf(machine string) []fleet.Host {
	var out []fleet.Host
	for _, id := range sortedKeys(v.tb.hostsByMachine.Rows[machine]) {
		out = append(out, cloneHost(v.tb.host(id)))
	}
	return out
}

// HostUsage returns a host with what its pods hold of it.
func (v *View) HostUsage(id fleet.HostID) (fleet.HostView, bool) {
	h := v.tb.host(id)
	if h == nil {
		return fleet.HostView{}, false
	}
	used, gpus, held := usedBy(v.tb.occupants(id))
	return fleet.HostView{Host: cloneHost(h), Used: used, UsedGPUs: gpus, Pods: held}, true
}
