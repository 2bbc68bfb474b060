package agent

import (
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gantry/agent/volumes/volumestest"
	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/netctl"
	"gantry/storage/volume"
)

func TestAHostTellsItsNetworkVolumes(t *testing.T) {
	m := &volumestest.Mounts{Notify: make(chan struct{}, 1)}
	d, end := tended(t, Config{Dir: t.TempDir(), Volumes: m, Containers: &slowRuntime{looked: map[fleet.PodID]bool{}}})
	defer end()
	m.SetHealth(volume.Health{Backend: "good"}, volume.Health{Backend: "ceph-a", Down: time.Unix(1e9, 0), Text: "no answer"})
	inv := d.has.Encoded()
	if diff := cmp.Diff([]string{"local", "nfs"}, inv.GetVolumes()); diff != "" {
		t.Errorf("kinds (-want +got):\n%s", diff)
	}
	var told []string
	for _, n := range inv.GetConditions() {
		if n.GetCode() == "volume_backend_down" {
			told = append(told, n.GetText())
			if n.GetSevere() {
				t.Error("the host takes no pods because of one backend")
			}
		}
	}
	if len(told) != 1 || !strings.Contains(told[0], "ceph-a") || !strings.Contains(told[0], "no answer") {
		t.Errorf("conditions %q", told)
	}
}

// TestAHostListensForWorkers: in the namespace of the pod, at the address that workers are told; one that cannot has no gate.
func TestAHostListensForWorkers(t *testing.T) {
	asked, refused := "", errors.New("no such namespace")
	d, end := tended(t, Config{
		Dir: t.TempDir(), Instance: "0a1b", Containers: &slowRuntime{looked: map[fleet.PodID]bool{}},
		ListenIn: func(namespace, address string) (net.Listener, error) {
			asked = namespace + " " + address
			return nil, refused
		},
	})
	defer end()
	if err := d.podDeps().Gate.Open("p1", 1, true); !errors.Is(err, refused) || asked != netctl.NamespaceName(d.Instance, "p1")+" "+fleet.WorkerGate {
		t.Errorf("it asked for %q: %v", asked, err)
	}
	without, end := tended(t, Config{Dir: t.TempDir(), Containers: &slowRuntime{looked: map[fleet.PodID]bool{}}})
	defer end()
	if without.podDeps().Gate != nil || len(without.rooms()) != len(d.rooms())-1 {
		t.Errorf("a host that cannot listen has a gate, or %d rooms", len(without.rooms()))
	}
}

// TestEveryMessageHasARoom: what a scheduler may send is taken by somebody, except what the session itself reads when it begins.
func TestEveryMessageHasARoom(t *testing.T) {
	d, end := tended(t, Config{Dir: t.TempDir(), Containers: &slowRuntime{looked: map[fleet.PodID]bool{}}})
	defer end()
	kinds := (&agentrpc.Down{}).ProtoReflect().Descriptor().Oneofs().ByName("kind").Fields()
	for i := range kinds.Len() {
		m := (&agentrpc.Down{}).ProtoReflect()
		m.Set(kinds.Get(i), m.NewField(kinds.Get(i)))
		kind := m.Interface().(*agentrpc.Down).GetKind()
		_, read := kind.(*agentrpc.Down_Welcome)
		_, whole := kind.(*agentrpc.Down_Whole)
		if takes := d.sessions.Takes(kind); takes == (read || whole) {
			t.Errorf("%T is taken: %v", kind, takes)
		}
	}
}
