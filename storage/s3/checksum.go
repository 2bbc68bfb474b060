package s3

import (
	"crypto/sha1" //nolint:gosec // a checksum that clients may choose
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"hash"
	"hash/crc32"
	"hash/crc64"
	"io"
	"net/http"
	"strconv"
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
	unsaid   bool // the client sends none
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
		if found != nil || len(values) != 1 {
			return nil, refuse(http.StatusBadRequest, "InvalidRequest", "Expecting a single x-amz-checksum- header.")
		}
		if raw, err := base64.StdEncoding.DecodeString(values[0]); err != nil || len(raw) != sum.Size() {
			return nil, refuse(http.StatusBadRequest, "BadDigest", "Value for "+name+" header is no checksum of that kind.")
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

// wanted takes the checksum of an object out of the header of the request that completes its upload, where it is not that
// of the request's body. It is "", as checksum.value, where there is none.
func wanted(header http.Header) string {
	found := ""
	for name, values := range header {
		algorithm, ok := strings.CutPrefix(strings.ToLower(name), checksumPrefix)
		if _, known := checksums[algorithm]; ok && known {
			found = algorithm + ":" + values[0]
			delete(header, name)
		}
	}
	return found
}

// sumOf reads a file and returns its checksum as checksum.value.
func sumOf(algorithm string, f io.ReadSeeker) (string, error) {
	c := &checksum{name: algorithm, sum: checksums[algorithm]()}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	block := blocks.Get().(*[]byte) //nolint:forcetypeassert // the pool's only type
	defer blocks.Put(block)
	if _, err := io.CopyBuffer(c.sum, struct{ io.Reader }{f}, *block); err != nil {
		return "", err
	}
	return c.value(), nil
}

// composite returns the checksum that is made of those of the parts, as checksum.value with the number of parts behind it.
func composite(algorithm string, sums []string) string {
	h := checksums[algorithm]()
	for _, s := range sums {
		raw, _ := base64.StdEncoding.DecodeString(s) // one that is none has no bytes, and the result fits nothing
		h.Write(raw)
	}
	return algorithm + ":" + base64.StdEncoding.EncodeToString(h.Sum(nil)) + "-" + strconv.Itoa(len(sums))
}

// checksumForms reports whether the checksums of parts have the form of those of the algorithm of a whole object's.
func checksumForms(whole string, sums []string) bool {
	algorithm, _, _ := strings.Cut(whole, ":")
	for _, s := range sums {
		if !checksumForm.MatchString(algorithm+":"+s) || strings.Contains(s, "-") {
			return false
		}
	}
	return true
}

// The types of an object's checksum.
const (
	fullObject    = "FULL_OBJECT" // of the content
	compositeType = "COMPOSITE"   // of the checksums of the parts
)

// checksumType returns the type of a checksum of the form of value.
func checksumType(value string) string {
	if strings.Contains(value, "-") {
		return compositeType
	}
	return fullObject
}

// uploadChecksum reads which checksum the parts of an upload shall have, and of which type that of the object is.
func uploadChecksum(header http.Header) (algorithm, kind string, err error) {
	algorithm = strings.ToLower(header.Get(checksumPrefix + "algorithm"))
	kind = strings.ToUpper(header.Get(checksumPrefix + "type"))
	if _, known := checksums[algorithm]; algorithm != "" && !known {
		return "", "", refuse(http.StatusBadRequest, "InvalidRequest", "Checksum algorithm provided is unsupported. Please try again with any of the valid types: [CRC32, CRC32C, CRC64NVME, SHA1, SHA256]")
	}
	sha := strings.HasPrefix(algorithm, "sha")
	if kind == "" {
		if kind = compositeType; algorithm == "crc64nvme" {
			kind = fullObject
		}
	}
	switch {
	case algorithm == "":
		return "", "", nil
	case kind == compositeType && algorithm != "crc64nvme", kind == fullObject && !sha:
		return algorithm, kind, nil
	}
	return "", "", refuse(http.StatusBadRequest, "InvalidRequest", "The "+kind+" checksum type cannot be used with the "+algorithm+" checksum algorithm.")
}

// hexSum returns the sum of a checksum of the form of value in hexadecimal.
func hexSum(value string) string {
	_, sum, _ := strings.Cut(value, ":")
	raw, _ := base64.StdEncoding.DecodeString(sum) // which was encoded here
	return hex.EncodeToString(raw)
}

// value returns the checksum of what was read, as "algorithm:base64".
func (c *checksum) value() string {
	return c.name + ":" + base64.StdEncoding.EncodeToString(c.sum.Sum(nil))
}

// setChecksum answers with a checksum of the form of value, which is of a whole object or of a part of it.
func setChecksum(header http.Header, value, whole string) {
	if name, sum, ok := strings.Cut(value, ":"); ok {
		header.Set(checksumPrefix+name, sum)
		header.Set(checksumPrefix+"type", checksumType(whole))
	}
}

// checksumXML is a checksum in a document.
type checksumXML struct {
	ChecksumCRC32     string `xml:",omitempty"`
	ChecksumCRC32C    string `xml:",omitempty"`
	ChecksumCRC64NVME string `xml:",omitempty"`
	ChecksumSHA1      string `xml:",omitempty"`
	ChecksumSHA256    string `xml:",omitempty"`
}

// field returns the member for an algorithm; nil for one that is not known.
func (c *checksumXML) field(algorithm string) *string {
	return map[string]*string{
		"crc32": &c.ChecksumCRC32, "crc32c": &c.ChecksumCRC32C, "crc64nvme": &c.ChecksumCRC64NVME, "sha1": &c.ChecksumSHA1, "sha256": &c.ChecksumSHA256,
	}[algorithm]
}

// inXML returns a checksum of the form of value for a document.
func inXML(value string) (out checksumXML) {
	algorithm, sum, _ := strings.Cut(value, ":")
	if f := out.field(algorithm); f != nil {
		*f = sum
	}
	return out
}
