package s3

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/iotest"

	"golang.org/x/sys/unix"
)

func TestUnsignedChunks(t *testing.T) {
	lost := errors.New("lost")
	trailers := func(n int) string { return strings.Repeat("x-a: 1\r\n", n) }
	const start = "5\r\nhello\r\n0\r\n"
	for _, tt := range []struct {
		name, raw string
		want      error // nil: "hello"
	}{
		{"in order", start + "\r\n", nil},
		{"without the last line", start, nil},
		{"without CR", "5\nhello\n0\n\n", nil},
		{"in two chunks", "2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n", nil},
		{"spaces and an extension", " 5 ;x=y\r\nhello\r\n0\r\n\r\n", nil},
		{"lines too many", start + "\r\n\r\n\r\n", nil},
		{"the longest line", "5;" + strings.Repeat("x", maxChunkLine-2) + "\nhello\r\n0\r\n\r\n", nil},
		{"a line too long", "5;" + strings.Repeat("x", maxChunkLine-1) + "\nhello\r\n0\r\n\r\n", badChunk()},
		{"the most trailers", start + trailers(maxTrailers-1) + "\r\n", nil},
		{"too many trailers", start + trailers(maxTrailers) + "\r\n", badChunk()},
		{"a trailer that is none", start + "x-a\r\n\r\n", badChunk()},
		{"a signature that nobody made is a trailer", start + "x-amz-trailer-signature: 00\r\n\r\n", nil},
		{"a list of trailers that is too long a line", start + strings.Repeat("x", maxChunkLine+1) + "\r\n\r\n", badChunk()},
		{"more behind it", start + "\r\nmore", badChunk()},
		{"a plus", "+5\r\nhello\r\n0\r\n\r\n", badChunk()},
		{"less than nothing", "-5\r\nhello\r\n0\r\n\r\n", badChunk()},
		{"no size", "\r\nhello\r\n0\r\n\r\n", badChunk()},
		{"more than was announced", "6\r\nhello!\r\n0\r\n\r\n", badChunk()},
		{"less than was announced", "4\r\nhell\r\n0\r\n\r\n", badChunk()},
		{"a long rest behind a chunk", "5\r\nhello" + strings.Repeat("x", maxChunkLine+1) + "0\r\n\r\n", badChunk()},
		{"a chunk longer than its size", "4\r\nhello\r\n1\r\no\r\n0\r\n\r\n", badChunk()},
		{"an end in a chunk", "5\r\nhel", io.ErrUnexpectedEOF},
		{"an end before a size", "5\r\nhello\r\n", io.ErrUnexpectedEOF},
		{"an end in a size", "5", io.ErrUnexpectedEOF},
	} {
		c := newChunks(strings.NewReader(tt.raw), &signature{payload: streamingUnsigned}, 5)
		got, err := io.ReadAll(c)
		if tt.want == nil && (err != nil || string(got) != "hello") || !sameFault(err, tt.want) {
			t.Errorf("%s: %q %v, want %v", tt.name, got, err, tt.want)
		}
		if _, again := c.Read(make([]byte, 1)); tt.want != nil && !sameFault(again, tt.want) {
			t.Errorf("%s: read again: %v", tt.name, again)
		}
	}
	// What breaks the connection is told as it is, wherever it comes.
	const whole = start + "x-a: 1\r\n"
	for i := range len(whole) {
		src := io.MultiReader(strings.NewReader(whole[:i]), iotest.ErrReader(lost))
		if got, err := io.ReadAll(newChunks(src, &signature{payload: streamingUnsigned}, 5)); !errors.Is(err, lost) {
			t.Errorf("lost after %d bytes: %q %v", i, got, err)
		}
	}
}

// sameFault reports whether two errors are the same, or the same answer.
func sameFault(a, b error) bool {
	var fa, fb *fault
	if errors.As(a, &fa) && errors.As(b, &fb) {
		return fa.code == fb.code && fa.message == fb.message
	}
	return errors.Is(a, b)
}

func TestSignedChunks(t *testing.T) {
	key := []byte("key")
	seed := strings.Repeat("ab", 32)
	value, _ := hex.DecodeString(seed)
	sig := func(payload string) *signature {
		return &signature{date: "20260102", region: testRegion, stamp: goodStamp, value: value, signingKey: key, payload: payload}
	}
	good := func(payload string) string {
		c := call{body: []byte("hello"), chunk: 3, payload: payload}
		if payload == streamingPayloadTrailer {
			c.trailer = "x-a:1"
		}
		return string(testChunks(c, key, goodStamp, sig(payload).scope(), seed))
	}
	cut := func(text, from string) string { before, _, _ := strings.Cut(text, from); return before }
	plain, trailed := good(streamingPayload), good(streamingPayloadTrailer)
	for _, tt := range []struct {
		name, payload, raw string
		want               error
	}{
		{"in order", streamingPayload, plain, nil},
		{"with a trailer", streamingPayloadTrailer, trailed, nil},
		{"another content", streamingPayload, strings.Replace(plain, "hel", "hex", 1), badChunkSignature()},
		{"another last content", streamingPayload, strings.Replace(plain, "lo\r\n", "la\r\n", 1), badChunkSignature()},
		{"no signature", streamingPayload, strings.Replace(plain, "chunk-signature=", "x=", 1), badChunk()},
		{"a line before it that is not signed", streamingPayload, "0\r\n" + plain, badChunk()},
		{"a signature that is not named", streamingPayload, strings.Replace(plain, "chunk-signature=", "", 1), badChunk()},
		{"half a signature", streamingPayload, strings.Replace(plain, "chunk-signature=", "chunk-signature=00", 1), badChunk()},
		{"no digits", streamingPayload, strings.Replace(plain, "chunk-signature=", "chunk-signature=xy", 1), badChunk()},
		{"another end", streamingPayload, plain[:strings.LastIndex(plain, "=")+1] + seed + "\r\n\r\n", badChunkSignature()},
		{"another trailer", streamingPayloadTrailer, strings.Replace(trailed, "x-a:1", "x-a:2", 1), badChunkSignature()},
		{"a trailer's signature that is none", streamingPayloadTrailer, cut(trailed, "x-amz-trailer-signature") + "x-amz-trailer-signature:xy\r\n\r\n", badChunkSignature()},
		{"a trailer's signature with more behind it", streamingPayloadTrailer, strings.TrimRight(trailed, "\r\n") + "zz\r\n\r\n", badChunkSignature()},
		{"a trailer's signature that is missing", streamingPayloadTrailer, cut(trailed, "x-amz-trailer-signature") + "\r\n", badChunk()},
		{"a trailer that breaks off", streamingPayloadTrailer, cut(trailed, "x-amz-trailer-signature"), io.ErrUnexpectedEOF},
	} {
		got, err := io.ReadAll(newChunks(strings.NewReader(tt.raw), sig(tt.payload), 5))
		if tt.want == nil && (err != nil || string(got) != "hello") || !sameFault(err, tt.want) {
			t.Errorf("%s: %q %v, want %v", tt.name, got, err, tt.want)
		}
	}
}

func TestWhatABodyMustSay(t *testing.T) {
	const crc, sum = "X-Amz-Checksum-Crc32", "AAAAAA=="
	for _, tt := range []struct {
		name, payload string
		length        int64
		header        http.Header
		code, text    string
	}{
		{"the largest", unsignedPayload, 10, nil, "", ""},
		{"too large", unsignedPayload, 11, nil, "EntityTooLarge", ""},
		{"empty", unsignedPayload, 0, nil, "", ""},
		{"no length", unsignedPayload, -1, nil, "MissingContentLength", "Content-Length"},
		{"no decoded length", streamingPayload, 5, nil, "MissingContentLength", "decoded"},
		{"a decoded length of less than nothing", streamingPayload, 5, headers("X-Amz-Decoded-Content-Length", "-1"), "MissingContentLength", "decoded"},
		{"empty decoded", streamingPayload, 5, headers("X-Amz-Decoded-Content-Length", "0"), "", ""},
		{"the largest decoded", streamingPayload, 50, headers("X-Amz-Decoded-Content-Length", "10"), "", ""},
		{"too large decoded", streamingPayload, 5, headers("X-Amz-Decoded-Content-Length", "11"), "EntityTooLarge", ""},
		{"a trailer without chunks", unsignedPayload, 5, headers("X-Amz-Trailer", crc), "InvalidRequest", "TRAILER"},
		{"a trailer that has no place", streamingPayload, 5, headers("X-Amz-Decoded-Content-Length", "1", "X-Amz-Trailer", crc), "InvalidRequest", "TRAILER"},
		{"a trailer", streamingUnsigned, 5, headers("X-Amz-Decoded-Content-Length", "1", "X-Amz-Trailer", " "+crc), "", ""},
		{"a trailer that is no checksum", streamingUnsigned, 5, headers("X-Amz-Decoded-Content-Length", "1", "X-Amz-Trailer", "crc32"), "InvalidRequest", "trailer"},
		{"a trailer of an unknown sum", streamingUnsigned, 5, headers("X-Amz-Decoded-Content-Length", "1", "X-Amz-Trailer", checksumPrefix+"x"), "InvalidRequest", "trailer"},
		{"a trailer and a header", streamingUnsigned, 5, headers("X-Amz-Decoded-Content-Length", "1", "X-Amz-Trailer", crc, crc, sum), "InvalidRequest", "trailer"},
		{"a checksum", unsignedPayload, 5, headers(crc, sum, "X-Amz-Checksum-Type", "x", "X-Amz-Checksum-Algorithm", "x", "X-Amz-Checksum-Mode", "x"), "", ""},
		{"a checksum twice", unsignedPayload, 5, http.Header{crc: {sum, sum}}, "InvalidRequest", "single"},
		{"two checksums", unsignedPayload, 5, headers(crc, sum, "X-Amz-Checksum-Crc32c", sum), "InvalidRequest", "single"},
		{"a checksum too short", unsignedPayload, 5, headers(crc, "AAAA"), "BadDigest", "no checksum of that kind"},
		{"a checksum that is none", unsignedPayload, 5, headers(crc, "AAAAAA="), "BadDigest", "no checksum of that kind"},
		{"an unknown checksum", unsignedPayload, 5, headers("X-Amz-Checksum-Crc16", "AAA="), "InvalidRequest", "not known"},
		{"an MD5", unsignedPayload, 5, headers("Content-Md5", "1B2M2Y8AsgTpgAmY7PhCfg=="), "", ""},
		{"an MD5 too short", unsignedPayload, 5, headers("Content-Md5", "1B2M2Y8AsgTpgAmY7PhC"), "InvalidDigest", ""},
		{"an MD5 that is none", unsignedPayload, 5, headers("Content-Md5", "1B2M2Y8AsgTpgAmY7PhCfg="), "InvalidDigest", ""},
	} {
		r := httptest.NewRequest(http.MethodPut, "/vol1/a", nil)
		r.ContentLength = tt.length
		if tt.header != nil {
			r.Header = tt.header
		}
		x := &exchange{r: r, sig: &signature{payload: tt.payload}}
		_, err := x.body(10)
		refusedFor(t, tt.name, err, tt.code, tt.text)
	}
}

func TestChecksumsOfAnUploadToCome(t *testing.T) {
	for _, tt := range []struct{ algorithm, kind, wantAlgorithm, wantKind, code string }{
		{"", "", "", "", ""},
		{"", "FULL_OBJECT", "", "", ""},
		{"CRC32", "", "crc32", compositeType, ""},
		{"CRC64NVME", "", "crc64nvme", fullObject, ""},
		{"crc64nvme", "composite", "", "", "InvalidRequest"},
		{"CRC32C", "FULL_OBJECT", "crc32c", fullObject, ""},
		{"SHA1", "FULL_OBJECT", "", "", "InvalidRequest"},
		{"SHA256", "COMPOSITE", "sha256", compositeType, ""},
		{"SHA256", "HALF", "", "", "InvalidRequest"},
		{"MD5", "", "", "", "InvalidRequest"},
	} {
		h := http.Header{}
		if tt.algorithm != "" {
			h.Set(checksumPrefix+"algorithm", tt.algorithm)
		}
		if tt.kind != "" {
			h.Set(checksumPrefix+"type", tt.kind)
		}
		algorithm, kind, err := uploadChecksum(h)
		refusedFor(t, tt.algorithm+" "+tt.kind, err, tt.code, "")
		if algorithm != tt.wantAlgorithm || kind != tt.wantKind {
			t.Errorf("%s %s: %q %q", tt.algorithm, tt.kind, algorithm, kind)
		}
	}
}

// TestErrorsHaveTheirAnswer holds which answer an error of the file system gets, and which makes the folder be opened anew.
func TestErrorsHaveTheirAnswer(t *testing.T) {
	for err, want := range map[error]string{
		unix.ENOSPC: "QuotaExceeded 507", unix.EDQUOT: "QuotaExceeded 507", unix.EROFS: "AccessDenied 403",
		unix.ENAMETOOLONG: "KeyTooLongError 400", unix.EFBIG: "EntityTooLarge 400", unix.ELOOP: "AccessDenied 403",
		unix.EPERM: "AccessDenied 403", unix.EACCES: "AccessDenied 403", unix.EISDIR: "ExistingObjectIsDirectory 409",
		unix.ENOTDIR: "NoSuchKey 404", unix.ENOENT: "NoSuchKey 404", errNotObject: "NoSuchKey 404",
		unix.EAGAIN: "SlowDown 503", unix.EBUSY: "SlowDown 503", unix.ETXTBSY: "SlowDown 503",
		unix.EMFILE: "SlowDown 503", unix.ENFILE: "SlowDown 503", unix.ENOMEM: "SlowDown 503",
		unix.ESTALE: "ServiceUnavailable 503 broken", unix.EIO: "ServiceUnavailable 503 broken", unix.ENOTCONN: "ServiceUnavailable 503 broken",
		unix.ESHUTDOWN: "ServiceUnavailable 503 broken", unix.ENODEV: "ServiceUnavailable 503 broken",
		unix.ETIMEDOUT: "ServiceUnavailable 503", unix.EHOSTDOWN: "ServiceUnavailable 503",
		io.ErrUnexpectedEOF: "IncompleteBody 400", io.EOF: "IncompleteBody 400", errors.New("other"): "InternalError 500",
		&http.MaxBytesError{Limit: 1}: "EntityTooLarge 400", error(timedOut{}): "RequestTimeout 400", os.ErrDeadlineExceeded: "RequestTimeout 400",
	} {
		f := faultOf(fmt.Errorf("in a call: %w", err))
		got := fmt.Sprintf("%s %d", f.code, f.status)
		if broken(err) {
			got += " broken"
		}
		if got != want {
			t.Errorf("%v: %s, want %s", err, got, want)
		}
	}
}

// timedOut is an error as a connection has it when its time is over.
type timedOut struct{}

func (timedOut) Error() string   { return "timed out" }
func (timedOut) Timeout() bool   { return true }
func (timedOut) Temporary() bool { return false }
