package s3

import (
	"bytes"
	"crypto/md5" //nolint:gosec // the protocol's
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"hash"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// body is a request's body with everything that says what it must be.
type body struct {
	src      io.Reader
	size     int64
	chunks   *chunks
	md5      []byte // wanted
	sha      []byte // wanted
	checksum *checksum
}

// saved says what a body was.
type saved struct {
	md5      string // hexadecimal
	checksum string // as checksum.value
	size     int64
}

// body returns the request's body, at most limit bytes.
func (x *exchange) body(limit int64) (*body, error) {
	b := &body{src: &unstalled{x: x, src: x.r.Body}, size: x.r.ContentLength}
	streaming := strings.HasPrefix(x.sig.payload, "STREAMING-")
	if streaming {
		n, err := strconv.ParseInt(x.r.Header.Get("X-Amz-Decoded-Content-Length"), 10, 64)
		if err != nil || n < 0 {
			return nil, refuse(http.StatusLengthRequired, "MissingContentLength", "You must provide the x-amz-decoded-content-length HTTP header.")
		}
		b.size = n
	}
	if b.size < 0 {
		return nil, refuse(http.StatusLengthRequired, "MissingContentLength", "You must provide the Content-Length HTTP header.")
	}
	if b.size > limit {
		return nil, refuse(http.StatusBadRequest, "EntityTooLarge", "Your proposed upload exceeds the maximum allowed size.")
	}
	var err error
	if b.checksum, err = parseChecksum(x.r.Header); err != nil {
		return nil, err
	}
	if streaming {
		b.chunks = newChunks(b.src, x.sig, b.size)
		b.src = b.chunks
	} else if x.sig.payload != unsignedPayload {
		b.sha, _ = hex.DecodeString(x.sig.payload)
	}
	if b.checksum != nil && b.checksum.trailing && (b.chunks == nil || !b.chunks.trailing) {
		return nil, refuse(http.StatusBadRequest, "InvalidRequest", "A trailer needs a payload of the form STREAMING-…-TRAILER.")
	}
	if sent := x.r.Header.Get("Content-Md5"); sent != "" {
		if b.md5, err = base64.StdEncoding.DecodeString(sent); err != nil || len(b.md5) != md5.Size {
			return nil, refuse(http.StatusBadRequest, "InvalidDigest", "The Content-MD5 you specified is not valid.")
		}
	}
	return b, nil
}

// require has the body summed by an algorithm, which is to be that of a checksum that the client sends; none is required
// when it is "".
func (b *body) require(algorithm string) error {
	switch {
	case algorithm == "":
	case b.checksum == nil:
		b.checksum = &checksum{name: algorithm, sum: checksums[algorithm](), unsaid: true}
	case b.checksum.name != algorithm:
		return refuse(http.StatusBadRequest, "InvalidRequest", "Checksum Type mismatch occurred, expected checksum Type: "+algorithm+", actual checksum Type: "+b.checksum.name)
	}
	return nil
}

// save writes the body to dst and checks it. Only without an error was it the right one.
func (b *body) save(dst io.Writer) (saved, error) {
	sum := md5.New() //nolint:gosec // the protocol's
	sums := []hash.Hash{sum}
	var sha hash.Hash
	if b.sha != nil {
		sha = sha256.New()
		sums = append(sums, sha)
	}
	if b.checksum != nil {
		sums = append(sums, b.checksum.sum)
	}
	// One byte more than there may be shows a body that is too long, and reads a chunked one to its end.
	n, err := ingest(dst, io.LimitReader(b.src, b.size+1), sums)
	if err != nil {
		return saved{}, err
	}
	if n != b.size {
		return saved{}, refuse(http.StatusBadRequest, "IncompleteBody", "You did not provide the number of bytes specified by the Content-Length HTTP header.")
	}
	out := saved{md5: hex.EncodeToString(sum.Sum(nil)), size: n}
	if sha != nil && !bytes.Equal(sha.Sum(nil), b.sha) {
		return saved{}, refuse(http.StatusBadRequest, "XAmzContentSHA256Mismatch", "The provided 'x-amz-content-sha256' header does not match what was computed.")
	}
	if b.md5 != nil && out.md5 != hex.EncodeToString(b.md5) {
		return saved{}, refuse(http.StatusBadRequest, "BadDigest", "The Content-MD5 you specified did not match what we received.")
	}
	if b.checksum == nil {
		return out, nil
	}
	want := b.checksum.want
	if b.checksum.trailing {
		want = b.chunks.trailers.Get(checksumPrefix + b.checksum.name)
	}
	out.checksum = b.checksum.value()
	if b.checksum.unsaid {
		return out, nil
	}
	if out.checksum != b.checksum.name+":"+want {
		return saved{}, refuse(http.StatusBadRequest, "BadDigest", "The "+strings.ToUpper(b.checksum.name)+" you specified did not match what we received.")
	}
	return out, nil
}

// xmlBody reads a small body of XML into v.
func (x *exchange) xmlBody(v any) error {
	b, err := x.body(maxXML)
	if err != nil {
		return err
	}
	if b.size > largeXML {
		if err := x.account.threads.take(x.r.Context(), x.h.limits.Wait); err != nil {
			return slowDown()
		}
		defer x.account.threads.give()
	}
	var buf bytes.Buffer
	if _, err := b.save(&buf); err != nil {
		return err
	}
	return parseXML(buf.Bytes(), v)
}

// parseXML reads a document, whose lists have limits of their own.
func parseXML(raw []byte, v any) error {
	if xml.Unmarshal(raw, v) != nil {
		return malformedXML()
	}
	return nil
}

// unstalled reads from the client and gives up when nothing comes for a while.
type unstalled struct {
	x    *exchange
	src  io.Reader
	next time.Time // of the next extension
}

func (u *unstalled) Read(p []byte) (int, error) {
	if now := time.Now(); now.After(u.next) {
		u.next = now.Add(u.x.h.limits.Stall / 8)
		u.x.awaken(true)
	}
	n, err := u.src.Read(p)
	if errors.Is(err, io.EOF) {
		// What follows may take long, and net/http watches the connection meanwhile.
		_ = u.x.control.SetReadDeadline(time.Time{})
	}
	return n, err
}

const (
	blockSize = 256 << 10
)

var blocks = sync.Pool{New: func() any { b := make([]byte, blockSize); return &b }}

// ingest copies src to dst and into sums. A body of more than one block is read, written and summed at the same time.
func ingest(dst io.Writer, src io.Reader, sums []hash.Hash) (int64, error) {
	first := blocks.Get().(*[]byte) //nolint:forcetypeassert // the pool's only type
	defer blocks.Put(first)
	n, err := fill(src, *first)
	if errors.Is(err, io.EOF) {
		for _, s := range sums {
			s.Write((*first)[:n])
		}
		_, err = dst.Write((*first)[:n])
		return int64(n), err
	}
	if err != nil {
		return int64(n), err
	}
	p := newPump(dst, sums)
	p.send(*first)
	total, err := p.feed(src)
	if writeErr := p.close(); writeErr != nil {
		err = writeErr
	}
	return int64(n) + total, err
}

// fill reads until the buffer is full or there is an error.
func fill(src io.Reader, buf []byte) (n int, err error) {
	for n < len(buf) && err == nil {
		var m int
		m, err = src.Read(buf[n:])
		n += m
	}
	return n, err
}

// pump gives blocks to a writer and to hashes, each in a goroutine of its own that ends with close.
type pump struct {
	lanes  []chan []byte
	ends   sync.WaitGroup
	busy   sync.WaitGroup // lanes that still have the block
	failed atomic.Bool
	err    error // the writer's, after ends
}

func newPump(dst io.Writer, sums []hash.Hash) *pump {
	p := &pump{}
	p.lane(func(b []byte) {
		if p.err == nil {
			if _, p.err = dst.Write(b); p.err != nil {
				p.failed.Store(true)
			}
		}
	})
	for _, s := range sums {
		p.lane(func(b []byte) { s.Write(b) })
	}
	return p
}

func (p *pump) lane(f func([]byte)) {
	in := make(chan []byte, 1)
	p.lanes = append(p.lanes, in)
	p.ends.Go(func() {
		for b := range in {
			f(b)
			p.busy.Done()
		}
	})
}

// send gives the lanes a block after they are done with the one before.
func (p *pump) send(b []byte) {
	p.busy.Wait()
	p.busy.Add(len(p.lanes))
	for _, in := range p.lanes {
		in <- b
	}
}

// feed reads to the end, one block ahead of the lanes.
func (p *pump) feed(src io.Reader) (total int64, err error) {
	var bufs [2]*[]byte
	for i := range bufs {
		bufs[i] = blocks.Get().(*[]byte) //nolint:forcetypeassert // the pool's only type
	}
	defer func() {
		p.busy.Wait()
		for _, b := range bufs {
			blocks.Put(b)
		}
	}()
	for i := 0; !p.failed.Load(); i++ {
		buf := *bufs[i%2]
		n, err := fill(src, buf)
		if n > 0 {
			p.send(buf[:n])
			total += int64(n)
		}
		if errors.Is(err, io.EOF) {
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

func (p *pump) close() error {
	for _, in := range p.lanes {
		close(in)
	}
	p.ends.Wait()
	return p.err
}
