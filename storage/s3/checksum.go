package s3

import (
	"crypto/sha1" //nolint:gosec // a checksum that clients may choose
	"crypto/sha256"
	"encoding/base64"
	"hash"
	"hash/crc32"
	"hash/crc64"
	"io"
	"net/http"
	"strings"
)

// checksums are the additional checksums of S3, by the end of their header's name.
var checksums = map[string]func() hash.Hash{
	"crc32":     func() hash.Hash { return crc32.NewIEEE() },
	"crc32c":    func() hash.Hash { return crc32.New(castagnoli) },
	"crc64nvme": func() hash.Hash { return crc64.New(nvme) },
	"sha1":      sha1.New,
	"sha256":    sha256.New,
}

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	nvme       = crc64.MakeTable(0x9a6c9329ac4bc9b5)
)

const checksumPrefix = "x-amz-checksum-"

// checksum is an additional checksum that a client sends with a body.
type checksum struct {
	name     string
	sum      hash.Hash
	want     string // base64; empty: it follows in a trailer
	trailing bool
}

// parseChecksum returns the checksum that a request announces, or nil.
func parseChecksum(header http.Header) (*checksum, error) {
	var found *checksum
	for name, values := range header {
		algorithm, ok := strings.CutPrefix(strings.ToLower(name), checksumPrefix)
		if !ok || algorithm == "type" || algorithm == "algorithm" || algorithm == "mode" {
			continue
		}
		make, known := checksums[algorithm]
		if !known {
			return nil, refuse(http.StatusBadRequest, "InvalidRequest", "The checksum "+name+" is not known.")
		}
		sum := make()
		raw, err := base64.StdEncoding.DecodeString(values[0])
		if found != nil || len(values) != 1 || err != nil || len(raw) != sum.Size() {
			return nil, refuse(http.StatusBadRequest, "InvalidRequest", "Value for "+name+" header is invalid, or there is more than one checksum.")
		}
		found = &checksum{name: algorithm, sum: sum, want: values[0]}
	}
	trailer := header.Get("X-Amz-Trailer")
	if trailer == "" {
		return found, nil
	}
	algorithm, ok := strings.CutPrefix(strings.ToLower(strings.TrimSpace(trailer)), checksumPrefix)
	make, known := checksums[algorithm]
	if found != nil || !ok || !known {
		return nil, refuse(http.StatusBadRequest, "InvalidRequest", "The value specified in the x-amz-trailer header is not supported.")
	}
	return &checksum{name: algorithm, sum: make(), trailing: true}, nil
}

// wholeChecksum takes the checksum of an object out of the header of the request that completes its upload, where it is not that of
// the request's body. It is nil when there is none, or one that is made of those of the parts, which are not kept.
func wholeChecksum(header http.Header) *checksum {
	full := strings.EqualFold(header.Get(checksumPrefix+"type"), "FULL_OBJECT")
	var found *checksum
	for name, values := range header {
		algorithm, ok := strings.CutPrefix(strings.ToLower(name), checksumPrefix)
		make, known := checksums[algorithm]
		if !ok || !known {
			continue
		}
		if full || algorithm == "crc64nvme" { // which is never made of others
			found = &checksum{name: algorithm, sum: make(), want: values[0]}
		}
		delete(header, name)
	}
	return found
}

// of reads a file and returns its checksum as value does. It fails when that is not the wanted one. A nil checksum has no value.
func (c *checksum) of(f io.ReadSeeker) (string, error) {
	if c == nil {
		return "", nil
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	block := blocks.Get().(*[]byte) //nolint:forcetypeassert // the pool's only type
	defer blocks.Put(block)
	if _, err := io.CopyBuffer(c.sum, struct{ io.Reader }{f}, *block); err != nil {
		return "", err
	}
	got := c.value()
	if got != c.name+":"+c.want {
		return "", refuse(http.StatusBadRequest, "BadDigest", "The "+strings.ToUpper(c.name)+" you specified did not match the object that the parts make.")
	}
	return got, nil
}

// value returns the checksum of what was read, as "algorithm:base64".
func (c *checksum) value() string {
	return c.name + ":" + base64.StdEncoding.EncodeToString(c.sum.Sum(nil))
}

// setChecksum answers with a checksum of the form of value.
func setChecksum(header http.Header, value string) {
	if name, sum, ok := strings.Cut(value, ":"); ok {
		header.Set(checksumPrefix+name, sum)
		header.Set(checksumPrefix+"type", "FULL_OBJECT")
	}
}
