package networks

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/scheduler/entry"
	"gantry/scheduler/feed"
	"gantry/scheduler/state"
)

// world is a state with hosts and pods in private networks.
type world struct {
	testing.TB
	store *state.Store
	index uint64
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newWorld(t testing.TB) *world {
	t.Helper()
	store, err := state.Open(filepath.Join(t.TempDir(), "state.db"), state.Options{})
	check(t, err)
	t.Cleanup(func() { check(t, store.Close()) })
	w := &world{TB: t, store: store}
	now := time.Now()
	w.do(
		state.Bootstrap{ClusterID: "cluster-1", At: now},
		state.PutDataCenter{DataCenter: fleet.DataCenter{ID: "dc-1", Name: "dc-1", Region: "EUROPE", GlobalNetwork: true}},
		state.PutAccount{Account: fleet.Account{ID: "acme", Name: "Acme", CreatedAt: now}},
	)
	return w
}

func (w *world) do(cmds ...state.Command) {
	w.Helper()
	for _, cmd := range cmds {
		data, err := state.Encode(cmd)
		check(w, err)
		w.index++
		res, err := w.store.Apply([]entry.Entry{{Index: w.index, Term: 1, Data: data}})
		check(w, err)
		if res[0][0].Err != nil {
			w.Fatalf("%T: %v", cmd, res[0][0].Err)
		}
	}
}

// tunnelOf is the end of the tunnel that a host says that it has.
func tunnelOf(id fleet.HostID) fleet.HostTunnel {
	key := sha256.Sum256([]byte(id))
	return fleet.HostTunnel{
		PublicKey: base64.StdEncoding.EncodeToString(key[:]), Endpoint: netip.MustParseAddrPort(fmt.Sprintf("203.0.113.%d:51820", key[0])), UserSpace: true,
	}
}

// join brings a host in, with a session.
func (w *world) join(id fleet.HostID) {
	w.Helper()
	token := fleet.JoinToken{ID: fleet.TokenID("t-" + id), Hash: []byte("h"), DataCenter: "dc-1", Cloud: fleet.CloudSecure, ExpiresAt: time.Now().Add(time.Hour)}
	host := fleet.Host{ID: id, Name: string(id), MachineID: "m-" + string(id)}
	w.do(
		state.PutToken{Token: token, At: time.Now()},
		state.JoinHost{Token: token.ID, Hash: token.Hash, Host: host, At: time.Now()},
		state.ConnectHost{Host: id, MachineID: host.MachineID, BootID: "b", At: time.Now(), Inventory: fleet.Inventory{
			Total: fleet.Resources{MilliCPU: 64_000, MemoryMB: 64_000, DiskGB: 1000}, Tunnel: tunnelOf(id),
		}},
	)
}

func (w *world) host(id fleet.HostID) (out fleet.Host) {
	w.Helper()
	check(w, w.store.View(func(v *state.View) error { out, _ = v.Host(id); return nil }))
	return out
}

// runPod makes a pod of an account, with global networking, on a host.
func (w *world) runPod(id fleet.PodID, host fleet.HostID) {
	w.Helper()
	h := w.host(host)
	w.do(state.CreatePods{Pods: []state.NewPod{{HostEpoch: h.Epoch, Pod: fleet.Pod{
		ID: id, Account: "acme", Host: host, CreatedAt: time.Now(), Need: fleet.Resources{MilliCPU: 10, MemoryMB: 10, DiskGB: 1},
		Spec: fleet.PodSpec{
			Name: string(id), Image: "i", Cloud: fleet.CloudSecure, DiskGB: 1, GlobalNetworking: true,
			CPU: &fleet.CPURequest{Flavor: "f", VCPU: 1, MemoryGB: 1},
		},
	}}}})
}

// endPod terminates a pod, of which its host then keeps nothing.
func (w *world) endPod(id fleet.PodID, host fleet.HostID) {
	w.Helper()
	w.do(
		state.ActPod{Account: "acme", Pod: id, Action: fleet.ActionTerminate, At: time.Now()},
		state.ReportPods{Host: host, Epoch: w.host(host).Epoch, At: time.Now(), Reports: []state.PodReport{
			{Pod: id, Incarnation: 1, Event: state.ReportGone, At: time.Now()},
		}},
	)
}

// session is that of a host, and counts how often it is woken.
type session struct {
	feed.Session
	host  fleet.HostID
	wakes int
}

func (s *session) Host() fleet.HostID { return s.host }
func (s *session) Wake()              { s.wakes++ }

// TestLinesAreWoken: those that a change concerns, while their session lasts, and a later session of the same host stays when an
// earlier one ends.
func TestLinesAreWoken(t *testing.T) {
	w := newWorld(t)
	n := New(w.store, slog.New(slog.DiscardHandler))
	a, b, again := &session{host: "a"}, &session{host: "b"}, &session{host: "a"}
	first := n.Begin(a)
	n.Begin(b)
	n.wake(targets{hosts: map[fleet.HostID]bool{"a": true, "c": true}})
	later := n.Begin(again)
	first.End()
	n.wake(targets{all: true})
	later.End()
	n.wake(targets{all: true})
	if a.wakes != 1 || again.wakes != 1 || b.wakes != 2 {
		t.Errorf("woken: %d, %d, other %d", a.wakes, again.wakes, b.wakes)
	}
}
