package pod

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"gantry/storage"
)

const (
	// attachTimeout leaves time to mount a backend that is not mounted yet. One that does not answer fails sooner.
	attachTimeout = 25 * time.Second
	accessTimeout = 5 * time.Second
	detachTimeout = 5 * time.Second
	// volumeLimit is how long an incarnation tries in vain to get its network volume.
	volumeLimit = 5 * time.Minute
	// attachFresh is how long nobody looks again whether what was attached still is.
	attachFresh = 2 * time.Second
	accessAgain = 5 * time.Second
	detachTries = 3
	detachLater = time.Minute
)

// preparing tells an owner why a pod waits for a network volume whose directory is not made yet.
const preparing = "the network volume is being prepared"

// IDBase returns the host's id of the root of the pod's user namespace, 0 when it has none. of is that of Deps, and
// addr the pod's address. The files of a network volume have ids of their own, which all pods have that share it.
func (a Assignment) IDBase(of func(addr netip.Addr) uint32, addr netip.Addr) uint32 {
	switch {
	case of == nil:
		return 0
	case a.Volume != nil:
		return a.Volume.IDBase
	}
	return of(addr)
}

// readOnly reports whether the pod may not write to its network volume.
func (a Assignment) readOnly() bool { return a.Volume != nil && a.Volume.ReadOnly }

// mounted is what a machine knows of its pod's network volume. It is the machine's goroutine's alone.
type mounted struct {
	dir      string    // where it is attached
	of       uint64    // incarnation for which that was looked at last
	at       time.Time // and when
	troubled time.Time // since when it cannot be attached; zero: it can, or was not tried
	access   access    // what the running container has
	lost     int       // tries to detach that failed in a row
}

// access is what a container may do with its network volume.
type access struct {
	incarnation uint64
	readOnly    bool
}

// attach mounts the pod's network volume for the container that is being made. It is called without anything that other
// pods wait for, and ends with a new order.
//
// The mount is always writable: one that was read-only when the container's mount namespace was made could never be
// made writable there again (mount_namespaces(7), locked flags). What the order says is done before the container's
// process runs, see limit.
func (m *machine) attach(ctx context.Context, want Assignment) error {
	switch {
	case want.Volume == nil:
		return nil
	case m.Volumes == nil:
		return &Error{Class: Fatal, Sentence: "the host cannot mount network volumes"}
	case !want.Volume.Ready:
		return &Error{Class: Retry, Sentence: preparing}
	case m.volume.of == want.Incarnation && time.Since(m.volume.at) < attachFresh:
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, attachTimeout)
	defer cancel()
	v := *want.Volume
	v.ReadOnly = false
	dir, err := m.Volumes.Attach(ctx, m.id, v)
	if err != nil {
		return m.volumeTrouble(err)
	}
	m.volume = mounted{dir: dir, of: want.Incarnation, at: time.Now(), access: m.volume.access}
	return nil
}

// volumeTrouble says whether a volume that could not be had is tried again.
func (m *machine) volumeTrouble(cause error) error {
	sentence := "the network volume could not be mounted"
	var e *storage.Error
	if errors.As(cause, &e) && e.Sentence != "" {
		sentence = e.Sentence
	}
	now := time.Now()
	if m.volume.troubled.IsZero() {
		m.volume.troubled = now
		m.Logs.System(m.id, "error mounting the network volume: "+sentence)
	}
	if now.Sub(m.volume.troubled) < volumeLimit {
		return &Error{Class: Retry, Sentence: sentence, Err: cause}
	}
	return &Error{Class: Fatal, Sentence: sentence + "; it was tried for 5 minutes", Err: cause}
}

// limit lets the container of a process write to its network volume or not, as the order says. A container that was
// just made has one that it may write to; what one has that an earlier agent started, nobody knows.
func (m *machine) limit(ctx context.Context, want Assignment, pid int, fresh bool) error {
	if want.Volume == nil || m.Volumes == nil {
		return nil
	}
	should := access{want.Incarnation, want.Volume.ReadOnly}
	if m.volume.access == should || fresh && !should.readOnly {
		m.volume.access = should
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, accessTimeout)
	defer cancel()
	if err := m.Volumes.SetReadOnly(ctx, m.id, pid, *want.Volume); err != nil {
		return err
	}
	switch changed := fresh || m.volume.access.incarnation == want.Incarnation; {
	case changed && should.readOnly:
		m.Logs.System(m.id, "the network volume holds too much: it is read-only until something is removed or it is made larger")
	case changed:
		m.Logs.System(m.id, "the network volume is writable again")
	}
	m.volume.access = should
	return nil
}

// ending has nothing kept for the pod's network volume that would keep its processes from ending.
func (m *machine) ending(want Assignment) {
	if m.Volumes != nil && want.Volume != nil {
		m.Volumes.Ending(m.id)
	}
}

// isAttached reports whether anything of a network volume is attached for the pod.
func (m *machine) isAttached() (bool, error) {
	if m.Volumes == nil || m.volume.lost >= detachTries {
		return false, nil
	}
	ids, err := m.Volumes.Attached()
	return slices.Contains(ids, m.id), err
}

// detach lets go of the pod's network volume, after its container. One that cannot be let go of, as when its server is
// dead and everything that asks it is stuck, is left to those who look after the host: nobody waits for it.
func (m *machine) detach(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, detachTimeout)
	defer cancel()
	err := m.Volumes.Detach(ctx, m.id)
	if err == nil {
		m.volume = mounted{}
		return nil
	}
	if m.volume.lost++; m.volume.lost < detachTries {
		return err
	}
	m.Log.Warn("release the pod's network volume; will retry", "err", err)
	return nil
}
