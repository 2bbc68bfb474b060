// Package ipc is how Gantry's processes on one host talk: frames over unix stream sockets, a frame being its length, a body
// and open files, and in them questions with numbered answers. Neither side trusts what it reads: a frame beyond the reader's
// bounds, or with files that the kernel cut off, ends the connection. Package process starts and ends the processes.
package ipc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
)

// MaxFiles is how many open files one frame carries at most.
const MaxFiles = 16

const lengthSize = 4

// ErrTooLong says that a frame is beyond the bounds: nothing of it was sent, or read beyond its length.
var ErrTooLong = errors.New("a message is too long")

// Send writes a frame of at most limit bytes. The descriptors stay the caller's. The connection's write deadline holds; after an
// error other than ErrTooLong the connection is of no use.
func Send(c *net.UnixConn, body []byte, limit int, fds ...int) error {
	if len(body) > limit || len(fds) > MaxFiles {
		return fmt.Errorf("%w: %d bytes and %d files", ErrTooLong, len(body), len(fds))
	}
	var oob []byte
	if len(fds) > 0 {
		oob = syscall.UnixRights(fds...)
	}
	frame := append(binary.BigEndian.AppendUint32(make([]byte, 0, lengthSize+len(body)), uint32(len(body))), body...)
	n, _, err := c.WriteMsgUnix(frame, oob, nil)
	if err == nil && n < len(frame) {
		_, err = c.Write(frame[n:])
	}
	return err
}

// Receive reads a frame of at most limit bytes. Its files are the caller's to close; beside an error there are none. The end of the
// connection between two frames is io.EOF. The connection's read deadline holds; after an error the connection is of no use.
func Receive(c *net.UnixConn, limit int) (body []byte, files []*os.File, err error) {
	defer func() {
		if err != nil {
			CloseAll(files)
			body, files = nil, nil
		}
	}()
	var length [lengthSize]byte
	oob := make([]byte, syscall.CmsgSpace(4*MaxFiles))
	n, oobn, flags, _, err := c.ReadMsgUnix(length[:], oob)
	if err != nil {
		return nil, nil, err
	}
	if files, err = filesOf(oob[:oobn]); err != nil {
		return nil, files, err
	}
	if flags&syscall.MSG_CTRUNC != 0 {
		return nil, files, errors.New("files of a message were lost")
	}
	if n == 0 {
		return nil, files, io.EOF
	}
	if _, err = io.ReadFull(c, length[n:]); err != nil {
		return nil, files, cut(err)
	}
	size := binary.BigEndian.Uint32(length[:])
	if int64(size) > int64(limit) {
		return nil, files, fmt.Errorf("%w: %d bytes", ErrTooLong, size)
	}
	body = make([]byte, size)
	_, err = io.ReadFull(c, body)
	return body, files, cut(err)
}

// cut makes the end of a connection within a frame another error than that between two.
func cut(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// filesOf returns the files of a control message, which the kernel closes on exec. What is not files is passed over.
func filesOf(oob []byte) (files []*os.File, err error) {
	messages, err := syscall.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	for i := range messages {
		fds, err := syscall.ParseUnixRights(&messages[i])
		if err != nil {
			continue
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	return files, nil
}

// CloseAll closes files of a frame, of which nothing was written.
func CloseAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

// Pair returns the ends of a new connection: ours, and one to give to a process.
func Pair() (ours *net.UnixConn, theirs *os.File, err error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	theirs = os.NewFile(uintptr(fds[1]), "socket")
	if ours, err = Socket(os.NewFile(uintptr(fds[0]), "socket")); err != nil {
		return nil, nil, errors.Join(err, theirs.Close())
	}
	return ours, theirs, nil
}

// Socket makes a connection of a file, which it closes.
func Socket(f *os.File) (*net.UnixConn, error) {
	c, err := net.FileConn(f)
	_ = f.Close() // c is a copy
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(errors.New("it is no unix socket"), c.Close())
	}
	return u, nil
}

// Asker is the connection of a process that process.StartAsked has started.
func Asker() (*net.UnixConn, error) { return Socket(os.Stdin) }

// Peer is who connected, or began to listen, at the other end, as the kernel says.
func Peer(c *net.UnixConn) (who *syscall.Ucred, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	if e := raw.Control(func(fd uintptr) {
		who, err = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}); e != nil {
		return nil, e
	}
	return who, err
}

// CheckPeer refuses who is neither root nor this process's own user.
func CheckPeer(c *net.UnixConn) error {
	who, err := Peer(c)
	if err == nil && who.Uid != 0 && int(who.Uid) != os.Geteuid() {
		err = fmt.Errorf("it is user %d's", who.Uid)
	}
	return err
}
