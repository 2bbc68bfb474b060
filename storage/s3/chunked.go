package s3

import (
	"bufio"
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"net/http"
	"strconv"
	"strings"
)

const (
	maxChunkLine = 256
	maxTrailers  = 8
)

// chunks reads a body in the aws-chunked encoding. It returns bytes before their signature is checked: what
// was read may be used only after io.EOF.
type chunks struct {
	src      *bufio.Reader
	signed   bool
	trailing bool
	sig      *signature
	previous string // signature of the chunk before, hexadecimal
	claimed  []byte // signature of this chunk
	sum      hash.Hash
	left     int64 // of this chunk
	total    int64 // of the decoded body, still to come
	inChunk  bool
	done     error
	trailers http.Header
}

func newChunks(src io.Reader, sig *signature, decoded int64) *chunks {
	return &chunks{
		src: bufio.NewReaderSize(src, 64<<10), sig: sig, previous: hex.EncodeToString(sig.value), total: decoded,
		signed: sig.payload != streamingUnsigned, trailing: sig.payload != streamingPayload,
		sum: sha256.New(), trailers: http.Header{},
	}
}

func badChunk() *fault {
	return refuse(http.StatusBadRequest, "IncompleteBody", "The aws-chunked encoding of the body is malformed or of another length than was announced.")
}

func badChunkSignature() *fault {
	return refuse(http.StatusForbidden, "SignatureDoesNotMatch", "The signature of a chunk of the body does not match.")
}

// Read returns the decoded body.
func (c *chunks) Read(p []byte) (int, error) {
	for c.done == nil && c.left == 0 {
		c.done = c.next()
	}
	if c.done != nil {
		return 0, c.done
	}
	if int64(len(p)) > c.left {
		p = p[:c.left]
	}
	n, err := c.src.Read(p)
	if c.signed {
		c.sum.Write(p[:n])
	}
	c.left -= int64(n)
	c.total -= int64(n)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	c.done = err
	return n, err
}

// next ends a chunk and begins the one after it, or ends the body.
func (c *chunks) next() error {
	if c.inChunk {
		if line, err := c.line(); err != nil || line != "" {
			return orBadChunk(err)
		}
		if err := c.check(); err != nil {
			return err
		}
	}
	line, err := c.line()
	if err != nil {
		return err
	}
	size, extension, _ := strings.Cut(line, ";")
	n, err := strconv.ParseInt(strings.TrimSpace(size), 16, 64)
	if err != nil || n < 0 || n > c.total || strings.HasPrefix(size, "+") {
		return badChunk()
	}
	if c.signed {
		value, ok := strings.CutPrefix(strings.TrimSpace(extension), "chunk-signature=")
		if c.claimed, err = hex.DecodeString(value); err != nil || !ok || len(c.claimed) != sha256.Size {
			return badChunk()
		}
	}
	c.left, c.inChunk = n, true
	if n > 0 {
		return nil
	}
	return c.end()
}

// end reads what follows the last chunk.
func (c *chunks) end() error {
	if c.total != 0 {
		return badChunk()
	}
	if err := c.check(); err != nil {
		return err
	}
	if c.trailing {
		if err := c.readTrailers(); err != nil {
			return err
		}
	}
	// Some clients leave the last empty line away.
	rest, err := io.ReadAll(io.LimitReader(c.src, 5))
	if err != nil {
		return err
	}
	if len(bytes.Trim(rest, "\r\n")) > 0 {
		return badChunk()
	}
	return io.EOF
}

func (c *chunks) readTrailers() error {
	var canonical strings.Builder
	for range maxTrailers {
		line, err := c.line()
		if errors.Is(err, io.ErrUnexpectedEOF) && !c.signed || err == nil && line == "" {
			if c.signed {
				return badChunk()
			}
			return nil
		}
		if err != nil {
			return err
		}
		name, value, ok := strings.Cut(line, ":")
		name, value = strings.ToLower(strings.TrimSpace(name)), strings.TrimSpace(value)
		switch {
		case !ok:
			return badChunk()
		case name == "x-amz-trailer-signature" && c.signed:
			return c.checkTrailers(canonical.String(), value)
		}
		canonical.WriteString(name + ":" + value + "\n")
		c.trailers.Add(name, value)
	}
	return badChunk()
}

func (c *chunks) checkTrailers(canonical, claimed string) error {
	sum := sha256.Sum256([]byte(canonical))
	text := algorithm + "-TRAILER\n" + c.sig.stamp + "\n" + c.sig.scope() + "\n" + c.previous + "\n" + hex.EncodeToString(sum[:])
	value, err := hex.DecodeString(claimed)
	if err != nil || !hmac.Equal(value, mac(c.sig.signingKey, text)) {
		return badChunkSignature()
	}
	return nil
}

// check compares the signature of the chunk that was read.
func (c *chunks) check() error {
	if !c.signed {
		return nil
	}
	text := algorithm + "-PAYLOAD\n" + c.sig.stamp + "\n" + c.sig.scope() + "\n" + c.previous + "\n" + emptySHA256 + "\n" + hex.EncodeToString(c.sum.Sum(nil))
	if !hmac.Equal(c.claimed, mac(c.sig.signingKey, text)) {
		return badChunkSignature()
	}
	c.previous = hex.EncodeToString(c.claimed)
	c.sum.Reset()
	return nil
}

// line returns a line without its end. At the end of the body the error is io.ErrUnexpectedEOF.
func (c *chunks) line() (string, error) {
	var b []byte
	for len(b) <= maxChunkLine {
		next, err := c.src.ReadByte()
		if errors.Is(err, io.EOF) {
			return "", io.ErrUnexpectedEOF
		}
		if err != nil {
			return "", err
		}
		if next == '\n' {
			return strings.TrimSuffix(string(b), "\r"), nil
		}
		b = append(b, next)
	}
	return "", badChunk()
}

func orBadChunk(err error) error {
	if err != nil {
		return err
	}
	return badChunk()
}
