package companion

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

const (
	maxMessage = 8 << 20  // bytes
	maxAround  = 64 << 10 // of a message, beside its body
	maxFiles   = 16
	lengthSize = 4
)

// message is a question or its answer. On the wire its length comes first, and files with that.
type message struct {
	Verb string          `json:"verb,omitempty"`
	Body json.RawMessage `json:"body,omitempty"`
	Err  string          `json:"err,omitempty"`
}

// hello is the answer to what a connection begins with.
type hello struct {
	Build string `json:"build"`
}

const (
	verbHello = "hello"
	verbQuit  = "quit"
)

// send writes a message with descriptors, which stay the caller's.
func send(c *net.UnixConn, m message, fds []int, deadline time.Time) error {
	if len(m.Body) > maxMessage-maxAround || len(fds) > maxFiles {
		return fmt.Errorf("a message of %d bytes and %d files is too long", len(m.Body), len(fds))
	}
	body, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	if err := c.SetWriteDeadline(deadline); err != nil {
		return err
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	length := binary.BigEndian.AppendUint32(nil, uint32(len(body)))
	n, _, err := c.WriteMsgUnix(length, oob, nil)
	if err == nil && n < len(length) {
		err = io.ErrShortWrite
	}
	if err == nil {
		_, err = c.Write(body)
	}
	return err
}

// receive reads a message. Its files are the caller's to close.
func receive(c *net.UnixConn, deadline time.Time) (m message, files []*os.File, err error) {
	defer func() {
		if err != nil {
			closeAll(files)
			files = nil
		}
	}()
	if err := c.SetReadDeadline(deadline); err != nil {
		return message{}, nil, err
	}
	var length [lengthSize]byte
	oob := make([]byte, unix.CmsgSpace(4*maxFiles))
	n, oobn, flags, _, err := c.ReadMsgUnix(length[:], oob)
	if err == nil {
		files, err = filesOf(oob[:oobn])
	}
	if err == nil && flags&unix.MSG_CTRUNC != 0 {
		err = errors.New("files of a message were lost")
	}
	if err == nil && n == 0 {
		err = io.EOF
	}
	if err == nil {
		_, err = io.ReadFull(c, length[n:])
	}
	if err != nil {
		return message{}, files, err
	}
	size := binary.BigEndian.Uint32(length[:])
	if size > maxMessage {
		return message{}, files, fmt.Errorf("a message of %d bytes is too long", size)
	}
	body := make([]byte, size)
	if _, err = io.ReadFull(c, body); err != nil {
		return message{}, files, err
	}
	err = json.Unmarshal(body, &m)
	return m, files, err
}

func filesOf(oob []byte) (files []*os.File, err error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if errors.Is(err, unix.EINVAL) {
			continue // not files
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "handed over"))
		}
	}
	return slices.Clip(files), nil
}

// copies returns descriptors of one's own, which are closed on exec. They are no files, so that what happens to them wakes nobody here.
func copies(of []int) (fds []int, err error) {
	for _, fd := range of {
		one, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			drop(fds)
			return nil, os.NewSyscallError("dup", err)
		}
		fds = append(fds, one)
	}
	return fds, nil
}

func numbers(files []*os.File) []int {
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	return fds
}

func drop(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd) // a copy
	}
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close() // a copy, of which nothing was read
	}
}
