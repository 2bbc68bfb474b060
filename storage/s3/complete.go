package s3

import (
	"context"
	"crypto/md5" //nolint:gosec // the protocol's
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

type completePart struct {
	PartNumber int
	ETag       string
	checksumXML
}

// completeParts stops at the limit while it reads.
type completeParts []completePart

// UnmarshalXML adds one element.
func (c *completeParts) UnmarshalXML(decoder *xml.Decoder, start xml.StartElement) error {
	if len(*c) == maxParts {
		return malformedXML()
	}
	var one completePart
	if err := decoder.DecodeElement(&one, &start); err != nil {
		return err
	}
	*c = append(*c, one)
	return nil
}

type completeRequest struct {
	XMLName xml.Name      `xml:"CompleteMultipartUpload"`
	Parts   completeParts `xml:"Part"`
}

type completedXML struct {
	XMLName  struct{} `xml:"http://s3.amazonaws.com/doc/2006-03-01/ CompleteMultipartUploadResult"`
	Location string
	Bucket   string
	Key      string
	ETag     string
	checksumXML
	ChecksumType string `xml:",omitempty"`
}

func invalidPart() *fault {
	return refuse(http.StatusBadRequest, "InvalidPart", "One or more of the specified parts could not be found. The part may not have been uploaded, or the specified entity tag may not match the part's entity tag.")
}

// check returns the ETag of the object that the parts make.
func (c completeParts) check() (string, error) {
	if len(c) == 0 {
		return "", malformedXML()
	}
	sum := md5.New() //nolint:gosec // the protocol's
	before := 0
	for i := range c {
		c[i].ETag = strings.Trim(strings.TrimSpace(c[i].ETag), `"`)
		raw, err := hex.DecodeString(c[i].ETag)
		if err != nil || len(raw) != md5.Size || c[i].PartNumber > maxParts {
			return "", invalidPart()
		}
		if c[i].PartNumber <= before {
			return "", refuse(http.StatusBadRequest, "InvalidPartOrder", "The list of parts was not in ascending order. The parts list must be specified in order by part number.")
		}
		before = c[i].PartNumber
		sum.Write(raw)
	}
	return fmt.Sprintf("%x-%d", sum.Sum(nil), len(c)), nil
}

func (x *exchange) completeUpload() error {
	t, err := parseKey(x.key)
	if err != nil {
		return err
	}
	want := wanted(x.r.Header)
	var in completeRequest
	if err := x.xmlBody(&in); err != nil {
		return err
	}
	etag, err := in.Parts.check()
	if err != nil {
		if _, gone := x.upload(); gone != nil {
			return gone
		}
		return err
	}
	return x.patiently(func() (any, error) {
		sum, err := x.assemble(t, in.Parts, etag, want)
		// A client that did not get the answer asks again.
		if f := new(fault); errors.As(err, &f) && f.code == "NoSuchUpload" {
			if o, look := x.look(); look == nil && o.etag == etag {
				sum, err = o.record.Checksum, nil
			}
		}
		if err != nil {
			return nil, err
		}
		scheme := "http"
		if x.r.TLS != nil {
			scheme = "https"
		}
		location := scheme + "://" + x.r.Host + "/" + x.bucket + "/" + escape(x.key, true)
		out := completedXML{Location: location, Bucket: x.bucket, Key: x.key, ETag: quote(etag)}
		if sum != "" {
			out.checksumXML, out.ChecksumType = inXML(sum), checksumType(sum)
		}
		return out, nil
	})
}

// checksum returns the checksum of the object that the parts of an upload make, as checksum.value; empty when it has none. It
// fails when another one is wanted.
func (u *upload) checksum(parts []part, whole io.ReadSeeker, want string) (got string, err error) {
	algorithm, _, _ := strings.Cut(want, ":")
	switch {
	case u.Algorithm != "" && u.Kind == compositeType:
		got = composite(u.Algorithm, base64Sums(parts))
	case u.Algorithm != "":
		got, err = sumOf(u.Algorithm, whole)
	case want != "" && !strings.Contains(want, "-"): // of the content, though the parts have none
		got, err = sumOf(algorithm, whole)
	}
	if err == nil && want != "" && got != "" && want != got {
		err = refuse(http.StatusBadRequest, "BadDigest", "The "+strings.ToUpper(algorithm)+" you specified did not match the object that the parts make.")
	}
	return got, err
}

func base64Sums(parts []part) (out []string) {
	for _, p := range parts {
		out = append(out, p.base64())
	}
	return out
}

// assemble makes an upload's parts into the object. When it stops half-way it goes on with the next request: a
// part is removed only after it is in the whole file and on the disk, so that no more room is needed than for some parts.
// It returns the checksum of the object, as checksum.value, and fails when another one is wanted.
func (x *exchange) assemble(t target, asked completeParts, etag, want string) (string, error) {
	u, err := x.upload()
	if err != nil {
		return "", err
	}
	unlock, err := x.lockUpload(u)
	if err != nil {
		return "", err
	}
	defer unlock()
	var parts []part
	var whole *os.File
	err = x.place.act(func() error {
		if err := x.place.writable(t, x.r.Header); err != nil {
			return err
		}
		if parts, err = x.place.plan(u, asked); err != nil {
			return err
		}
		if err := u.compare(asked, parts); err != nil {
			return err
		}
		whole, err = x.place.whole(u, parts)
		return err
	})
	if err != nil {
		return "", uploadFault(err)
	}
	defer func() { _ = whole.Close() }()
	if err := x.appendParts(u, whole, parts); err != nil {
		return "", err
	}
	if err := whole.Sync(); err != nil {
		return "", err
	}
	r := u.Record
	r.ETag, r.Parts = etag, packSizes(parts)
	if r.Checksum, err = u.checksum(parts, whole, want); err != nil {
		return "", err
	}
	if u.Algorithm != "" {
		r.Sums = base64Sums(parts)
	}
	return r.Checksum, x.place.act(func() error {
		if err := seal(whole, r); err != nil {
			return err
		}
		if err := x.place.commit(path.Join(u.dir, wholeName), t, x.r.Header); err != nil {
			return err
		}
		return x.place.removeUpload(u)
	})
}

// lockUpload keeps others, also those of other hosts, from completing or removing the upload.
func (x *exchange) lockUpload(u *upload) (unlock func(), err error) {
	var f *os.File
	name := path.Join(u.dir, manifestName)
	err = x.place.act(func() error {
		f, err = x.place.folder.Root.OpenFile(name, os.O_RDWR|unix.O_NONBLOCK, 0)
		return err
	})
	if err != nil {
		return nil, uploadFault(err)
	}
	ctx, cancel := context.WithTimeout(x.r.Context(), 10*x.h.limits.Stall)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := control(f, func(fd int) error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) })
		if err == nil {
			break
		}
		busy := errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EINTR)
		select {
		case <-tick.C:
		case <-ctx.Done():
			busy = false
			err = refuse(http.StatusConflict, "OperationAborted", "Another request completes or aborts the upload.")
		}
		if !busy {
			return nil, errors.Join(err, f.Close())
		}
	}
	// Whoever had the lock before may have removed the upload.
	if _, err := x.upload(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil
}

// plan returns the parts in order, those of an earlier request when there was one. It must be called in act.
func (p *place) plan(u *upload, asked completeParts) ([]part, error) {
	name := path.Join(u.dir, planName)
	raw, err := p.readSmall(name, maxPlan)
	if err == nil {
		return parsePlan(raw, asked)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	defer p.lock(u.dir)()
	have, err := p.parts(u)
	if err != nil {
		return nil, err
	}
	type id struct {
		number int
		etag   string
	}
	byETag := map[id]part{}
	for _, one := range have {
		byETag[id{one.number, one.etag}] = one
	}
	var names []string
	var out []part
	var total int64
	for _, a := range asked {
		one, ok := byETag[id{a.PartNumber, a.ETag}]
		if !ok {
			return nil, invalidPart()
		}
		if total += one.size; total > maxObject {
			return nil, refuse(http.StatusBadRequest, "EntityTooLarge", "The object would be larger than 4 TB.")
		}
		out, names = append(out, one), append(names, one.name())
	}
	if raw, err = json.Marshal(names); err != nil {
		return nil, err
	}
	half := name + "-" + random()
	if err := p.writeNew(half, raw); err != nil {
		return nil, err
	}
	return out, p.folder.Root.Rename(half, name)
}

// compare refuses checksums of parts that are not those of the parts that there are. A client may leave them out.
func (u *upload) compare(asked completeParts, parts []part) error {
	for i := range asked {
		said := asked[i].field(u.Algorithm)
		if said != nil && *said != "" && *said != parts[i].base64() {
			return invalidPart()
		}
	}
	return nil
}

// parsePlan reads a plan, which a tenant can write, and checks that it is what is asked for.
func parsePlan(raw []byte, asked completeParts) ([]part, error) {
	other := refuse(http.StatusBadRequest, "InvalidPart", "The upload is being completed with other parts. Complete it with those or abort it.")
	var names []string
	if json.Unmarshal(raw, &names) != nil || len(names) != len(asked) {
		return nil, other
	}
	var out []part
	var total int64
	for i, name := range names {
		one, ok := parsePart(name)
		if !ok || one.number != asked[i].PartNumber || one.etag != asked[i].ETag || one.size > maxObject-total {
			return nil, other
		}
		total += one.size
		out = append(out, one)
	}
	return out, nil
}

// whole opens the file that parts are added to; at first it is the first part. It must be called in act.
func (p *place) whole(u *upload, parts []part) (*os.File, error) {
	name := path.Join(u.dir, wholeName)
	if _, err := p.folder.Root.Lstat(name); errors.Is(err, fs.ErrNotExist) {
		err = p.folder.Root.Rename(path.Join(u.dir, parts[0].name()), name)
		if errors.Is(err, fs.ErrNotExist) {
			// It has become the object already, or a pod removed it.
			return nil, noSuchUpload()
		}
		if err != nil {
			return nil, err
		}
	}
	f, err := p.folder.Root.OpenFile(name, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && (!info.Mode().IsRegular() || info.Size() < parts[0].size) {
		err = invalidPart()
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// batch is how much is added to the whole file before it is synced and the parts are removed.
const batch = 256 << 20

// appendParts adds to the whole file those parts that are not in it.
func (x *exchange) appendParts(u *upload, whole *os.File, parts []part) error {
	end := parts[0].size
	var added []part
	var bytes int64
	flush := func() error {
		if len(added) == 0 {
			return nil
		}
		if err := whole.Sync(); err != nil {
			return err
		}
		done := slices.Clone(added)
		added, bytes = added[:0], 0
		return x.place.act(func() error {
			for _, one := range done {
				if err := x.place.unlink(path.Join(u.dir, one.name())); err != nil {
					return err
				}
			}
			return nil
		})
	}
	for _, one := range parts[1:] {
		there, err := x.appendPart(u, whole, end, one)
		if err != nil {
			return err
		}
		end += one.size
		if there {
			continue
		}
		added = append(added, one)
		if bytes += one.size; bytes >= batch {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	if err := whole.Truncate(end); err != nil {
		return err
	}
	return flush()
}

// appendPart adds one part at an offset, unless an earlier request has done it.
func (x *exchange) appendPart(u *upload, whole *os.File, at int64, one part) (there bool, err error) {
	var f *os.File
	err = x.place.act(func() error {
		f, err = x.place.folder.Root.OpenFile(path.Join(u.dir, one.name()), openFile, 0)
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		info, err := whole.Stat()
		if err == nil && info.Size() < at+one.size {
			err = invalidPart()
		}
		return true, err
	}
	if err != nil {
		return false, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return false, err
	}
	if !info.Mode().IsRegular() || info.Size() != one.size {
		return false, invalidPart()
	}
	if err := whole.Truncate(at); err != nil {
		return false, err
	}
	if _, err := whole.Seek(at, io.SeekStart); err != nil {
		return false, err
	}
	n, err := io.Copy(whole, io.LimitReader(f, one.size))
	if err == nil && n != one.size {
		err = invalidPart()
	}
	return false, err
}

// removeUpload removes an upload with all its parts. It must be called in act.
func (p *place) removeUpload(u *upload) error {
	var err error
	// A part that comes in just now may make the folder not empty again.
	for range 4 {
		if err = p.folder.Root.RemoveAll(u.dir); err == nil {
			return nil
		}
	}
	return err
}

func (x *exchange) abortUpload() error {
	u, err := x.upload()
	if err != nil {
		return err
	}
	unlock, err := x.lockUpload(u)
	if err != nil {
		return err
	}
	defer unlock()
	if err := x.place.act(func() error { return x.place.removeUpload(u) }); err != nil {
		return err
	}
	return x.empty(http.StatusNoContent)
}
