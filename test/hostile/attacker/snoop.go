package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of what is read: a file that gives more is read to there, one that gives nothing for so long is left.
const (
	mostOfFile = 4 << 20
	patience   = 5 * time.Second
)

// snoop looks for words in everything that the kernel shows below /proc and /sys: names, links and contents. The words
// come backwards, so that its own command line does not hold them. A word that ends in a digit is not found in a
// longer number.
func snoop(backwards []string) {
	words := make([][]byte, len(backwards))
	for i, w := range backwards {
		words[i] = []byte(w)
		slices.Reverse(words[i])
	}
	host, _ := os.Hostname()
	report("the name of the machine", []byte(host), words)
	report("the environment", []byte(strings.Join(os.Environ(), "\n")), words)
	read, left := 0, 0
	for _, root := range []string{"/proc", "/sys"} {
		_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return nil //nolint:nilerr // what cannot be entered shows nothing
			}
			report(path, []byte(d.Name()), words)
			switch {
			case d.Type()&fs.ModeSymlink != 0:
				to, _ := os.Readlink(path)
				report(path, []byte(to), words)
			case d.Type().IsRegular():
				text, ok := contents(path)
				if !ok {
					left++
					fmt.Println("left", path)
				} else if len(text) > 0 {
					read++
				}
				report(path, text, words)
			}
			return nil
		})
	}
	fmt.Printf("read %d files, left %d\n", read, left)
	for _, path := range []string{"/proc/diskstats", "/proc/partitions", "/proc/mdstat", "/proc/swaps", "/proc/fs", "/proc/locks", "/proc/cmdline", "/sys/block", "/sys/class/block", "/sys/dev/block", "/sys/devices/virtual/block"} {
		entries, _ := os.ReadDir(path)
		text, _ := os.ReadFile(path)
		if len(entries) > 0 || len(text) > 0 {
			fmt.Printf("SEEN something in %s\n", path)
		}
	}
	fmt.Println("snooped")
}

func report(where string, text []byte, words [][]byte) {
	for _, w := range words {
		for from := 0; ; {
			at := bytes.Index(text[from:], w)
			if at < 0 {
				break
			}
			from += at + len(w)
			last := w[len(w)-1]
			if from < len(text) && isDigit(last) && isDigit(text[from]) {
				continue
			}
			slices.Reverse(w) // or the log would hold it for the next reader
			fmt.Printf("SEEN in %s: %s, backwards\n", where, w)
			slices.Reverse(w)
			break
		}
	}
}

func isDigit(b byte) bool { return b >= '0' && b <= '9' }

// contents reads a file, and reports whether it came to its end or to the bound.
func contents(path string) ([]byte, bool) {
	out := make(chan []byte, 1)
	go func() {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			out <- nil
			return
		}
		defer unix.Close(fd)
		var text []byte
		buf := make([]byte, 64<<10)
		for len(text) < mostOfFile {
			n, err := unix.Read(fd, buf)
			if err != nil || n <= 0 {
				break
			}
			text = append(text, buf[:n]...)
		}
		out <- text
	}()
	select {
	case text := <-out:
		return text, true
	case <-time.After(patience):
		return nil, false
	}
}
