package s3

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

const (
	testKey    = "user_test"
	readKey    = "user_read"
	testSecret = "rps_secret"
	testRegion = "EU-RO-1"
)

// folders is a Source of folders on the disk.
type folders struct {
	dir     string
	owner   uint32
	volumes []Volume
	frozen  atomic.Bool // Folder.ReadOnly
	hang    chan struct{}
	opened  atomic.Int64
	lost    error // what Access says
}

func (s *folders) Access(_ context.Context, key, date string) (Access, error) {
	if s.lost != nil {
		return Access{}, s.lost
	}
	if key != testKey && key != readKey {
		return Access{}, ErrNoKey
	}
	return Access{Account: "acc1", ReadOnly: key == readKey, SigningKey: testSigningKey(testSecret, date, testRegion), Volumes: s.volumes}, nil
}

func (s *folders) Open(ctx context.Context, _, volume string) (*Folder, error) {
	if s.hang != nil {
		select {
		case <-s.hang:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	root, err := os.OpenRoot(filepath.Join(s.dir, volume))
	if err != nil {
		return nil, err
	}
	s.opened.Add(1)
	return &Folder{Root: root, Owner: s.owner, ReadOnly: s.frozen.Load(), Release: func() {
		s.opened.Add(-1)
		_ = root.Close()
	}}, nil
}

// fixture is a handler behind a real server, with a client.
type fixture struct {
	t      testing.TB
	source *folders
	h      *Handler
	url    string
	dir    string // of vol1
	key    string
}

func newFixture(t testing.TB) *fixture { return newFixtureIn(t, t.TempDir(), Limits{}) }

func newFixtureIn(t testing.TB, dir string, limits Limits) *fixture {
	t.Helper()
	made := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	s := &folders{dir: dir, volumes: []Volume{{ID: "vol1", CreatedAt: made}, {ID: "vol2", CreatedAt: made}, {ID: "full", CreatedAt: made, ReadOnly: true}}}
	for _, v := range s.volumes {
		if err := os.MkdirAll(filepath.Join(dir, v.ID), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	h := New(Config{Source: s, Region: testRegion, Domains: []string{"s3.example.com"}, Limits: limits})
	server := httptest.NewServer(h)
	t.Cleanup(func() {
		server.Close()
		if n := s.opened.Load(); n != 0 {
			t.Errorf("%d folders were not released", n)
		}
	})
	return &fixture{t: t, source: s, h: h, url: server.URL, dir: filepath.Join(dir, "vol1"), key: testKey}
}

// call is a request of the tests' client.
type call struct {
	method, path, query string
	header              http.Header
	body                []byte
	payload             string // x-amz-content-sha256; empty: the hash
	chunk               int    // bytes of a chunk of a streaming payload
	trailer             string
	secret              string
	region              string
	host                string
	at                  time.Time
	change              func(*http.Request)
}

type reply struct {
	status int
	header http.Header
	body   []byte
}

func (r reply) code() string {
	var e struct{ Code string }
	_ = xml.Unmarshal(r.body, &e)
	return e.Code
}

func testMAC(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	_, _ = io.WriteString(h, text)
	return h.Sum(nil)
}

func testSigningKey(secret, date, region string) []byte {
	return testMAC(testMAC(testMAC(testMAC([]byte("AWS4"+secret), date), region), "s3"), "aws4_request")
}

func testHex(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// testEncode is not the code under test's: it starts from what the standard library does.
func testEncode(s string) string {
	return strings.NewReplacer("+", "%20", "%7E", "~").Replace(url.QueryEscape(s))
}

func testPath(path string) string {
	parts := strings.Split(path, "/")
	for i := range parts {
		parts[i] = testEncode(parts[i])
	}
	return strings.Join(parts, "/")
}

func testQuery(query string) string {
	var out []string
	for _, pair := range strings.Split(query, "&") {
		if pair == "" {
			continue
		}
		name, value, _ := strings.Cut(pair, "=")
		out = append(out, testEncode(name)+"="+testEncode(value))
	}
	sort.Strings(out)
	return strings.Join(out, "&")
}

// signed returns the request with a signature in its header.
func (f *fixture) signed(c call) *http.Request {
	f.t.Helper()
	if c.at.IsZero() {
		c.at = time.Now()
	}
	if c.secret == "" {
		c.secret = testSecret
	}
	if c.region == "" {
		c.region = testRegion
	}
	if c.payload == "" {
		c.payload = testHex(c.body)
	}
	stamp := c.at.UTC().Format("20060102T150405Z")
	date := stamp[:8]
	target := f.url + testPath(c.path)
	if q := testQuery(c.query); q != "" {
		target += "?" + q
	}
	r, err := http.NewRequest(c.method, target, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	for name, values := range c.header {
		r.Header[http.CanonicalHeaderKey(name)] = values
	}
	if c.host != "" {
		r.Host = c.host
	}
	r.Header.Set("X-Amz-Date", stamp)
	r.Header.Set("X-Amz-Content-Sha256", c.payload)
	streaming := strings.HasPrefix(c.payload, "STREAMING-")
	if streaming {
		r.Header.Set("X-Amz-Decoded-Content-Length", fmt.Sprint(len(c.body)))
		r.Header.Set("Content-Encoding", "aws-chunked")
		if c.trailer != "" {
			name, _, _ := strings.Cut(c.trailer, ":")
			r.Header.Set("X-Amz-Trailer", name)
		}
	}
	names := []string{"host"}
	for name := range r.Header {
		names = append(names, strings.ToLower(name))
	}
	sort.Strings(names)
	canonical := c.method + "\n" + testPath(c.path) + "\n" + testQuery(c.query) + "\n"
	for _, name := range names {
		value := strings.Join(r.Header.Values(name), ",")
		if name == "host" {
			value = r.Host
		}
		canonical += name + ":" + strings.TrimSpace(value) + "\n"
	}
	canonical += "\n" + strings.Join(names, ";") + "\n" + c.payload
	scope := date + "/" + c.region + "/s3/aws4_request"
	key := testSigningKey(c.secret, date, c.region)
	signature := hex.EncodeToString(testMAC(key, "AWS4-HMAC-SHA256\n"+stamp+"\n"+scope+"\n"+testHex([]byte(canonical))))
	r.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential="+f.key+"/"+scope+", SignedHeaders="+strings.Join(names, ";")+", Signature="+signature)
	body := c.body
	if streaming {
		body = testChunks(c, key, stamp, scope, signature)
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	if len(body) == 0 {
		r.Body = http.NoBody
	}
	return r
}

// testChunks is a body in the aws-chunked encoding.
func testChunks(c call, key []byte, stamp, scope, previous string) []byte {
	var out bytes.Buffer
	signing := c.payload != "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
	rest := c.body
	for {
		n := min(max(c.chunk, 1), len(rest))
		part := rest[:n]
		rest = rest[n:]
		if signing {
			text := "AWS4-HMAC-SHA256-PAYLOAD\n" + stamp + "\n" + scope + "\n" + previous + "\n" + testHex(nil) + "\n" + testHex(part)
			previous = hex.EncodeToString(testMAC(key, text))
			fmt.Fprintf(&out, "%x;chunk-signature=%s\r\n", n, previous)
		} else {
			fmt.Fprintf(&out, "%x\r\n", n)
		}
		if n == 0 {
			break
		}
		out.Write(part)
		out.WriteString("\r\n")
	}
	if c.trailer != "" {
		out.WriteString(c.trailer + "\r\n")
		if signing {
			text := "AWS4-HMAC-SHA256-TRAILER\n" + stamp + "\n" + scope + "\n" + previous + "\n" + testHex([]byte(c.trailer+"\n"))
			out.WriteString("x-amz-trailer-signature:" + hex.EncodeToString(testMAC(key, text)) + "\r\n")
		}
	}
	out.WriteString("\r\n")
	return out.Bytes()
}

func (f *fixture) do(c call) reply {
	f.t.Helper()
	r := f.signed(c)
	if c.change != nil {
		c.change(r)
	}
	return f.send(r)
}

func (f *fixture) send(r *http.Request) reply {
	f.t.Helper()
	got, err := testClient.Do(r)
	if err != nil {
		f.t.Fatal(err)
	}
	defer func() { _ = got.Body.Close() }()
	raw, err := io.ReadAll(got.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	return reply{got.StatusCode, got.Header, raw}
}

var testClient = &http.Client{
	Timeout:   30 * time.Second,
	Transport: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 32, ExpectContinueTimeout: 5 * time.Second, IdleConnTimeout: time.Second},
}

// want does a call and fails unless it has a status and, when given, an error code.
func (f *fixture) want(c call, status int, code string) reply {
	f.t.Helper()
	got := f.do(c)
	if got.status != status || code != "" && got.code() != code {
		f.t.Fatalf("%s %s?%s: %d %s, want %d %s\n%s", c.method, c.path, c.query, got.status, got.code(), status, code, got.body)
	}
	return got
}

func (f *fixture) put(key, content string, header ...string) reply {
	f.t.Helper()
	return f.want(call{method: "PUT", path: "/vol1/" + key, body: []byte(content), header: headers(header...)}, 200, "")
}

func (f *fixture) get(key string) string {
	f.t.Helper()
	return string(f.want(call{method: "GET", path: "/vol1/" + key}, 200, "").body)
}

func (f *fixture) delete(key string) {
	f.t.Helper()
	f.want(call{method: "DELETE", path: "/vol1/" + key}, 204, "")
}

// file returns the path of a file in vol1.
func (f *fixture) file(name string) string { return filepath.Join(f.dir, name) }

func (f *fixture) write(name, content string) {
	f.t.Helper()
	if err := os.MkdirAll(filepath.Dir(f.file(name)), 0o755); err != nil {
		f.t.Fatal(err)
	}
	if err := os.WriteFile(f.file(name), []byte(content), 0o644); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) exists(name string) bool {
	_, err := os.Lstat(f.file(name))
	return err == nil
}

// leftovers fails when anything is in the hidden folder.
func (f *fixture) leftovers() {
	f.t.Helper()
	entries, _ := os.ReadDir(f.file(hidden))
	for _, e := range entries {
		f.t.Errorf("left in the hidden folder: %s", e.Name())
	}
}

func headers(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i+1 < len(pairs); i += 2 {
		h.Set(pairs[i], pairs[i+1])
	}
	return h
}

// page is an answer to a list call.
type page struct {
	Contents []struct {
		Key, ETag, LastModified string
		Size                    int64
		Owner                   *struct{ ID string }
	}
	CommonPrefixes                    []struct{ Prefix string }
	IsTruncated                       bool
	NextMarker, NextContinuationToken string
	KeyCount, MaxKeys                 int
	EncodingType, Prefix, Delimiter   string
}

func (f *fixture) list(query string) page {
	f.t.Helper()
	got := f.want(call{method: "GET", path: "/vol1", query: query}, 200, "")
	var p page
	if err := xml.Unmarshal(got.body, &p); err != nil {
		f.t.Fatal(err)
	}
	return p
}

// names returns keys and common prefixes of a page, in order of the answer.
func (p page) names() []string {
	var out []string
	for _, c := range p.Contents {
		out = append(out, c.Key)
	}
	for _, c := range p.CommonPrefixes {
		out = append(out, "PRE "+c.Prefix)
	}
	return out
}
