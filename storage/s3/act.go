package s3

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// errTokens says that a limit did not free in time.
var errTokens = errors.New("limit reached")

// tokens bounds how many do something at a time.
type tokens chan struct{}

func (t tokens) take(ctx context.Context, wait time.Duration) error {
	select {
	case t <- struct{}{}:
		return nil
	default:
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case t <- struct{}{}:
		return nil
	case <-timer.C:
		return errTokens
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (t tokens) give() { <-t }

// seat is a request's place among those of all volumes. One that a dead file system keeps gives it up: its volume's own limits
// hold for it still, and others must not wait for that file system.
type seat struct {
	h *Handler

	mu         sync.Mutex // guards the fields below
	left, over bool
}

func (s *seat) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.left || s.over {
		return
	}
	select {
	case s.h.stuck <- struct{}{}:
		s.left = true
		s.h.requests.give()
	default: // so many threads that this process needs its limit
	}
}

func (s *seat) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over = true; s.left {
		s.h.stuck.give()
		return
	}
	s.h.requests.give()
}

// act runs calls of the file system as the owner of the volume's files. A thread that a dead file system
// keeps is one of a few: others of the volume are refused then.
func (p *place) act(f func() error) error {
	if err := p.threads.take(p.ctx, p.wait); err != nil {
		return slowDown()
	}
	defer p.threads.give()
	late := time.AfterFunc(p.stall/4, p.seat.leave)
	defer late.Stop()
	return as(p.folder.Owner, f)
}

// as runs f as a user and group of the file system, with the rights to files that the process has.
func as(owner uint32, f func() error) error {
	if owner == 0 {
		return f()
	}
	done := make(chan error, 1)
	go func() { done <- onThread(owner, f) }()
	return <-done
}

// onThread must be called by a goroutine that ends after it: where the ids cannot be given back, the thread ends with it.
func onThread(owner uint32, f func() error) (err error) {
	runtime.LockOSThread()
	uid, gid, err := become(owner, owner)
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
		if _, _, back := become(uid, gid); back == nil {
			runtime.UnlockOSThread()
		}
	}()
	if err != nil {
		return err
	}
	return f()
}

// fileCaps are rights that the kernel takes away from a thread with another user of the file system.
const fileCaps = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH | 1<<unix.CAP_FOWNER

// become sets the thread's ids of the file system and returns those that it had.
func become(uid, gid uint32) (oldUID, oldGID uint32, err error) {
	g, err := unix.SetfsgidRetGid(int(gid))
	if err != nil {
		return 0, 0, fmt.Errorf("setfsgid: %w", err)
	}
	u, err := unix.SetfsuidRetUid(int(uid))
	if err != nil {
		return 0, 0, fmt.Errorf("setfsuid: %w", err)
	}
	oldUID, oldGID = uint32(u), uint32(g) //nolint:gosec // ids of 32 bits
	// The calls do not fail; what they did is seen by asking again with an id that nobody has.
	u, _ = unix.SetfsuidRetUid(-1)
	g, _ = unix.SetfsgidRetGid(-1)
	if uint32(u) != uid || uint32(g) != gid { //nolint:gosec // ids of 32 bits
		return oldUID, oldGID, fmt.Errorf("user %d and group %d cannot be taken for files", uid, gid)
	}
	return oldUID, oldGID, raise()
}

// raise makes those of fileCaps effective that the thread is permitted.
func raise() error {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&head, &caps[0]); err != nil {
		return fmt.Errorf("capget: %w", err)
	}
	want := caps[0].Effective | caps[0].Permitted&fileCaps
	if want == caps[0].Effective {
		return nil
	}
	caps[0].Effective = want
	if err := unix.Capset(&head, &caps[0]); err != nil {
		return fmt.Errorf("capset: %w", err)
	}
	return nil
}
