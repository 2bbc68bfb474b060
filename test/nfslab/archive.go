package nfslab

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// archive writes a file system as the kernel unpacks it at its start (cpio, format newc). Folders that a path needs are made.
type archive struct {
	w    *bufio.Writer
	done map[string]bool
	at   int64
	err  error // the first
}

func newArchive(w io.Writer) *archive {
	return &archive{w: bufio.NewWriterSize(w, 1<<20), done: map[string]bool{"/": true}}
}

// add copies a file of this machine.
func (a *archive) add(name, from string, mode uint32) {
	if a.err != nil {
		return
	}
	f, err := os.Open(from)
	if err != nil {
		a.err = err
		return
	}
	defer func() { _ = f.Close() }()
	st, err := f.Stat()
	if err != nil {
		a.err = err
		return
	}
	a.entry(name, unix.S_IFREG|mode, st.Size(), f)
}

func (a *archive) text(name, text string) {
	a.entry(name, unix.S_IFREG|0o644, int64(len(text)), strings.NewReader(text))
}

func (a *archive) link(name, to string) {
	a.entry(name, unix.S_IFLNK|0o777, int64(len(to)), strings.NewReader(to))
}

func (a *archive) folders(names ...string) {
	for _, name := range names {
		a.entry(name, unix.S_IFDIR|0o755, 0, strings.NewReader(""))
	}
}

// entry adds one entry, after the folders that it lies in. One that is there stays.
func (a *archive) entry(name string, mode uint32, size int64, body io.Reader) {
	name = path.Clean("/" + name)
	if a.err != nil || a.done[name] {
		return
	}
	var above []string
	for dir := path.Dir(name); !a.done[dir]; dir = path.Dir(dir) {
		above = append(above, dir)
	}
	slices.Reverse(above)
	a.folders(above...)
	a.done[name] = true
	a.write(name[1:], mode, size, body)
}

func (a *archive) write(name string, mode uint32, size int64, body io.Reader) {
	if a.err != nil {
		return
	}
	if size >= 1<<32 {
		a.err = fmt.Errorf("%s is too large for the archive: %d bytes", name, size)
		return
	}
	n, err := fmt.Fprintf(a.w, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		len(a.done), mode, 0, 0, 1, 0, size, 0, 0, 0, 0, len(name)+1, 0, name)
	a.at += int64(n)
	if err == nil {
		err = a.pad()
	}
	if err == nil {
		var copied int64
		copied, err = io.CopyN(a.w, body, size)
		a.at += copied
	}
	if err == nil {
		err = a.pad()
	}
	if err != nil {
		a.err = fmt.Errorf("archive %s: %w", name, err)
	}
}

func (a *archive) pad() error {
	n := -a.at & 3
	a.at += n
	_, err := a.w.Write(make([]byte, n))
	return err
}

// close ends the archive; it returns the first error of all that was added.
func (a *archive) close() error {
	a.write("TRAILER!!!", 0, 0, strings.NewReader(""))
	if a.err != nil {
		return a.err
	}
	return a.w.Flush()
}
