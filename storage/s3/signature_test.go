package s3

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"
)

const (
	goodStamp      = "20260102T030405Z"
	goodCredential = "AK/20260102/EU-RO-1/s3/aws4_request"
	goodLine       = "AWS4-HMAC-SHA256 Credential=" + goodCredential + ", SignedHeaders=host;x-amz-date, Signature=" + emptySHA256
)

// signedBy replaces the credential, and the headers, of a line that is in order.
func signedBy(key, headers string) string {
	return strings.NewReplacer("AK/", key+"/", "host;x-amz-date", headers).Replace(goodLine)
}

// manyNames is a sorted list of signed headers that holds host.
func manyNames(n int) string {
	names := []string{"host"}
	for i := range n - 1 {
		names = append(names, "x-"+strconv.Itoa(1000+i))
	}
	return strings.Join(names, ";")
}

// refusedFor fails unless an error has a code and a message that holds a text; none is wanted where the code is "".
func refusedFor(t *testing.T, name string, err error, code, text string) {
	t.Helper()
	switch {
	case code == "" && err != nil:
		t.Errorf("%s: %v", name, err)
	case code == "" || err == nil && code == "":
	case err == nil:
		t.Errorf("%s: no error, want %s", name, code)
	case faultOf(err).code != code || !strings.Contains(faultOf(err).message, text):
		t.Errorf("%s: %s: %s, want %s: %s", name, faultOf(err).code, faultOf(err).message, code, text)
	}
}

func TestSignaturesInAHeader(t *testing.T) {
	const malformed = "AuthorizationHeaderMalformed"
	set := func(name, value string) func(http.Header) { return func(h http.Header) { h.Set(name, value) } }
	for _, tt := range []struct {
		name, line string
		change     func(http.Header)
		code, text string
	}{
		{"in order", goodLine, nil, "", ""},
		{"no space", strings.Replace(goodLine, "256 ", "256", 1), nil, malformed, "followed by a space"},
		{"a field twice", goodLine + ", Signature=" + emptySHA256, nil, malformed, "once each"},
		{"a field without a value", goodLine + ", x", nil, malformed, "once each"},
		{"a field too many", goodLine + ", x=y", nil, malformed, "once each"},
		{"of the longest", signedBy("AK", "host;x"+strings.Repeat("y", 4096-len(goodLine)+len("x-amz-date")-1)), nil, "", ""},
		{"too long", signedBy("AK", "host;x"+strings.Repeat("y", 4097-len(goodLine)+len("x-amz-date")-1)), nil, malformed, "too long"},
		{"no key", signedBy("", "host"), nil, malformed, "ACCESS-KEY"},
		{"the longest key", signedBy(strings.Repeat("k", 128), "host"), nil, "", ""},
		{"a key too long", signedBy(strings.Repeat("k", 129), "host"), nil, malformed, "ACCESS-KEY"},
		{"a key with a space", signedBy("a b", "host"), nil, malformed, "printable"},
		{"a key with a DEL", signedBy("a\x7f", "host"), nil, malformed, "printable"},
		{"a scope too short", strings.Replace(goodLine, "/s3/", "/", 1), nil, malformed, "ACCESS-KEY"},
		{"another service", strings.Replace(goodLine, "/s3/", "/ec2/", 1), nil, malformed, "ACCESS-KEY"},
		{"another end", strings.Replace(goodLine, "aws4_request", "aws4", 1), nil, malformed, "ACCESS-KEY"},
		{"a date too short", strings.Replace(goodLine, "20260102", "2026010", 1), nil, malformed, "ACCESS-KEY"},
		{"another date", strings.Replace(goodLine, "20260102", "20260103", 1), nil, malformed, "date of the credential"},
		{"no host", signedBy("AK", "x-amz-date"), nil, malformed, "sorted and hold host"},
		{"not sorted", signedBy("AK", "x-a;host"), nil, malformed, "sorted and hold host"},
		{"64 headers", signedBy("AK", manyNames(64)), nil, "", ""},
		{"65 headers", signedBy("AK", manyNames(65)), nil, malformed, "sorted and hold host"},
		{"a header twice", signedBy("AK", "host;host"), nil, malformed, "once each"},
		{"a header in capitals", signedBy("AK", "Range;host"), nil, malformed, "lower case"},
		{"no digits", strings.Replace(goodLine, emptySHA256, strings.Repeat("x", 64), 1), nil, malformed, "64 hexadecimal"},
		{"too few digits", strings.Replace(goodLine, emptySHA256, emptySHA256[2:], 1), nil, malformed, "64 hexadecimal"},
		{"no hash of the body", goodLine, set("X-Amz-Content-Sha256", ""), "InvalidRequest", "Missing required header"},
		{"a hash that is none", goodLine, set("X-Amz-Content-Sha256", "STREAMING-X"), "InvalidArgument", "valid sha256"},
		{"a hash too short", goodLine, set("X-Amz-Content-Sha256", emptySHA256[2:]), "InvalidArgument", "valid sha256"},
		{"no hash needed", goodLine, set("X-Amz-Content-Sha256", unsignedPayload), "", ""},
		{"a date that is none", goodLine, set("X-Amz-Date", "20260102"), "AccessDenied", "valid Date"},
		{"no date", goodLine, func(h http.Header) { h.Del("X-Amz-Date") }, "AccessDenied", "valid Date"},
		{"the date of HTTP", goodLine, func(h http.Header) { h.Del("X-Amz-Date"); h.Set("Date", "Fri, 02 Jan 2026 03:04:05 GMT") }, "", ""},
		{"twice", goodLine, func(h http.Header) { h.Add("Authorization", goodLine) }, "InvalidArgument", "Only one"},
		{"of version 2", "AWS AK:x", nil, "InvalidRequest", "not supported"},
		{"none", "", func(h http.Header) { h.Del("Authorization") }, "AccessDenied", "not signed"},
	} {
		r := httptest.NewRequest(http.MethodGet, "/vol1/a", nil)
		r.Header.Set("Authorization", tt.line)
		r.Header.Set("X-Amz-Date", goodStamp)
		r.Header.Set("X-Amz-Content-Sha256", emptySHA256)
		if tt.change != nil {
			tt.change(r.Header)
		}
		s, err := parseSignature(r, url.Values{})
		refusedFor(t, tt.name, err, tt.code, tt.text)
		if err == nil && (s.stamp != goodStamp || s.date != "20260102" || s.region != "EU-RO-1" || s.at.Format(stampFormat) != goodStamp || s.query) {
			t.Errorf("%s: %+v", tt.name, s)
		}
	}
}

func TestSignaturesInAQuery(t *testing.T) {
	const malformed = "AuthorizationQueryParametersError"
	set := func(name string, values ...string) func(*http.Request, url.Values) {
		return func(_ *http.Request, q url.Values) { q[name] = values }
	}
	for _, tt := range []struct {
		name       string
		change     func(*http.Request, url.Values)
		code, text string
		payload    string
	}{
		{"in order", nil, "", "", unsignedPayload},
		{"no date", set("X-Amz-Date"), malformed, "needs X-Amz-Date once", ""},
		{"an empty date", set("X-Amz-Date", ""), malformed, "needs X-Amz-Date once", ""},
		{"the key twice", set("X-Amz-Credential", goodCredential, goodCredential), malformed, "needs X-Amz-Credential once", ""},
		{"no algorithm", set("X-Amz-Algorithm"), malformed, "needs X-Amz-Algorithm once", ""},
		{"no signature", set("X-Amz-Signature"), malformed, "needs X-Amz-Signature once", ""},
		{"another algorithm", set("X-Amz-Algorithm", "AWS4-ECDSA-P256-SHA256"), malformed, "only supports", ""},
		{"a bad credential", set("X-Amz-Credential", "AK/20260102"), malformed, "Error parsing", ""},
		{"a second", set("X-Amz-Expires", "1"), "", "", unsignedPayload},
		{"no time at all", set("X-Amz-Expires", "0"), malformed, "from 1 second", ""},
		{"a week", set("X-Amz-Expires", "604800"), "", "", unsignedPayload},
		{"more than a week", set("X-Amz-Expires", "604801"), malformed, "from 1 second", ""},
		{"a time that is none", set("X-Amz-Expires", "1s"), malformed, "from 1 second", ""},
		{"a date that is none", set("X-Amz-Date", "20260102"), malformed, "ISO8601", ""},
		{"another date", set("X-Amz-Date", "20260103T030405Z"), malformed, "credential's date", ""},
		{"a hash in the query", set("X-Amz-Content-Sha256", emptySHA256), "", "", emptySHA256},
		{"a hash in the header", func(r *http.Request, _ url.Values) { r.Header.Set("X-Amz-Content-Sha256", emptySHA256) }, "", "", emptySHA256},
		{"a hash that is none", set("X-Amz-Content-Sha256", "x"), "InvalidArgument", "valid sha256", ""},
		{"also in the header", func(r *http.Request, _ url.Values) { r.Header.Set("Authorization", goodLine) }, "InvalidArgument", "Only one", ""},
		{"of version 2", func(_ *http.Request, q url.Values) { clear(q); q.Set("AWSAccessKeyId", "AK") }, "InvalidRequest", "not supported", ""},
		{"half of version 2", func(_ *http.Request, q url.Values) { clear(q); q.Set("Signature", "x") }, "InvalidRequest", "not supported", ""},
	} {
		r := httptest.NewRequest(http.MethodGet, "/vol1/a", nil)
		q := url.Values{
			"X-Amz-Algorithm": {algorithm}, "X-Amz-Credential": {goodCredential}, "X-Amz-Date": {goodStamp}, "X-Amz-Expires": {"60"},
			"X-Amz-SignedHeaders": {"host"}, "X-Amz-Signature": {emptySHA256},
		}
		if tt.change != nil {
			tt.change(r, q)
		}
		s, err := parseSignature(r, q)
		refusedFor(t, tt.name, err, tt.code, tt.text)
		if err == nil && (s.payload != tt.payload || !s.query || s.stamp != goodStamp || s.at.Format(stampFormat) != goodStamp) {
			t.Errorf("%s: %+v", tt.name, s)
		}
	}
}

func TestHowLongASignatureHolds(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, tt := range []struct {
		name string
		s    signature
		code string
		text string
	}{
		{"now", signature{at: now}, "", ""},
		{"the oldest", signature{at: now.Add(-maxSkew)}, "", ""},
		{"too old", signature{at: now.Add(-maxSkew - time.Second)}, "RequestTimeTooSkewed", ""},
		{"the newest", signature{at: now.Add(maxSkew)}, "", ""},
		{"too new", signature{at: now.Add(maxSkew + time.Second)}, "RequestTimeTooSkewed", ""},
		{"a URL's last second", signature{at: now.Add(-time.Hour * 24), query: true, expires: 24 * time.Hour}, "", ""},
		{"a URL that is over", signature{at: now.Add(-time.Hour*24 - time.Second), query: true, expires: 24 * time.Hour}, "AccessDenied", "expired"},
		{"a URL of the future", signature{at: now.Add(maxSkew + time.Second), query: true, expires: time.Hour}, "AccessDenied", "not valid yet"},
		{"a URL of a clock ahead", signature{at: now.Add(maxSkew), query: true, expires: time.Hour}, "", ""},
	} {
		refusedFor(t, tt.name, tt.s.timely(now), tt.code, tt.text)
	}
}

// TestWhatIsSigned holds the canonical text where it is not the one that a plain join or sort would make.
func TestWhatIsSigned(t *testing.T) {
	r := httptest.NewRequest(http.MethodPut, "/vol1/a%20b~%2B", nil)
	r.Host, r.ContentLength, r.TransferEncoding = "h:1", 7, []string{"chunked"}
	r.Header["X-Amz-Meta-A"] = []string{"  one \t two ", "three"}
	s := &signature{headers: []string{"content-length", "host", "transfer-encoding", "x-amz-meta-a"}, payload: unsignedPayload}
	query := url.Values{"a-b": {"1"}, "a": {"2", "1"}, "X-Amz-Signature": {"x"}}
	want := "PUT\n/vol1/a%20b~%2B\nX-Amz-Signature=x&a=1&a=2&a-b=1\ncontent-length:7\nhost:h:1\ntransfer-encoding:chunked\n" +
		"x-amz-meta-a:one two,three\n\ncontent-length;host;transfer-encoding;x-amz-meta-a\n" + unsignedPayload
	if got := s.canonical(r, query); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	s.query = true // its own signature is no part of what a URL signs
	if got, want := s.canonical(r, query), strings.Replace(want, "X-Amz-Signature=x&", "", 1); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}
