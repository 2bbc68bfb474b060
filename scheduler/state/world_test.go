package state

import (
	"bytes"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"gantry/fleet"
	"gantry/scheduler/entry"
	"gantry/scheduler/place"
)

const h100 = "NVIDIA H100 80GB HBM3"

// at returns a fixed time, s seconds after the beginning of the tests' world.
func at(s int) time.Time {
	return time.Date(2026, 3, 1, 12, 0, 0, 123_456_789, time.UTC).Add(time.Duration(s) * time.Second)
}

// tb is what testing.TB and rapid.TB have in common.
type tb interface {
	Helper()
	Error(args ...any)
	Errorf(format string, args ...any)
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// world is a store with the index of the next entry.
type world struct {
	t     tb
	dir   func() string // a new folder
	s     *Store
	path  string
	index uint64
	log   []entry.Entry
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir, path: filepath.Join(t.TempDir(), "state.db")}
	w.open("boot-1")
	t.Cleanup(func() {
		if err := w.s.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

func (w *world) open(boot string) {
	w.t.Helper()
	s, err := Open(w.path, Options{BootID: boot})
	if err != nil {
		w.t.Fatal(err)
	}
	w.s = s
}

// entry encodes commands as the next entry.
func (w *world) entry(cmds ...Command) entry.Entry {
	w.t.Helper()
	data, err := Encode(cmds...)
	if err != nil {
		w.t.Fatal(err)
	}
	w.index++
	e := entry.Entry{Index: w.index, Term: 1, Data: data}
	w.log = append(w.log, e)
	return e
}

// do applies one command and returns its result.
func (w *world) do(cmd Command) entry.Result {
	w.t.Helper()
	told := w.watch()
	res, err := w.s.Apply([]entry.Entry{w.entry(cmd)})
	if err != nil {
		w.t.Fatal(err)
	}
	told()
	return res[0][0]
}

// must applies commands that are accepted and returns the value of the last.
func (w *world) must(cmds ...Command) any {
	w.t.Helper()
	var last any
	for _, cmd := range cmds {
		r := w.do(cmd)
		if r.Err != nil {
			w.t.Fatalf("%T: %v", cmd, r.Err)
		}
		last = r.Value
	}
	return last
}

// refused applies a command that is refused with the code, and checks that it wrote nothing and says
// nothing.
func (w *world) refused(code fleet.Code, cmd Command) {
	w.t.Helper()
	before, index := w.hash(), w.s.Index()
	r := w.do(cmd)
	if fleet.CodeOf(r.Err) != code || r.Value != nil {
		w.t.Fatalf("%T: got %v, %v, want code %s", cmd, r.Value, r.Err, code)
	}
	if !bytes.Equal(before, w.hash()) {
		w.t.Fatalf("%T was refused and wrote", cmd)
	}
	if evs, _, ok := w.s.Events(index); !ok || len(evs) > 0 {
		w.t.Fatalf("%T was refused and has events %v", cmd, evs)
	}
}

func (w *world) hash() []byte {
	w.t.Helper()
	h, err := w.s.Hash()
	if err != nil {
		w.t.Fatal(err)
	}
	return h
}

func (w *world) view(fn func(v *View)) {
	w.t.Helper()
	if err := w.s.View(func(v *View) error { fn(v); return nil }); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) pod(id fleet.PodID) (p fleet.Pod) {
	w.t.Helper()
	w.view(func(v *View) {
		var ok bool
		if p, ok = v.Pod(id); !ok {
			w.t.Fatalf("pod %s is not there", id)
		}
	})
	return p
}

func (w *world) host(id fleet.HostID) (h fleet.Host) {
	w.t.Helper()
	w.view(func(v *View) {
		var ok bool
		if h, ok = v.Host(id); !ok {
			w.t.Fatalf("host %s is not there", id)
		}
	})
	return h
}

// dump is everything that a view shows, for comparing stores.
type dump struct {
	Cluster    Cluster
	Catalog    fleet.Catalog
	Centers    []fleet.DataCenter
	Accounts   []fleet.Account
	Keys       map[fleet.AccountID][]fleet.Key
	Tokens     map[fleet.TokenID]*fleet.JoinToken
	Pods       map[fleet.AccountID][]fleet.Pod
	Hosts      []fleet.HostView
	OnHost     map[fleet.HostID][]fleet.Pod
	Terminated []fleet.PodID
	Statuses   map[fleet.PodStatus]int
	Candidates []place.Candidate
	ByHash     int
	Index      uint64

	Templates  map[fleet.AccountID][]fleet.Template
	Public     []fleet.Template
	Registries map[fleet.AccountID][]fleet.Registry
	SSHKeys    map[fleet.AccountID][]string
	Secrets    map[fleet.AccountID][]fleet.AccountSecret
	Volumes    map[fleet.AccountID][]fleet.Volume
	S3Keys     map[fleet.AccountID][]fleet.S3Key
	Once       map[string]*onceRow
	FreePorts  map[fleet.HostID][]int

	Members  []fleet.Member
	Moving   []fleet.Pod
	Draining []fleet.HostID

	Backends   []fleet.Backend
	AllVolumes []fleet.Volume
	On, Work   map[fleet.BackendID][]fleet.Volume
	VolumePods map[fleet.VolumeID][]fleet.Pod
	With       map[fleet.HostRole][]fleet.HostID

	Network      fleet.NetworkSettings
	Overlays     []fleet.Overlay
	Owned        map[fleet.AccountID][]fleet.Overlay
	In, Has      map[fleet.OverlayID][]fleet.OverlayMember // those that hosts hold; addresses that pods have
	Changed      map[fleet.OverlayID][]fleet.OverlayMember // since the beginning
	Spans        map[fleet.OverlayID][]fleet.HostID
	HostOverlays map[fleet.HostID][]fleet.OverlayID

	TLSFiles []fleet.TLSFile
}

func (w *world) dump() dump {
	w.t.Helper()
	return dumpOf(w.t, w.s)
}

func dumpOf(t tb, s *Store) dump {
	t.Helper()
	d := dump{
		Keys: map[fleet.AccountID][]fleet.Key{}, Pods: map[fleet.AccountID][]fleet.Pod{}, OnHost: map[fleet.HostID][]fleet.Pod{},
		Templates: map[fleet.AccountID][]fleet.Template{}, Registries: map[fleet.AccountID][]fleet.Registry{},
		SSHKeys: map[fleet.AccountID][]string{}, Volumes: map[fleet.AccountID][]fleet.Volume{}, FreePorts: map[fleet.HostID][]int{},
		Secrets: map[fleet.AccountID][]fleet.AccountSecret{}, S3Keys: map[fleet.AccountID][]fleet.S3Key{},
	}
	err := s.View(func(v *View) error {
		d.Cluster, _ = v.Cluster()
		d.Catalog, d.Centers, d.Accounts, d.Index = v.Catalog(), v.DataCenters(), v.Accounts(), v.Index()
		for _, a := range d.Accounts {
			d.Keys[a.ID], d.Pods[a.ID] = v.Keys(a.ID), v.PodsOf(a.ID)
			d.Templates[a.ID], d.Registries[a.ID] = List[fleet.Template](v, a.ID), List[fleet.Registry](v, a.ID)
			d.SSHKeys[a.ID], d.Volumes[a.ID], d.Secrets[a.ID] = v.SSHKeys(a.ID), v.VolumesOf(a.ID), List[fleet.AccountSecret](v, a.ID)
			d.S3Keys[a.ID] = List[fleet.S3Key](v, a.ID)
			for _, k := range d.Keys[a.ID] {
				if got, ok := v.KeyByHash(k.Hash); ok && got.ID == k.ID {
					d.ByHash++
				}
			}
		}
		for _, h := range v.Hosts() {
			use, _ := v.HostUsage(h.ID)
			d.Hosts = append(d.Hosts, use)
			d.OnHost[h.ID] = v.HostPods(h.ID)
			d.FreePorts[h.ID], _ = v.FreePorts(h.ID, 1000, 3)
		}
		d.Tokens, d.Once, d.Public = v.tb.tokens.Rows, v.tb.once.Rows, v.PublicTemplates()
		d.Members, d.Moving, d.Draining = v.Members(), v.Moving(), v.Draining()
		d.ofStorage(v)
		d.ofNetworks(v)
		for _, name := range v.TLSFiles("") {
			f, _ := v.TLSFile(name)
			d.TLSFiles = append(d.TLSFiles, f)
		}
		for _, pod := range v.TerminatedRows() {
			if Purgeable(pod, at(1_000_000)) {
				d.Terminated = append(d.Terminated, pod.ID)
			}
		}
		slices.Sort(d.Terminated)
		d.Candidates, d.Statuses = v.Candidates(), v.Counts(at(0)).Pods
		maps.DeleteFunc(d.Statuses, func(_ fleet.PodStatus, n int) bool { return n == 0 })
		counted := map[fleet.PodStatus]int{}
		for _, pod := range v.tb.pods.Rows {
			counted[pod.Status]++
		}
		if !maps.Equal(counted, d.Statuses) {
			t.Errorf("pods by status: %v, there are %v", d.Statuses, counted)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// byValue has addresses compared by value.
func byValue() cmp.Option {
	return cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, netip.Prefix{})
}

// same fails unless two dumps are equal.
func same(t tb, want, got dump) {
	t.Helper()
	a, b := reflect.ValueOf(&want).Elem(), reflect.ValueOf(&got).Elem()
	for i := range a.NumField() { // most are the same to the last bit, which is found many times faster
		if reflect.DeepEqual(a.Field(i).Interface(), b.Field(i).Interface()) {
			a.Field(i).SetZero()
			b.Field(i).SetZero()
		}
	}
	if d := cmp.Diff(want, got, cmpopts.EquateEmpty(), cmpopts.IgnoreUnexported(place.Candidate{}), byValue()); d != "" {
		t.Fatal(d)
	}
}

// check compares what the store keeps in memory with what another one works out from its file.
func (w *world) check() {
	w.t.Helper()
	fresh, err := Open(filepath.Join(w.dir(), "fresh.db"), Options{})
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() {
		if err := fresh.Close(); err != nil {
			w.t.Error(err)
		}
	}()
	if err := fresh.Restore(bytes.NewReader(w.snapshot())); err != nil {
		w.t.Fatal(err)
	}
	same(w.t, w.dump(), dumpOf(w.t, fresh))
	for _, s := range []*Store{w.s, fresh} {
		checkSums(w.t, s)
	}
	got, err := fresh.Hash()
	if err != nil || !bytes.Equal(got, w.hash()) {
		w.t.Fatalf("hash after restore differs: %v", err)
	}
}

// settle makes accounts acme and other and ready hosts host-a and host-b, each with 4 GPUs.
func (w *world) settle() *world {
	w.t.Helper()
	w.must(
		Bootstrap{ClusterID: "cluster", CA: []byte("ca"), SealedCAKey: []byte("sealed"), Catalog: catalog(), At: at(0)},
		PutAccount{fleet.Account{ID: "acme", Name: "Acme", CreatedAt: at(0)}},
		PutAccount{fleet.Account{ID: "other", Name: "Other", CreatedAt: at(0)}},
	)
	w.join("host-a", "machine-a")
	w.join("host-b", "machine-b")
	w.connect("host-a")
	w.connect("host-b")
	return w
}

func catalog() fleet.Catalog {
	return fleet.Catalog{
		GPUs: []fleet.GPUType{{ID: h100, Name: "H100 SXM", Manufacturer: "NVIDIA", MemoryGB: 80, Secure: 3 * fleet.Dollar}},
		CPUs: []fleet.CPUFlavor{{ID: "cpu3c", Name: "Compute", MinVCPU: 2, MaxVCPU: 32, RAMPerVCPU: 2}},
	}
}

func token(id fleet.TokenID) fleet.JoinToken {
	return fleet.JoinToken{
		ID: id, Hash: []byte("hash of " + id), DataCenter: "dc-1", Cloud: fleet.CloudSecure, ExpiresAt: at(1000),
	}
}

func (w *world) join(id fleet.HostID, machine string) fleet.Host {
	w.t.Helper()
	tok := token("token-of-" + fleet.TokenID(id))
	return w.must(
		PutToken{Token: tok, At: at(0)},
		JoinHost{Token: tok.ID, Hash: tok.Hash, Host: fleet.Host{ID: id, Name: "name-" + string(id), MachineID: machine, JoinedAt: at(1)}, At: at(1)},
	).(fleet.Host)
}

// inventory is what a host of the tests has.
func inventory(id fleet.HostID) fleet.Inventory {
	inv := firstInventory(id)
	inv.Volumes = []fleet.BackendKind{fleet.BackendCeph, fleet.BackendLocal, fleet.BackendNFS}
	inv.Tunnel = hostTunnel(id)
	return inv
}

// firstInventory has the fields that inventories had in the first version.
func firstInventory(id fleet.HostID) fleet.Inventory {
	inv := fleet.Inventory{
		Total:  fleet.Resources{MilliCPU: 16_000, MemoryMB: 64_000, DiskGB: 1000},
		Images: []string{"zebra", "alpine", "alpine"}, AgentVersion: "1",
	}
	for i := range 4 {
		inv.GPUs = append(inv.GPUs, fleet.GPU{UUID: fmt.Sprintf("%s-gpu-%d", id, i), Type: h100, MemoryMB: 80_000})
	}
	return inv
}

func (w *world) connect(id fleet.HostID) fleet.Host {
	w.t.Helper()
	machine := w.host(id).MachineID
	return w.must(ConnectHost{Host: id, MachineID: machine, BootID: "boot", Inventory: inventory(id), At: at(2)}).(fleet.Host)
}

// podOn returns a record to create: a pod of acme with GPUs by number, or a CPU pod without any.
func podOn(id fleet.PodID, host fleet.HostID, gpus ...int) fleet.Pod {
	p := fleet.Pod{
		ID: id, Account: "acme", Host: host, CreatedAt: at(10), HourlyRate: fleet.Dollar,
		Need: fleet.Resources{MilliCPU: 1000, MemoryMB: 2000, DiskGB: 20},
		Spec: fleet.PodSpec{Name: "pod", Image: "busybox", DiskGB: 20, Env: map[string]string{"A": "1", "B": "2"}, Cloud: fleet.CloudSecure},
	}
	if len(gpus) == 0 {
		p.Spec.CPU = &fleet.CPURequest{Flavor: "cpu3c", VCPU: 1, MemoryGB: 2}
		return p
	}
	p.Spec.GPU = &fleet.GPURequest{Type: h100, Count: len(gpus)}
	for _, i := range gpus {
		p.GPUs = append(p.GPUs, fmt.Sprintf("%s-gpu-%d", host, i))
	}
	return p
}

// create creates a pod on a host under its present epoch.
func (w *world) create(id fleet.PodID, host fleet.HostID, gpus ...int) fleet.Pod {
	w.t.Helper()
	return w.must(CreatePods{Pods: []NewPod{{Pod: podOn(id, host, gpus...), HostEpoch: w.host(host).Epoch}}}).([]fleet.Pod)[0]
}

// publish begins a session of a host that publishes five ports, from 30000 on.
func (w *world) publish(id fleet.HostID) {
	w.t.Helper()
	inv := inventory(id)
	inv.PublicIP, inv.PortFrom, inv.PortTo = "192.0.2.1", 30_000, 30_004
	w.must(ConnectHost{Host: id, MachineID: w.host(id).MachineID, BootID: "boot", Inventory: inv, At: at(3)})
}

// furnish gives account acme a template, a registry credential, a volume, SSH keys and an API key, and
// account other a public template.
func (w *world) furnish() *world {
	w.t.Helper()
	w.must(
		Put[fleet.Registry]{Record: fleet.Registry{ID: "reg-1", Account: "acme", Name: "r", Sealed: []byte("sealed"), CreatedAt: at(2)}},
		Put[fleet.Template]{Record: fleet.Template{
			ID: "tpl-1", Account: "acme", Name: "t", Image: "busybox", Registry: "reg-1", CreatedAt: at(2),
			Ports: []fleet.Port{{Number: 80, Protocol: "http"}}, Env: map[string]string{"A": "1"},
			Persistent: &fleet.PersistentMount{SizeGB: 10, Path: "/data"}, AllowedCUDA: []string{"12.8"},
		}},
		Put[fleet.Template]{Record: fleet.Template{ID: "tpl-2", Account: "other", Name: "p", Image: "busybox", Public: true, CreatedAt: at(1)}},
		PutBackend{Backend: nfsBackend("b-std"), New: true},
		PutBackend{Backend: localBackend("b-fast"), New: true},
		CreateVolume{Volume: newVolume("vol-1", "b-std")},
		Put[fleet.S3Key]{Record: sampleS3Key()},
		SetSSHKeys{Account: "acme", Keys: []string{"ssh-ed25519 AAAA a", "ssh-ed25519 BBBB b"}},
		Put[fleet.AccountSecret]{Record: fleet.AccountSecret{Account: "acme", Name: "token", Sealed: []byte("sealed"), CreatedAt: at(2), UpdatedAt: at(2)}},
		PutKey{fleet.Key{ID: "key-1", Account: "acme", Hash: []byte("hash-1"), Invoke: []string{"e1"}}},
		TouchKeys{Used: map[fleet.KeyID]time.Time{"key-1": at(3)}},
		UpdateAccount{Account: "acme", Quotas: &fleet.Quotas{Minute: 1, Hour: 2, Day: 3}},
		PutStoragePrices{samplePrices()},
		PutDataCenter{fleet.DataCenter{ID: "dc-1", Name: "One", GlobalNetwork: true}},
		PutNetworkSettings{smallNetworks()},
		PutDataCenter{fleet.DataCenter{ID: "dc-9", Name: "Nine", Compliance: []string{"ISO27001"}}},
	)
	return w
}

// rich returns a record to create like podOn, with data and with one tcp port.
func rich(id fleet.PodID, host fleet.HostID, public int, gpus ...int) fleet.Pod {
	p := podOn(id, host, gpus...)
	p.Spec.Registry, p.Spec.Template = "reg-1", "tpl-2"
	p.Spec.Persistent = &fleet.PersistentMount{SizeGB: 100, Path: "/data"}
	p.Spec.Ports = []fleet.Port{{Number: 22, Protocol: "tcp"}, {Number: 80, Protocol: "http"}}
	p.Spec.CUDA = &fleet.CUDARange{Allowed: []string{"12.8"}}
	p.Need.DiskGB = 120
	if public != 0 {
		p.Mappings = []fleet.PortMapping{{Private: 22, Public: public}}
	}
	return p
}

func (w *world) act(id fleet.PodID, a fleet.Trigger) ActPod {
	c := ActPod{Account: "acme", Pod: id, Action: a, At: at(50)}
	if a == fleet.ActionStart {
		p := w.pod(id)
		c.Bind = &Binding{Host: p.Host, HostEpoch: w.host(p.Host).Epoch, HourlyRate: 2 * fleet.Dollar}
		if p.Spec.GPU != nil {
			c.Bind.GPUs = podOn(id, p.Host, 0).GPUs
		}
	}
	return c
}

// report makes a report of the pod's present incarnation by its host's present session.
func (w *world) report(id fleet.PodID, event fleet.Trigger) ReportPods {
	p := w.pod(id)
	return ReportPods{
		Host: p.Host, Epoch: w.host(p.Host).Epoch, At: at(41),
		Reports: []PodReport{{Pod: id, Incarnation: p.Incarnation, Event: event, At: at(40)}},
	}
}

// podIn makes pod-1, with one GPU, that is in a status under a goal.
func (w *world) podIn(status fleet.PodStatus, goal fleet.Goal) {
	w.t.Helper()
	const id = "pod-1"
	w.create(id, "host-a", 0)
	switch status {
	case fleet.StatusStarting:
		w.must(w.report(id, fleet.EventStarting))
	case fleet.StatusRunning:
		w.must(w.report(id, fleet.EventRunning))
	case fleet.StatusExited:
		w.must(w.report(id, fleet.EventExited))
	case fleet.StatusError:
		w.must(w.report(id, fleet.EventFailed))
	case fleet.StatusTerminated:
		w.must(w.act(id, fleet.ActionTerminate))
	}
	if goal == fleet.GoalStop && status.Active() {
		w.must(w.act(id, fleet.ActionStop))
	}
	if p := w.pod(id); p.Status != status || p.Goal != goal {
		w.t.Fatalf("pod is %s under %s, want %s under %s", p.Status, p.Goal, status, goal)
	}
}
