package e2e

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"gantry/fleet"
	"gantry/test/devtest"
)

// TestLogFloodIsBounded lets a pod write 50 MB as fast as it can: the host keeps no more than it promises,
// other pods start meanwhile, and what the pod says afterwards is there.
func TestLogFloodIsBounded(t *testing.T) {
	t.Parallel()
	const kept = 31 << 20 // bytes: 30 MiB for each series, and a little that is not rotated yet
	d := suite.dev
	id := create(t, d, devtest.CPUPod("flood", `yes "$(printf %0100d 7)" | head -c 50000000; trap "exit 0" TERM; while :; do echo the flood is over; sleep 0.1; done`)).ID
	reach(t, d, id, fleet.StatusRunning)
	other := create(t, d, devtest.CPUPod("beside", devtest.Sleeper)).ID
	reach(t, d, other, fleet.StatusRunning)
	dir := filepath.Join(d.Dir, "agent", "logs", id)
	logHas(t, d, id, "the flood is over")
	if most := sizeOf(t, dir); most > kept || most < 1<<20 {
		t.Errorf("the log takes up to %d bytes of disk, at most %d are promised", most, kept)
	}
}

// sizeOf sums the files of a folder; files may come and go meanwhile.
func sizeOf(t *testing.T, dir string) (sum int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			var info os.FileInfo
			if info, err = e.Info(); err == nil {
				sum += info.Size()
			}
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return sum
}
