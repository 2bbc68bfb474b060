package state

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"gantry/fleet"
)

// Cluster is the identity of the cluster.
type Cluster struct {
	ID          string `cbor:"1,keyasint"`
	CA          []byte `cbor:"2,keyasint"` // certificate of the CA that signs
	SealedCAKey []byte `cbor:"3,keyasint"`
	// Lineage grows with every restore from a snapshot; 0 in a cluster that never was restored.
	// Incarnations and generations that are given out hold it in their upper bits, so that none is given
	// out twice.
	Lineage uint64 `cbor:"4,keyasint,omitempty"`
	// Level is the feature level in force: no command of a newer one is on the log.
	Level uint64 `cbor:"5,keyasint,omitempty"`
	// RestoredAt is when the cluster was last restored, SnapshotAt of when the copy was.
	RestoredAt time.Time `cbor:"6,keyasint,omitzero"`
	SnapshotAt time.Time `cbor:"7,keyasint,omitzero"`
	// Rotation is under way from the CA above, or to it; nil: there is none.
	Rotation *Rotation `cbor:"8,keyasint,omitempty"`
	// BackupAt is of when the newest back-up is that was reported to be whole; zero: there was none.
	BackupAt time.Time `cbor:"9,keyasint,omitzero"`
}

// onlyKey is the key of the one row of a table that has but one.
const onlyKey = "1"

// table is one bucket of the file, decoded. Rows are never changed once they are in it.
type table[K ~string, T any] struct {
	bucket string
	rows   map[K]*T
	// owner tells whose a row is, and of has the rows of each; nil where nobody asks.
	owner func(*T) fleet.AccountID
	of    map[fleet.AccountID]map[K]*T
}

// tables is all of the state, with what is derived from it. Generations of hosts are a table of their
// own, because they change with every assignment and the records of hosts are large; in the table
// of hosts the field is 0.
type tables struct {
	cluster     table[string, Cluster]
	catalog     table[string, fleet.Catalog]
	clock       table[string, Clock]
	meters      table[string, openMeter]
	balances    table[fleet.AccountID, fleet.Money]
	usage       coldTable[fleet.Amounts]
	accounts    table[fleet.AccountID, fleet.Account]
	keys        table[fleet.KeyID, fleet.Key]
	tokens      table[fleet.TokenID, fleet.JoinToken]
	centers     table[fleet.DataCenterID, fleet.DataCenter]
	hosts       table[fleet.HostID, fleet.Host]
	generations table[fleet.HostID, uint64]
	pods        table[fleet.PodID, fleet.Pod]
	templates   table[fleet.TemplateID, fleet.Template]
	registries  table[fleet.RegistryID, fleet.Registry]
	sshKeys     table[fleet.AccountID, []string]
	secrets     table[string, fleet.AccountSecret] // by secretKey
	keyUse      table[fleet.KeyID, time.Time]      // when keys were last used
	volumes     table[fleet.VolumeID, fleet.Volume]
	bases       table[fleet.DataCenterID, uint32] // the slot after that of the volume that was created last
	backends    table[fleet.BackendID, fleet.Backend]
	s3Keys      table[string, fleet.S3Key] // by access key
	once        table[string, onceRow]     // by onceKey
	members     table[fleet.MemberID, fleet.Member]
	tlsFiles    table[string, fleet.TLSFile] // by name
	limits      table[string, fleet.Limits]  // of accounts that have none of their own; one row
	placement   table[string, fleet.Placement]

	networkSettings table[string, fleet.NetworkSettings]
	networkCursors  table[string, networkCursors]
	overlays        table[fleet.OverlayID, fleet.Overlay]
	overlayMembers  table[string, fleet.OverlayMember] // by memberKey

	byName map[string]rowStore // by the names of their buckets

	// Derived from the above, by put alone.
	keyByHash  map[string]*fleet.Key
	expiring   []*fleet.JoinToken               // by when they expire, then by id
	onHost     map[fleet.HostID][]*fleet.Pod    // assignments, by id
	reserved   map[fleet.HostID][]*fleet.Pod    // places of pods that are being moved there, by id; see reservation
	ofAccount  map[fleet.AccountID][]*fleet.Pod // by CreatedAt, then id
	terminated map[fleet.PodID]*fleet.Pod
	statuses   map[fleet.PodStatus]int // how many pods have each
	// running holds the pods of each account that are endable.
	running map[fleet.AccountID]map[fleet.PodID]*fleet.Pod
	tallies map[fleet.AccountID]*tally
	// charging and due hold the meters that cost something, by their keys: of each account, and by the hour in which their settle
	// points are.
	charging map[fleet.AccountID]map[string]*openMeter
	due      map[int64]map[string]*openMeter
	public   map[fleet.TemplateID]*fleet.Template
	// touched holds the hosts whose candidates are not what was last cached.
	touched map[fleet.HostID]struct{}
	moving  map[fleet.PodID]*fleet.Pod
	// draining holds the hosts whose eligibility that is.
	draining map[fleet.HostID]struct{}
	// roles holds the hosts that have one, and are not gone.
	roles map[fleet.HostID]*fleet.Host
	// stored is what is derived from volumes.
	stored volumeIndex
	// networks is what is derived from overlays, their members, and hosts.
	networks networkIndex
}

// newTables returns empty tables.
func newTables() *tables {
	tb := &tables{
		cluster:  newTable[string, Cluster]("cluster"),
		catalog:  newTable[string, fleet.Catalog]("catalog"),
		clock:    newTable[string, Clock]("clock"),
		meters:   ownedTable[string]("meters", func(m *openMeter) fleet.AccountID { return m.Account }),
		balances: newTable[fleet.AccountID, fleet.Money]("balances"),
		usage:    coldTable[fleet.Amounts]{bucket: "usage"},
		accounts: newTable[fleet.AccountID, fleet.Account]("accounts"),
		keys:     ownedTable[fleet.KeyID]("keys", func(k *fleet.Key) fleet.AccountID { return k.Account }),
		tokens:   newTable[fleet.TokenID, fleet.JoinToken]("tokens"),
		centers:  newTable[fleet.DataCenterID, fleet.DataCenter]("centers"),
		// Its owner is the machine: a join looks for the records of one.
		hosts:       ownedTable[fleet.HostID]("hosts", func(h *fleet.Host) fleet.AccountID { return fleet.AccountID(h.MachineID) }),
		generations: newTable[fleet.HostID, uint64]("generations"),
		pods:        newTable[fleet.PodID, fleet.Pod]("pods"),
		templates:   ownedTable[fleet.TemplateID]("templates", func(t *fleet.Template) fleet.AccountID { return t.Account }),
		registries:  ownedTable[fleet.RegistryID]("registries", func(r *fleet.Registry) fleet.AccountID { return r.Account }),
		sshKeys:     newTable[fleet.AccountID, []string]("sshKeys"),
		secrets:     ownedTable[string]("secrets", func(s *fleet.AccountSecret) fleet.AccountID { return s.Account }),
		keyUse:      newTable[fleet.KeyID, time.Time]("keyUse"),
		volumes:     ownedTable[fleet.VolumeID]("volumes", func(v *fleet.Volume) fleet.AccountID { return v.Account }),
		bases:       newTable[fleet.DataCenterID, uint32]("bases"),
		backends:    newTable[fleet.BackendID, fleet.Backend]("backends"),
		s3Keys:      ownedTable[string]("s3Keys", func(k *fleet.S3Key) fleet.AccountID { return k.Account }),
		once:        newTable[string, onceRow]("once"),
		members:     newTable[fleet.MemberID, fleet.Member]("members"),
		tlsFiles:    newTable[string, fleet.TLSFile]("tlsFiles"),
		limits:      newTable[string, fleet.Limits]("limits"),
		placement:   newTable[string, fleet.Placement]("placement"),

		networkSettings: newTable[string, fleet.NetworkSettings]("networkSettings"),
		networkCursors:  newTable[string, networkCursors]("networkCursors"),
		overlays:        ownedTable[fleet.OverlayID]("overlays", func(o *fleet.Overlay) fleet.AccountID { return o.Account }),
		overlayMembers:  newTable[string, fleet.OverlayMember]("overlayMembers"),

		keyByHash:  map[string]*fleet.Key{},
		onHost:     map[fleet.HostID][]*fleet.Pod{},
		reserved:   map[fleet.HostID][]*fleet.Pod{},
		ofAccount:  map[fleet.AccountID][]*fleet.Pod{},
		terminated: map[fleet.PodID]*fleet.Pod{}, statuses: map[fleet.PodStatus]int{},
		running:  map[fleet.AccountID]map[fleet.PodID]*fleet.Pod{},
		tallies:  map[fleet.AccountID]*tally{},
		charging: map[fleet.AccountID]map[string]*openMeter{},
		due:      map[int64]map[string]*openMeter{},
		public:   map[fleet.TemplateID]*fleet.Template{},
		touched:  map[fleet.HostID]struct{}{},
		moving:   map[fleet.PodID]*fleet.Pod{},
		draining: map[fleet.HostID]struct{}{},
		roles:    map[fleet.HostID]*fleet.Host{},
		stored:   newVolumeIndex(),
		networks: newNetworkIndex(),
		byName:   map[string]rowStore{},
	}
	for _, t := range []rowStore{
		&tb.clock, &tb.balances, &tb.meters, &tb.usage,
		&tb.accounts, &tb.catalog, &tb.centers, &tb.cluster, &tb.generations, &tb.hosts, &tb.keys, &tb.pods, &tb.tokens,
		&tb.templates, &tb.registries, &tb.sshKeys, &tb.keyUse, &tb.volumes, &tb.once,
		&tb.members, &tb.secrets, &tb.bases, &tb.backends, &tb.s3Keys,
		&tb.tlsFiles, &tb.limits, &tb.placement, &tb.networkSettings, &tb.networkCursors, &tb.overlays, &tb.overlayMembers,
	} {
		tb.byName[t.name()] = t
	}
	tb.pods.owner = func(p *fleet.Pod) fleet.AccountID { return p.Account } // ofAccount has them in order
	return tb
}

func newTable[K ~string, T any](bucket string) table[K, T] {
	return table[K, T]{bucket: bucket, rows: map[K]*T{}}
}

// ownedTable returns a table that knows whose its rows are.
func ownedTable[K ~string, T any](bucket string, owner func(*T) fleet.AccountID) table[K, T] {
	t := newTable[K, T](bucket)
	t.owner, t.of = owner, map[fleet.AccountID]map[K]*T{}
	return t
}

// rowStore is a table with its types hidden.
type rowStore interface {
	name() string
	// set puts a row, which is of the table's type, or deletes it when it is nil.
	set(key string, row any)
	// row returns a row; nil when there is none, or when it is not in memory.
	row(key string) any
	// decode reads a row from its bytes in the file.
	decode(c *codec, value []byte) (any, error)
}

func (t *table[K, T]) name() string { return t.bucket }

func (t *table[K, T]) set(key string, row any) {
	if t.of != nil {
		t.index(K(key), row)
	}
	if row == nil {
		delete(t.rows, K(key))
		return
	}
	t.rows[K(key)] = row.(*T)
}

func (t *table[K, T]) row(key string) any {
	if row := t.rows[K(key)]; row != nil {
		return row
	}
	return nil
}

// index replaces a row, or takes it out when it is nil, in what its account has.
func (t *table[K, T]) index(key K, row any) {
	if old := t.rows[key]; old != nil {
		account := t.owner(old)
		delete(t.of[account], key)
		if row == nil && len(t.of[account]) == 0 {
			delete(t.of, account)
		}
	}
	if row, ok := row.(*T); ok {
		account := t.owner(row)
		if t.of[account] == nil {
			t.of[account] = map[K]*T{}
		}
		t.of[account][key] = row
	}
}

func (t *table[K, T]) decode(c *codec, value []byte) (any, error) {
	row := new(T)
	if err := c.Dec.Unmarshal(value, row); err != nil {
		return nil, err
	}
	return row, nil
}

// bucketNames lists the buckets of the replicated state, sorted.
func bucketNames() []string { return sortedKeys(newTables().byName) }

// slot is where a row is.
type slot struct{ bucket, key string }

// put puts a row, or deletes it when row is nil, and keeps what is derived. It is the one way into
// the tables, for what was just applied and for what is read from the file.
func (tb *tables) put(at slot, row any) error {
	t := tb.byName[at.bucket]
	if t == nil {
		return fmt.Errorf("unknown bucket %q", at.bucket)
	}
	tb.recount(t.row(at.key), row)
	switch at.bucket {
	case tb.meters.bucket:
		m, _ := row.(*openMeter)
		tb.deriveMeter(at.key, tb.meters.rows[at.key], m)
	case tb.keys.bucket:
		key, _ := row.(*fleet.Key)
		tb.deriveKey(tb.keys.rows[fleet.KeyID(at.key)], key)
	case tb.tokens.bucket:
		if old := tb.tokens.rows[fleet.TokenID(at.key)]; old != nil {
			tb.expiring = without(tb.expiring, old, byExpiry)
		}
		if token, ok := row.(*fleet.JoinToken); ok {
			tb.expiring = with(tb.expiring, token, byExpiry)
		}
	case tb.pods.bucket:
		pod, _ := row.(*fleet.Pod)
		tb.derivePod(tb.pods.rows[fleet.PodID(at.key)], pod)
	case tb.hosts.bucket:
		host, _ := row.(*fleet.Host)
		tb.deriveHost(fleet.HostID(at.key), host)
		tb.networks.takeHost(tb.hosts.rows[fleet.HostID(at.key)], host)
	case tb.volumes.bucket:
		volume, _ := row.(*fleet.Volume)
		tb.stored.take(tb.volumes.rows[fleet.VolumeID(at.key)], volume)
	case tb.overlays.bucket:
		overlay, _ := row.(*fleet.Overlay)
		tb.networks.takeOverlay(tb.overlays.rows[fleet.OverlayID(at.key)], overlay)
	case tb.overlayMembers.bucket:
		member, _ := row.(*fleet.OverlayMember)
		tb.networks.takeMember(tb.overlayMembers.rows[at.key], member)
	case tb.generations.bucket:
		tb.touched[fleet.HostID(at.key)] = struct{}{}
	case tb.cluster.bucket, tb.placement.bucket:
		for id := range tb.hosts.rows {
			tb.touched[id] = struct{}{} // its lineage may be behind now, or it keeps more or less
		}
	case tb.templates.bucket:
		delete(tb.public, fleet.TemplateID(at.key))
		if template, ok := row.(*fleet.Template); ok && template.Public {
			tb.public[template.ID] = template
		}
	}
	t.set(at.key, row)
	return nil
}

// settled is called when all rows of a batch, or of a file, were put.
func (tb *tables) settled() { tb.networks.order() }

// deriveKey replaces old by key, either of which may be nil. Rows of one batch come in any order: the hash
// of a key that goes may be another's by now.
func (tb *tables) deriveKey(old, key *fleet.Key) {
	if old != nil {
		if now := tb.keyByHash[string(old.Hash)]; now != nil && now.ID == old.ID {
			delete(tb.keyByHash, string(old.Hash))
		}
	}
	if key != nil {
		tb.keyByHash[string(key.Hash)] = key
	}
}

// deriveHost takes a host's record, which is nil when it goes.
func (tb *tables) deriveHost(id fleet.HostID, host *fleet.Host) {
	tb.touched[id] = struct{}{}
	delete(tb.draining, id)
	if host != nil && host.Eligibility == fleet.EligibilityDraining {
		tb.draining[id] = struct{}{}
	}
	delete(tb.roles, id)
	if host != nil && len(host.Roles) > 0 {
		tb.roles[id] = host
	}
}

// derivePod replaces old by pod, either of which may be nil, in what is derived from pods.
func (tb *tables) derivePod(old, pod *fleet.Pod) {
	reassign(tb.onHost, old, pod)
	tb.stored.takePod(old, pod)
	was, is := reservation(old), reservation(pod)
	reassign(tb.reserved, was, is)
	if was != nil {
		tb.touched[was.Host] = struct{}{}
		if len(tb.reserved[was.Host]) == 0 {
			delete(tb.reserved, was.Host)
		}
	}
	if is != nil {
		tb.touched[is.Host] = struct{}{}
	}
	if old != nil {
		if len(tb.onHost[old.Host]) == 0 {
			delete(tb.onHost, old.Host)
		}
		tb.touched[old.Host] = struct{}{}
		tb.statuses[old.Status]--
		delete(tb.terminated, old.ID)
		delete(tb.moving, old.ID)
		if endable(old) {
			leave(tb.running, old.Account, old.ID)
		}
	}
	tb.ageList(old, pod)
	if pod != nil {
		tb.touched[pod.Host] = struct{}{}
		tb.statuses[pod.Status]++
		if pod.Status == fleet.StatusTerminated {
			tb.terminated[pod.ID] = pod
		}
		if pod.Moving {
			tb.moving[pod.ID] = pod
		}
		if endable(pod) {
			enter(tb.running, pod.Account, pod.ID, pod)
		}
	}
}

// ageList replaces old by pod, either of which may be nil, in the lists of what accounts have.
func (tb *tables) ageList(old, pod *fleet.Pod) {
	if old != nil && pod != nil && old.Account == pod.Account && byAge(old, pod) == 0 {
		list := tb.ofAccount[pod.Account]
		if i, ok := slices.BinarySearchFunc(list, pod, byAge); ok {
			list[i] = pod
			return
		}
	}
	if old != nil {
		tb.ofAccount[old.Account] = without(tb.ofAccount[old.Account], old, byAge)
		if len(tb.ofAccount[old.Account]) == 0 {
			delete(tb.ofAccount, old.Account)
		}
	}
	if pod != nil {
		tb.ofAccount[pod.Account] = with(tb.ofAccount[pod.Account], pod, byAge)
	}
}

// assigned reports whether the pod is one of its host's assignments: one that holds something there, keeps data there, or is being
// moved from there. A stopped pod that keeps nothing is not: its host forgets it but for its log.
func assigned(p *fleet.Pod) bool {
	return p != nil && (p.Held || p.Status != fleet.StatusTerminated && (p.KeepsData() || p.Moving))
}

// reservation is the place that is reserved for a pod, which may be nil, as a pod that holds it; nil when there is none.
func reservation(p *fleet.Pod) *fleet.Pod {
	if p == nil || p.Target == nil {
		return nil
	}
	to := p.Target
	return &fleet.Pod{ID: p.ID, Host: to.Host, Held: true, GPUs: to.GPUs, Need: to.Need, Mappings: to.Mappings}
}

// occupants returns the assignments of a host and the places that are reserved there, by id.
func (tb *tables) occupants(host fleet.HostID) []*fleet.Pod {
	return joined(tb.onHost[host], tb.reserved[host])
}

// joined joins two lists of pods that are sorted by id. No pod has a place reserved on its own host.
func joined(on, reserved []*fleet.Pod) []*fleet.Pod {
	if len(reserved) == 0 {
		return on
	}
	out := slices.Concat(on, reserved)
	slices.SortFunc(out, byID)
	return out
}

// reassign replaces old by pod, either of which may be nil, in the lists of assignments.
func reassign(on map[fleet.HostID][]*fleet.Pod, old, pod *fleet.Pod) {
	if assigned(old) {
		on[old.Host] = without(on[old.Host], old, byID)
	}
	if assigned(pod) {
		on[pod.Host] = with(on[pod.Host], pod, byID)
	}
}

func byID(a, b *fleet.Pod) int { return cmp.Compare(a.ID, b.ID) }

func byAge(a, b *fleet.Pod) int {
	return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID))
}

// byExpiry orders join tokens by when they expire, then by id.
func byExpiry(a, b *fleet.JoinToken) int {
	return cmp.Or(a.ExpiresAt.Compare(b.ExpiresAt), cmp.Compare(a.ID, b.ID))
}

// with inserts a row into a sorted list; without takes it out.
func with[T any](list []*T, row *T, order func(a, b *T) int) []*T {
	i, _ := slices.BinarySearchFunc(list, row, order)
	return slices.Insert(list, i, row)
}

func without[T any](list []*T, row *T, order func(a, b *T) int) []*T {
	i, ok := slices.BinarySearchFunc(list, row, order)
	if !ok {
		return list
	}
	return slices.Delete(list, i, i+1)
}

// usedBy sums what a host's pods use: what the held ones hold, and the data that others keep there. held
// counts both.
func usedBy(pods []*fleet.Pod) (used fleet.Resources, gpus, held int) {
	for _, p := range pods {
		switch {
		case p.Held:
			used.MilliCPU += p.Need.MilliCPU
			used.MemoryMB += p.Need.MemoryMB
			used.DiskGB += p.Need.DiskGB
			gpus += len(p.GPUs)
			held++
		case p.KeepsData():
			used.DiskGB += int64(p.Spec.Persistent.SizeGB)
			held++
		}
	}
	return used, gpus, held
}

// minus subtracts resources.
func minus(a, b fleet.Resources) fleet.Resources {
	return fleet.Resources{
		MilliCPU: a.MilliCPU - b.MilliCPU, MemoryMB: a.MemoryMB - b.MemoryMB, DiskGB: a.DiskGB - b.DiskGB,
	}
}

// sortedKeys returns the keys of a map in order.
func sortedKeys[K ~string, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
