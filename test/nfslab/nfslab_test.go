package nfslab

import (
	"testing"
	"time"
)

// TestInGuest runs the tests of the module that need a kernel with NFS, with project quotas or with soft RoCE, all in one guest.
func TestInGuest(t *testing.T) {
	Run(t, Guest{Deadline: 14 * time.Minute, Binaries: []Binary{
		{Package: "test/nfslab/guest", Run: "^TestNFS$"},
		{Package: "test/nfslab/guest", Run: "^TestClustersOnAFabric$", Timeout: 9 * time.Minute},
		{Package: "agent/ctrd", Run: "^TestMembersSeeTheirSoftRoCE$"},
		{Package: "storage/volume", Run: "^TestNFS$"},
		{Package: "storage/disk", Run: "Holds|MakeWipes|KeepGrowsWith|HostileContent|Rename|AutoTakes|ProjectsLimit"},
	}})
}
