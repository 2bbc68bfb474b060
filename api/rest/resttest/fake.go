// Package resttest has a control plane in memory for tests of what stands on rest.Service: the REST
// face, the proxy, the command line. It behaves: pods are bound, refused, started and stopped by
// the rules of package fleet, and hosts are played by the test through Report. It is not durable,
// runs nothing and is not for production.
package resttest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"gantry/api/rest"
	"gantry/fleet"
)

var _ rest.Service = (*Fake)(nil)

// Start is the moment at which every Fake begins.
func Start() time.Time { return time.Date(2026, 10, 1, 12, 0, 0, 0, time.UTC) }

// Fake is a control plane in memory. It is safe for concurrent use. Identifiers and keys are the
// same in every run.
type Fake struct {
	rest.Service // what is not here yet

	mu       sync.Mutex
	now      time.Time
	seq      int
	accounts []fleet.Account
	keys     map[string]fleet.Key // by text
	pods     map[fleet.PodID]*pod
	hosts    []fleet.HostView
	catalog  fleet.CatalogView
	broke    map[fleet.AccountID]bool
	down     bool
	streams  map[target]string // address behind a pod's port
	changed  chan struct{}     // closed and replaced at every change
}

type pod struct {
	view  fleet.PodView
	lines []fleet.LogLine
}

type target struct {
	pod  fleet.PodID
	port int
}

// The names of the keys that New makes. User and Reader are of one account, Other of another,
// Operator of a third.
const (
	User     = "user"
	Reader   = "reader"
	Other    = "other"
	Operator = "operator"
	Expired  = "expired"
)

// New returns a control plane with three accounts, one data center, one host with 8 GPUs, and the
// keys named above.
func New() *Fake {
	f := &Fake{
		now: Start(), keys: map[string]fleet.Key{}, pods: map[fleet.PodID]*pod{}, broke: map[fleet.AccountID]bool{},
		streams: map[target]string{}, changed: make(chan struct{}),
	}
	dc := fleet.DataCenter{ID: "dev-1", Name: "Development 1", Region: "EUROPE"}
	f.catalog = catalog(dc)
	f.hosts = []fleet.HostView{{Host: host(dc.ID, f.now)}}
	research := f.addAccount("research")
	rival := f.addAccount("rival")
	operators := f.addAccount("operators")
	f.addKey(KeyText(User), User, research.ID, "all", time.Time{})
	f.addKey(KeyText(Reader), Reader, research.ID, "readOnly", time.Time{})
	f.addKey(KeyText(Expired), Expired, research.ID, "all", f.now.Add(-time.Second))
	f.addKey(KeyText(Other), Other, rival.ID, "all", time.Time{})
	f.addKey(KeyText(Operator), Operator, operators.ID, "admin", time.Time{})
	return f
}

// KeyText returns the text of the key with this name, which has letters and digits only.
func KeyText(name string) fleet.Secret {
	const chars = 43
	return fleet.Secret("gk_" + name + strings.Repeat("0", chars-len(name)))
}

// Now returns the fake's time, which only Advance moves.
func (f *Fake) Now() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now
}

// Advance moves the fake's time.
func (f *Fake) Advance(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now = f.now.Add(d)
	f.touch()
}

// SetDown makes every call answer CodeUnavailable, or not.
func (f *Fake) SetDown(down bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = down
}

// SetBroke takes the balance of the account of a key away, or gives it back.
func (f *Fake) SetBroke(key string, broke bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.broke[f.keys[KeyText(key).Reveal()].Account] = broke
}

// Edit changes a pod as the test likes; it reports whether the pod is there.
func (f *Fake) Edit(id fleet.PodID, change func(*fleet.PodView)) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, ok := f.pods[id]
	if ok {
		change(&p.view)
		f.touch()
	}
	return ok
}

// Report plays the host: it moves a pod by an event.
func (f *Fake) Report(id fleet.PodID, event fleet.Trigger) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, ok := f.pods[id]
	if !ok {
		return fleet.NotFound("pod")
	}
	to, ok := p.view.Pod.Status.Next(event)
	if !ok {
		return fleet.NotAllowed("%s is not possible while the pod is %s", event, p.view.Pod.Status)
	}
	p.view.Pod.Status = to
	switch {
	case to == fleet.StatusRunning && p.view.Pod.StartedAt.IsZero():
		p.view.Pod.StartedAt = f.now
	case !to.Active():
		p.view.Pod.EndedAt, p.view.Live = f.now, nil
		if p.view.Pod.Goal == fleet.GoalRun {
			p.view.Pod.Goal = fleet.GoalStop
		}
		f.release(&p.view.Pod)
	}
	f.touch()
	return nil
}

// Log appends a line to a pod's log.
func (f *Fake) Log(id fleet.PodID, source, line string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p, ok := f.pods[id]
	if !ok {
		return
	}
	at := f.now.Add(time.Duration(len(p.lines)) * time.Millisecond)
	p.lines = append(p.lines, fleet.LogLine{
		ID: fmt.Sprintf("%s/%d", at.Format("2006-01-02T15:04:05.000Z"), len(p.lines)+1), Source: source, Line: line, At: at,
	})
	f.touch()
}

func (f *Fake) touch() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// id returns the next identifier, whose first letters tell what it names.
func (f *Fake) id(kind string) string {
	f.seq++
	return fmt.Sprintf("%s%0*d", kind, fleet.IDLength-len(kind), f.seq)
}

func (f *Fake) addAccount(name string) fleet.Account {
	a := fleet.Account{ID: fleet.AccountID(f.id("acc")), Name: name, CreatedAt: f.now}
	f.accounts = append(f.accounts, a)
	return a
}

func (f *Fake) addKey(text fleet.Secret, name string, account fleet.AccountID, preset string, expires time.Time) fleet.Key {
	can, _ := fleet.Preset(preset)
	k := fleet.Key{
		ID: fleet.KeyID(f.id("key")), Account: account, Name: name, Hint: fleet.KeyHint(text), Can: can, CreatedAt: f.now, ExpiresAt: expires,
	}
	f.keys[text.Reveal()] = k
	return k
}

func (f *Fake) up() error {
	if f.down {
		return fleet.Unavailable("there is no leader", nil)
	}
	return nil
}

// Authenticate finds a key that has not expired.
func (f *Fake) Authenticate(_ context.Context, key fleet.Secret) (fleet.Principal, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	k, ok := f.keys[key.Reveal()]
	if !ok || !k.ExpiresAt.IsZero() && !k.ExpiresAt.After(f.now) {
		return fleet.Principal{}, &fleet.Error{Code: fleet.CodeUnauthorized, Msg: "unknown key"}
	}
	return fleet.Principal{Key: k.ID, Account: k.Account, Can: k.Can}, nil
}

// Catalog returns the catalog; stock comes from the one host.
func (f *Fake) Catalog(_ context.Context, q fleet.CatalogQuery) (fleet.CatalogView, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.up(); err != nil {
		return fleet.CatalogView{}, err
	}
	out := f.catalog
	out.GPUs, out.CPUs = slices.Clone(out.GPUs), slices.Clone(out.CPUs)
	h := &f.hosts[0]
	for i := range out.GPUs {
		o, n := &out.GPUs[i], 0
		if o.ID == h.Host.Inventory.GPUs[0].Type && (q.Cloud == "" || q.Cloud == fleet.CloudSecure) {
			n = (len(h.Host.Inventory.GPUs) - h.UsedGPUs) / max(q.Count, 1)
			o.CUDA, o.MaxSecure = []string{h.Host.Inventory.CUDA}, len(h.Host.Inventory.GPUs)
		}
		o.Stock, o.Centers = level(n), []fleet.CenterStock{{Center: out.Centers[0], Stock: level(n)}}
	}
	for i := range out.CPUs {
		o := &out.CPUs[i]
		n := int(h.Host.Inventory.Total.MilliCPU-h.Used.MilliCPU) / 1000 / max(q.VCPU, o.MinVCPU)
		o.Stock, o.Centers = level(n), []fleet.CenterStock{{Center: out.Centers[0], Stock: level(n)}}
	}
	return out, nil
}

func level(n int) fleet.Availability {
	switch {
	case n <= 0:
		return fleet.AvailableNone
	case n < 4:
		return fleet.AvailableLow
	case n < 16:
		return fleet.AvailableMedium
	}
	return fleet.AvailableHigh
}

// CreateKey makes a key whose text is made of its id.
func (f *Fake) CreateKey(_ context.Context, who fleet.Principal, req fleet.KeyRequest) (fleet.Key, fleet.Secret, error) {
	name, preset, expires := req.Name, req.Preset, req.ExpiresAt
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.up(); err != nil {
		return fleet.Key{}, "", err
	}
	text := KeyText(fmt.Sprintf("made%d", f.seq+1))
	return f.addKey(text, name, who.Account, preset, expires), text, nil
}

// Keys lists the account's keys.
func (f *Fake) Keys(_ context.Context, who fleet.Principal) ([]fleet.Key, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := slices.DeleteFunc(slices.Collect(maps.Values(f.keys)), func(k fleet.Key) bool { return k.Account != who.Account })
	slices.SortFunc(out, func(a, b fleet.Key) int { return cmp.Compare(a.ID, b.ID) })
	return out, f.up()
}

// DeleteKey deletes a key of the account.
func (f *Fake) DeleteKey(_ context.Context, who fleet.Principal, id fleet.KeyID) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for text, k := range f.keys {
		if k.ID == id && k.Account == who.Account {
			delete(f.keys, text)
			return f.up()
		}
	}
	return fleet.NotFound("key")
}

// Hosts lists the one host.
func (f *Fake) Hosts(context.Context) ([]fleet.HostView, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.hosts), f.up()
}

// Host returns a host.
func (f *Fake) Host(_ context.Context, id fleet.HostID) (fleet.HostView, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, h := range f.hosts {
		if h.Host.ID == id {
			return h, f.up()
		}
	}
	return fleet.HostView{}, fleet.NotFound("host")
}

// CreateJoinToken returns a text that no host can use.
func (f *Fake) CreateJoinToken(_ context.Context, dc fleet.DataCenterID, cloud fleet.Cloud, ttl time.Duration) (fleet.Secret, time.Time, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return fleet.Secret("token-for-" + string(dc) + "-" + string(cloud)), f.now.Add(ttl), f.up()
}

// CreateAccount makes an account.
func (f *Fake) CreateAccount(_ context.Context, name string) (fleet.Account, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.addAccount(name), f.up()
}

// Accounts lists the accounts.
func (f *Fake) Accounts(context.Context) ([]fleet.AccountView, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []fleet.AccountView
	for _, a := range f.accounts {
		out = append(out, fleet.AccountView{Account: a})
	}
	return out, f.up()
}

// CreateAccountKey makes a key for an account.
func (f *Fake) CreateAccountKey(_ context.Context, id fleet.AccountID, req fleet.KeyRequest) (fleet.Key, fleet.Secret, error) {
	name, preset := req.Name, req.Preset
	f.mu.Lock()
	defer f.mu.Unlock()
	if !slices.ContainsFunc(f.accounts, func(a fleet.Account) bool { return a.ID == id }) {
		return fleet.Key{}, "", fleet.NotFound("account")
	}
	text := KeyText(fmt.Sprintf("made%d", f.seq+1))
	return f.addKey(text, name, id, preset, time.Time{}), text, f.up()
}

// Restrict changes what a key may do.
func (f *Fake) Restrict(key string, can map[fleet.Group]fleet.Access) {
	f.mu.Lock()
	defer f.mu.Unlock()
	k := f.keys[KeyText(key).Reveal()]
	k.Can = can
	f.keys[KeyText(key).Reveal()] = k
}
