package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"gantry/internal/userns"
)

const (
	netnsDir  = "/run/netns" // where `ip netns` looks
	threadNS  = "/proc/thread-self/ns/net"
	nsfsMagic = 0x6e736673
)

// namespace is an open network namespace. Close it.
type namespace struct {
	file *os.File
	nl   *netlink.Handle // exchanges with the namespace from any thread
	base uint32          // netctl.Pod.IDBase, as it is
}

func (n *namespace) Close() {
	n.nl.Close()
	_ = n.file.Close() // read-only
}

// ensureNamespace opens the named namespace, and makes it when it is not there, only half
// made, or not the user namespace's that begins at base and it must be. fresh says that it was made.
func ensureNamespace(name string, base uint32, must bool) (ns *namespace, fresh bool, err error) {
	path := filepath.Join(netnsDir, name)
	if isNamespace(name) {
		ns, err = openNamespace(path, enterNamespace)
		if err != nil || ns.base == base || !must {
			return ns, false, err
		}
		ns.Close()
	}
	if err := nameNamespace(name); err != nil {
		return nil, false, err
	}
	ns, err = openNamespace(path, func(path string) error { return newNamespaceAt(path, base) })
	if err == nil && ns.base != base {
		ns.Close()
		err = errors.New("a new namespace has another owner than it should have")
	}
	if err != nil {
		return nil, false, errors.Join(err, removeNamespace(name))
	}
	return ns, true, nil
}

// openNamespace opens the namespace at path after enter has brought the thread there.
func openNamespace(path string, enter func(path string) error) (*namespace, error) {
	ns := &namespace{}
	err := onOwnThread(func() (err error) {
		if err := enter(path); err != nil {
			return err
		}
		if ns.file, err = os.Open(path); err != nil {
			return err
		}
		if ns.base, err = ownerHere(); err == nil {
			ns.nl, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		}
		if err != nil {
			_ = ns.file.Close() // the other error counts
			return err
		}
		return ns.nl.SetSocketTimeout(callTimeout)
	})
	if err != nil {
		return nil, fmt.Errorf("open namespace: %w", err)
	}
	return ns, nil
}

func enterNamespace(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // read-only
	return unix.Setns(int(f.Fd()), unix.CLONE_NEWNET)
}

// ownerHere returns the host's id of root in the user namespace that owns the thread's network
// namespace, 0 for the host's own: whom the kernel shows as the owner of its settings.
func ownerHere() (uint32, error) {
	info, err := os.Stat("/proc/sys/net/ipv4/ip_forward")
	if err != nil {
		return 0, fmt.Errorf("owner: %w", err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, errors.New("owner: is not known")
	}
	return st.Uid, nil
}

// newNamespaceAt moves the thread into a new namespace, in a new user namespace unless base is 0,
// and binds it to path. New devices there have no IPv6; low ports and ping need no privilege, since a
// pod's root has none over a namespace of the host's, and its users none over its own.
func newNamespaceAt(path string, base uint32) error {
	if err := newNamespace(base); err != nil {
		return err
	}
	for key, value := range map[string]string{
		"net/ipv6/conf/default/disable_ipv6":  "1",
		"net/ipv4/ip_unprivileged_port_start": "0",
	} {
		if err := setSysctl(key, value); err != nil {
			return err
		}
	}
	if err := allowPing(); err != nil {
		return err
	}
	if err := unix.Mount(threadNS, path, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind: %w", err)
	}
	return nil
}

// allowPing lets all groups ping that there can be. Kernels of before 6.4 that were not mended since take half of them.
func allowPing() error {
	const key, all, half = "net/ipv4/ping_group_range", "0 4294967294", "0 2147483647"
	err := setSysctl(key, all)
	if errors.Is(err, unix.EINVAL) {
		err = setSysctl(key, half)
	}
	return err
}

func newNamespace(base uint32) error {
	if base == 0 {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		return nil
	}
	held, err := userns.New(base, unix.CLONE_NEWNET)
	if err != nil {
		return err
	}
	defer func() { _ = held.Close() }() // read-only
	if err := unix.Setns(int(held.Net.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter a new namespace: %w", err)
	}
	return nil
}

// noneProbed has the kernel look for no neighbor by ARP on a link of the namespace, which then reaches those alone that are
// written there. All namespaces share one table of neighbors of 1024 entries, and one that is being looked for
// stays in it for three seconds: a pod that sends to each address of its subnet would fill it, for the host as well.
func (n *namespace) noneProbed(link string) error {
	return onOwnThread(func() error {
		if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter namespace: %w", err)
		}
		return setSysctl("net/ipv4/neigh/"+link+"/mcast_solicit", "0")
	})
}

// onOwnThread runs f on a thread that f may move into another network namespace. A
// thread that cannot be moved back ends with its goroutine.
func onOwnThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		home, err := os.Open(threadNS)
		if err != nil {
			runtime.UnlockOSThread()
			done <- err
			return
		}
		defer func() { _ = home.Close() }() // read-only
		err = f()
		if back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); back != nil {
			done <- errors.Join(err, fmt.Errorf("leave namespace: %w", back))
			return
		}
		runtime.UnlockOSThread()
		done <- err
	}()
	return <-done
}

// nameNamespace makes the empty file that a namespace is bound to, on a shared mount at /run/netns.
// Both happen under one lock, so that no other agent takes the mount away in between.
func nameNamespace(name string) error {
	unlock, err := lockNamespaces()
	if err != nil {
		return err
	}
	defer unlock()
	if err := removeNamespace(name); err != nil {
		return err
	}
	if err := shareNamespaces(); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(netnsDir, name), os.O_RDONLY|os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return fmt.Errorf("name namespace: %w", err)
	}
	return f.Close()
}

// shareNamespaces makes /run/netns a shared mount as `ip netns add` does, so that namespaces made
// here are seen and removed everywhere. The caller holds the lock.
func shareNamespaces() error {
	if err := os.MkdirAll(netnsDir, 0o755); err != nil {
		return fmt.Errorf("namespaces: %w", err)
	}
	err := unix.Mount("", netnsDir, "none", unix.MS_SHARED|unix.MS_REC, "")
	if errors.Is(err, unix.EINVAL) { // not a mount yet
		if err = unix.Mount(netnsDir, netnsDir, "none", unix.MS_BIND|unix.MS_REC, ""); err == nil {
			err = unix.Mount("", netnsDir, "none", unix.MS_SHARED|unix.MS_REC, "")
		}
	}
	if err != nil {
		return fmt.Errorf("namespaces: share mount: %w", err)
	}
	return nil
}

// lockNamespaces takes the lock of every agent on this machine around changes of the mount. It lies
// on the folder above: a file that is open on the mount would keep it busy.
func lockNamespaces() (unlock func(), err error) {
	dir, err := os.Open(filepath.Dir(netnsDir))
	if err != nil {
		return nil, fmt.Errorf("namespaces: %w", err)
	}
	if _, err := retry(func() (struct{}, error) { return struct{}{}, unix.Flock(int(dir.Fd()), unix.LOCK_EX) }); err != nil {
		return nil, errors.Join(fmt.Errorf("namespaces: lock: %w", err), dir.Close())
	}
	return func() { _ = dir.Close() }, nil // read-only; gives the lock back
}

// dropNamespaces takes the shared mount away when nobody has a namespace there.
func dropNamespaces() error {
	unlock, err := lockNamespaces()
	if err != nil {
		return err
	}
	defer unlock()
	left, err := os.ReadDir(netnsDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || len(left) > 0 {
		return err
	}
	switch err := unix.Unmount(netnsDir, unix.UMOUNT_NOFOLLOW); {
	case err == nil, errors.Is(err, unix.EINVAL), errors.Is(err, unix.EBUSY):
		return nil // done, not a mount, in use
	default:
		return fmt.Errorf("namespaces: unmount: %w", err)
	}
}

// removeNamespace takes the name away, mounted or not. Processes inside keep the
// namespace itself until they end.
func removeNamespace(name string) error {
	return userns.Unpin(filepath.Join(netnsDir, name))
}

func isNamespace(name string) bool {
	var st unix.Statfs_t
	_, err := retry(func() (struct{}, error) {
		return struct{}{}, unix.Statfs(filepath.Join(netnsDir, name), &st)
	})
	return err == nil && st.Type == nsfsMagic
}

// listNamespaces returns the names with the prefix, half-made ones too, sorted.
func listNamespaces(prefix string) ([]string, error) {
	entries, err := os.ReadDir(netnsDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list namespaces: %w", err)
	}
	var out []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) {
			out = append(out, e.Name())
		}
	}
	return out, nil
}

// setSysctl writes a kernel setting of the thread's network namespace unless it has
// the value. A kernel without IPv6 needs none of its settings.
func setSysctl(key, value string) error {
	path := filepath.Join("/proc/sys", key)
	old, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) && strings.Contains(key, "ipv6") {
		return nil
	}
	if err != nil {
		return fmt.Errorf("sysctl: %w", err)
	}
	if strings.Join(strings.Fields(string(old)), " ") == value {
		return nil
	}
	if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
		return fmt.Errorf("sysctl: %w", err)
	}
	return nil
}

// openNamespaceFile opens a named namespace to be entered.
func openNamespaceFile(name string) (*os.File, error) {
	if !isNamespace(name) {
		return nil, fmt.Errorf("there is no network namespace %s", name)
	}
	return os.Open(filepath.Join(netnsDir, name))
}
