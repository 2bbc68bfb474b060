package s3

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// An upload is a folder in the hidden one, of the name of its id. In it are
//
//	upload                    what it is for (manifest)
//	part-NUMBER-MD5-SIZE[-SUM] the parts, with their checksum where the upload has one; of several of a number, the request
//	                          to complete says which
//	tmp-…                     parts that are being written
//	plan, whole               from the request to complete on: the parts in order, and the file that they are added to
const (
	manifestName = "upload"
	planName     = "plan"
	wholeName    = "whole"
	maxManifest  = 16 << 10
	maxPlan      = 2 << 20
	// maxUploads is how many uploads of a volume are looked at to list them.
	maxUploads = 10_000
)

var (
	uploadID = regexp.MustCompile(`^[a-z2-7]{26}$`)
	leftover = regexp.MustCompile(`^((put|copy)-)?[a-z2-7]{26}$`)
)

// manifest says what an upload is for. A tenant can write it.
type manifest struct {
	Key    string    `json:"key"`
	Record record    `json:"record"`
	At     time.Time `json:"at"`
	// Algorithm is that of the parts' checksums; empty: they have none. Kind is the type of the object's.
	Algorithm string `json:"algorithm,omitempty"`
	Kind      string `json:"kind,omitempty"`
}

type upload struct {
	id  string
	dir string
	t   target
	manifest
}

type createdXML struct {
	XMLName  struct{} `xml:"http://s3.amazonaws.com/doc/2006-03-01/ InitiateMultipartUploadResult"`
	Bucket   string
	Key      string
	UploadID string `xml:"UploadId"`
}

func (x *exchange) createUpload() error {
	t, err := parseKey(x.key)
	if err != nil {
		return err
	}
	if t.folder {
		return invalid("A key that ends with a slash is a folder and has no content.")
	}
	if err := x.refuseHeaders(); err != nil {
		return err
	}
	r, err := recordOf(x.r.Header)
	if err != nil {
		return err
	}
	algorithm, kind, err := uploadChecksum(x.r.Header)
	if err != nil {
		return err
	}
	raw, err := json.Marshal(manifest{Key: t.key, Record: r, At: time.Now().UTC(), Algorithm: algorithm, Kind: kind})
	if err != nil {
		return err
	}
	id := random()
	err = x.place.act(func() error {
		if err := x.place.makeHidden(); err != nil {
			return err
		}
		root := x.place.folder.Root
		if err := root.Mkdir(path.Join(hidden, id), 0o700); err != nil {
			return err
		}
		return x.place.writeNew(path.Join(hidden, id, manifestName), raw)
	})
	if err != nil {
		return err
	}
	x.sweep()
	if algorithm != "" {
		x.w.Header().Set(checksumPrefix+"algorithm", strings.ToUpper(algorithm))
		x.w.Header().Set(checksumPrefix+"type", kind)
	}
	x.answer(http.StatusOK, createdXML{Bucket: x.bucket, Key: x.key, UploadID: id})
	return nil
}

// writeNew writes a small file that nothing has the name of. It must be called in act.
func (p *place) writeNew(name string, raw []byte) error {
	f, err := p.folder.Root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(raw)
	return errors.Join(err, f.Close())
}

// readSmall reads a regular file of at most so many bytes. It must be called in act.
func (p *place) readSmall(name string, most int64) ([]byte, error) {
	f, err := p.folder.Root.OpenFile(name, openFile, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > most {
		return nil, errNotObject
	}
	return io.ReadAll(io.LimitReader(f, most))
}

// readUpload reads what an upload is for. It must be called in act.
func (p *place) readUpload(id string) (*upload, error) {
	if !uploadID.MatchString(id) {
		return nil, noSuchUpload()
	}
	u := &upload{id: id, dir: path.Join(hidden, id)}
	raw, err := p.readSmall(path.Join(u.dir, manifestName), maxManifest)
	if err != nil {
		if faultOf(err).code == "NoSuchKey" {
			return nil, noSuchUpload()
		}
		return nil, err
	}
	if json.Unmarshal(raw, &u.manifest) != nil {
		return nil, noSuchUpload()
	}
	if u.t, err = parseKey(u.Key); err != nil || u.t.folder {
		return nil, noSuchUpload()
	}
	if _, known := checksums[u.Algorithm]; !known && u.Algorithm != "" {
		return nil, noSuchUpload()
	}
	again, err := json.Marshal(u.Record)
	if err != nil {
		return nil, err
	}
	// A record is checked where it is read from; this one did not come from there.
	if u.Record = parseRecord(again); u.Record.Form != recordForm {
		return nil, noSuchUpload()
	}
	return u, nil
}

// upload returns the upload of the request.
func (x *exchange) upload() (*upload, error) {
	var u *upload
	err := x.place.act(func() error {
		var err error
		u, err = x.place.readUpload(x.query.Get("uploadId"))
		return err
	})
	if err == nil && u.Key != x.key {
		err = noSuchUpload()
	}
	return u, err
}

// part is a part of an upload.
type part struct {
	number int
	etag   string
	size   int64
	sum    string // hexadecimal, of the upload's algorithm; empty when it has none
}

func (p part) name() string {
	name := fmt.Sprintf("part-%05d-%s-%d", p.number, p.etag, p.size)
	if p.sum != "" {
		name += "-" + p.sum
	}
	return name
}

// inXML returns the part's checksum for a document.
func (p part) inXML(u *upload) checksumXML {
	if p.sum == "" {
		return checksumXML{}
	}
	return inXML(u.Algorithm + ":" + p.base64())
}

// base64 returns the part's checksum as S3 writes it.
func (p part) base64() string {
	raw, _ := hex.DecodeString(p.sum) // which parsePart checked
	return base64.StdEncoding.EncodeToString(raw)
}

// parsePart reads the name of a part's file.
func parsePart(name string) (part, bool) {
	fields := strings.Split(name, "-")
	if len(fields) < 4 || len(fields) > 5 || len(fields[2]) != 32 || !etagForm.MatchString(fields[2]) {
		return part{}, false
	}
	number, err := strconv.Atoi(fields[1])
	size, sizeErr := strconv.ParseInt(fields[3], 10, 64)
	p := part{number: number, etag: fields[2], size: size}
	if len(fields) == 5 {
		p.sum = fields[4]
		if raw, bad := hex.DecodeString(p.sum); bad != nil || len(raw) == 0 || len(raw) > sha256.Size {
			return part{}, false
		}
	}
	if err != nil || sizeErr != nil || number < 1 || number > maxParts || p.name() != name {
		return part{}, false
	}
	return p, true
}

func (x *exchange) partNumber() (int, error) {
	n, err := strconv.Atoi(x.query.Get("partNumber"))
	if err != nil || n < 1 || n > maxParts {
		return 0, invalid("Part number must be an integer between 1 and 10000, inclusive")
	}
	return n, nil
}

// uploadFault is the answer where a missing file means that the upload is gone.
func uploadFault(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return noSuchUpload()
	}
	return err
}

type uploadXML struct {
	Key          string
	UploadID     string `xml:"UploadId"`
	Initiator    *owner
	Owner        *owner
	StorageClass string
	Initiated    string
}

type uploadsXML struct {
	XMLName            struct{} `xml:"http://s3.amazonaws.com/doc/2006-03-01/ ListMultipartUploadsResult"`
	Bucket             string
	KeyMarker          string
	UploadIDMarker     string `xml:"UploadIdMarker"`
	NextKeyMarker      string `xml:",omitempty"`
	NextUploadIDMarker string `xml:"NextUploadIdMarker,omitempty"`
	Prefix             string
	EncodingType       string `xml:",omitempty"`
	MaxUploads         int
	IsTruncated        bool
	Uploads            []uploadXML `xml:"Upload"`
}

func (x *exchange) listUploads() error {
	most, err := x.pageSize("max-uploads")
	if err != nil {
		return err
	}
	kind, encode, err := x.encoding()
	if err != nil {
		return err
	}
	var all []*upload
	if err := x.place.act(func() error { all, err = x.place.uploads(x.query.Get("prefix")); return err }); err != nil {
		return err
	}
	marker, idMarker := x.query.Get("key-marker"), x.query.Get("upload-id-marker")
	out := uploadsXML{
		Bucket: x.bucket, KeyMarker: encode(marker), UploadIDMarker: idMarker, Prefix: encode(x.query.Get("prefix")),
		EncodingType: kind, MaxUploads: most,
	}
	for _, u := range all {
		if u.Key < marker || u.Key == marker && (idMarker == "" || u.id <= idMarker) {
			continue
		}
		if len(out.Uploads) == most {
			out.IsTruncated = most > 0
			break
		}
		out.Uploads = append(out.Uploads, uploadXML{encode(u.Key), u.id, x.owner(), x.owner(), "STANDARD", stamp(u.At)})
		out.NextKeyMarker, out.NextUploadIDMarker = encode(u.Key), u.id
	}
	if !out.IsTruncated {
		out.NextKeyMarker, out.NextUploadIDMarker = "", ""
	}
	x.answer(http.StatusOK, out)
	return nil
}

// uploads returns the uploads of a volume in order. It must be called in act.
func (p *place) uploads(prefix string) ([]*upload, error) {
	names, err := p.list(hidden, maxUploads)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var out []*upload
	for _, name := range names {
		// What a pod put there is left out.
		if u, err := p.readUpload(name); err == nil && strings.HasPrefix(u.Key, prefix) {
			u.Record = record{} // which may be large, and there may be many
			out = append(out, u)
		}
	}
	slices.SortFunc(out, func(a, b *upload) int {
		if c := strings.Compare(a.Key, b.Key); c != 0 {
			return c
		}
		return strings.Compare(a.id, b.id)
	})
	return out, err
}

// list returns the names in a folder, at most so many. It must be called in act.
func (p *place) list(name string, most int) ([]string, error) {
	f, err := p.folder.Root.OpenFile(name, openFolder, 0)
	if err != nil {
		return nil, err
	}
	names, err := f.Readdirnames(most)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return names, errors.Join(err, f.Close())
}

// sweepEvery is how often a volume that is written to is searched for leftovers.
const sweepEvery = 6 * time.Hour

// sweep removes what has been left behind in the hidden folder for long. What goes wrong is tried again the next time.
func (x *exchange) sweep() {
	now := x.h.now()
	x.h.mu.Lock()
	due := now.Sub(x.place.kept.swept) >= sweepEvery
	if due {
		x.place.kept.swept = now
	}
	x.h.mu.Unlock()
	if !due {
		return
	}
	_ = x.place.act(func() error {
		root := x.place.folder.Root
		// Where a tenant has put a link, what it leads to is not ours.
		if info, err := root.Lstat(hidden); err != nil || !info.IsDir() {
			return err
		}
		names, err := x.place.list(hidden, maxUploads)
		for _, name := range names {
			if !leftover.MatchString(name) {
				continue
			}
			info, err := root.Lstat(path.Join(hidden, name))
			if err == nil && now.Sub(info.ModTime()) > leftoverAge {
				_ = root.RemoveAll(path.Join(hidden, name))
			}
		}
		return err
	})
}
