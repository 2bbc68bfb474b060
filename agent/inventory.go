package agent

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"

	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/storage/disk"
)

const (
	mb             = 1_000_000
	reserveCores   = 1
	reserveMemory  = 2 << 30 // bytes
	diskShareInUse = 0.9     // of what is not others' may go to pods' disks
)

// diskBook remembers how much of the disk is not pods'.
type diskBook interface {
	Records() []pod.Record
	// ForeignDisk returns the bytes that SetForeignDisk wrote last; false before.
	ForeignDisk() (int64, bool)
	SetForeignDisk(bytes int64) error
}

// inventory reads what the host offers to pods. overcommit multiplies processors, memory and disk,
// for development machines; at 1 the system's reserve of one core and 2 GiB is kept. Processors and
// memory are the machine's, whoever uses them; of the disk, foreignDisk is not offered.
func inventory(dir string, overcommit int, gpus []fleet.GPU, book diskBook) (fleet.Inventory, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return fleet.Inventory{}, fmt.Errorf("read memory: %w", err)
	}
	is, err := readDisk(dir)
	if err != nil {
		return fleet.Inventory{}, err
	}
	data, err := hasData(dir)
	if err != nil {
		return fleet.Inventory{}, err
	}
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
			MemoryMB: memory / mb * factor,
			DiskGB:   int64(float64(is.size-foreign)*diskShareInUse) / fleet.GB * factor,
		},
		GPUs:   gpus,
		Kernel: kernelRelease(),
	}, nil
}

// diskUse is a file system in bytes. Size is what may be used, without the reserve of the file system.
type diskUse struct{ size, used int64 }

func readDisk(dir string) (diskUse, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return diskUse{}, fmt.Errorf("read free disk: %w", err)
	}
	used := int64(st.Blocks-st.Bfree) * int64(st.Bsize)                //nolint:gosec,unconvert // below 2^63; differs by platform
	return diskUse{used + int64(st.Bavail)*int64(st.Bsize), used}, nil //nolint:gosec,unconvert // the same
}

// foreignDisk returns how many bytes of the disk's size are not pods'. The scheduler subtracts the disks
// of pods from what the host offers, so the offer must be the same whether pods have filled theirs or
// not, and what is free now cannot be it. While the ledger has no pods, everything that is used is
// others'; that is written down, and holds over restarts while there are pods. It grows only by what
// pods, had they filled all that is allotted to them, could not have used. Data without pods, as after
// the loss of the ledger, may be that of pods which come back: nothing is written down then.
func foreignDisk(is diskUse, book diskBook, data bool) (int64, error) {
	records := book.Records()
	if len(records) == 0 {
		if data {
			return is.used, nil
		}
		return is.used, book.SetForeignDisk(is.used)
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
	return min(max(known, is.used-allotted, 0), is.size), nil
}

// hasData reports whether there is persistent data below an agent's data folder, in its place or set aside.
func hasData(dir string) (bool, error) {
	data, err := foundData(dir)
	if err != nil {
		return false, err
	}
	pods, err := data.Pods()
	if err != nil {
		return false, err
	}
	aside, err := data.Lost()
	return len(pods)+len(aside) > 0, err
}

func kernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}
