package s3

import (
	"encoding/base64"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// operation is what a request asks for.
type operation struct {
	needs need
	do    func(*exchange) error
}

// operation finds out what a request asks for.
func (x *exchange) operation() (operation, error) {
	if id := x.query.Get("versionId"); id != "" && id != "null" {
		return operation{}, refuse(http.StatusNotFound, "NoSuchVersion", "Network volumes keep no versions.")
	}
	switch {
	case x.bucket == "":
		if x.r.Method == http.MethodGet {
			return operation{reads, (*exchange).listBuckets}, nil
		}
		return operation{}, refuse(http.StatusMethodNotAllowed, "MethodNotAllowed", "The specified method is not allowed against this resource.")
	case x.key == "":
		return x.bucketOperation()
	}
	return x.objectOperation()
}

// subresources are the parts of S3 that volumes do not have, with the answer to a GET of it: nil is 501.
var subresources = map[string]*fault{
	"accelerate": nil, "analytics": nil, "intelligent-tiering": nil, "inventory": nil, "legal-hold": nil,
	"logging": nil, "metrics": nil, "notification": nil, "requestPayment": nil, "restore": nil, "retention": nil, "select": nil, "session": nil,
	"torrent": nil, "versions": nil, "append": nil, "renameObject": nil,
	"cors":              refuse(http.StatusNotFound, "NoSuchCORSConfiguration", "The CORS configuration does not exist."),
	"encryption":        refuse(http.StatusNotFound, "ServerSideEncryptionConfigurationNotFoundError", "The server side encryption configuration was not found."),
	"lifecycle":         refuse(http.StatusNotFound, "NoSuchLifecycleConfiguration", "The lifecycle configuration does not exist."),
	"object-lock":       refuse(http.StatusNotFound, "ObjectLockConfigurationNotFoundError", "Object Lock configuration does not exist for this bucket."),
	"ownershipControls": refuse(http.StatusNotFound, "OwnershipControlsNotFoundError", "The bucket ownership controls were not found."),
	"policy":            refuse(http.StatusNotFound, "NoSuchBucketPolicy", "The bucket policy does not exist."),
	"policyStatus":      refuse(http.StatusNotFound, "NoSuchBucketPolicy", "The bucket policy does not exist."),
	"publicAccessBlock": refuse(http.StatusNotFound, "NoSuchPublicAccessBlockConfiguration", "The public access block configuration was not found."),
	"replication":       refuse(http.StatusNotFound, "ReplicationConfigurationNotFoundError", "The replication configuration was not found."),
	"tagging":           refuse(http.StatusNotFound, "NoSuchTagSet", "The TagSet does not exist."),
	"website":           refuse(http.StatusNotFound, "NoSuchWebsiteConfiguration", "The specified bucket does not have a website configuration."),
	"acl":               nil, "location": nil, "versioning": nil,
}

// subresource refuses what volumes do not have. Parts of an upload have their number in the query, so that is asked before.
func (x *exchange) subresource() error {
	for name := range x.query {
		answer, known := subresources[name]
		if !known {
			continue
		}
		if answer != nil && x.r.Method == http.MethodGet {
			return answer
		}
		return notImplemented("The subresource " + name)
	}
	return nil
}

func (x *exchange) bucketOperation() (operation, error) {
	q := x.query
	switch method := x.r.Method; {
	case method == http.MethodGet && q.Has("location"):
		return operation{reads, (*exchange).location}, nil
	case method == http.MethodGet && q.Has("versioning"):
		return operation{reads, (*exchange).versioning}, nil
	case method == http.MethodGet && q.Has("acl"):
		return operation{reads, (*exchange).acl}, nil
	case method == http.MethodGet && q.Has("uploads"):
		return operation{reads, (*exchange).listUploads}, nil
	case method == http.MethodPost && q.Has("delete"):
		return operation{deletes, (*exchange).deleteObjects}, nil
	}
	if err := x.subresource(); err != nil {
		return operation{}, err
	}
	switch x.r.Method {
	case http.MethodGet:
		return operation{reads, (*exchange).listObjects}, nil
	case http.MethodHead:
		return operation{reads, (*exchange).headBucket}, nil
	case http.MethodPut:
		if x.owns(x.bucket) {
			return operation{}, refuse(http.StatusConflict, "BucketAlreadyOwnedByYou", "Your previous request to create the named bucket succeeded and you already own it.")
		}
		return operation{}, notImplemented("Making a bucket over S3 (make a network volume instead)")
	case http.MethodDelete:
		return operation{}, notImplemented("Deleting a bucket over S3 (delete the network volume instead)")
	case http.MethodPost:
		return operation{}, notImplemented("Uploading with a form")
	}
	return operation{}, refuse(http.StatusMethodNotAllowed, "MethodNotAllowed", "The specified method is not allowed against this resource.")
}

func (x *exchange) objectOperation() (operation, error) {
	q := x.query
	copies := x.r.Header.Get("X-Amz-Copy-Source") != ""
	switch method := x.r.Method; {
	case q.Has("uploadId") && method == http.MethodPut && copies:
		return operation{writes, (*exchange).copyPart}, nil
	case q.Has("uploadId") && method == http.MethodPut:
		return operation{writes, (*exchange).putPart}, nil
	case q.Has("uploadId") && method == http.MethodGet:
		return operation{reads, (*exchange).listParts}, nil
	case q.Has("uploadId") && method == http.MethodPost:
		return operation{writes, (*exchange).completeUpload}, nil
	case q.Has("uploadId") && method == http.MethodDelete:
		return operation{deletes, (*exchange).abortUpload}, nil
	case q.Has("uploads") && method == http.MethodPost:
		return operation{writes, (*exchange).createUpload}, nil
	case q.Has("acl") && method == http.MethodGet:
		return operation{reads, (*exchange).acl}, nil
	case q.Has("tagging") && method == http.MethodGet:
		return operation{reads, (*exchange).noTags}, nil
	case q.Has("attributes") && method == http.MethodGet:
		return operation{reads, (*exchange).attributes}, nil
	}
	if err := x.subresource(); err != nil {
		return operation{}, err
	}
	switch {
	case x.r.Method == http.MethodGet, x.r.Method == http.MethodHead:
		return operation{reads, (*exchange).getObject}, nil
	case x.r.Method == http.MethodPut && copies:
		return operation{writes, (*exchange).copyObject}, nil
	case x.r.Method == http.MethodPut:
		return operation{writes, (*exchange).putObject}, nil
	case x.r.Method == http.MethodDelete:
		return operation{deletes, (*exchange).deleteObject}, nil
	}
	return operation{}, refuse(http.StatusMethodNotAllowed, "MethodNotAllowed", "The specified method is not allowed against this resource.")
}

func (x *exchange) owns(bucket string) bool {
	for _, v := range x.access.Volumes {
		if v.ID == bucket {
			return true
		}
	}
	return false
}

// owner is the account in documents of S3.
type owner struct {
	ID          string `xml:"ID"`
	DisplayName string `xml:"DisplayName"`
}

func (x *exchange) owner() *owner { return &owner{ID: x.access.Account, DisplayName: x.access.Account} }

const timeFormat = "2006-01-02T15:04:05.000Z"

func stamp(t time.Time) string { return t.UTC().Format(timeFormat) }

type bucketXML struct {
	Name         string
	CreationDate string
	BucketRegion string
}

type bucketsXML struct {
	XMLName struct{}    `xml:"http://s3.amazonaws.com/doc/2006-03-01/ ListAllMyBucketsResult"`
	Owner   *owner      `xml:"Owner"`
	Buckets []bucketXML `xml:"Buckets>Bucket"`

	ContinuationToken string `xml:",omitempty"`
	Prefix            string `xml:",omitempty"`
}

// maxBuckets is how many buckets a page has that names no number.
const maxBuckets = 10_000

func (x *exchange) listBuckets() error {
	most := maxBuckets
	if text := x.query.Get("max-buckets"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > maxBuckets {
			return invalid("Argument max-buckets must be an integer between 1 and 10000.")
		}
		most = n
	}
	after, err := base64.RawURLEncoding.DecodeString(x.query.Get("continuation-token"))
	if err != nil {
		return invalid("The continuation token provided is incorrect")
	}
	volumes := slices.SortedFunc(slices.Values(x.access.Volumes), func(a, b Volume) int { return strings.Compare(a.ID, b.ID) })
	out := bucketsXML{Owner: x.owner(), Prefix: x.query.Get("prefix")}
	region := x.query.Get("bucket-region")
	for _, v := range volumes {
		if v.ID <= string(after) || !strings.HasPrefix(v.ID, out.Prefix) || region != "" && region != x.h.region {
			continue
		}
		if len(out.Buckets) == most {
			out.ContinuationToken = base64.RawURLEncoding.EncodeToString([]byte(out.Buckets[most-1].Name))
			break
		}
		out.Buckets = append(out.Buckets, bucketXML{Name: v.ID, CreationDate: stamp(v.CreatedAt), BucketRegion: x.h.region})
	}
	x.answer(http.StatusOK, out)
	return nil
}

func (x *exchange) headBucket() error {
	x.w.Header().Set("X-Amz-Bucket-Region", x.h.region)
	return x.empty(http.StatusOK)
}

func (x *exchange) location() error {
	x.answer(http.StatusOK, struct {
		XMLName struct{} `xml:"http://s3.amazonaws.com/doc/2006-03-01/ LocationConstraint"`
		Region  string   `xml:",chardata"`
	}{Region: x.h.region})
	return nil
}

func (x *exchange) versioning() error {
	x.answer(http.StatusOK, struct {
		XMLName struct{} `xml:"http://s3.amazonaws.com/doc/2006-03-01/ VersioningConfiguration"`
	}{})
	return nil
}

func (x *exchange) noTags() error {
	if _, err := x.look(); err != nil {
		return err
	}
	x.answer(http.StatusOK, struct {
		XMLName struct{} `xml:"http://s3.amazonaws.com/doc/2006-03-01/ Tagging"`
		TagSet  string
	}{})
	return nil
}

type granteeXML struct {
	Schema string `xml:"xmlns:xsi,attr"`
	Type   string `xml:"xsi:type,attr"`
	owner
}

type grantXML struct {
	Grantee    granteeXML
	Permission string
}

type aclXML struct {
	XMLName struct{}   `xml:"http://s3.amazonaws.com/doc/2006-03-01/ AccessControlPolicy"`
	Owner   *owner     `xml:"Owner"`
	Grants  []grantXML `xml:"AccessControlList>Grant"`
}

// acl says that everything belongs to the account: clients ask for it before they show or copy an object.
func (x *exchange) acl() error {
	if x.key != "" {
		if _, err := x.look(); err != nil {
			return err
		}
	}
	grantee := granteeXML{Schema: "http://www.w3.org/2001/XMLSchema-instance", Type: "CanonicalUser", owner: *x.owner()}
	x.answer(http.StatusOK, aclXML{Owner: x.owner(), Grants: []grantXML{{Grantee: grantee, Permission: "FULL_CONTROL"}}})
	return nil
}
