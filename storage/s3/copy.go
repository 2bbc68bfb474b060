package s3

import (
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

// source is what a copy is made of. Its place may be another volume's.
type source struct {
	place *place
	t     target
	file  *os.File
	object
}

func (s *source) close(x *exchange) {
	if s.file != nil {
		_ = s.file.Close()
	}
	if s.place != x.place {
		s.place.release()
	}
}

// source opens the source of a copy and checks the conditions on it. The caller closes it.
func (x *exchange) source() (*source, error) {
	bad := invalid("Copy source must mention the source bucket and key: sourcebucket/sourcekey")
	raw, version, _ := strings.Cut(x.r.Header.Get("X-Amz-Copy-Source"), "?")
	if version != "" && version != "versionId=null" {
		return nil, refuse(http.StatusNotFound, "NoSuchVersion", "Network volumes keep no versions.")
	}
	from, err := url.PathUnescape(raw)
	if err != nil {
		return nil, bad
	}
	bucket, key, _ := strings.Cut(strings.TrimPrefix(from, "/"), "/")
	if key == "" {
		return nil, bad
	}
	s := &source{place: x.place}
	if s.t, err = parseKey(key); err != nil {
		return nil, err
	}
	if bucket != x.bucket {
		if s.place, err = x.open(bucket); err != nil {
			return nil, err
		}
	}
	err = s.place.act(func() error {
		var err error
		s.file, s.object, err = s.place.open(s.t)
		return err
	})
	if err == nil {
		err = readable(x.r.Header, "X-Amz-Copy-Source-", s.object)
	}
	if err != nil {
		s.close(x)
		return nil, err
	}
	return s, nil
}

type copyXML struct {
	XMLName      struct{} `xml:"http://s3.amazonaws.com/doc/2006-03-01/ CopyObjectResult"`
	LastModified string
	ETag         string
	checksumXML
}

func (x *exchange) copyObject() error {
	t, err := parseKey(x.key)
	if err != nil {
		return err
	}
	if err := x.refuseHeaders(); err != nil {
		return err
	}
	replace := false
	switch d := x.r.Header.Get("X-Amz-Metadata-Directive"); d {
	case "REPLACE":
		replace = true
	case "", "COPY":
	default:
		return invalid("Unknown metadata directive.")
	}
	r, err := recordOf(x.r.Header)
	if err != nil {
		return err
	}
	s, err := x.source()
	if err != nil {
		return err
	}
	defer s.close(x)
	if !replace {
		r.Headers, r.Meta = s.record.Headers, s.record.Meta
	}
	same := s.place == x.place && s.t == t
	switch {
	case same && !replace:
		return refuse(http.StatusBadRequest, "InvalidRequest", "This copy request is illegal because it is trying to copy an object to itself without changing the object's metadata.")
	case s.t.folder != t.folder:
		return invalid("A folder cannot be copied to a file, nor a file to a folder.")
	case t.folder:
		return x.copyFolder(s, t, r)
	case same:
		return x.relabel(s, t, r)
	case s.info.Size() > maxPut:
		return invalid("The specified copy source is larger than the maximum allowable size for a copy source: 5368709120")
	}
	return x.patiently(func() (any, error) { return x.copyFile(s, t, r) })
}

func (x *exchange) copied(modified time.Time, etag string) copyXML {
	return copyXML{LastModified: stamp(modified), ETag: quote(etag)}
}

func (x *exchange) copyFolder(s *source, t target, r record) error {
	err := x.place.act(func() error { return x.place.makeFolder(t, r) })
	if err != nil {
		return err
	}
	x.answer(http.StatusOK, x.copied(s.info.ModTime(), s.etag))
	return nil
}

// relabel replaces the metadata of an object and leaves its content alone.
func (x *exchange) relabel(s *source, t target, r record) error {
	r.ETag, r.Checksum, r.Parts, r.Sums = s.etag, s.record.Checksum, s.record.Parts, s.record.Sums
	r.Size, r.Modified = s.info.Size(), s.info.ModTime().UnixNano()
	err := x.place.act(func() error {
		defer x.place.lock(t.key)()
		if err := x.place.writable(t, x.r.Header); err != nil {
			return err
		}
		return writeRecord(s.file, r)
	})
	if err != nil {
		return err
	}
	x.answer(http.StatusOK, x.copied(s.info.ModTime(), s.etag))
	return nil
}

// copyFile copies the content, inside the kernel or the storage where these can.
func (x *exchange) copyFile(s *source, t target, r record) (any, error) {
	var f *os.File
	var name string
	err := x.place.act(func() error {
		if err := x.place.writable(t, x.r.Header); err != nil {
			return err
		}
		var err error
		f, name, err = x.place.temporary(hidden, "copy-")
		return err
	})
	if err != nil {
		return nil, err
	}
	out, err := x.fillCopy(s, f, name, t, r)
	if err != nil {
		x.place.discard(f, name)
		return nil, err
	}
	return out, nil
}

func (x *exchange) fillCopy(s *source, f *os.File, name string, t target, r record) (copyXML, error) {
	// A limit keeps a source that grows from filling the volume.
	n, err := io.Copy(f, io.LimitReader(s.file, s.info.Size()))
	if err != nil {
		return copyXML{}, err
	}
	now, err := s.file.Stat()
	if err != nil {
		return copyXML{}, err
	}
	// What is known of the content holds only if it did not change under the copy.
	if n == s.info.Size() && now.Size() == n && now.ModTime().Equal(s.info.ModTime()) {
		r.ETag, r.Checksum, r.Parts, r.Sums = s.record.ETag, s.record.Checksum, s.record.Parts, s.record.Sums
	}
	if algorithm, _, err := uploadChecksum(x.r.Header); err != nil {
		return copyXML{}, err
	} else if algorithm != "" && !strings.HasPrefix(r.Checksum, algorithm+":") {
		if r.Checksum, err = sumOf(algorithm, f); err != nil {
			return copyXML{}, err
		}
		r.Sums = nil
	}
	if n > synced {
		if err := f.Sync(); err != nil {
			return copyXML{}, err
		}
	}
	var out copyXML
	err = x.place.act(func() error {
		if err := seal(f, r); err != nil {
			return err
		}
		if err := x.place.commit(name, t, x.r.Header); err != nil {
			return err
		}
		// The rename changed what an ETag without a sum is made of.
		info, err := f.Stat()
		if err != nil {
			return err
		}
		out = x.copied(info.ModTime(), describe(f, info).etag)
		out.checksumXML = inXML(r.Checksum)
		return nil
	})
	if err != nil {
		return copyXML{}, err
	}
	return out, f.Close()
}
