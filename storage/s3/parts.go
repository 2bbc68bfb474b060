package s3

import (
	"crypto/md5" //nolint:gosec // a name, no secret
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
)

func (x *exchange) putPart() error {
	number, err := x.partNumber()
	if err != nil {
		return err
	}
	b, err := x.body(maxPut)
	if err != nil {
		return err
	}
	u, err := x.upload()
	if err != nil {
		return err
	}
	if err := b.require(u.Algorithm); err != nil {
		return err
	}
	f, name, err := x.newPart(u)
	if err != nil {
		return err
	}
	done, err := b.save(f)
	if err == nil {
		one := part{number: number, etag: done.md5, size: done.size}
		if u.Algorithm != "" {
			one.sum = hexSum(done.checksum)
		}
		err = x.keepPart(u, f, name, one)
	}
	if err != nil {
		x.place.discard(f, name)
		return err
	}
	x.w.Header().Set("ETag", quote(done.md5))
	setChecksum(x.w.Header(), done.checksum, done.checksum)
	x.w.Header().Del(checksumPrefix + "type")
	return x.empty(http.StatusOK)
}

// newPart makes a file for a part.
func (x *exchange) newPart(u *upload) (f *os.File, name string, err error) {
	err = x.place.act(func() error {
		f, name, err = x.place.temporary(u.dir, "tmp-")
		return err
	})
	return f, name, uploadFault(err)
}

// keepPart gives a part's file its name and closes it.
func (x *exchange) keepPart(u *upload, f *os.File, name string, p part) error {
	if err := f.Sync(); err != nil {
		return err
	}
	err := x.place.act(func() error {
		// Between the look and the rename no plan is made: a part that came back after it was added would be added again.
		defer x.place.lock(u.dir)()
		root := x.place.folder.Root
		if _, err := root.Lstat(path.Join(u.dir, planName)); err == nil {
			return refuse(http.StatusConflict, "OperationAborted", "The upload is being completed. Complete it again or abort it.")
		}
		return root.Rename(name, path.Join(u.dir, p.name()))
	})
	return uploadFault(errors.Join(err, f.Close()))
}

type copyPartXML struct {
	XMLName      struct{} `xml:"http://s3.amazonaws.com/doc/2006-03-01/ CopyPartResult"`
	LastModified string
	ETag         string
	checksumXML
}

func (x *exchange) copyPart() error {
	number, err := x.partNumber()
	if err != nil {
		return err
	}
	u, err := x.upload()
	if err != nil {
		return err
	}
	s, err := x.source()
	if err != nil {
		return err
	}
	defer s.close(x)
	if s.t.folder {
		return invalid("A folder cannot be copied to a part.")
	}
	from, length, asked := int64(0), s.info.Size(), x.r.Header.Get("X-Amz-Copy-Source-Range")
	if asked != "" {
		first, last, err := parseRange(asked, s.info.Size())
		if err == nil && last >= s.info.Size() {
			return refuse(http.StatusRequestedRangeNotSatisfiable, "InvalidRange", "The copy source's range is beyond the end of the object.")
		}
		if err != nil {
			return invalid("The x-amz-copy-source-range value must be of the form bytes=first-last where first and last are the zero-based offsets of the first and last bytes to copy")
		}
		from, length = first, last-first+1
	}
	if length > maxPut {
		return invalid("The part is larger than 5 GiB.")
	}
	// To read all of it for its MD5 would forgo a copy inside the storage. The ETag of an upload is no MD5 of content anyway.
	sum := md5.Sum(fmt.Appendf(nil, "%s %s %d %d", u.id, s.etag, from, length)) //nolint:gosec // a name, no secret
	p := part{number: number, etag: hex.EncodeToString(sum[:]), size: length}
	return x.patiently(func() (any, error) { return x.fillPart(u, s, from, p) })
}

func (x *exchange) fillPart(u *upload, s *source, from int64, p part) (any, error) {
	f, name, err := x.newPart(u)
	if err != nil {
		return nil, err
	}
	if _, err = s.file.Seek(from, io.SeekStart); err == nil {
		var n int64
		n, err = io.Copy(f, io.LimitReader(s.file, p.size))
		if err == nil && n != p.size {
			err = invalid("The source became shorter while it was copied.")
		}
	}
	value := ""
	if err == nil && u.Algorithm != "" {
		value, err = sumOf(u.Algorithm, f)
		p.sum = hexSum(value)
	}
	if err == nil {
		err = x.keepPart(u, f, name, p)
	}
	if err != nil {
		x.place.discard(f, name)
		return nil, err
	}
	return copyPartXML{LastModified: stamp(x.h.now()), ETag: quote(p.etag), checksumXML: inXML(value)}, nil
}

type partXML struct {
	PartNumber   int
	LastModified string
	ETag         string
	Size         int64
	checksumXML
}

type partsXML struct {
	XMLName              struct{} `xml:"http://s3.amazonaws.com/doc/2006-03-01/ ListPartsResult"`
	Bucket               string
	Key                  string
	EncodingType         string `xml:",omitempty"`
	UploadID             string `xml:"UploadId"`
	Initiator            *owner
	Owner                *owner
	StorageClass         string
	ChecksumAlgorithm    string `xml:",omitempty"`
	ChecksumType         string `xml:",omitempty"`
	PartNumberMarker     int
	NextPartNumberMarker int `xml:",omitempty"`
	MaxParts             int
	IsTruncated          bool
	Parts                []partXML `xml:"Part"`
}

func (x *exchange) listParts() error {
	most, err := x.pageSize("max-parts")
	if err != nil {
		return err
	}
	kind, encode, err := x.encoding()
	if err != nil {
		return err
	}
	marker, _ := strconv.Atoi(x.query.Get("part-number-marker"))
	u, err := x.upload()
	if err != nil {
		return err
	}
	out := partsXML{
		Bucket: x.bucket, Key: encode(x.key), EncodingType: kind, UploadID: u.id, Initiator: x.owner(), Owner: x.owner(), StorageClass: "STANDARD",
		ChecksumAlgorithm: strings.ToUpper(u.Algorithm), ChecksumType: u.Kind, PartNumberMarker: marker, MaxParts: most,
	}
	err = x.place.act(func() error {
		var err error
		out.Parts, out.IsTruncated, err = x.place.partPage(u, marker, most)
		return err
	})
	if err != nil {
		return uploadFault(err)
	}
	if out.IsTruncated {
		out.NextPartNumberMarker = out.Parts[len(out.Parts)-1].PartNumber
	}
	x.answer(http.StatusOK, out)
	return nil
}

// partPage returns some parts behind a number, and whether there are more. It must be called in act.
func (p *place) partPage(u *upload, marker, most int) ([]partXML, bool, error) {
	parts, err := p.parts(u)
	if err != nil || most == 0 {
		return nil, false, err
	}
	var out []partXML
	var newest int64
	for _, one := range parts {
		if one.number <= marker {
			continue
		}
		again := len(out) > 0 && out[len(out)-1].PartNumber == one.number
		if !again && len(out) == most {
			return out, true, nil
		}
		info, err := p.folder.Root.Lstat(path.Join(u.dir, one.name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, false, err
		}
		if again && info.ModTime().UnixNano() < newest {
			continue
		}
		if again {
			out = out[:len(out)-1]
		}
		newest = info.ModTime().UnixNano()
		out = append(out, partXML{PartNumber: one.number, LastModified: stamp(info.ModTime()), ETag: quote(one.etag), Size: one.size, checksumXML: one.inXML(u)})
	}
	return out, false, nil
}

// parts returns the parts of an upload by number. It must be called in act.
func (p *place) parts(u *upload) ([]part, error) {
	names, err := p.list(u.dir, 4*maxParts)
	if err != nil {
		return nil, err
	}
	var out []part
	for _, name := range names {
		if one, ok := parsePart(name); ok {
			out = append(out, one)
		}
	}
	slices.SortFunc(out, func(a, b part) int { return a.number - b.number })
	return out, nil
}
