package s3

import (
	"encoding/base64"
	"net/http"
	"strconv"
)

type contentXML struct {
	Key          string
	LastModified string
	ETag         string
	Size         int64
	Owner        *owner `xml:"Owner,omitempty"`
	StorageClass string
}

type prefixXML struct{ Prefix string }

// listXML is the answer of both versions of the call; what the one does not have is a nil pointer.
type listXML struct {
	XMLName               struct{} `xml:"http://s3.amazonaws.com/doc/2006-03-01/ ListBucketResult"`
	Name                  string
	Prefix                string
	Marker                *string
	NextMarker            *string
	StartAfter            *string
	ContinuationToken     *string
	NextContinuationToken *string
	KeyCount              *int
	MaxKeys               int
	Delimiter             string `xml:",omitempty"`
	EncodingType          string `xml:",omitempty"`
	IsTruncated           bool
	Contents              []contentXML
	CommonPrefixes        []prefixXML
}

// pageSize reads a parameter of a list call that bounds the page.
func (x *exchange) pageSize(name string) (int, error) {
	raw := x.query.Get(name)
	if raw == "" {
		return maxPage, nil
	}
	n, err := strconv.ParseUint(raw, 10, 31)
	if err != nil {
		return 0, invalid("Provided " + name + " not an integer or within integer range")
	}
	return int(min(n, maxPage)), nil //nolint:gosec // small
}

// encoding returns how names are written in a list.
func (x *exchange) encoding() (kind string, encode func(string) string, err error) {
	switch kind = x.query.Get("encoding-type"); kind {
	case "":
		return "", func(s string) string { return s }, nil
	case "url":
		return kind, func(s string) string { return escape(s, true) }, nil
	}
	return "", nil, invalid("Invalid Encoding Method specified in Request")
}

func (x *exchange) listObjects() error {
	q := x.query
	most, err := x.pageSize("max-keys")
	if err != nil {
		return err
	}
	kind, encode, err := x.encoding()
	if err != nil {
		return err
	}
	v2 := q.Get("list-type") == "2"
	l := &lister{
		p: x.place, cache: x.h.names, mostEntries: x.h.limits.FolderEntries,
		prefix: q.Get("prefix"), delimiter: q.Get("delimiter"), after: q.Get("marker"), most: most,
	}
	if v2 {
		if l.after, err = x.resume(); err != nil {
			return err
		}
	}
	if len(l.prefix) > maxKey || len(l.delimiter) > maxKey || len(l.after) > maxKey+maxName {
		return refuse(http.StatusBadRequest, "KeyTooLongError", "Your key is too long")
	}
	if err := x.place.act(l.page); err != nil {
		return err
	}
	out := &listXML{
		Name: x.bucket, Prefix: encode(l.prefix), Delimiter: encode(l.delimiter), EncodingType: kind,
		MaxKeys: most, IsTruncated: l.truncated,
	}
	x.contents(out, l, encode, !v2 || q.Get("fetch-owner") == "true")
	if v2 {
		x.finishV2(out, l, encode)
	} else {
		marker, next := encode(q.Get("marker")), encode(l.last)
		out.Marker = &marker
		if l.truncated {
			out.NextMarker = &next
		}
	}
	x.answer(http.StatusOK, out)
	return nil
}

func (x *exchange) contents(out *listXML, l *lister, encode func(string) string, withOwner bool) {
	for _, it := range l.out {
		if it.prefix {
			out.CommonPrefixes = append(out.CommonPrefixes, prefixXML{encode(it.key)})
			continue
		}
		c := contentXML{Key: encode(it.key), LastModified: stamp(it.modified), ETag: quote(it.etag), Size: it.size, StorageClass: "STANDARD"}
		if withOwner {
			c.Owner = x.owner()
		}
		out.Contents = append(out.Contents, c)
	}
}

func (x *exchange) finishV2(out *listXML, l *lister, encode func(string) string) {
	count := len(l.out)
	out.KeyCount = &count
	if x.query.Has("start-after") {
		after := encode(x.query.Get("start-after"))
		out.StartAfter = &after
	}
	if x.query.Has("continuation-token") {
		token := x.query.Get("continuation-token")
		out.ContinuationToken = &token
	}
	if l.truncated {
		next := base64.RawURLEncoding.EncodeToString([]byte("1" + l.last))
		out.NextContinuationToken = &next
	}
}

// resume returns the key after which a page of the second version begins. A token holds it, so any process can go on.
func (x *exchange) resume() (string, error) {
	token := x.query.Get("continuation-token")
	if token == "" {
		return x.query.Get("start-after"), nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || len(raw) == 0 || raw[0] != '1' {
		return "", invalid("The continuation token provided is incorrect")
	}
	return string(raw[1:]), nil
}
