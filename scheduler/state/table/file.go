package table

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"strings"

	"gantry/internal/atomicfile"
)

// Beside the state file lies its mark, which is written to the disk before the file is touched and
// after it was closed:
//
//	open <boot id>   the file is in use, or its user died; under the same boot the kernel has all
//	                 of its writes, under another one some may be lost
//	clean <sha256>   the file was closed; it is used only if its bytes are still those
//
// A file without a mark is not trusted.
const (
	markSuffix    = ".mark"
	restoreSuffix = ".restore"
	markedOpen    = "open"
	markedClean   = "clean"
)

// readMark tells whether the file at path may be used: suspect says why not.
func readMark(path, boot string) (suspect string, err error) {
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return "", nil
	} else if err != nil {
		return "", err
	}
	text, err := os.ReadFile(path + markSuffix)
	if errors.Is(err, os.ErrNotExist) {
		return "the file has no mark", nil
	}
	if err != nil {
		return "", err
	}
	kind, value, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
	switch kind {
	case markedClean:
		sum, err := sumFile(path)
		if err != nil {
			return "", err
		}
		if sum != value {
			return "the file is not what was written", nil
		}
		return "", nil
	case markedOpen:
		if boot == "" || value != boot {
			return "the file was not closed before the machine stopped", nil
		}
		return pagesFit(path)
	}
	return "the file's mark is damaged", nil
}

// pagesFit tells whether a page of a bbolt file says that it goes on beyond the file's end. bbolt would believe it,
// and remember each of up to 4 billion pages. What else is damaged it meets as it goes.
func pagesFit(path string) (suspect string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	page := os.Getpagesize() // with which the file was made
	pages := uint64(info.Size()) / uint64(page)
	in := bufio.NewReaderSize(f, 1<<20)
	head := make([]byte, 16) // id, flags, count, overflow; bbolt's internal/common/page.go
	for i := range pages {
		if _, err := io.ReadFull(in, head); err != nil {
			return "", err
		}
		if _, err := in.Discard(page - len(head)); err != nil {
			return "", err
		}
		over := uint64(binary.NativeEndian.Uint32(head[12:]))
		if binary.NativeEndian.Uint64(head) == i && over >= pages-i {
			return "a page of the file is damaged", nil
		}
	}
	return "", nil
}

func markOpen(path, boot string) error { return writeMark(path, markedOpen, boot) }

// markClean marks a file that was synced and closed.
func markClean(path string) error {
	sum, err := sumFile(path)
	if err != nil {
		return err
	}
	return writeMark(path, markedClean, sum)
}

// sumFile returns the SHA-256 of a file in hexadecimal.
func sumFile(path string) (_ string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// writeMark replaces the mark and returns when it is on the disk.
func writeMark(path, kind, value string) error {
	return atomicfile.Write(path+markSuffix, []byte(kind+" "+value+"\n"), 0o600)
}
