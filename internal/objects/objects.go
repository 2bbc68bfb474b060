// Package objects is a client of one bucket of S3: it puts, reads and deletes objects, with requests signed by AWS Signature Version 4
// and path-style addresses, as our own gantry-s3 and most other servers take them. It lists nothing and stores nothing.
package objects

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"gantry/fleet"
)

// Bucket says where objects are. Names of objects have small letters, digits, '-', '.' and '/' only.
type Bucket struct {
	Endpoint  string // http or https URL without a path
	Region    string
	Name      string
	Prefix    string // of all names
	AccessKey string
	Secret    fleet.Secret
}

var plainName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// Check refuses what no request can be made of, with the field and the rule. Errors: invalid.
func (b *Bucket) Check() error {
	to, err := url.Parse(b.Endpoint)
	if err != nil || (to.Scheme != "http" && to.Scheme != "https") || to.Host == "" || strings.Trim(to.Path, "/") != "" || to.User != nil || to.RawQuery != "" || to.Fragment != "" {
		return fleet.Invalid("$.endpoint", "must be an http or https URL of a host, without a path")
	}
	for _, text := range []struct{ path, value string }{{"$.region", b.Region}, {"$.bucket", b.Name}, {"$.accessKey", b.AccessKey}} {
		if !plainName.MatchString(text.value) {
			return fleet.Invalid(text.path, "must have letters, digits, '.', '_' and '-' only")
		}
	}
	for part := range strings.SplitSeq(strings.TrimSuffix(b.Prefix, "/"), "/") {
		if b.Prefix != "" && !plainName.MatchString(part) {
			return fleet.Invalid("$.prefix", "must have words of letters, digits, '.', '_' and '-', with '/' between them")
		}
	}
	return nil
}

const maxAnswer = 64 << 10 // bytes of an answer that says what is wrong

// Client makes requests. It is safe for concurrent use.
type Client struct {
	HTTP *http.Client
	Now  func() time.Time
}

// Put writes an object. Errors: unavailable.
func (c *Client) Put(ctx context.Context, b *Bucket, name, kind string, body []byte) error {
	return c.done(ctx, b, http.MethodPut, name, kind, body)
}

// Delete deletes an object; one that is not there is deleted. Errors: unavailable.
func (c *Client) Delete(ctx context.Context, b *Bucket, name string) error {
	return c.done(ctx, b, http.MethodDelete, name, "", nil)
}

// done makes a request whose answer says nothing but that it was done.
func (c *Client) done(ctx context.Context, b *Bucket, method, name, kind string, body []byte) error {
	res, err := c.do(ctx, b, method, name, http.Header{"Content-Type": {kind}}, body)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	_, _ = io.CopyN(io.Discard, res.Body, maxAnswer) // so that the connection can be used again
	if res.StatusCode/100 != 2 && (method != http.MethodDelete || res.StatusCode != http.StatusNotFound) {
		return fleet.Unavailable("the object storage does not take requests", fmt.Errorf("%s: status %d", method, res.StatusCode))
	}
	return nil
}

// Open reads an object, or its head, with the given headers of the request (Range and its like). The caller closes the answer, whose
// status is for it to look at. Errors: unavailable.
func (c *Client) Open(ctx context.Context, b *Bucket, method, name string, header http.Header) (*http.Response, error) {
	return c.do(ctx, b, method, name, header, nil)
}

func (c *Client) do(ctx context.Context, b *Bucket, method, name string, header http.Header, body []byte) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(b.Endpoint, "/")+"/"+b.Name+"/"+b.Prefix+name, bytes.NewReader(body))
	if err != nil {
		return nil, errors.New("make a request of the object storage") // the cause quotes the address
	}
	for name, values := range header {
		if len(values) == 1 && values[0] != "" {
			r.Header[name] = slices.Clone(values)
		}
	}
	c.sign(r, b, body)
	res, err := c.HTTP.Do(r)
	if err != nil {
		var why *url.Error
		if errors.As(err, &why) {
			err = why.Err
		}
		return nil, fleet.Unavailable("the object storage does not answer", err)
	}
	return res, nil
}

// sign adds the headers of a signature over the method, the path, the host, the time and the body.
func (c *Client) sign(r *http.Request, b *Bucket, body []byte) {
	const signed = "host;x-amz-content-sha256;x-amz-date"
	now := c.Now().UTC()
	stamp, day, sum := now.Format("20060102T150405Z"), now.Format("20060102"), sha256.Sum256(body)
	hash := hex.EncodeToString(sum[:])
	r.Header.Set("X-Amz-Date", stamp)
	r.Header.Set("X-Amz-Content-Sha256", hash)
	canonical := strings.Join([]string{
		r.Method, r.URL.EscapedPath(), "", "host:" + r.URL.Host, "x-amz-content-sha256:" + hash, "x-amz-date:" + stamp, "", signed, hash,
	}, "\n")
	scope := day + "/" + b.Region + "/s3/aws4_request"
	digest := sha256.Sum256([]byte(canonical))
	signature := b.signature(day, algorithm+"\n"+stamp+"\n"+scope+"\n"+hex.EncodeToString(digest[:]))
	r.Header.Set("Authorization", algorithm+" Credential="+b.AccessKey+"/"+scope+", SignedHeaders="+signed+", Signature="+signature)
}

const algorithm = "AWS4-HMAC-SHA256"

// signature signs a text with the secret's key of a day.
func (b *Bucket) signature(day, text string) string {
	key := []byte("AWS4" + b.Secret.Reveal())
	for _, part := range []string{day, b.Region, "s3", "aws4_request", text} {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(part)) // a hash never fails
		key = mac.Sum(nil)
	}
	return hex.EncodeToString(key)
}
