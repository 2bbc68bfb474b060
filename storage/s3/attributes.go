package s3

import (
	"net/http"
	"strconv"
	"strings"
)

// manyParts stands in a record for sizes of parts that take too much room to be kept.
const manyParts = "many"

// packSizes writes the sizes of parts in order, as "5242880*12,1048576".
func packSizes(parts []part) string {
	var out []string
	for i := 0; i < len(parts); {
		n := 1
		for i+n < len(parts) && parts[i+n].size == parts[i].size {
			n++
		}
		text := strconv.FormatInt(parts[i].size, 10)
		if n > 1 {
			text += "*" + strconv.Itoa(n)
		}
		out = append(out, text)
		i += n
	}
	return strings.Join(out, ",")
}

// unpackSizes reads what packSizes wrote. Of manyParts and of nothing there are none.
func unpackSizes(text string) (out []int64, ok bool) {
	if text == "" || text == manyParts {
		return nil, true
	}
	for one := range strings.SplitSeq(text, ",") {
		size, times, many := strings.Cut(one, "*")
		n, err := strconv.ParseInt(size, 10, 64)
		count := 1
		if many {
			var bad error
			if count, bad = strconv.Atoi(times); bad != nil {
				return nil, false
			}
		}
		if err != nil || n < 0 || n > maxObject || count < 1 || count > maxParts-len(out) {
			return nil, false
		}
		for range count {
			out = append(out, n)
		}
	}
	return out, true
}

// objectPart is one of the parts that made an object.
type objectPart struct {
	size     int64
	checksum string // as checksum.value; empty: not kept
}

// parts returns the parts that made the object, none when it was put whole; they are not known when there were too many sizes.
func (o object) parts() (out []objectPart, known bool) {
	sizes, ok := unpackSizes(o.record.Parts)
	if !ok || o.record.Parts == manyParts {
		return nil, false
	}
	algorithm, _, _ := strings.Cut(o.record.Checksum, ":")
	for i, size := range sizes {
		p := objectPart{size: size}
		if i < len(o.record.Sums) {
			p.checksum = algorithm + ":" + o.record.Sums[i]
		}
		out = append(out, p)
	}
	return out, true
}

type attributePartXML struct {
	PartNumber int
	Size       int64
	checksumXML
}

type attributePartsXML struct {
	PartsCount           int
	PartNumberMarker     int
	NextPartNumberMarker int `xml:",omitempty"`
	MaxParts             int
	IsTruncated          bool
	Parts                []attributePartXML `xml:"Part"`
}

type attributeChecksumXML struct {
	checksumXML
	ChecksumType string
}

type attributesXML struct {
	XMLName      struct{}              `xml:"http://s3.amazonaws.com/doc/2006-03-01/ GetObjectAttributesResponse"`
	ETag         string                `xml:",omitempty"`
	Checksum     *attributeChecksumXML `xml:",omitempty"`
	ObjectParts  *attributePartsXML    `xml:",omitempty"`
	StorageClass string                `xml:",omitempty"`
	ObjectSize   *int64                `xml:",omitempty"`
}

// attributes answers GetObjectAttributes: those that the request names.
func (x *exchange) attributes() error {
	var names []string
	for _, line := range x.r.Header.Values("X-Amz-Object-Attributes") {
		for name := range strings.SplitSeq(line, ",") {
			names = append(names, strings.TrimSpace(name))
		}
	}
	if len(names) == 0 {
		return invalid("The x-amz-object-attributes header specifying the attributes to be retrieved is either missing or empty")
	}
	o, err := x.look()
	if err != nil {
		return err
	}
	if err := readable(x.r.Header, "", o); err != nil {
		return err
	}
	var out attributesXML
	for _, name := range names {
		switch name {
		case "ETag":
			out.ETag = o.etag
		case "StorageClass":
			out.StorageClass = "STANDARD"
		case "ObjectSize":
			size := o.size()
			out.ObjectSize = &size
		case "Checksum":
			if o.record.Checksum != "" {
				out.Checksum = &attributeChecksumXML{inXML(o.record.Checksum), checksumType(o.record.Checksum)}
			}
		case "ObjectParts":
			if out.ObjectParts, err = x.attributeParts(o); err != nil {
				return err
			}
		default:
			return invalid("Invalid attribute name specified.")
		}
	}
	x.w.Header().Set("Last-Modified", o.info.ModTime().UTC().Format(http.TimeFormat))
	x.answer(http.StatusOK, out)
	return nil
}

// attributeParts returns a page of an object's parts; nil for one that was put whole.
func (x *exchange) attributeParts(o object) (*attributePartsXML, error) {
	number := func(name string, most, byDefault int) (int, error) {
		text := x.r.Header.Get(name)
		if text == "" {
			return byDefault, nil
		}
		n, err := strconv.ParseUint(text, 10, 31)
		if err != nil {
			return 0, invalid("Provided " + strings.ToLower(name) + " not an integer or within integer range")
		}
		return int(min(n, uint64(most))), nil //nolint:gosec // small
	}
	most, err := number("X-Amz-Max-Parts", maxPage, maxPage)
	if err != nil {
		return nil, err
	}
	marker, err := number("X-Amz-Part-Number-Marker", maxParts, 0)
	if err != nil {
		return nil, err
	}
	parts, known := o.parts()
	if !known {
		return nil, notImplemented("Listing the parts of an object of so many different parts")
	}
	if len(parts) == 0 {
		return nil, nil //nolint:nilnil // the element is left out
	}
	out := &attributePartsXML{PartsCount: len(parts), PartNumberMarker: marker, MaxParts: most}
	for i := marker; i < len(parts) && len(out.Parts) < most; i++ {
		out.Parts = append(out.Parts, attributePartXML{i + 1, parts[i].size, inXML(parts[i].checksum)})
	}
	if last := marker + len(out.Parts); last < len(parts) {
		out.IsTruncated, out.NextPartNumberMarker = true, last
	}
	return out, nil
}
