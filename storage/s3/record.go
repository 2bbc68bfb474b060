package s3

import (
	"bytes"
	"crypto/md5" //nolint:gosec // a name, no secret
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"regexp"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// attribute is the extended attribute that keeps what a file cannot say. Who can write the file can write it.
const (
	attribute  = "user.gantry.s3"
	maxRecord  = 3900 // bytes; ext4 keeps all attributes of a file in 4 KiB
	recordForm = 1
)

// record is the content of the attribute.
type record struct {
	Form     int               `json:"v"`
	ETag     string            `json:"e,omitempty"`
	Size     int64             `json:"s,omitempty"`
	Modified int64             `json:"t,omitempty"` // nanoseconds since 1970
	Checksum string            `json:"c,omitempty"` // as checksum.value
	Parts    string            `json:"p,omitempty"` // sizes of the parts that made it; see packSizes
	Sums     []string          `json:"q,omitempty"` // checksums of the parts, of the algorithm of Checksum; base64
	Headers  map[string]string `json:"h,omitempty"` // by name in lower case
	Meta     map[string]string `json:"m,omitempty"` // without x-amz-meta-, in lower case
	// Of a folder: it came with an object below it, or a client made it by its own key.
	Implied  bool `json:"i,omitempty"`
	Explicit bool `json:"x,omitempty"`
}

// keptHeaders are the headers of an object that are kept and given back.
var keptHeaders = []string{"cache-control", "content-disposition", "content-encoding", "content-language", "content-type", "expires"}

var (
	etagForm     = regexp.MustCompile(`^[0-9a-f]{32}(-[0-9]{1,5})?$`)
	checksumForm = regexp.MustCompile(`^(crc32|crc32c|crc64nvme|sha1|sha256):[A-Za-z0-9+/]{4,44}={0,2}(-[0-9]{1,5})?$`)
)

// parseRecord reads an attribute, which may hold anything. What makes no sense is an empty record.
func parseRecord(raw []byte) record {
	var r record
	if len(raw) > maxRecord || json.Unmarshal(raw, &r) != nil || r.Form != recordForm {
		return record{}
	}
	if r.ETag != "" && !etagForm.MatchString(r.ETag) || r.Checksum != "" && !checksumForm.MatchString(r.Checksum) {
		return record{}
	}
	if sizes, ok := unpackSizes(r.Parts); !ok || r.Sums != nil && (len(r.Sums) != len(sizes) || !checksumForms(r.Checksum, r.Sums)) {
		r.Parts, r.Sums = "", nil
	}
	for name, value := range r.Headers {
		if !keptHeader(name) || !validValue(value) {
			return record{}
		}
	}
	for name, value := range r.Meta {
		if !validName(name) || !validValue(value) {
			return record{}
		}
	}
	return r
}

// validValue reports whether a header can have the value.
func validValue(value string) bool {
	for i := range len(value) {
		if c := value[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

// validName reports whether a header can have the name.
func validName(name string) bool {
	for i := range len(name) {
		c := name[i]
		if ('a' > c || c > 'z') && ('0' > c || c > '9') && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return name != ""
}

func keptHeader(name string) bool {
	for _, h := range keptHeaders {
		if h == name {
			return true
		}
	}
	return false
}

// recordOf returns what the headers of a request say about the object to be written.
func recordOf(header http.Header) (record, error) {
	r := record{Form: recordForm, Headers: map[string]string{}, Meta: map[string]string{}}
	kept, meta := 0, 0
	for name, values := range header {
		low := strings.ToLower(name)
		value := strings.Join(values, ", ")
		if key, ok := strings.CutPrefix(low, "x-amz-meta-"); ok && key != "" {
			r.Meta[key] = value
			meta += len(key) + len(value)
		}
		if !keptHeader(low) {
			continue
		}
		if low == "content-encoding" {
			value = withoutChunked(value)
		}
		if value != "" {
			r.Headers[low] = value
			kept += len(value)
		}
	}
	if meta > maxMeta || kept > maxHeaders {
		return record{}, refuse(http.StatusBadRequest, "MetadataTooLarge", "Your metadata headers exceed the maximum allowed metadata size.")
	}
	return r, nil
}

// withoutChunked removes the encoding that only the transfer has.
func withoutChunked(value string) string {
	var kept []string
	for part := range strings.SplitSeq(value, ",") {
		if part = strings.TrimSpace(part); part != "" && !strings.EqualFold(part, "aws-chunked") {
			kept = append(kept, part)
		}
	}
	return strings.Join(kept, ", ")
}

// readRecord returns the record of an open file or folder; an empty one when there is none that makes sense.
func readRecord(f *os.File) record {
	var out record
	_ = control(f, func(fd int) error {
		buf := make([]byte, 1024)
		n, err := unix.Fgetxattr(fd, attribute, buf)
		if errors.Is(err, unix.ERANGE) {
			buf = make([]byte, maxRecord)
			n, err = unix.Fgetxattr(fd, attribute, buf)
		}
		if err == nil {
			out = parseRecord(buf[:n])
		}
		return nil
	})
	return out
}

// writeRecord keeps a record with an open file. A file system without extended attributes is no error.
func writeRecord(f *os.File, r record) error {
	r.Form = recordForm
	var buf bytes.Buffer
	encoder := json.NewEncoder(&buf)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(r); err != nil {
		return err
	}
	raw := bytes.TrimSuffix(buf.Bytes(), []byte("\n"))
	if len(raw) > maxRecord && r.Sums != nil { // of so many parts only the sizes are kept
		r.Sums = nil
		return writeRecord(f, r)
	}
	if len(raw) > maxRecord && r.Parts != "" {
		r.Parts = manyParts
		return writeRecord(f, r)
	}
	tooLarge := refuse(http.StatusBadRequest, "MetadataTooLarge", "The file system cannot keep this much metadata.")
	if len(raw) > maxRecord {
		return tooLarge
	}
	err := control(f, func(fd int) error { return unix.Fsetxattr(fd, attribute, raw, 0) })
	switch {
	case errors.Is(err, unix.ENOTSUP), errors.Is(err, unix.ENOSYS):
		return nil
	case errors.Is(err, unix.E2BIG), errors.Is(err, unix.ERANGE):
		return tooLarge
	case err != nil:
		return fmt.Errorf("set attribute: %w", err)
	}
	return nil
}

func control(f *os.File, do func(fd int) error) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var done error
	if err := raw.Control(func(fd uintptr) { done = do(int(fd)) }); err != nil {
		return err
	}
	return done
}

// size returns how much content there is; that of a folder is nothing.
func (o object) size() int64 {
	if o.info.IsDir() {
		return 0
	}
	return o.info.Size()
}

// object is what there is to say about an object.
type object struct {
	info   fs.FileInfo
	record record
	etag   string // without quotes
}

// describe returns the object that an open file or folder is.
func describe(f *os.File, info fs.FileInfo) object {
	r := readRecord(f)
	if info.IsDir() {
		return object{info: info, record: r, etag: hex.EncodeToString(md5.New().Sum(nil))} //nolint:gosec // the sum of nothing
	}
	fresh := r.Size == info.Size() && r.Modified == info.ModTime().UnixNano()
	if !fresh {
		r.ETag, r.Checksum, r.Parts, r.Sums = "", "", "", nil
	}
	if r.ETag == "" {
		return object{info: info, record: r, etag: etagOf(info)}
	}
	return object{info: info, record: r, etag: r.ETag}
}

// etagOf returns the ETag of a file that was not written over S3. The device is left out: it is another on each host.
func etagOf(info fs.FileInfo) string {
	var raw [32]byte
	binary.BigEndian.PutUint64(raw[0:], uint64(info.Size()))               //nolint:gosec // bits
	binary.BigEndian.PutUint64(raw[8:], uint64(info.ModTime().UnixNano())) //nolint:gosec // bits
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		binary.BigEndian.PutUint64(raw[16:], st.Ino)
		binary.BigEndian.PutUint64(raw[24:], uint64(st.Ctim.Nano())) //nolint:gosec // bits
	}
	sum := md5.Sum(raw[:]) //nolint:gosec // a name, no secret
	return hex.EncodeToString(sum[:]) + "-1"
}
