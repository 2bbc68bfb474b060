package nfslab

import "testing"

// TestInGuest runs the tests of the module that need a kernel with NFS, with project quotas or with soft RoCE, all in one guest.
func TestInGuest(t *testing.T) {
	Run(t, Guest{Binaries: []Binary{
		{Package: "test/nfslab/guest", Run: "."},
		{Package: "agent/ctrd", Run: "^TestMembersUseSoftRoCE$"},
		{Package: "storage/volume", Run: "^TestNFS$"},
		{Package: "storage/disk", Run: "Holds|MakeWipes|KeepGrowsWith|HostileContent|Rename|AutoTakes|ProjectsLimit"},
	}})
}
