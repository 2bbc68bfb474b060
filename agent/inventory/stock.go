package inventory

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"

	"gantry/agent/machine"
	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/storage/disk"
)

const (
	reserveCores   = 1
	reserveMemory  = 2 << 30 // bytes
	diskShareInUse = 0.9     // of what is not others' may go to pods' disks
)

// DiskBook remembers how much of the disk is not pods'.
type DiskBook interface {
	Records() []pod.Record
	// ForeignDisk returns the bytes that SetForeignDisk wrote last; false before.
	ForeignDisk() (int64, bool)
	SetForeignDisk(bytes int64) error
}

// Read reads what a host offers to pods that has its data in dir. data reports whether there is persistent data. overcommit multiplies processors, memory and disk,
// for development machines; at 1 the system's reserve of one core and 2 GiB is kept. Processors and
// memory are the machine's, whoever uses them; of the disk, foreignDisk and what other, something else on the disk, has and may have are not offered.
func Read(dir string, overcommit int, gpus []fleet.GPU, book DiskBook, data bool, other machine.Disk) (fleet.Inventory, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return fleet.Inventory{}, fmt.Errorf("read memory: %w", err)
	}
	is, err := machine.ReadDisk(dir)
	if err != nil {
		return fleet.Inventory{}, err
	}
	is.Used, is.Size = max(0, is.Used-other.Used), max(0, is.Size-other.Size)
	foreign, err := foreignDisk(is, book, data)
	if err != nil {
		return fleet.Inventory{}, err
	}
	cores := int64(runtime.NumCPU())
	memory := int64(info.Totalram) * int64(info.Unit) //nolint:gosec // below 2^63
	if overcommit <= 1 {
		overcommit = 1
		cores = max(cores-reserveCores, 1)
		memory = max(memory-reserveMemory, memory/2)
	}
	factor := int64(overcommit)
	return fleet.Inventory{
		Total: fleet.Resources{
			MilliCPU: cores * 1000 * factor,
			MemoryMB: memory / fleet.MB * factor,
			DiskGB:   int64(float64(max(0, is.Size-foreign))*diskShareInUse) / fleet.GB * factor,
		},
		GPUs:   gpus,
		Kernel: kernelRelease(),
	}, nil
}

// foreignDisk returns how many bytes of the disk's size are not pods'. The scheduler subtracts the disks
// of pods from what the host offers, so the offer must be the same whether pods have filled theirs or
// not, and what is free now cannot be it. While the ledger has no pods, everything that is used is
// others'; that is written down, and holds over restarts while there are pods. It grows only by what
// pods, had they filled all that is allotted to them, could not have used. Data without pods, as after
// the loss of the ledger, may be that of pods which come back: nothing is written down then.
func foreignDisk(is machine.Disk, book DiskBook, data bool) (int64, error) {
	records := book.Records()
	if len(records) == 0 {
		if data {
			return is.Used, nil
		}
		return is.Used, book.SetForeignDisk(is.Used)
	}
	allotted := int64(0)
	for _, rec := range records {
		own := rec.Assignment.DiskGB
		rest := disk.Footprint(own, false) - own*fleet.GB // what the disks take beside what they hold
		if p := rec.Assignment.Persistent; p != nil {
			gb := int64(p.SizeGB)
			own, rest = own+gb, rest+disk.Footprint(gb, true)-gb*fleet.GB
		}
		allotted += max(own, rec.Assignment.Limits.DiskGB)*fleet.GB + rest
	}
	known, _ := book.ForeignDisk()
	return min(max(known, is.Used-allotted, 0), is.Size), nil
}

func kernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}
