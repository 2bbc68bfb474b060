package containerfs

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"gantry/fleet"
)

const (
	// nobody is what an id becomes that the other side does not have, as everywhere in the kernel
	// (user_namespaces(7), overflowuid).
	nobody  = 65534
	maxMap  = 32 << 10 // bytes; the kernel takes less
	mapTail = 3        // numbers in a line
)

// IDs translate owners between a container and its host. The zero value changes none: the container
// has no user namespace.
type IDs struct{ users, groups idMap }

// idMap is a user namespace's, as the host sees it; nil changes no id.
type idMap []extent

type extent struct{ inside, host, count uint32 }

// ShiftedIDs are those of a container whose ids 0 to count-1 are the host's from base on; base 0: it has no user namespace.
func ShiftedIDs(base, count uint32) IDs {
	if base == 0 {
		return IDs{}
	}
	m := idMap{{inside: 0, host: base, count: count}}
	return IDs{users: m, groups: m}
}

// ReadIDs reads how the user namespace of a process translates. The caller makes sure that the number is
// still the same process's afterwards.
func ReadIDs(pid int) (IDs, error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	users, err := readMap(filepath.Join(dir, "uid_map"))
	if err != nil {
		return IDs{}, err
	}
	groups, err := readMap(filepath.Join(dir, "gid_map"))
	if err != nil {
		return IDs{}, err
	}
	return IDs{users, groups}, nil
}

func readMap(path string) (idMap, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("ids of a process: %w", err)
	}
	defer func() { _ = f.Close() }() // read-only
	text, err := io.ReadAll(io.LimitReader(f, maxMap+1))
	if err != nil {
		return nil, fmt.Errorf("ids of a process: %w", err)
	}
	m, err := parseMap(string(text))
	if err != nil {
		return nil, fmt.Errorf("ids of a process: %w", err)
	}
	return m, nil
}

func parseMap(text string) (idMap, error) {
	if len(text) > maxMap {
		return nil, errors.New("the map is too long")
	}
	out := idMap{}
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) != mapTail {
			return nil, errors.New("a line of the map has not three numbers")
		}
		var n [mapTail]uint32
		for i, field := range fields {
			v, err := strconv.ParseUint(field, 10, 32)
			if err != nil {
				return nil, errors.New("a line of the map has not three numbers")
			}
			n[i] = uint32(v)
		}
		e := extent{n[0], n[1], n[2]}
		if e.count == 0 || e.inside > math.MaxUint32-e.count || e.host > math.MaxUint32-e.count {
			return nil, errors.New("a line of the map has numbers out of range")
		}
		out = append(out, e)
	}
	return out, nil
}

// toHost returns the host's id, and false when the container has no such id.
func (m idMap) toHost(id uint32) (uint32, bool) {
	for _, e := range m {
		if id >= e.inside && id-e.inside < e.count {
			return e.host + (id - e.inside), true
		}
	}
	return id, m == nil
}

// toInside returns the container's id, and nobody for one that it does not have.
func (m idMap) toInside(id uint32) uint32 {
	for _, e := range m {
		if id >= e.host && id-e.host < e.count {
			return e.inside + (id - e.host)
		}
	}
	if m == nil {
		return id
	}
	return nobody
}

var errNoIDs = fleet.NotAllowed("the pod has no root and no nobody to whom files can belong")

// own is toHost, with nobody in place of an id that the container does not have.
func (m idMap) own(id uint32) (uint32, error) {
	if host, ok := m.toHost(id); ok {
		return host, nil
	}
	host, ok := m.toHost(nobody)
	if !ok {
		return 0, errNoIDs
	}
	return host, nil
}

// asRoot runs f on a thread of its own, which then ends. What f makes belongs to the container's root
// from the start: in a mount with translated owners, such as a volume, nothing of an id that is not
// translated can be made (mount_setattr(2)). f has all other rights that the thread had but one: limits
// of a disk hold for it too (quotactl(2), CAP_SYS_RESOURCE).
func (i IDs) asRoot(f func() error) error {
	uid, ok := i.users.toHost(0)
	gid, also := i.groups.toHost(0)
	if !ok || !also {
		return errNoIDs
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // to the end
		err := actAs(int(uid), int(gid))
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// actAs changes the ids with which the thread acts on files. The kernel takes rights over files away
// with them; they are taken back (capabilities(7)).
func actAs(uid, gid int) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&header, &caps[0]); err != nil {
		return fmt.Errorf("read rights: %w", err)
	}
	caps[0].Effective &^= 1 << unix.CAP_SYS_RESOURCE
	for _, change := range []struct {
		call func(id int) (int, error)
		id   int
	}{{unix.SetfsgidRetGid, gid}, {unix.SetfsuidRetUid, uid}} {
		if _, err := change.call(change.id); err != nil {
			return fmt.Errorf("act as the pod's root: %w", err)
		}
		if now, err := change.call(-1); err != nil || now != change.id { // the first call never says that it failed
			return errors.Join(errors.New("act as the pod's root: the kernel refused"), err)
		}
	}
	if err := unix.Capset(&header, &caps[0]); err != nil {
		return fmt.Errorf("keep rights: %w", err)
	}
	return nil
}
