package objects

import (
	"crypto/sha256"
	"encoding/hex"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Link returns an address that makes one request of the bucket, for whoever has it, from a moment on and for whole seconds. The name is
// any key of S3, below the bucket's prefix; an empty one is the bucket itself. The query must hold nothing of the signature.
func (b *Bucket) Link(method, name string, query url.Values, at time.Time, life time.Duration) string {
	stamp, day := at.UTC().Format("20060102T150405Z"), at.UTC().Format("20060102")
	scope := day + "/" + b.Region + "/s3/aws4_request"
	all := url.Values{
		"X-Amz-Algorithm": {algorithm}, "X-Amz-Credential": {b.AccessKey + "/" + scope}, "X-Amz-Date": {stamp},
		"X-Amz-Expires": {strconv.FormatInt(int64(life/time.Second), 10)}, "X-Amz-SignedHeaders": {"host"},
	}
	for name, values := range query {
		all[name] = values
	}
	endpoint := strings.TrimSuffix(b.Endpoint, "/")
	_, host, _ := strings.Cut(endpoint, "://")
	path, words := "/"+escape(b.Name)+"/"+escape(b.Prefix+name), strings.ReplaceAll(all.Encode(), "+", "%20") // sorted by name, as it is signed
	canonical := strings.Join([]string{method, path, words, "host:" + host, "", "host", "UNSIGNED-PAYLOAD"}, "\n")
	digest := sha256.Sum256([]byte(canonical))
	return endpoint + path + "?" + words + "&X-Amz-Signature=" + b.signature(day, strings.Join([]string{algorithm, stamp, scope, hex.EncodeToString(digest[:])}, "\n"))
}

// escape encodes the path of an object as it is signed: all but unreserved characters and slashes.
func escape(path string) string {
	return strings.ReplaceAll(strings.ReplaceAll(url.QueryEscape(path), "+", "%20"), "%2F", "/")
}
