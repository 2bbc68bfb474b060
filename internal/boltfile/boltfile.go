// Package boltfile reads a bbolt file by plain reads, believing nothing that it finds, before the library opens it: the
// library maps the file and panics, faults or follows wrong references where it is damaged, also later, from goroutines
// of its own. It writes nothing.
package boltfile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"os"
)

// The layout of a bbolt file (format 2), as far as reading it takes.
const (
	boltMagic   = 0xED0CDAED
	boltVersion = 2

	metaSize     = 64 // of which the last 8 are its sum
	pageHead     = 16
	elementSize  = 16
	bucketHead   = 16
	flagBranch   = 1
	flagLeaf     = 2
	flagFreelist = 16
	minPage      = 1 << 10
	maxPage      = 1 << 16
	maxDepth     = 64
)

// reader reads one file.
type reader struct {
	r     io.ReaderAt
	page  int64
	top   uint64          // pages in use end here
	seen  map[uint64]bool // pages that were met, once each
	visit func(bucket string, key, value []byte) error
}

// ErrDamaged says that the file's structure is damaged.
var ErrDamaged = errors.New("the file's structure is damaged")

func broken(format string, args ...any) error {
	return fmt.Errorf("%w (%s)", ErrDamaged, fmt.Sprintf(format, args...))
}

// Read checks the file's structure as a whole and calls visit for each key of its buckets, which are none, or those that
// are named, without buckets in them. What visit gets is its own for the call. A file of no bytes is new. Both roots must be
// good: with one of them the library takes the other, and the last write is gone without a word. Errors: ErrDamaged, and
// those of visit.
func Read(f *os.File, buckets []string, visit func(bucket string, key, value []byte) error) error {
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		return err
	}
	size := info.Size()
	b := &reader{r: f, seen: map[uint64]bool{}, visit: visit}
	meta, err := b.roots(size)
	if err != nil {
		return err
	}
	u64 := func(at int) uint64 { return binary.NativeEndian.Uint64(meta[at:]) }
	root, freelist, top := u64(16), u64(32), u64(40)
	if top > uint64(size/b.page) {
		return broken("it is cut off")
	}
	b.top, b.seen[0], b.seen[1] = top, true, true
	if err := b.buckets(root, buckets); err != nil {
		return err
	}
	if freelist == math.MaxUint64 { // it is not written, so pages that were not met are free
		return nil
	}
	if err := b.freelist(freelist); err != nil {
		return err
	}
	if uint64(len(b.seen)) != top {
		return broken("pages are lost")
	}
	return nil
}

// roots checks both root pages and returns the newer one.
func (b *reader) roots(size int64) ([]byte, error) {
	first, err := b.root(0)
	if err != nil {
		return nil, err
	}
	b.page = int64(binary.NativeEndian.Uint32(first[8:]))
	if b.page < minPage || b.page > maxPage || b.page&(b.page-1) != 0 || size < 2*b.page {
		return nil, broken("its size is wrong")
	}
	second, err := b.root(b.page)
	if err != nil {
		return nil, err
	}
	if binary.NativeEndian.Uint64(first[48:]) > binary.NativeEndian.Uint64(second[48:]) {
		return first, nil
	}
	return second, nil
}

func (b *reader) root(at int64) ([]byte, error) {
	page := make([]byte, pageHead+metaSize)
	if _, err := b.r.ReadAt(page, at); err != nil {
		return nil, broken("a root cannot be read: %v", err)
	}
	meta := page[pageHead:]
	sum := fnv.New64a()
	_, _ = sum.Write(meta[:metaSize-8])
	if binary.NativeEndian.Uint32(meta) != boltMagic || binary.NativeEndian.Uint32(meta[4:]) != boltVersion ||
		binary.NativeEndian.Uint64(meta[metaSize-8:]) != sum.Sum64() {
		return nil, broken("a root has a wrong sum")
	}
	return meta, nil
}

// read returns a page with what overflows it, which must not have been met before.
func (b *reader) read(id uint64) ([]byte, error) {
	if id < 2 || id >= b.top {
		return nil, broken("page %d is not in the file", id)
	}
	head := make([]byte, pageHead)
	if _, err := b.r.ReadAt(head, int64(id)*b.page); err != nil {
		return nil, broken("page %d cannot be read: %v", id, err)
	}
	over := uint64(binary.NativeEndian.Uint32(head[12:]))
	if binary.NativeEndian.Uint64(head) != id || over >= b.top-id {
		return nil, broken("page %d has a wrong head", id)
	}
	for i := id; i <= id+over; i++ {
		if b.seen[i] {
			return nil, broken("page %d is used twice", i)
		}
		b.seen[i] = true
	}
	page := make([]byte, int64(over+1)*b.page)
	if _, err := b.r.ReadAt(page, int64(id)*b.page); err != nil {
		return nil, broken("page %d cannot be read: %v", id, err)
	}
	return page, nil
}

// element is one key of a page with what is behind it.
type element struct {
	flags uint32
	key   []byte
	value []byte
	child uint64
}

// elements takes a page apart. The library writes the elements' bytes right behind their heads, without a
// gap: that shows a wrong count.
func elements(page []byte) (leaf bool, out []element, err error) {
	if len(page) < pageHead {
		return false, nil, broken("a page is too short")
	}
	flags, count := binary.NativeEndian.Uint16(page[8:]), int(binary.NativeEndian.Uint16(page[10:]))
	if flags != flagBranch && flags != flagLeaf {
		return false, nil, broken("a page is of another kind")
	}
	leaf = flags == flagLeaf
	next := pageHead + count*elementSize
	if next > len(page) || !leaf && count == 0 {
		return leaf, nil, broken("a page has a wrong count")
	}
	for i := range count {
		at := pageHead + i*elementSize
		head := page[at : at+elementSize]
		e, pos, ksize, vsize := element{}, 0, 0, 0
		if leaf {
			e.flags = binary.NativeEndian.Uint32(head)
			pos, ksize, vsize = size32(head[4:]), size32(head[8:]), size32(head[12:])
		} else {
			pos, ksize = size32(head), size32(head[4:])
			e.child = binary.NativeEndian.Uint64(head[8:])
		}
		if at+pos != next || ksize > len(page)-next || vsize > len(page)-next-ksize {
			return leaf, nil, broken("a page's elements do not fit")
		}
		e.key, e.value = page[next:next+ksize], page[next+ksize:next+ksize+vsize]
		next += ksize + vsize
		out = append(out, e)
	}
	return leaf, out, nil
}

// size32 reads a size, which may not fit an int.
func size32(b []byte) int { return int(min(binary.NativeEndian.Uint32(b), math.MaxInt32)) }

// buckets reads those that are named, when there are any.
func (b *reader) buckets(root uint64, names []string) error {
	found := map[string][]byte{}
	err := b.walk(root, nil, nil, maxDepth, func(e element) error {
		if e.flags != 1 || len(e.value) < bucketHead {
			return broken("the list of buckets")
		}
		found[string(e.key)] = e.value
		return nil
	})
	if err != nil || len(found) == 0 { // it was never used
		return err
	}
	if len(found) != len(names) {
		return broken("the list of buckets")
	}
	for _, name := range names {
		if found[name] == nil {
			return broken("the list of buckets")
		}
		err := b.bucket(found[name], func(e element) error {
			if e.flags != 0 {
				return broken("a key is of another kind")
			}
			return b.visit(name, e.key, e.value)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// bucket reads a bucket, which lies in its own pages or in the value itself.
func (b *reader) bucket(value []byte, fn func(element) error) error {
	if root := binary.NativeEndian.Uint64(value); root != 0 {
		return b.walk(root, nil, nil, maxDepth, fn)
	}
	leaf, list, err := elements(value[bucketHead:])
	if err != nil {
		return err
	}
	if !leaf {
		return broken("a bucket is of another kind")
	}
	return inOrder(list, nil, nil, fn)
}

// walk reads a tree, whose keys are from low up to below high, in order; nil is no bound.
func (b *reader) walk(id uint64, low, high []byte, depth int, fn func(element) error) error {
	if depth == 0 {
		return broken("it is too deep")
	}
	page, err := b.read(id)
	if err != nil {
		return err
	}
	leaf, list, err := elements(page)
	if err != nil {
		return err
	}
	if leaf {
		return inOrder(list, low, high, fn)
	}
	for i, e := range list {
		to := high
		if i+1 < len(list) {
			to = list[i+1].key
		}
		err := inOrder(list[i:i+1], low, to, func(element) error { return b.walk(e.child, e.key, to, depth-1, fn) })
		if err != nil {
			return err
		}
	}
	return nil
}

// inOrder calls fn for elements whose keys grow within bounds.
func inOrder(list []element, low, high []byte, fn func(element) error) error {
	for i, e := range list {
		if i > 0 && bytes.Compare(list[i-1].key, e.key) >= 0 ||
			low != nil && bytes.Compare(e.key, low) < 0 || high != nil && bytes.Compare(e.key, high) >= 0 {
			return broken("keys are out of order")
		}
		if err := fn(e); err != nil {
			return err
		}
	}
	return nil
}

// freelist reads the list of free pages, which may hold none that is used.
func (b *reader) freelist(id uint64) error {
	page, err := b.read(id)
	if err != nil {
		return err
	}
	if binary.NativeEndian.Uint16(page[8:]) != flagFreelist {
		return broken("the list of free pages is of another kind")
	}
	ids, count := page[pageHead:], uint64(binary.NativeEndian.Uint16(page[10:]))
	if count == math.MaxUint16 {
		count, ids = binary.NativeEndian.Uint64(ids), ids[8:]
	}
	if count > uint64(len(ids)/8) {
		return broken("the list of free pages is too long")
	}
	for i := range count {
		free := binary.NativeEndian.Uint64(ids[i*8:])
		if free < 2 || free >= b.top || b.seen[free] {
			return broken("a free page is used")
		}
		b.seen[free] = true
	}
	return nil
}
