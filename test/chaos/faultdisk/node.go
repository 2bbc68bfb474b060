package faultdisk

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// root returns the root node of a mount.
func (d *Disk) root() (*node, error) {
	loop, err := fs.NewLoopbackRoot(d.work())
	if err != nil {
		return nil, err
	}
	top, ok := loop.(*fs.LoopbackNode)
	if !ok {
		return nil, fmt.Errorf("the loopback is a %T", loop)
	}
	id, err := identify(d.work())
	if err != nil {
		return nil, err
	}
	if d.seen == nil {
		d.seen = map[identity]*object{}
	}
	d.seen[id] = d.top
	root := &node{disk: d}
	root.RootData = top.RootData
	root.RootData.RootNode = root
	return root, nil
}

// node is a file or folder of the mounted tree.
type node struct {
	fs.LoopbackNode
	disk *Disk
	once sync.Once
	obj  *object
}

// WrapChild makes our nodes of the loopback's.
func (n *node) WrapChild(_ context.Context, ops fs.InodeEmbedder) fs.InodeEmbedder {
	child := &node{disk: n.disk}
	if loop, ok := ops.(*fs.LoopbackNode); ok {
		child.RootData = loop.RootData
	}
	return child
}

func (n *node) object() *object {
	n.once.Do(func() {
		if n.IsRoot() {
			n.obj = n.disk.top
			return
		}
		attr := n.StableAttr()
		n.obj = n.disk.objectOf(identity{attr.Ino, attr.Gen}, attr.Mode&syscall.S_IFMT == syscall.S_IFDIR, 0o700)
	})
	return n.obj
}

const lookForDeath = 50 * time.Millisecond

// gate waits while the disk hangs.
func (d *Disk) gate(ctx context.Context) syscall.Errno {
	tick := time.NewTicker(lookForDeath)
	defer tick.Stop()
	for {
		d.mu.Lock()
		hung := d.hung
		d.mu.Unlock()
		if hung == nil {
			return fs.OK
		}
		select {
		case <-hung:
		case <-tick.C:
			if dies(ctx) {
				return syscall.EINTR
			}
		}
	}
}

// dies reports whether the thread that asks has been killed. Other signals, which the Go runtime sends
// to itself, change nothing.
func dies(ctx context.Context) bool {
	caller, ok := fuse.FromContext(ctx)
	if !ok || caller.Pid == 0 {
		return false
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", caller.Pid))
	if err != nil {
		return os.IsNotExist(err)
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "SigPnd:"); ok {
			pending, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
			return err == nil && pending&(1<<(syscall.SIGKILL-1)) != 0
		}
	}
	return false
}

// grow is the gate of what needs space.
func (d *Disk) grow(ctx context.Context) syscall.Errno {
	if errno := d.gate(ctx); errno != fs.OK {
		return errno
	}
	if d.full.Load() {
		return syscall.ENOSPC
	}
	return fs.OK
}

// Lookup finds a name.
func (n *node) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	if errno := n.disk.gate(ctx); errno != fs.OK {
		return nil, errno
	}
	return n.LoopbackNode.Lookup(ctx, name, out)
}

// Getattr describes a file.
func (n *node) Getattr(ctx context.Context, f fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	if errno := n.disk.gate(ctx); errno != fs.OK {
		return errno
	}
	return n.LoopbackNode.Getattr(ctx, f, out)
}

// Setattr changes size, mode and times.
func (n *node) Setattr(ctx context.Context, f fs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	gate := n.disk.gate
	size, sized := in.GetSize()
	if sized {
		var now fuse.AttrOut
		if errno := n.LoopbackNode.Getattr(ctx, f, &now); errno != fs.OK {
			return errno
		}
		n.cut(size, now.Size)
		if size > now.Size {
			gate = n.disk.grow
		}
	}
	if errno := gate(ctx); errno != fs.OK {
		return errno
	}
	return n.LoopbackNode.Setattr(ctx, f, in, out)
}

// cut notes that a file gets shorter: where it grows again, it reads as zeros.
func (n *node) cut(to, from uint64) {
	if to < from {
		n.object().wrote(int64(to), int64(from)) //nolint:gosec // sizes of files fit
	}
}

// Mkdir makes a folder.
func (n *node) Mkdir(ctx context.Context, name string, mode uint32, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	if errno := n.disk.grow(ctx); errno != fs.OK {
		return nil, errno
	}
	return n.LoopbackNode.Mkdir(ctx, name, mode, out)
}

// Rmdir removes a folder.
func (n *node) Rmdir(ctx context.Context, name string) syscall.Errno {
	if errno := n.disk.gate(ctx); errno != fs.OK {
		return errno
	}
	return n.LoopbackNode.Rmdir(ctx, name)
}

// Unlink removes a name.
func (n *node) Unlink(ctx context.Context, name string) syscall.Errno {
	if errno := n.disk.gate(ctx); errno != fs.OK {
		return errno
	}
	return n.LoopbackNode.Unlink(ctx, name)
}

// Rename moves a name.
func (n *node) Rename(ctx context.Context, name string, parent fs.InodeEmbedder, newName string, flags uint32) syscall.Errno {
	if errno := n.disk.gate(ctx); errno != fs.OK {
		return errno
	}
	return n.LoopbackNode.Rename(ctx, name, parent, newName, flags)
}

// Create makes and opens a file.
func (n *node) Create(ctx context.Context, name string, flags, mode uint32, out *fuse.EntryOut) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	if errno := n.disk.grow(ctx); errno != fs.OK {
		return nil, nil, 0, errno
	}
	inode, f, _, errno := n.LoopbackNode.Create(ctx, name, flags, mode, out)
	if errno != fs.OK {
		return nil, nil, 0, errno
	}
	return inode, n.disk.file(inode, f), fuse.FOPEN_KEEP_CACHE, fs.OK
}

// Open opens a file.
func (n *node) Open(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	if errno := n.disk.gate(ctx); errno != fs.OK {
		return nil, 0, errno
	}
	var before fuse.AttrOut
	if flags&syscall.O_TRUNC != 0 {
		if errno := n.LoopbackNode.Getattr(ctx, nil, &before); errno != fs.OK {
			return nil, 0, errno
		}
		n.cut(0, before.Size)
	}
	f, _, errno := n.LoopbackNode.Open(ctx, flags)
	if errno != fs.OK {
		return nil, 0, errno
	}
	return n.disk.file(n.EmbeddedInode(), f), fuse.FOPEN_KEEP_CACHE, fs.OK
}

// OpendirHandle opens a folder.
func (n *node) OpendirHandle(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	if errno := n.disk.gate(ctx); errno != fs.OK {
		return nil, 0, errno
	}
	loop, _, errno := n.LoopbackNode.OpendirHandle(ctx, flags)
	if errno != fs.OK {
		return nil, 0, errno
	}
	list, ok := loop.(listing)
	if !ok {
		return nil, 0, syscall.ENOSYS
	}
	return &folder{listing: list, node: n}, 0, fs.OK
}

// Statfs tells the space.
func (n *node) Statfs(ctx context.Context, out *fuse.StatfsOut) syscall.Errno {
	if errno := n.disk.gate(ctx); errno != fs.OK {
		return errno
	}
	errno := n.LoopbackNode.Statfs(ctx, out)
	if used := n.disk.used.Load(); errno == fs.OK && used > 0 {
		out.Bfree = out.Blocks * uint64(100-used) / 100
		out.Bavail = out.Bfree
	}
	return errno
}

// CopyFileRange is refused, so that the bytes come as writes.
func (n *node) CopyFileRange(context.Context, fs.FileHandle, uint64, *fs.Inode, fs.FileHandle, uint64, uint64, uint64) (uint32, syscall.Errno) {
	return 0, syscall.ENOSYS
}

// way returns the names that lead from the root to the node.
func (n *node) way() []string {
	path := n.Path(n.Root())
	if path == "" {
		return nil
	}
	return strings.Split(path, "/")
}

// Fsync makes a file or folder durable.
func (n *node) Fsync(ctx context.Context, f fs.FileHandle, _ uint32) syscall.Errno {
	d := n.disk
	if errno := d.gate(ctx); errno != fs.OK {
		return errno
	}
	if delay := time.Duration(d.delay.Load()); delay > 0 {
		timer := time.NewTimer(delay)
		<-timer.C
	}
	d.syncs.Add(1)
	o := n.object()
	if open, ok := f.(*file); ok {
		path, err := open.below()
		if err == nil {
			err = d.keep(o, path)
		}
		if err != nil {
			return fs.ToErrno(err)
		}
	} else if err := d.keepNames(o, strings.Join(append([]string{d.workNow()}, n.way()...), "/")); err != nil {
		return fs.ToErrno(err)
	}
	return fs.ToErrno(d.keepWay(n.way()))
}
