package agent

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gantry/agent/volumes/volumestest"
	"gantry/storage/volume"
)

func TestAHostTellsItsNetworkVolumes(t *testing.T) {
	d := scrapable(t)
	m := d.Volumes.(*volumestest.Mounts)
	m.SetHealth(volume.Health{Backend: "good"}, volume.Health{Backend: "ceph-a", Down: time.Unix(1e9, 0), Text: "no answer"})
	inv := encodeInventory(d.inventory())
	if diff := cmp.Diff([]string{"local", "nfs"}, inv.GetVolumes()); diff != "" {
		t.Errorf("kinds (-want +got):\n%s", diff)
	}
	var told []string
	for _, n := range inv.GetNotices() {
		if n.GetCode() == "volume_backend_down" {
			told = append(told, n.GetText())
			if n.GetSevere() {
				t.Error("the host takes no pods because of one backend")
			}
		}
	}
	if len(told) != 1 || !strings.Contains(told[0], "ceph-a") || !strings.Contains(told[0], "no answer") {
		t.Errorf("notices %q", told)
	}
}
