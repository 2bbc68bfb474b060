package faultdisk

import (
	"context"
	"fmt"
	"os"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// file is an open file. It offers less than the loopback's, so that nothing goes past the faults: no vectors, no
// reservations, no locks (the kernel keeps those of one machine itself).
type file struct {
	loop *fs.LoopbackFile
	disk *Disk
	obj  *object
}

func (d *Disk) file(inode *fs.Inode, f fs.FileHandle) fs.FileHandle {
	loop, ok := f.(*fs.LoopbackFile)
	n, isNode := inode.Operations().(*node)
	if !ok || !isNode {
		return f
	}
	return &file{loop: loop, disk: d, obj: n.object()}
}

// PassthroughFd says no: the kernel would take reads and writes to the file below by itself.
func (f *file) PassthroughFd() (int, bool) { return 0, false }

// Read reads.
func (f *file) Read(ctx context.Context, buf []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	if errno := f.disk.gate(ctx); errno != fs.OK {
		return nil, errno
	}
	return f.loop.Read(ctx, buf, off)
}

// Write writes what a power cut takes away again.
func (f *file) Write(ctx context.Context, data []byte, off int64) (uint32, syscall.Errno) {
	if errno := f.disk.grow(ctx); errno != fs.OK {
		return 0, errno
	}
	n, errno := f.loop.Write(ctx, data, off)
	if n > 0 {
		f.obj.wrote(off, off+int64(n))
	}
	return n, errno
}

// Getattr describes the file.
func (f *file) Getattr(ctx context.Context, out *fuse.AttrOut) syscall.Errno {
	return f.loop.Getattr(ctx, out)
}

// Setattr changes the file.
func (f *file) Setattr(ctx context.Context, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	return f.loop.Setattr(ctx, in, out)
}

// Flush has nothing to do; the kernel asks no more.
func (f *file) Flush(context.Context) syscall.Errno { return syscall.ENOSYS }

// Release closes the file.
func (f *file) Release(ctx context.Context) syscall.Errno { return f.loop.Release(ctx) }

// below is a path that leads to the file, whatever name it has by now.
func (f *file) below() (string, error) {
	fd, ok := f.loop.PassthroughFd()
	if !ok {
		return "", os.ErrClosed
	}
	return fmt.Sprintf("/proc/self/fd/%d", fd), nil
}

// listing is what the loopback's open folder can do.
type listing interface {
	fs.FileReaddirenter
	fs.FileSeekdirer
	fs.FileReleasedirer
}

// folder is an open folder.
type folder struct {
	listing
	node *node
}

// Fsyncdir makes the folder durable.
func (f *folder) Fsyncdir(ctx context.Context, flags uint32) syscall.Errno {
	return f.node.Fsync(ctx, f, flags)
}
