package fabric

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/internal/atomicfile"
	"gantry/internal/sleep"
)

// Condition is the code of the condition that members get no fabric though they are to.
const Condition = "fabric_unusable"

// Links moves virtual functions between the host and the namespaces of pods. Calls may be repeated.
type Links interface {
	// RDMAExclusive reports whether an RDMA device is in one network namespace alone.
	RDMAExclusive() (bool, error)
	// GiveFunction moves a network interface of the host, and its RDMA device where that is in one namespace alone, into a namespace.
	GiveFunction(ctx context.Context, namespace, link, as, device string) error
	// TakeFunction moves them back. A namespace that is gone has nothing.
	TakeFunction(ctx context.Context, namespace, link, as, device string) error
}

// Config is what a Host is made from.
type Config struct {
	Mode  fleet.FabricMode // not empty
	Dir   string           // what is kept; made
	Sys   string           // empty: /sys
	Dev   string           // folder of device nodes; empty: /dev/infiniband
	Links Links
	// Namespace names the network namespace of a pod.
	Namespace func(fleet.PodID) string
	Log       *slog.Logger
}

// Host passes the host's RDMA devices into members of clusters. It implements pod.Fabric, and is safe for concurrent use.
type Host struct {
	Config

	stop context.CancelFunc
	wg   sync.WaitGroup

	mu    sync.Mutex // guards given; held while a member is given something, and while something is taken
	given map[fleet.PodID]given

	seenMu sync.Mutex // guards the fields below
	seen   fleet.Fabric
	why    string // members get none; empty: they do
}

// How often the devices are looked at, and how long Open waits for the first look: an adapter that hangs answers no question.
const (
	lookEvery = 5 * time.Second
	firstLook = 5 * time.Second
)

// given is what a member has, as it is on disk.
type given struct {
	Incarnation uint64             `json:"incarnation"`
	Functions   []function         `json:"functions,omitempty"`
	Nodes       map[string][]int64 `json:"nodes"` // by path in the container
}

// function is a virtual function that a member has.
type function struct {
	PCI    string `json:"pci"` // where it is
	Parent string `json:"parent"`
	Device string `json:"device"`
	Netdev string `json:"netdev"` // on the host
	As     string `json:"as"`     // in the pod
}

var _ pod.Fabric = (*Host)(nil)

// Open reads what members were given, and looks after the devices until Close.
func Open(ctx context.Context, c Config) (*Host, error) {
	c.Sys, c.Dev = cmp.Or(c.Sys, "/sys"), cmp.Or(c.Dev, "/dev/infiniband")
	h := &Host{Config: c, given: map[fleet.PodID]given{}}
	if err := os.MkdirAll(c.Dir, 0o711); err != nil {
		return nil, fmt.Errorf("make the folder of the fabric: %w", err)
	}
	text, err := os.ReadFile(h.file())
	if err == nil {
		err = json.Unmarshal(text, &h.given)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read what members of clusters have of the fabric: %w", err)
	}
	ctx, h.stop = context.WithCancel(context.WithoutCancel(ctx))
	looked := make(chan struct{})
	h.wg.Go(func() {
		h.look()
		close(looked)
		for sleep.For(ctx, lookEvery) == nil {
			h.look()
		}
	})
	select {
	case <-looked:
	case <-time.After(firstLook):
		h.Log.Warn("the RDMA devices of the host do not answer")
	}
	return h, nil
}

// Close ends the looks. What members have stays theirs.
func (h *Host) Close() {
	h.stop()
	h.wg.Wait()
}

// look finds out what the host has of a fabric.
func (h *Host) look() {
	h.mu.Lock()
	f, why := h.offers(scan(h.Sys)), h.unusable()
	h.mu.Unlock()
	switch {
	case why != "" || len(f.Usable()) > 0:
	case len(f.Ports) == 0:
		why = "no InfiniBand or RoCE device is there"
	case h.Mode == fleet.FabricFunctions && !slices.ContainsFunc(f.Ports, func(p fleet.FabricPort) bool { return p.Functions > 0 }):
		why = "no adapter has virtual functions with an RDMA device and a network interface"
	default:
		why = "no port is active"
	}
	h.seenMu.Lock()
	defer h.seenMu.Unlock()
	h.seen, h.why = f, why
}

func (h *Host) file() string { return filepath.Join(h.Dir, "given.json") }

// classes is the folder of what a member sees of /sys/class.
func (h *Host) classes(id fleet.PodID) string { return filepath.Join(h.Dir, string(id)) }

// Fabric is what the host has of a fabric now.
func (h *Host) Fabric() fleet.Fabric {
	h.seenMu.Lock()
	defer h.seenMu.Unlock()
	return h.seen
}

// offers is what members can have. h.mu is held.
func (h *Host) offers(adapters []adapter) fleet.Fabric {
	out := fleet.Fabric{Mode: h.Mode}
	if h.unusable() != "" {
		return fleet.Fabric{}
	}
	functions := map[string]map[string]bool{} // by adapter, by place
	note := func(parent, pci string) {
		if functions[parent] == nil {
			functions[parent] = map[string]bool{}
		}
		functions[parent][pci] = true
	}
	for _, a := range adapters {
		if a.parent != "" && a.netdev != "" {
			note(a.parent, a.pci)
		}
	}
	for _, g := range h.given {
		for _, f := range g.Functions {
			note(f.Parent, f.PCI)
		}
	}
	for _, a := range adapters {
		if a.parent != "" {
			continue
		}
		for _, p := range a.ports {
			if h.Mode == fleet.FabricFunctions && a.pci != "" {
				p.Functions = len(functions[a.pci])
			}
			out.Ports = append(out.Ports, p)
		}
	}
	slices.SortFunc(out.Ports, func(a, b fleet.FabricPort) int { return cmp.Or(cmp.Compare(a.Device, b.Device), a.Port-b.Port) })
	out.Ports = out.Ports[:min(len(out.Ports), fleet.MaxFabricPorts)]
	return out
}

// unusable says why the host's devices cannot be passed into several pods; empty: they can.
func (h *Host) unusable() string {
	if h.Mode != fleet.FabricShared {
		return ""
	}
	switch exclusive, err := h.Links.RDMAExclusive(); {
	case err != nil:
		return err.Error()
	case exclusive:
		return "RDMA devices are each in one network namespace, so that pods cannot share them (rdma system show)"
	}
	return ""
}

// Conditions tells an operator why members of clusters get no fabric.
func (h *Host) Conditions() []fleet.Condition {
	h.seenMu.Lock()
	defer h.seenMu.Unlock()
	if h.why == "" {
		return nil
	}
	return []fleet.Condition{{Code: Condition, Text: "members of clusters get no fabric: " + h.why}}
}

// Give implements pod.Fabric.
func (h *Host) Give(ctx context.Context, id fleet.PodID, incarnation uint64, made bool) (pod.Devices, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	adapters := scan(h.Sys)
	have, known := h.given[id]
	if made && (!known || have.Incarnation != incarnation) {
		return pod.Devices{}, &pod.Error{Class: pod.Fatal, Sentence: "the host does not know any more which devices the container was made for"}
	}
	mine, err := h.choose(adapters, &have)
	if err != nil {
		return pod.Devices{}, err
	}
	out, err := h.describe(id, mine)
	if err != nil {
		return pod.Devices{}, err
	}
	nodes := map[string][]int64{}
	for _, n := range out.Nodes {
		nodes[n.Path] = []int64{n.Major, n.Minor}
	}
	if made && !sameNodes(nodes, have.Nodes) { // the host was booted since
		return pod.Devices{}, &pod.Error{Class: pod.Fatal, Sentence: "the devices of the host's fabric are not those that the container was made for"}
	}
	have.Incarnation, have.Nodes = incarnation, nodes
	if err := h.keep(id, have); err != nil {
		return pod.Devices{}, fault("what the pod has of the fabric could not be written down", err)
	}
	for _, f := range have.Functions {
		if err := h.Links.GiveFunction(ctx, h.Namespace(id), f.Netdev, f.As, f.Device); err != nil {
			return pod.Devices{}, fault("the pod's part of the host's fabric could not be moved into it", err)
		}
	}
	return out, nil
}

func sameNodes(a, b map[string][]int64) bool {
	if len(a) != len(b) {
		return false
	}
	for path, n := range a {
		if !slices.Equal(n, b[path]) {
			return false
		}
	}
	return true
}

func fault(sentence string, err error) error {
	return &pod.Error{Class: pod.Retry, Sentence: sentence, Err: err}
}

// choose returns the adapters that a member gets, and enters its functions into have.
func (h *Host) choose(adapters []adapter, have *given) (out []adapter, err error) {
	f := h.offers(adapters)
	usable := f.Usable()
	if len(usable) == 0 {
		return nil, fault("waits for the host's fabric, of which no port is active", nil)
	}
	devices := map[string][]fleet.FabricPort{}
	for _, p := range usable {
		devices[p.Device] = append(devices[p.Device], p)
	}
	next := given{}
	for _, a := range adapters {
		ports := devices[a.name]
		switch {
		case len(ports) == 0:
		case h.Mode == fleet.FabricShared:
			a.ports = ports
			out = append(out, a)
		default:
			one, f, err := h.functionOf(adapters, a, have, len(next.Functions))
			if err != nil {
				return nil, err
			}
			out, next.Functions = append(out, one), append(next.Functions, f)
		}
	}
	have.Functions = next.Functions
	return out, nil
}

// functionOf returns a member's function of an adapter: that which it has, or one that is free.
func (h *Host) functionOf(adapters []adapter, parent adapter, have *given, n int) (adapter, function, error) {
	for _, f := range have.Functions {
		if f.Parent != parent.pci {
			continue
		}
		i := slices.IndexFunc(adapters, func(a adapter) bool { return a.pci == f.PCI })
		if i < 0 {
			return adapter{}, f, fault("waits for the pod's part of the host's fabric, which is not there", fmt.Errorf("function %s", f.PCI))
		}
		return adapters[i], f, nil
	}
	for _, a := range adapters {
		if a.parent == parent.pci && a.pci != "" && a.netdev != "" && !h.taken(a.pci) {
			return a, function{PCI: a.pci, Parent: parent.pci, Device: a.name, Netdev: a.netdev, As: fmt.Sprintf("fabric%d", n)}, nil
		}
	}
	return adapter{}, function{}, fault("waits for a part of the host's fabric to be free", fmt.Errorf("all functions of %s are taken", parent.name))
}

// taken reports whether a member has a function.
func (h *Host) taken(pci string) bool {
	for _, g := range h.given {
		if slices.ContainsFunc(g.Functions, func(f function) bool { return f.PCI == pci }) {
			return true
		}
	}
	return false
}

// describe says what a container gets of adapters.
func (h *Host) describe(id fleet.PodID, mine []adapter) (out pod.Devices, err error) {
	var hca []string
	for _, a := range mine {
		out.Adapters = append(out.Adapters, pod.Adapter{Device: a.name, Verbs: a.verbs})
		out.Nodes = append(out.Nodes, h.node(a.verbs, a.dev))
		for _, p := range a.ports {
			hca = append(hca, fmt.Sprintf("%s:%d", a.name, p.Port))
		}
	}
	if cm, ok := number(filepath.Join(h.Sys, classMisc, "rdma_cm/dev")); ok {
		out.Nodes = append(out.Nodes, h.node("rdma_cm", cm))
	}
	out.Env = []string{"NCCL_IB_HCA==" + strings.Join(hca, ",")} // "=": these names alone, and nothing that begins with them
	out.Files, err = h.writeClasses(id, mine)
	if err != nil {
		return out, fault("the pod's part of the host's fabric could not be described", err)
	}
	return out, nil
}

func (h *Host) node(name string, dev [2]int64) pod.DeviceNode {
	return pod.DeviceNode{Host: filepath.Join(h.Dev, name), Path: "/dev/infiniband/" + name, Major: dev[0], Minor: dev[1]}
}

// writeClasses makes the folders that the container sees in place of /sys/class/infiniband and infiniband_verbs: they lead to its adapters
// alone.
func (h *Host) writeClasses(id fleet.PodID, mine []adapter) (out []pod.Mount, err error) {
	for _, class := range []string{classDevices, classVerbs} {
		dir := filepath.Join(h.classes(id), filepath.Base(class))
		if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755), os.Chmod(h.classes(id), 0o755)); err != nil { //nolint:gosec // read by the container
			return nil, err
		}
		for _, a := range mine {
			name := a.name
			if class == classVerbs {
				name = a.verbs
			}
			to, err := filepath.EvalSymlinks(filepath.Join(h.Sys, class, name))
			if err != nil {
				return nil, err
			}
			if to, err = filepath.Rel(filepath.Join(h.Sys, class), to); err != nil {
				return nil, err
			}
			if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
				return nil, err
			}
		}
		if class == classVerbs {
			version := word(filepath.Join(h.Sys, classVerbs, "abi_version")) + "\n"
			if err := os.WriteFile(filepath.Join(dir, "abi_version"), []byte(version), 0o644); err != nil { //nolint:gosec // read by the container
				return nil, err
			}
		}
		out = append(out, pod.Mount{Source: dir, Target: "/sys/" + class})
	}
	return out, nil
}

// Take implements pod.Fabric.
func (h *Host) Take(ctx context.Context, id fleet.PodID) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	have, known := h.given[id]
	if !known {
		return nil
	}
	for _, f := range have.Functions {
		if err := h.Links.TakeFunction(ctx, h.Namespace(id), f.Netdev, f.As, f.Device); err != nil {
			return fault("the pod's part of the host's fabric could not be taken back", err)
		}
	}
	if err := os.RemoveAll(h.classes(id)); err != nil {
		return err
	}
	return h.drop(id)
}

// Keep forgets what pods had that the host does not know any more, such as after its ledger was lost. What still has a function then keeps
// the network interface of that, without which nobody gets it.
func (h *Host) Keep(known func(fleet.PodID) bool) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var faults []error
	for id := range h.given {
		if !known(id) {
			h.Log.Warn("forget what a pod had of the fabric that the host does not know", "pod", id)
			faults = append(faults, os.RemoveAll(h.classes(id)), h.drop(id))
		}
	}
	return errors.Join(faults...)
}

// keep writes down what a member has.
func (h *Host) keep(id fleet.PodID, g given) error {
	before, known := h.given[id]
	h.given[id] = g
	err := h.write()
	if err != nil {
		if delete(h.given, id); known {
			h.given[id] = before
		}
	}
	return err
}

// drop writes down that a pod has nothing.
func (h *Host) drop(id fleet.PodID) error {
	before := h.given[id]
	delete(h.given, id)
	err := h.write()
	if err != nil {
		h.given[id] = before
	}
	return err
}

func (h *Host) write() error {
	text, err := json.Marshal(h.given)
	if err != nil {
		return err
	}
	return atomicfile.Write(h.file(), text, 0o600)
}
