package inventory

import (
	"os"
	"runtime"
	"testing"

	"gantry/agent/ledger/ledgertest"
	"gantry/agent/machine"
	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/storage/disk"
)

func TestForeignDisk(t *testing.T) {
	const gb = fleet.GB
	dir := t.TempDir()
	book := ledgertest.Open(t, dir)
	foreign := func(when string, size, used, want int64) {
		t.Helper()
		got, err := foreignDisk(machine.Disk{Size: size * gb, Used: used * gb}, book, false)
		if err != nil || got != want*gb {
			t.Errorf("%s: %d GB, %v; want %d", when, got/gb, err, want)
		}
	}
	foreign("at first", 1000, 100, 100)
	foreign("others took more, no pods", 1000, 150, 150)
	ledgertest.SetFull(t, book,
		pod.Assignment{Pod: "run", Goal: fleet.GoalRun, DiskGB: 20, Limits: fleet.Resources{DiskGB: 320}, Persistent: &fleet.PersistentMount{SizeGB: 300}},
		pod.Assignment{Pod: "stop", Goal: fleet.GoalStop, DiskGB: 30, Persistent: &fleet.PersistentMount{SizeGB: 50}})
	for _, used := range []int64{150, 200, 400, 550, 564} { // 400 are allotted, and full loop files take more
		foreign("pods fill their disks", 1000, used, 150)
	}
	foreign("pods wrote less than others removed", 1000, 120, 150)
	beside := disk.Footprint(20, false) + disk.Footprint(300, true) + disk.Footprint(30, false) + disk.Footprint(50, true) - 400*gb
	if got, err := foreignDisk(machine.Disk{Size: 1000 * gb, Used: 600*gb + beside}, book, false); err != nil || got != 200*gb {
		t.Errorf("more is used than pods may: %d, %v", got, err)
	}
	foreign("a larger disk", 2000, 550, 150)
	if err := book.Close(); err != nil {
		t.Fatal(err)
	}
	book = ledgertest.Open(t, dir)
	foreign("after a restart", 1000, 550, 150)
	foreign("a smaller disk", 100, 100, 100)
}

// TestForeignDiskOfAnOlderLedger has pods, and no note of what was used before them.
func TestForeignDiskOfAnOlderLedger(t *testing.T) {
	book := ledgertest.Open(t, t.TempDir())
	ledgertest.SetFull(t, book, pod.Assignment{Pod: "p1", Goal: fleet.GoalRun, DiskGB: 50})
	beside := disk.Footprint(50, false) - 50*fleet.GB
	for used, want := range map[int64]int64{0: 0, 50: 0, 80: 30} {
		if got, err := foreignDisk(machine.Disk{Size: 100 * fleet.GB, Used: used*fleet.GB + beside}, book, false); err != nil || got != want*fleet.GB {
			t.Errorf("%d GB used: %d, %v", used, got, err)
		}
	}
}

func TestInventoryIsTheSameWithPods(t *testing.T) {
	dir := t.TempDir()
	book := ledgertest.Open(t, dir)
	before, err := Read(dir, 1, nil, book, false, machine.Disk{})
	if err != nil || before.Total.DiskGB < 1 || before.Total.MemoryMB < 1 || before.Total.MilliCPU < 1000 {
		t.Fatalf("%+v, %v", before, err)
	}
	ledgertest.SetFull(t, book, pod.Assignment{Pod: "p1", Goal: fleet.GoalRun, DiskGB: 1 << 20})
	after, err := Read(dir, 1, nil, book, false, machine.Disk{})
	if err != nil || after.Total != before.Total {
		t.Errorf("%+v, %v; was %+v", after.Total, err, before.Total)
	}
	three, err := Read(dir, 3, nil, book, false, machine.Disk{})
	cores := int64(runtime.NumCPU())
	if err != nil || three.Total.DiskGB != 3*before.Total.DiskGB || three.Total.MilliCPU != 3000*cores {
		t.Errorf("offered three times: %+v, %v", three.Total, err)
	}
	// What is offered once has the system's reserve taken off.
	if before.Total.MilliCPU != 1000*max(cores-1, 1) || before.Total.MemoryMB >= three.Total.MemoryMB/3 {
		t.Errorf("offered once: %+v; three times: %+v", before.Total, three.Total)
	}
	if zero, err := Read(dir, 0, nil, book, false, machine.Disk{}); err != nil || zero.Total != before.Total {
		t.Errorf("without a factor: %+v, %v; was %+v", zero.Total, err, before.Total)
	}
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil || before.Kernel+"\n" != string(release) {
		t.Errorf("the kernel is %q, not %q: %v", before.Kernel, release, err)
	}
}

// TestForeignDiskOfALostLedger has data, and no pods yet that it belongs to.
func TestForeignDiskOfALostLedger(t *testing.T) {
	dir := t.TempDir()
	book := ledgertest.Open(t, dir)
	for _, data := range []bool{true, false} {
		if _, err := Read(dir, 1, nil, book, data, machine.Disk{}); err != nil {
			t.Fatal(err)
		}
		if n, known := book.ForeignDisk(); known == data {
			t.Errorf("with data of pods %v: %d bytes are written down as others': %v", data, n, known)
		}
	}
}
