package state

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"gantry/fleet"
	"gantry/scheduler/place"
	"gantry/scheduler/state/table"
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

// tables is all of the state, with what is derived from it. Generations of hosts are a table of their
// own, because they change with every assignment and the records of hosts are large; in the table
// of hosts the field is 0.
type tables struct {
	program uint64 // the feature level that the program understands

	cluster     table.Table[string, Cluster]
	catalog     table.Table[string, fleet.Catalog]
	clock       table.Table[string, Clock]
	meters      table.Table[string, openMeter]
	balances    table.Table[fleet.AccountID, fleet.Money]
	lowBalances table.Table[fleet.AccountID, time.Time] // since when they are, of those whose owners were told
	usage       table.Cold[fleet.Amounts]
	audit       table.Cold[fleet.AuditLine]
	auditSpans  table.Table[fleet.AccountID, auditSpan]
	auditLast   table.Table[string, uint64] // the last Number; one row
	webhooks    table.Table[fleet.AccountID, fleet.WebhookState]
	webhookDone table.Table[string, fleet.EventPlace] // one row; see NoteWebhooks
	accounts    table.Table[fleet.AccountID, fleet.Account]
	keys        table.Table[fleet.KeyID, fleet.Key]
	people      table.Table[fleet.PersonID, fleet.Person]
	sessions    table.Table[fleet.SessionID, fleet.Session]
	tokens      table.Table[fleet.TokenID, fleet.JoinToken]
	centers     table.Table[fleet.DataCenterID, fleet.DataCenter]
	hosts       table.Table[fleet.HostID, fleet.Host]
	generations table.Table[fleet.HostID, uint64]
	pods        table.Table[fleet.PodID, fleet.Pod]
	templates   table.Table[fleet.TemplateID, fleet.Template]
	registries  table.Table[fleet.RegistryID, fleet.Registry]
	sshKeys     table.Table[fleet.AccountID, []string]
	secrets     table.Table[string, fleet.AccountSecret] // by secretKey
	keyUse      table.Table[fleet.KeyID, time.Time]      // when keys were last used
	volumes     table.Table[fleet.VolumeID, fleet.Volume]
	bases       table.Table[fleet.DataCenterID, uint32] // the slot after that of the volume that was created last
	backends    table.Table[fleet.BackendID, fleet.Backend]
	endpoints   table.Table[fleet.EndpointID, fleet.Endpoint]
	clusters    table.Table[fleet.ClusterID, fleet.Cluster]
	s3Keys      table.Table[string, fleet.S3Key] // by access key
	once        table.Table[string, onceRow]     // by onceKey
	members     table.Table[fleet.MemberID, fleet.Member]
	tlsFiles    table.Table[string, fleet.TLSFile] // by name
	limits      table.Table[string, fleet.Limits]  // of accounts that have none of their own; one row
	placement   table.Table[string, fleet.Placement]
	models      table.Table[fleet.ModelID, fleet.Model]
	gateways    table.Table[fleet.GatewayID, fleet.Gateway]
	holds       table.Table[string, fleet.CreditHold]
	objectStore table.Table[string, fleet.ObjectStore]
	files       table.Cold[fleet.ResultFile] // by fileKey
	fileSums    table.Table[fleet.AccountID, fileSum]

	networkSettings table.Table[string, fleet.NetworkSettings]
	networkCursors  table.Table[string, networkCursors]
	overlays        table.Table[fleet.OverlayID, fleet.Overlay]
	overlayMembers  table.Table[string, fleet.OverlayMember] // by memberKey

	// Indexes of the above, most of them by account.
	metersOf   *table.Index[fleet.AccountID, string, openMeter]
	keysOf     *table.Index[fleet.AccountID, fleet.KeyID, fleet.Key]
	keysByHash *table.Index[string, fleet.KeyID, fleet.Key]
	linesOf    *table.Index[fleet.PersonID, fleet.KeyID, fleet.Key] // keys of a person's command lines

	peopleByLogin   *table.Index[string, fleet.PersonID, fleet.Person]
	peopleBySubject *table.Index[string, fleet.PersonID, fleet.Person]
	sessionsOf      *table.Index[fleet.PersonID, fleet.SessionID, fleet.Session]
	sessionsByHash  *table.Index[string, fleet.SessionID, fleet.Session]
	hostsByMachine  *table.Index[string, fleet.HostID, fleet.Host]
	hostsByTunnel   *table.Index[string, fleet.HostID, fleet.Host] // by their address in the tunnel
	hostsByKey      *table.Index[string, fleet.HostID, fleet.Host] // by their public key there; see tunnelKey
	podsOf          *table.Index[fleet.AccountID, fleet.PodID, fleet.Pod]
	endableOf       *table.Index[fleet.AccountID, fleet.PodID, fleet.Pod] // those that are endable
	podsWith        *table.Index[fleet.VolumeID, fleet.PodID, fleet.Pod]
	workersOf       *table.Index[fleet.EndpointID, fleet.PodID, fleet.Pod] // not terminated
	membersOf       *table.Index[fleet.ClusterID, fleet.PodID, fleet.Pod]  // terminated ones too
	frozenOn        *table.Index[fleet.HostID, fleet.PodID, fleet.Pod]
	yieldsOn        *table.Index[fleet.HostID, fleet.PodID, fleet.Pod]
	timed           *table.Index[string, fleet.PodID, fleet.Pod] // those that the leader has something to do with at a time, or when there is room
	templatesOf     *table.Index[fleet.AccountID, fleet.TemplateID, fleet.Template]
	registriesOf    *table.Index[fleet.AccountID, fleet.RegistryID, fleet.Registry]
	secretsOf       *table.Index[fleet.AccountID, string, fleet.AccountSecret]
	s3KeysOf        *table.Index[fleet.AccountID, string, fleet.S3Key]
	endpointsOf     *table.Index[fleet.AccountID, fleet.EndpointID, fleet.Endpoint]
	clustersOf      *table.Index[fleet.AccountID, fleet.ClusterID, fleet.Cluster]
	volumesOf       *table.Index[fleet.AccountID, fleet.VolumeID, fleet.Volume]
	volumesIn       *table.Index[fleet.DataCenterID, fleet.VolumeID, fleet.Volume]
	volumesOn       *table.Index[fleet.BackendID, fleet.VolumeID, fleet.Volume]
	unfinishedOn    *table.Index[fleet.BackendID, fleet.VolumeID, fleet.Volume] // those for which something is to be done
	volumesByDir    *table.Index[string, fleet.VolumeID, fleet.Volume]
	holdsOf         *table.Index[fleet.AccountID, string, fleet.CreditHold]
	allHolds        *table.Index[string, string, fleet.CreditHold] // to count them
	holdsFor        *table.Index[fleet.ModelID, string, fleet.CreditHold]
	overlaysOf      *table.Index[fleet.AccountID, fleet.OverlayID, fleet.Overlay]
	overlaysByVNI   *table.Index[string, fleet.OverlayID, fleet.Overlay]

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
	charging   map[fleet.AccountID]map[string]*openMeter
	due        map[int64]map[string]*openMeter
	public     map[fleet.TemplateID]*fleet.Template
	candMu     sync.Mutex   // guards the candidates; taken in a view
	candidates *place.Index // changed only by the first Fleet after an Apply; nil: not made yet
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

// newTables returns empty tables for a program that understands up to a level.
func newTables(level uint64) *tables {
	tb := &tables{
		program:     level,
		cluster:     table.New[string, Cluster]("cluster"),
		catalog:     table.New[string, fleet.Catalog]("catalog"),
		clock:       table.New[string, Clock]("clock"),
		meters:      table.New[string, openMeter]("meters"),
		balances:    table.New[fleet.AccountID, fleet.Money]("balances"),
		lowBalances: table.New[fleet.AccountID, time.Time]("lowBalances"),
		usage:       table.Cold[fleet.Amounts]{Bucket: "usage"},
		audit:       table.Cold[fleet.AuditLine]{Bucket: "audit"},
		auditSpans:  table.New[fleet.AccountID, auditSpan]("auditSpans"),
		auditLast:   table.New[string, uint64]("auditLast"),
		webhooks:    table.New[fleet.AccountID, fleet.WebhookState]("webhooks"),
		webhookDone: table.New[string, fleet.EventPlace]("webhookDone"),
		accounts:    table.New[fleet.AccountID, fleet.Account]("accounts"),
		keys:        table.New[fleet.KeyID, fleet.Key]("keys"),
		people:      table.New[fleet.PersonID, fleet.Person]("people"),
		sessions:    table.New[fleet.SessionID, fleet.Session]("sessions"),
		tokens:      table.New[fleet.TokenID, fleet.JoinToken]("tokens"),
		centers:     table.New[fleet.DataCenterID, fleet.DataCenter]("centers"),
		hosts:       table.New[fleet.HostID, fleet.Host]("hosts"),
		generations: table.New[fleet.HostID, uint64]("generations"),
		pods:        table.New[fleet.PodID, fleet.Pod]("pods"),
		templates:   table.New[fleet.TemplateID, fleet.Template]("templates"),
		registries:  table.New[fleet.RegistryID, fleet.Registry]("registries"),
		sshKeys:     table.New[fleet.AccountID, []string]("sshKeys"),
		secrets:     table.New[string, fleet.AccountSecret]("secrets"),
		keyUse:      table.New[fleet.KeyID, time.Time]("keyUse"),
		volumes:     table.New[fleet.VolumeID, fleet.Volume]("volumes"),
		bases:       table.New[fleet.DataCenterID, uint32]("bases"),
		backends:    table.New[fleet.BackendID, fleet.Backend]("backends"),
		endpoints:   table.New[fleet.EndpointID, fleet.Endpoint]("endpoints"),
		clusters:    table.New[fleet.ClusterID, fleet.Cluster]("clusters"),
		s3Keys:      table.New[string, fleet.S3Key]("s3Keys"),
		once:        table.New[string, onceRow]("once"),
		members:     table.New[fleet.MemberID, fleet.Member]("members"),
		tlsFiles:    table.New[string, fleet.TLSFile]("tlsFiles"),
		limits:      table.New[string, fleet.Limits]("limits"),
		placement:   table.New[string, fleet.Placement]("placement"),
		models:      table.New[fleet.ModelID, fleet.Model]("models"),
		gateways:    table.New[fleet.GatewayID, fleet.Gateway]("gateways"),
		holds:       table.New[string, fleet.CreditHold]("holds"),
		objectStore: table.New[string, fleet.ObjectStore]("objectStore"),
		files:       table.Cold[fleet.ResultFile]{Bucket: "files"},
		fileSums:    table.New[fleet.AccountID, fileSum]("fileSums"),

		networkSettings: table.New[string, fleet.NetworkSettings]("networkSettings"),
		networkCursors:  table.New[string, networkCursors]("networkCursors"),
		overlays:        table.New[fleet.OverlayID, fleet.Overlay]("overlays"),
		overlayMembers:  table.New[string, fleet.OverlayMember]("overlayMembers"),

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
	}
	tb.addIndexes()
	return tb
}

// Tables implements table.Set.
func (tb *tables) Tables() []table.Any {
	return []table.Any{
		&tb.clock, &tb.balances, &tb.lowBalances, &tb.meters, &tb.usage, &tb.audit, &tb.auditSpans, &tb.auditLast, &tb.webhooks, &tb.webhookDone,
		&tb.accounts, &tb.catalog, &tb.centers, &tb.cluster, &tb.generations, &tb.hosts, &tb.keys, &tb.pods, &tb.tokens,
		&tb.templates, &tb.registries, &tb.sshKeys, &tb.keyUse, &tb.volumes, &tb.once,
		&tb.members, &tb.secrets, &tb.bases, &tb.backends, &tb.s3Keys, &tb.endpoints, &tb.clusters,
		&tb.tlsFiles, &tb.limits, &tb.placement, &tb.models, &tb.gateways, &tb.holds, &tb.objectStore, &tb.files, &tb.fileSums, &tb.people, &tb.sessions, &tb.networkSettings, &tb.networkCursors, &tb.overlays, &tb.overlayMembers,
	}
}

func (tb *tables) addIndexes() {
	const account = "account"
	tb.metersOf = table.NewIndex(&tb.meters, account, func(m *openMeter) fleet.AccountID { return m.Account })
	tb.keysOf = table.NewIndex(&tb.keys, account, func(k *fleet.Key) fleet.AccountID { return k.Account })
	tb.keysByHash = table.NewIndex(&tb.keys, "hash", func(k *fleet.Key) string { return string(k.Hash) })
	tb.linesOf = table.NewIndex(&tb.keys, "person", func(k *fleet.Key) fleet.PersonID { return k.Person })
	tb.peopleByLogin = table.NewIndex(&tb.people, "login", func(p *fleet.Person) string { return p.Login })
	tb.peopleBySubject = table.NewIndex(&tb.people, "subject", func(p *fleet.Person) string { return p.Subject })
	tb.sessionsOf = table.NewIndex(&tb.sessions, "person", func(s *fleet.Session) fleet.PersonID { return s.Person })
	tb.sessionsByHash = table.NewIndex(&tb.sessions, "hash", func(s *fleet.Session) string { return string(s.Hash) })
	tb.hostsByMachine = table.NewIndex(&tb.hosts, "machine", func(h *fleet.Host) string { return h.MachineID })
	tb.hostsByTunnel = table.NewIndex(&tb.hosts, "tunnel", func(h *fleet.Host) string { return addrKey(h.Tunnel) })
	tb.hostsByKey = table.NewIndex(&tb.hosts, "key", tunnelKey)
	tb.podsOf = table.NewIndex(&tb.pods, account, func(p *fleet.Pod) fleet.AccountID { return p.Account })
	tb.podsOf.Rows = nil // ofAccount has them in order
	tb.endableOf = table.NewIndex(&tb.pods, "endable", func(p *fleet.Pod) fleet.AccountID {
		if endable(p) {
			return p.Account
		}
		return ""
	})
	tb.podsWith = table.NewIndex(&tb.pods, "volume", volumeOf)
	tb.workersOf = table.NewIndex(&tb.pods, "endpoint", workerOf)
	tb.membersOf = table.NewIndex(&tb.pods, "cluster", memberOf)
	tb.frozenOn = table.NewIndex(&tb.pods, "frozen", frozenOn)
	tb.yieldsOn = table.NewIndex(&tb.pods, "yields", yieldsOn)
	tb.timed = table.NewIndex(&tb.pods, "timed", timedFor)
	tb.templatesOf = table.NewIndex(&tb.templates, account, func(t *fleet.Template) fleet.AccountID { return t.Account })
	tb.registriesOf = table.NewIndex(&tb.registries, account, func(r *fleet.Registry) fleet.AccountID { return r.Account })
	tb.secretsOf = table.NewIndex(&tb.secrets, account, func(s *fleet.AccountSecret) fleet.AccountID { return s.Account })
	tb.endpointsOf = table.NewIndex(&tb.endpoints, account, func(e *fleet.Endpoint) fleet.AccountID { return e.Account })
	tb.clustersOf = table.NewIndex(&tb.clusters, account, func(c *fleet.Cluster) fleet.AccountID { return c.Account })
	tb.s3KeysOf = table.NewIndex(&tb.s3Keys, account, func(k *fleet.S3Key) fleet.AccountID { return k.Account })
	tb.volumesOf = table.NewIndex(&tb.volumes, account, func(v *fleet.Volume) fleet.AccountID { return v.Account })
	tb.volumesIn = table.NewIndex(&tb.volumes, "center", func(v *fleet.Volume) fleet.DataCenterID { return v.DataCenter })
	tb.volumesOn = table.NewIndex(&tb.volumes, "backend", func(v *fleet.Volume) fleet.BackendID { return v.Backend })
	tb.unfinishedOn = table.NewIndex(&tb.volumes, "unfinished", func(v *fleet.Volume) fleet.BackendID {
		if unfinished(v) {
			return v.Backend
		}
		return ""
	})
	tb.volumesByDir = table.NewIndex(&tb.volumes, "dir", func(v *fleet.Volume) string { return v.Dir })
	tb.holdsOf = table.NewIndex(&tb.holds, account, func(h *fleet.CreditHold) fleet.AccountID { return h.Account })
	tb.holdsFor = table.NewIndex(&tb.holds, "model", func(h *fleet.CreditHold) fleet.ModelID { return h.Model })
	tb.allHolds = table.NewIndex(&tb.holds, "all", func(*fleet.CreditHold) string { return onlyKey })
	tb.overlaysOf = table.NewIndex(&tb.overlays, account, func(o *fleet.Overlay) fleet.AccountID { return o.Account })
	tb.overlaysByVNI = table.NewIndex(&tb.overlays, "VNI", func(o *fleet.Overlay) string { return vniKey(o.VNI) })
}

// Derive implements table.Set.
func (tb *tables) Derive(at table.Slot, old, row any) {
	tb.recount(old, row)
	switch at.Bucket {
	case tb.meters.Bucket:
		was, m := pair[openMeter](old, row)
		tb.deriveMeter(at.Key, was, m)
	case tb.tokens.Bucket:
		was, token := pair[fleet.JoinToken](old, row)
		if was != nil {
			tb.expiring = without(tb.expiring, was, byExpiry)
		}
		if token != nil {
			tb.expiring = with(tb.expiring, token, byExpiry)
		}
	case tb.pods.Bucket:
		tb.derivePod(pair[fleet.Pod](old, row))
	case tb.hosts.Bucket:
		_, host := pair[fleet.Host](old, row)
		tb.deriveHost(fleet.HostID(at.Key), host)
	case tb.volumes.Bucket:
		was, volume := pair[fleet.Volume](old, row)
		tb.countBase(was, -1)
		tb.countBase(volume, 1)
	case tb.overlayMembers.Bucket:
		tb.networks.takeMember(pair[fleet.OverlayMember](old, row))
	case tb.generations.Bucket:
		tb.touched[fleet.HostID(at.Key)] = struct{}{}
	case tb.cluster.Bucket, tb.placement.Bucket:
		for id := range tb.hosts.Rows {
			tb.touched[id] = struct{}{} // its lineage may be behind now, or it keeps more or less
		}
	case tb.templates.Bucket:
		delete(tb.public, fleet.TemplateID(at.Key))
		if template, ok := row.(*fleet.Template); ok && template.Public {
			tb.public[template.ID] = template
		}
	}
}

// pair returns two rows with their type; either may be nil.
func pair[T any](old, row any) (was, is *T) {
	was, _ = old.(*T)
	is, _ = row.(*T)
	return was, is
}

// Settled implements table.Set.
func (tb *tables) Settled() { tb.networks.order() }

// Usable implements table.Set.
func (tb *tables) Usable() error { return understood(tb.levelInForce(), tb.program) }

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
		i, _ := slices.BinarySearchFunc(list, pod, byAge)
		list[i] = pod
		return
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
