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
	bucket  string
	rows    map[K]*T
	indexes []keeper[K, T]
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
	endpoints   table[fleet.EndpointID, fleet.Endpoint]
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

	// Indexes of the above, most of them by account.
	metersOf       *index[fleet.AccountID, string, openMeter]
	keysOf         *index[fleet.AccountID, fleet.KeyID, fleet.Key]
	keysByHash     *index[string, fleet.KeyID, fleet.Key]
	hostsByMachine *index[string, fleet.HostID, fleet.Host]
	hostsByTunnel  *index[string, fleet.HostID, fleet.Host] // by their address in the tunnel
	hostsByKey     *index[string, fleet.HostID, fleet.Host] // by their public key there; see tunnelKey
	podsOf         *index[fleet.AccountID, fleet.PodID, fleet.Pod]
	endableOf      *index[fleet.AccountID, fleet.PodID, fleet.Pod] // those that are endable
	podsWith       *index[fleet.VolumeID, fleet.PodID, fleet.Pod]
	templatesOf    *index[fleet.AccountID, fleet.TemplateID, fleet.Template]
	registriesOf   *index[fleet.AccountID, fleet.RegistryID, fleet.Registry]
	secretsOf      *index[fleet.AccountID, string, fleet.AccountSecret]
	s3KeysOf       *index[fleet.AccountID, string, fleet.S3Key]
	endpointsOf    *index[fleet.AccountID, fleet.EndpointID, fleet.Endpoint]
	volumesOf      *index[fleet.AccountID, fleet.VolumeID, fleet.Volume]
	volumesIn      *index[fleet.DataCenterID, fleet.VolumeID, fleet.Volume]
	volumesOn      *index[fleet.BackendID, fleet.VolumeID, fleet.Volume]
	unfinishedOn   *index[fleet.BackendID, fleet.VolumeID, fleet.Volume] // those for which something is to be done
	volumesByDir   *index[string, fleet.VolumeID, fleet.Volume]
	overlaysOf     *index[fleet.AccountID, fleet.OverlayID, fleet.Overlay]
	overlaysByVNI  *index[string, fleet.OverlayID, fleet.Overlay]

	// Derived from the above, by put alone.
	expiring   []*fleet.JoinToken               // by when they expire, then by id
	onHost     map[fleet.HostID][]*fleet.Pod    // assignments, by id
	reserved   map[fleet.HostID][]*fleet.Pod    // places of pods that are being moved there, by id; see reservation
	ofAccount  map[fleet.AccountID][]*fleet.Pod // by CreatedAt, then id
	terminated map[fleet.PodID]*fleet.Pod
	statuses   map[fleet.PodStatus]int // how many pods have each
	tallies    map[fleet.AccountID]*tally
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
	// baseUses counts the volumes of each data center at each base.
	baseUses map[fleet.DataCenterID]*baseUse
	// networks is what is derived from the members of overlays.
	networks networkIndex
}

// newTables returns empty tables.
func newTables() *tables {
	tb := &tables{
		cluster:     newTable[string, Cluster]("cluster"),
		catalog:     newTable[string, fleet.Catalog]("catalog"),
		clock:       newTable[string, Clock]("clock"),
		meters:      newTable[string, openMeter]("meters"),
		balances:    newTable[fleet.AccountID, fleet.Money]("balances"),
		usage:       coldTable[fleet.Amounts]{bucket: "usage"},
		accounts:    newTable[fleet.AccountID, fleet.Account]("accounts"),
		keys:        newTable[fleet.KeyID, fleet.Key]("keys"),
		tokens:      newTable[fleet.TokenID, fleet.JoinToken]("tokens"),
		centers:     newTable[fleet.DataCenterID, fleet.DataCenter]("centers"),
		hosts:       newTable[fleet.HostID, fleet.Host]("hosts"),
		generations: newTable[fleet.HostID, uint64]("generations"),
		pods:        newTable[fleet.PodID, fleet.Pod]("pods"),
		templates:   newTable[fleet.TemplateID, fleet.Template]("templates"),
		registries:  newTable[fleet.RegistryID, fleet.Registry]("registries"),
		sshKeys:     newTable[fleet.AccountID, []string]("sshKeys"),
		secrets:     newTable[string, fleet.AccountSecret]("secrets"),
		keyUse:      newTable[fleet.KeyID, time.Time]("keyUse"),
		volumes:     newTable[fleet.VolumeID, fleet.Volume]("volumes"),
		bases:       newTable[fleet.DataCenterID, uint32]("bases"),
		backends:    newTable[fleet.BackendID, fleet.Backend]("backends"),
		endpoints:   newTable[fleet.EndpointID, fleet.Endpoint]("endpoints"),
		s3Keys:      newTable[string, fleet.S3Key]("s3Keys"),
		once:        newTable[string, onceRow]("once"),
		members:     newTable[fleet.MemberID, fleet.Member]("members"),
		tlsFiles:    newTable[string, fleet.TLSFile]("tlsFiles"),
		limits:      newTable[string, fleet.Limits]("limits"),
		placement:   newTable[string, fleet.Placement]("placement"),

		networkSettings: newTable[string, fleet.NetworkSettings]("networkSettings"),
		networkCursors:  newTable[string, networkCursors]("networkCursors"),
		overlays:        newTable[fleet.OverlayID, fleet.Overlay]("overlays"),
		overlayMembers:  newTable[string, fleet.OverlayMember]("overlayMembers"),

		onHost:     map[fleet.HostID][]*fleet.Pod{},
		reserved:   map[fleet.HostID][]*fleet.Pod{},
		ofAccount:  map[fleet.AccountID][]*fleet.Pod{},
		terminated: map[fleet.PodID]*fleet.Pod{}, statuses: map[fleet.PodStatus]int{},
		tallies:  map[fleet.AccountID]*tally{},
		charging: map[fleet.AccountID]map[string]*openMeter{},
		due:      map[int64]map[string]*openMeter{},
		public:   map[fleet.TemplateID]*fleet.Template{},
		touched:  map[fleet.HostID]struct{}{},
		moving:   map[fleet.PodID]*fleet.Pod{},
		draining: map[fleet.HostID]struct{}{},
		roles:    map[fleet.HostID]*fleet.Host{},
		baseUses: map[fleet.DataCenterID]*baseUse{},
		networks: newNetworkIndex(),
		byName:   map[string]rowStore{},
	}
	for _, t := range []rowStore{
		&tb.clock, &tb.balances, &tb.meters, &tb.usage,
		&tb.accounts, &tb.catalog, &tb.centers, &tb.cluster, &tb.generations, &tb.hosts, &tb.keys, &tb.pods, &tb.tokens,
		&tb.templates, &tb.registries, &tb.sshKeys, &tb.keyUse, &tb.volumes, &tb.once,
		&tb.members, &tb.secrets, &tb.bases, &tb.backends, &tb.s3Keys, &tb.endpoints,
		&tb.tlsFiles, &tb.limits, &tb.placement, &tb.networkSettings, &tb.networkCursors, &tb.overlays, &tb.overlayMembers,
	} {
		tb.byName[t.name()] = t
	}
	tb.addIndexes()
	return tb
}

func (tb *tables) addIndexes() {
	const account = "account"
	tb.metersOf = newIndex(&tb.meters, account, func(m *openMeter) fleet.AccountID { return m.Account })
	tb.keysOf = newIndex(&tb.keys, account, func(k *fleet.Key) fleet.AccountID { return k.Account })
	tb.keysByHash = newIndex(&tb.keys, "hash", func(k *fleet.Key) string { return string(k.Hash) })
	tb.hostsByMachine = newIndex(&tb.hosts, "machine", func(h *fleet.Host) string { return h.MachineID })
	tb.hostsByTunnel = newIndex(&tb.hosts, "tunnel", func(h *fleet.Host) string { return addrKey(h.Tunnel) })
	tb.hostsByKey = newIndex(&tb.hosts, "key", tunnelKey)
	tb.podsOf = newIndex(&tb.pods, account, func(p *fleet.Pod) fleet.AccountID { return p.Account })
	tb.podsOf.rows = nil // ofAccount has them in order
	tb.endableOf = newIndex(&tb.pods, "endable", func(p *fleet.Pod) fleet.AccountID {
		if endable(p) {
			return p.Account
		}
		return ""
	})
	tb.podsWith = newIndex(&tb.pods, "volume", volumeOf)
	tb.templatesOf = newIndex(&tb.templates, account, func(t *fleet.Template) fleet.AccountID { return t.Account })
	tb.registriesOf = newIndex(&tb.registries, account, func(r *fleet.Registry) fleet.AccountID { return r.Account })
	tb.secretsOf = newIndex(&tb.secrets, account, func(s *fleet.AccountSecret) fleet.AccountID { return s.Account })
	tb.endpointsOf = newIndex(&tb.endpoints, account, func(e *fleet.Endpoint) fleet.AccountID { return e.Account })
	tb.s3KeysOf = newIndex(&tb.s3Keys, account, func(k *fleet.S3Key) fleet.AccountID { return k.Account })
	tb.volumesOf = newIndex(&tb.volumes, account, func(v *fleet.Volume) fleet.AccountID { return v.Account })
	tb.volumesIn = newIndex(&tb.volumes, "center", func(v *fleet.Volume) fleet.DataCenterID { return v.DataCenter })
	tb.volumesOn = newIndex(&tb.volumes, "backend", func(v *fleet.Volume) fleet.BackendID { return v.Backend })
	tb.unfinishedOn = newIndex(&tb.volumes, "unfinished", func(v *fleet.Volume) fleet.BackendID {
		if unfinished(v) {
			return v.Backend
		}
		return ""
	})
	tb.volumesByDir = newIndex(&tb.volumes, "dir", func(v *fleet.Volume) string { return v.Dir })
	tb.overlaysOf = newIndex(&tb.overlays, account, func(o *fleet.Overlay) fleet.AccountID { return o.Account })
	tb.overlaysByVNI = newIndex(&tb.overlays, "VNI", func(o *fleet.Overlay) string { return vniKey(o.VNI) })
}

func newTable[K ~string, T any](bucket string) table[K, T] {
	return table[K, T]{bucket: bucket, rows: map[K]*T{}}
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
	typed, _ := row.(*T)
	for _, x := range t.indexes {
		x.replace(K(key), t.rows[K(key)], typed)
	}
	if row == nil {
		delete(t.rows, K(key))
		return
	}
	t.rows[K(key)] = typed
}

func (t *table[K, T]) row(key string) any {
	if row := t.rows[K(key)]; row != nil {
		return row
	}
	return nil
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
	case tb.volumes.bucket:
		volume, _ := row.(*fleet.Volume)
		tb.countBase(tb.volumes.rows[fleet.VolumeID(at.key)], -1)
		tb.countBase(volume, 1)
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
