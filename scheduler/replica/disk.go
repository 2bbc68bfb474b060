package replica

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"gantry/fleet"
)

// The disk guard's times and its gap: below the limit by that much, commands are taken again.
const (
	diskEvery    = time.Second
	diskGap      = 2
	diskTransfer = 10 * time.Second // between two times that leadership is handed on
)

// diskFullText is what users are told.
const diskFullText = "The control plane's disk is full. Nothing was changed; reading still works."

// watchDisk looks at the disk every second until the node closes. A look that does not come back keeps
// the last result; the log's watchdog sees a disk that hangs.
func (n *Node) watchDisk() {
	tick := time.NewTicker(diskEvery)
	defer tick.Stop()
	var last time.Time // leadership was handed on
	looked := make(chan func(), 1)
	n.look(looked)
	for {
		select {
		case apply := <-looked:
			apply()
			last = n.leaveLead(last)
			select {
			case <-tick.C:
			case <-n.closing.Done():
				return
			}
			n.look(looked)
		case <-n.closing.Done():
			return
		}
	}
}

// look asks for the disk's use. The goroutine may stay behind on a disk that hangs, as the process then ends.
func (n *Node) look(looked chan<- func()) {
	go func() {
		used, err := n.cfg.DiskUsed()
		looked <- func() { n.setDisk(used, err) }
	}()
}

// setDisk notes how full the disk is.
func (n *Node) setDisk(used int, err error) {
	if err == nil {
		n.diskUsed.Store(int64(used))
	}
	switch full := n.diskFull.Load(); {
	case err != nil:
		n.log.Warn("read the disk's usage", "err", err)
	case !full && used >= n.cfg.DiskLimit:
		n.diskFull.Store(true)
		n.log.Error("the disk is full: nothing is accepted until there is room", "used_percent", used, "limit_percent", n.cfg.DiskLimit)
	case full && used < n.cfg.DiskLimit-diskGap:
		n.diskFull.Store(false)
		n.log.Info("the disk has room again", "used_percent", used)
	}
}

// leaveLead hands leadership on when the disk is full and somebody else with room can have it, now and then. When
// there is nobody, it stays where it is: to hand it round would only add elections to a full disk.
func (n *Node) leaveLead(last time.Time) time.Time {
	if !n.diskFull.Load() || !n.IsLeader() || time.Now().Before(last.Add(diskTransfer)) {
		return last
	}
	for _, id := range n.heirs() {
		last = time.Now()
		if err := n.handOn(id); err == nil {
			break
		}
	}
	return last
}

// heirs returns the voters that leadership may be handed to, "" for the most up-to-date.
func (n *Node) heirs() (ids []string) {
	for _, s := range n.Servers() {
		switch {
		case !s.Voter || s.ID == n.cfg.ID:
		case n.cfg.MayLead == nil:
			return []string{""}
		case n.cfg.MayLead(s.ID):
			ids = append(ids, s.ID)
		}
	}
	return ids
}

// handOn hands leadership to a voter.
func (n *Node) handOn(id string) error {
	ctx, cancel := context.WithTimeout(n.closing, diskTransfer/2)
	defer cancel()
	err := n.Transfer(ctx, id)
	if err != nil {
		n.log.Warn("transfer leadership", "to", id, "err", err)
	}
	return err
}

// diskRefusal is the error of a proposal that the disk has no room for.
func diskRefusal() error { return fleet.Unavailable(diskFullText, ErrDiskFull) }

// usedShare returns the used share of the file system of dir as df shows it: of what users may have.
func usedShare(dir string) (percent int, err error) {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil {
		return 0, err
	}
	used := fs.Blocks - fs.Bfree
	if total := used + fs.Bavail; total > 0 {
		return int((used*100 + total - 1) / total), nil
	}
	return 0, errors.New("the file system has no size")
}

// fullHint explains an error for want of room.
func fullHint(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%w: the disk is full; start gantry-scheduler again when there is room", err)
	}
	return err
}
