package agent

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gantry/agent/volumes/volumestest"
	"gantry/fleet"
	"gantry/internal/agentrpc"
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
