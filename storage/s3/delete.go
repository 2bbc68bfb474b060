package s3

import (
	"encoding/xml"
	"errors"
	"net/http"
)

func (x *exchange) deleteObject() error {
	t, err := parseKey(x.key)
	if err != nil {
		return err
	}
	err = x.place.act(func() error {
		defer x.place.lock(t.key)()
		header := x.r.Header
		if err := x.place.deletable(t, condition{
			header.Get("If-Match"), header.Get("X-Amz-If-Match-Last-Modified-Time"), header.Get("X-Amz-If-Match-Size"),
		}); err != nil {
			return err
		}
		return errors.Join(x.place.remove(t), x.place.syncFolders(t.parent()))
	})
	if err != nil {
		return err
	}
	return x.empty(http.StatusNoContent)
}

type deleteKey struct {
	Key              string
	VersionID        string `xml:"VersionId"`
	ETag             string
	LastModifiedTime string
	Size             string
}

// deleteKeys stops at the limit while it reads.
type deleteKeys []deleteKey

// UnmarshalXML adds one element.
func (d *deleteKeys) UnmarshalXML(decoder *xml.Decoder, start xml.StartElement) error {
	if len(*d) == maxDeletes {
		return malformedXML()
	}
	var one deleteKey
	if err := decoder.DecodeElement(&one, &start); err != nil {
		return err
	}
	*d = append(*d, one)
	return nil
}

type deleteRequest struct {
	XMLName xml.Name   `xml:"Delete"`
	Quiet   bool       `xml:"Quiet"`
	Objects deleteKeys `xml:"Object"`
}

type deletedXML struct{ Key string }

type deleteErrorXML struct{ Key, Code, Message string }

type deleteResult struct {
	XMLName struct{} `xml:"http://s3.amazonaws.com/doc/2006-03-01/ DeleteResult"`
	Deleted []deletedXML
	Errors  []deleteErrorXML `xml:"Error"`
}

func (x *exchange) deleteObjects() error {
	var in deleteRequest
	if err := x.xmlBody(&in); err != nil {
		return err
	}
	if len(in.Objects) == 0 {
		return malformedXML()
	}
	errs := make([]error, len(in.Objects))
	err := x.place.act(func() error {
		folders := map[string]bool{}
		for i, o := range in.Objects {
			var t target
			if t, errs[i] = x.deleteOne(o); errs[i] == nil {
				folders[t.parent()] = true
			}
		}
		var err error
		for name := range folders {
			err = errors.Join(err, x.place.syncFolders(name))
		}
		return err
	})
	if err != nil {
		return err
	}
	var out deleteResult
	for i, o := range in.Objects {
		switch {
		case errs[i] != nil:
			f := faultOf(errs[i])
			out.Errors = append(out.Errors, deleteErrorXML{Key: o.Key, Code: f.code, Message: f.message})
		case !in.Quiet:
			out.Deleted = append(out.Deleted, deletedXML{o.Key})
		}
	}
	x.answer(http.StatusOK, out)
	return nil
}

func (x *exchange) deleteOne(o deleteKey) (target, error) {
	if o.VersionID != "" && o.VersionID != "null" {
		return target{}, refuse(http.StatusNotFound, "NoSuchVersion", "Network volumes keep no versions.")
	}
	t, err := parseKey(o.Key)
	if err != nil {
		return target{}, err
	}
	defer x.place.lock(t.key)()
	if err := x.place.deletable(t, condition{o.ETag, o.LastModifiedTime, o.Size}); err != nil {
		return target{}, err
	}
	return t, x.place.remove(t)
}
