package s3

import (
	"bytes"
	"crypto/md5"
	"encoding/base64"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func md5Of(s string) string { return fmt.Sprintf("%x", md5.Sum([]byte(s))) }

func TestPutGetHead(t *testing.T) {
	f := newFixture(t)
	got := f.put("dir/a b+ü", "hello world", "Content-Type", "text/plain", "X-Amz-Meta-Color", "green", "Cache-Control", "no-cache")
	if got.header.Get("Etag") != `"`+md5Of("hello world")+`"` {
		t.Errorf("etag %s", got.header.Get("Etag"))
	}
	if raw, err := os.ReadFile(f.file("dir/a b+ü")); err != nil || string(raw) != "hello world" {
		t.Fatalf("%q %v", raw, err)
	}
	for _, method := range []string{"GET", "HEAD"} {
		got := f.want(call{method: method, path: "/vol1/dir/a b+ü"}, 200, "")
		h := got.header
		if h.Get("Content-Length") != "11" || h.Get("Content-Type") != "text/plain" || h.Get("X-Amz-Meta-Color") != "green" || h.Get("Cache-Control") != "no-cache" {
			t.Errorf("%s: %v", method, h)
		}
		if (string(got.body) == "hello world") != (method == "GET") {
			t.Errorf("%s: %q", method, got.body)
		}
	}
	f.put("dir/a b+ü", "")
	if f.get("dir/a b+ü") != "" {
		t.Error("not replaced")
	}
	// The same by the host's name.
	got = f.want(call{method: "GET", path: "/dir/a b+ü", host: "vol1.s3.example.com:443"}, 200, "")
	if got.header.Get("Content-Type") != "binary/octet-stream" {
		t.Errorf("%v", got.header)
	}
	f.want(call{method: "GET", path: "/vol1/nothing"}, 404, "NoSuchKey")
	f.want(call{method: "HEAD", path: "/vol1/nothing"}, 404, "")
	f.leftovers()
}

// TestAPutThatFailsLeavesNothing: neither an object nor what had come of it.
func TestAPutThatFailsLeavesNothing(t *testing.T) {
	f := newFixture(t)
	put := call{method: "PUT", path: "/vol1/a", body: []byte("one"), header: headers("X-Amz-Checksum-Sha256", sha256Of("other"))}
	f.want(put, 400, "BadDigest")
	f.leftovers()
	if f.exists("a") {
		t.Error("there is an object")
	}
}

func TestRanges(t *testing.T) {
	f := newFixture(t)
	f.put("a", "0123456789")
	for _, tt := range []struct {
		header string
		status int
		body   string
		ranged string
	}{
		{"bytes=0-0", 206, "0", "bytes 0-0/10"},
		{"bytes=2-5", 206, "2345", "bytes 2-5/10"},
		{"bytes=8-", 206, "89", "bytes 8-9/10"},
		{"bytes=-3", 206, "789", "bytes 7-9/10"},
		{"bytes=-30", 206, "0123456789", "bytes 0-9/10"},
		{"bytes=5-100", 206, "56789", "bytes 5-9/10"},
		{"bytes=10-", 416, "", "bytes */10"},
		{"bytes=-0", 416, "", "bytes */10"},
		{"bytes=0-1,3-4", 200, "0123456789", ""},
		{"bytes=5-2", 200, "0123456789", ""},
		{"bytes=5-x", 200, "0123456789", ""},
		{"bytes=x-5", 200, "0123456789", ""},
		{"bytes=-x", 200, "0123456789", ""},
		{"bytes=99999999999999999999-", 200, "0123456789", ""},
		{"lines=1-2", 200, "0123456789", ""},
	} {
		got := f.want(call{method: "GET", path: "/vol1/a", header: headers("Range", tt.header)}, tt.status, "")
		if got.header.Get("Content-Range") != tt.ranged || tt.status != 416 && string(got.body) != tt.body {
			t.Errorf("%s: %q %v", tt.header, got.body, got.header)
		}
	}
	etag := `"` + md5Of("0123456789") + `"`
	f.want(call{method: "GET", path: "/vol1/a", header: headers("Range", "bytes=0-1", "If-Range", etag)}, 206, "")
	f.want(call{method: "GET", path: "/vol1/a", header: headers("Range", "bytes=0-1", "If-Range", `"other"`)}, 200, "")
}

func TestReadConditions(t *testing.T) {
	f := newFixture(t)
	f.put("a", "x")
	etag := `"` + md5Of("x") + `"`
	past, future := time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat), time.Now().Add(time.Hour).UTC().Format(http.TimeFormat)
	for _, tt := range []struct {
		name, value string
		status      int
	}{
		{"If-Match", etag, 200},
		{"If-Match", `"other"`, 412},
		{"If-None-Match", etag, 304},
		{"If-None-Match", `"other", ` + etag, 304},
		{"If-None-Match", `"other"`, 200},
		{"If-Modified-Since", past, 200},
		{"If-Modified-Since", future, 304},
		{"If-Unmodified-Since", past, 412},
		{"If-Unmodified-Since", future, 200},
	} {
		for _, method := range []string{"GET", "HEAD"} {
			got := f.do(call{method: method, path: "/vol1/a", header: headers(tt.name, tt.value)})
			if got.status != tt.status {
				t.Errorf("%s %s %s: %d", method, tt.name, tt.value, got.status)
			}
		}
	}
}

func TestWriteConditions(t *testing.T) {
	f := newFixture(t)
	put := func(body, name, value string, status int, code string) {
		t.Helper()
		f.want(call{method: "PUT", path: "/vol1/d/a", body: []byte(body), header: headers(name, value)}, status, code)
	}
	put("1", "If-Match", md5Of("1"), 404, "NoSuchKey")
	put("1", "If-None-Match", "*", 200, "")
	put("2", "If-None-Match", "*", 412, "PreconditionFailed")
	put("2", "If-Match", `"`+md5Of("other")+`"`, 412, "PreconditionFailed")
	put("2", "If-Match", `"`+md5Of("1")+`"`, 200, "")
	put("3", "If-None-Match", `"`+md5Of("2")+`"`, 412, "PreconditionFailed")
	put("2", "If-None-Match", `"`+md5Of("1")+`"`, 200, "")
	if f.get("d/a") != "2" {
		t.Error("wrong content")
	}
	// Of many at once one makes the object.
	results := make(chan int, 16)
	for i := range cap(results) {
		go func() {
			r := f.signed(call{method: "PUT", path: "/vol1/d/once", body: fmt.Append(nil, i), header: headers("If-None-Match", "*")})
			got, err := testClient.Do(r)
			if err != nil {
				results <- 0
				return
			}
			_ = got.Body.Close()
			results <- got.StatusCode
		}()
	}
	made := 0
	for range cap(results) {
		switch status := <-results; status {
		case 200:
			made++
		case 412:
		default:
			t.Errorf("status %d", status)
		}
	}
	if made != 1 {
		t.Errorf("%d made the object", made)
	}
	f.leftovers()
}

func TestBodiesAreChecked(t *testing.T) {
	f := newFixture(t)
	big := bytes.Repeat([]byte("0123456789abcdef"), 60_000) // more than some blocks
	crc := func(b []byte) string {
		return base64.StdEncoding.EncodeToString(binaryOf(crc32.ChecksumIEEE(b)))
	}
	sum := md5.Sum(big)
	for _, tt := range []struct {
		name   string
		call   call
		status int
		code   string
	}{
		{"hash", call{body: big}, 200, ""},
		{"wrong hash", call{body: big, payload: testHex([]byte("other"))}, 400, "XAmzContentSHA256Mismatch"},
		{"unsigned", call{body: big, payload: "UNSIGNED-PAYLOAD"}, 200, ""},
		{"content-md5", call{body: big, header: headers("Content-Md5", base64.StdEncoding.EncodeToString(sum[:]))}, 200, ""},
		{"wrong content-md5", call{body: big, header: headers("Content-Md5", base64.StdEncoding.EncodeToString(make([]byte, 16)))}, 400, "BadDigest"},
		{"bad content-md5", call{body: big, header: headers("Content-Md5", "x")}, 400, "InvalidDigest"},
		{"crc32", call{body: big, header: headers("X-Amz-Checksum-Crc32", crc(big))}, 200, ""},
		{"wrong crc32", call{body: big, header: headers("X-Amz-Checksum-Crc32", crc(nil))}, 400, "BadDigest"},
		{"unknown checksum", call{body: big, header: headers("X-Amz-Checksum-Sum", "AAAA")}, 400, "InvalidRequest"},
		{"chunks", call{body: big, payload: streamingPayload, chunk: 65536}, 200, ""},
		{"chunks with trailer", call{body: big, payload: streamingPayloadTrailer, chunk: 100_000, trailer: "x-amz-checksum-crc32:" + crc(big)}, 200, ""},
		{"chunks with wrong trailer", call{body: big, payload: streamingPayloadTrailer, chunk: 100_000, trailer: "x-amz-checksum-crc32:" + crc(nil)}, 400, "BadDigest"},
		{"unsigned chunks", call{body: big, payload: streamingUnsigned, chunk: 300_000, trailer: "x-amz-checksum-crc32:" + crc(big)}, 200, ""},
		{"unsigned chunks, wrong trailer", call{body: big, payload: streamingUnsigned, chunk: 300_000, trailer: "x-amz-checksum-crc32:" + crc(nil)}, 400, "BadDigest"},
		{"changed chunk", call{body: big, payload: streamingPayload, chunk: 65536, change: func(r *http.Request) {
			raw := testChunks(call{body: big, payload: streamingPayload, chunk: 65536}, []byte("wrong key"), "", "", "")
			r.Body, r.ContentLength = http.NoBody, int64(len(raw))
			r.Body = nopBody{bytes.NewReader(raw)}
		}}, 403, "SignatureDoesNotMatch"},
		{"too large", call{payload: "UNSIGNED-PAYLOAD", change: func(r *http.Request) {
			r.Body, r.ContentLength = nopBody{strings.NewReader("x")}, maxPut+1
			r.Header.Set("Expect", "100-continue")
		}}, 400, "EntityTooLarge"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := *f
			f.t = t
			tt.call.method, tt.call.path = "PUT", "/vol1/body"
			got := f.want(tt.call, tt.status, tt.code)
			if tt.status == 200 {
				if got.header.Get("Etag") != `"`+md5Of(string(big))+`"` || f.get("body") != string(big) {
					t.Error("other content")
				}
				head := f.want(call{method: "HEAD", path: "/vol1/body", header: headers("X-Amz-Checksum-Mode", "ENABLED")}, 200, "").header
				if strings.Contains(tt.name, "crc32") && (head.Get("X-Amz-Checksum-Crc32") != crc(big) || got.header.Get("X-Amz-Checksum-Crc32") != crc(big)) {
					t.Errorf("checksum %v", head)
				}
				if head.Get("Content-Encoding") != "" {
					t.Errorf("content encoding %q", head.Get("Content-Encoding"))
				}
				f.delete("body")
			} else if f.exists("body") {
				t.Error("a refused body was kept")
			}
			f.leftovers()
		})
	}
}

type nopBody struct{ io.Reader }

func (nopBody) Close() error { return nil }

func binaryOf(n uint32) []byte { return []byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)} }

func TestContinueIsSentAfterTheSignature(t *testing.T) {
	f := newFixture(t)
	read := make(chan struct{})
	r := f.signed(call{method: "PUT", path: "/vol1/a", body: []byte("x"), secret: "wrong"})
	r.Header.Set("Expect", "100-continue")
	r.Body = nopBody{readFunc(func([]byte) (int, error) { close(read); return 0, os.ErrClosed })}
	patient := &http.Client{Transport: &http.Transport{ExpectContinueTimeout: 20 * time.Second}, Timeout: 20 * time.Second}
	got, err := patient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = got.Body.Close()
	patient.CloseIdleConnections()
	select {
	case <-read:
		t.Error("the body was asked for")
	default:
	}
	if got.StatusCode != 403 {
		t.Errorf("status %d", got.StatusCode)
	}
}

type readFunc func([]byte) (int, error)

func (f readFunc) Read(p []byte) (int, error) { return f(p) }

func TestFoldersAndKeys(t *testing.T) {
	f := newFixture(t)
	put := func(key string) call { return call{method: "PUT", path: "/vol1/" + key, body: []byte("x")} }
	f.put("a/b/file", "x")
	f.want(put("a/b"), 409, "ExistingObjectIsDirectory")
	f.want(put("a/b/file/c"), 409, "ObjectParentIsFile")
	f.want(put("a/b/"), 400, "DirectoryObjectContainsData")
	f.want(call{method: "GET", path: "/vol1/a/b"}, 404, "NoSuchKey")
	f.want(call{method: "GET", path: "/vol1/a/b/file/c"}, 404, "NoSuchKey")
	f.want(call{method: "GET", path: "/vol1/a/b/file/"}, 404, "NoSuchKey")
	f.want(call{method: "HEAD", path: "/vol1/a/b/"}, 200, "")
	f.delete("a/b") // a folder is no object of this key
	for _, key := range []string{"a//b", "/a", "./a", "a/../b", "..", "a/.", hidden + "/x", hidden, "a\x00b"} {
		f.want(put(key), 400, "InvalidArgument")
	}
	f.want(put(strings.Repeat("n", 256)), 400, "KeyTooLongError")
	f.want(put(strings.Repeat("n/", 513)), 400, "KeyTooLongError")
	f.put(strings.Repeat("n", 255), "x")
	// What a PUT made on the way goes with its last object; what was there, or was asked for, stays.
	f.put("a/c/d/file", "x")
	f.write("pod/file", "x")
	f.want(call{method: "PUT", path: "/vol1/made/"}, 200, "")
	f.put("made/x/file", "x")
	for _, key := range []string{"a/b/file", "a/c/d/file", "pod/file", "made/x/file", "never/was"} {
		f.delete(key)
	}
	if f.exists("a") || !f.exists("pod") || !f.exists("made") || f.exists("made/x") {
		t.Errorf("a %v pod %v made %v made/x %v", f.exists("a"), f.exists("pod"), f.exists("made"), f.exists("made/x"))
	}
	// A folder's key deleted while it holds something: the folder goes with the last object.
	f.put("made/y", "x")
	f.delete("made/")
	f.delete("made/y")
	f.delete("pod/")
	if f.exists("made") || f.exists("pod") {
		t.Error("a folder stayed")
	}
	f.leftovers()
}

func TestChangesByAPodAreNoticed(t *testing.T) {
	f := newFixture(t)
	f.put("a", "over s3", "X-Amz-Meta-A", "1")
	head := func() http.Header {
		t.Helper()
		return f.want(call{method: "HEAD", path: "/vol1/a"}, 200, "").header
	}
	f.write("a", "by a pod")
	pods := head().Get("Etag")
	if !strings.HasSuffix(pods, `-1"`) || len(pods) != 36 {
		t.Errorf("etag %s", pods)
	}
	if listed := f.list("list-type=2").Contents[0].ETag; listed != pods {
		t.Errorf("listed %s, not %s", listed, pods)
	}
	// The metadata is kept: it is the same file.
	if head().Get("X-Amz-Meta-A") != "1" {
		t.Error("metadata lost")
	}
	// A record that makes no sense is none.
	for _, raw := range []string{"", "{", `{"v":1,"e":"x"}`, `{"v":1,"m":{"a b":"c"}}`, `{"v":1,"h":{"content-type":"a\nb"}}`, `{"v":1,"h":{"location":"x"}}`, strings.Repeat("x", 3000)} {
		if err := unix.Setxattr(f.file("a"), attribute, []byte(raw), 0); err != nil {
			t.Fatal(err)
		}
		if h := head(); h.Get("Content-Type") != "binary/octet-stream" || !strings.HasSuffix(h.Get("Etag"), `-1"`) {
			t.Errorf("%s: %v", raw, h)
		}
	}
}

func TestReaderKeepsTheOldFile(t *testing.T) {
	f := newFixture(t)
	old := strings.Repeat("old.", 4<<20)
	f.put("a", old)
	got, err := testClient.Do(f.signed(call{method: "GET", path: "/vol1/a"}))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = got.Body.Close() }()
	f.put("a", "new")
	var buf bytes.Buffer
	if _, err := buf.ReadFrom(got.Body); err != nil || buf.String() != old {
		t.Errorf("%d bytes, %v", buf.Len(), err)
	}
}

func TestCopy(t *testing.T) {
	f := newFixture(t)
	f.put("dir/a b", "content", "Content-Type", "text/a", "X-Amz-Meta-A", "1")
	copyTo := func(to, from string, header ...string) call {
		return call{method: "PUT", path: to, header: headers(append(header, "X-Amz-Copy-Source", from)...)}
	}
	head := func(path string) http.Header { return f.want(call{method: "HEAD", path: path}, 200, "").header }
	f.want(copyTo("/vol1/x/b", "vol1/dir/a%20b"), 200, "")
	f.want(copyTo("/vol2/c", "/vol1/dir/a%20b", "X-Amz-Metadata-Directive", "REPLACE", "X-Amz-Meta-B", "2"), 200, "")
	if h := head("/vol1/x/b"); h.Get("X-Amz-Meta-A") != "1" || h.Get("Content-Type") != "text/a" || h.Get("Etag") != `"`+md5Of("content")+`"` {
		t.Errorf("%v", h)
	}
	if h := head("/vol2/c"); h.Get("X-Amz-Meta-A") != "" || h.Get("X-Amz-Meta-B") != "2" || h.Get("Etag") != `"`+md5Of("content")+`"` {
		t.Errorf("%v", h)
	}
	// Onto itself, as s3fs changes a file's mode.
	f.want(copyTo("/vol1/x/b", "/vol1/x/b"), 400, "InvalidRequest")
	f.want(copyTo("/vol1/x/b", "/vol1/x/b", "X-Amz-Metadata-Directive", "REPLACE", "X-Amz-Meta-Mode", "33188"), 200, "")
	if h := head("/vol1/x/b"); h.Get("X-Amz-Meta-Mode") != "33188" || h.Get("X-Amz-Meta-A") != "" || h.Get("Etag") != `"`+md5Of("content")+`"` {
		t.Errorf("%v", h)
	}
	f.want(call{method: "PUT", path: "/vol1/folder/"}, 200, "")
	f.want(copyTo("/vol1/folder/", "/vol1/folder/", "X-Amz-Metadata-Directive", "REPLACE", "X-Amz-Meta-Mode", "16877"), 200, "")
	f.want(copyTo("/vol1/folder2/", "/vol1/folder/"), 200, "")
	if head("/vol1/folder2/").Get("X-Amz-Meta-Mode") != "16877" {
		t.Error("no metadata of a folder")
	}
	// A pod's file keeps an ETag through a change of its metadata.
	f.write("pod", "by a pod")
	f.want(copyTo("/vol1/pod", "/vol1/pod", "X-Amz-Metadata-Directive", "REPLACE", "X-Amz-Meta-A", "1"), 200, "")
	before := head("/vol1/pod").Get("Etag")
	f.want(copyTo("/vol1/pod", "/vol1/pod", "X-Amz-Metadata-Directive", "REPLACE", "X-Amz-Meta-A", "2"), 200, "")
	if head("/vol1/pod").Get("Etag") != before {
		t.Error("the ETag changed")
	}
	for _, tt := range []struct {
		name, value string
		status      int
	}{
		{"X-Amz-Copy-Source-If-Match", `"` + md5Of("content") + `"`, 200},
		{"X-Amz-Copy-Source-If-Match", `"other"`, 412},
		{"X-Amz-Copy-Source-If-None-Match", `"` + md5Of("content") + `"`, 412},
		{"X-Amz-Copy-Source-If-Modified-Since", time.Now().Add(time.Hour).UTC().Format(http.TimeFormat), 412},
	} {
		f.want(copyTo("/vol1/y", "/vol1/dir/a%20b", tt.name, tt.value), tt.status, "")
	}
	f.want(copyTo("/vol1/y", "/vol1/none"), 404, "NoSuchKey")
	f.want(copyTo("/vol1/y", "/vol9/a"), 404, "NoSuchBucket")
	f.want(copyTo("/vol1/y", "/vol1/../vol2/c"), 400, "InvalidArgument")
	f.want(copyTo("/full/y", "/vol1/dir/a%20b"), 403, "AccessDenied")
	f.leftovers()
}

func TestDeleteObjects(t *testing.T) {
	f := newFixture(t)
	for _, key := range []string{"a", "d/b", "d/c", "e"} {
		f.put(key, "x")
	}
	body := "<Delete xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Object><Key>a</Key></Object><Object><Key>d/b</Key></Object><Object><Key>d/c</Key></Object><Object><Key>none</Key></Object><Object><Key>../e</Key></Object></Delete>"
	post := func(body string) call {
		return call{method: "POST", path: "/vol1", query: "delete=", body: []byte(body)}
	}
	got := f.want(post(body), 200, "")
	if strings.Count(string(got.body), "<Deleted>") != 4 || strings.Count(string(got.body), "<Error>") != 1 {
		t.Errorf("%s", got.body)
	}
	if f.exists("a") || f.exists("d") || !f.exists("e") {
		t.Error("wrong files are gone")
	}
	got = f.want(post("<Delete><Quiet>true</Quiet><Object><Key>e</Key></Object></Delete>"), 200, "")
	if strings.Contains(string(got.body), "Deleted") || f.exists("e") {
		t.Errorf("%s", got.body)
	}
	f.want(post("<Delete>"+strings.Repeat("<Object><Key>a</Key></Object>", 1001)+"</Delete>"), 400, "MalformedXML")
	f.want(post("<Delete></Delete>"), 400, "MalformedXML")
	f.want(post("nonsense"), 400, "MalformedXML")
	f.want(post(strings.Repeat(" ", maxXML+1)), 400, "EntityTooLarge")
}

func TestBuckets(t *testing.T) {
	f := newFixture(t)
	got := f.want(call{method: "GET", path: "/"}, 200, "")
	if !strings.Contains(string(got.body), "<Name>vol1</Name><CreationDate>2026-01-02T03:04:05.000Z</CreationDate>") {
		t.Errorf("%s", got.body)
	}
	f.want(call{method: "HEAD", path: "/vol1"}, 200, "")
	f.want(call{method: "HEAD", path: "/vol9"}, 404, "")
	f.want(call{method: "PUT", path: "/vol1"}, 409, "BucketAlreadyOwnedByYou")
	f.want(call{method: "PUT", path: "/new"}, 501, "NotImplemented")
	f.want(call{method: "DELETE", path: "/vol1"}, 501, "NotImplemented")
	f.want(call{method: "POST", path: "/vol1"}, 501, "NotImplemented")
	f.want(call{method: "PATCH", path: "/vol1"}, 405, "MethodNotAllowed")
	f.put("a", "x")
	for query, want := range map[string]string{
		"location=": testRegion, "versioning=": "VersioningConfiguration", "acl=": "FULL_CONTROL",
	} {
		if got := f.want(call{method: "GET", path: "/vol1", query: query}, 200, ""); !strings.Contains(string(got.body), want) {
			t.Errorf("%s: %s", query, got.body)
		}
	}
	for query, code := range map[string]string{"policy=": "NoSuchBucketPolicy", "lifecycle=": "NoSuchLifecycleConfiguration", "tagging=": "NoSuchTagSet", "object-lock=": "ObjectLockConfigurationNotFoundError"} {
		f.want(call{method: "GET", path: "/vol1", query: query}, 404, code)
		f.want(call{method: "PUT", path: "/vol1", query: query}, 501, "NotImplemented")
	}
	f.want(call{method: "GET", path: "/vol1", query: "versions="}, 501, "NotImplemented")
	f.want(call{method: "GET", path: "/vol1/a", query: "acl="}, 200, "")
	f.want(call{method: "GET", path: "/vol1/a", query: "tagging="}, 200, "")
	f.want(call{method: "PUT", path: "/vol1/a", query: "tagging="}, 501, "NotImplemented")
	f.want(call{method: "GET", path: "/vol1/a", query: "versionId=x"}, 404, "NoSuchVersion")
	f.want(call{method: "PUT", path: "/vol1/a", header: headers("X-Amz-Server-Side-Encryption", "AES256")}, 501, "NotImplemented")
	f.want(call{method: "PUT", path: "/vol1/a", header: headers("X-Amz-Meta-A", strings.Repeat("x", 2<<10))}, 400, "MetadataTooLarge")
}

func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"v":1,"e":"d41d8cd98f00b204e9800998ecf8427e-12","s":5,"t":1,"c":"crc32:AAAAAA==","h":{"content-type":"a"},"m":{"a":"b"}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		r := parseRecord(raw)
		if r.Form == 0 && (r.ETag != "" || r.Meta != nil) {
			t.Fatal("half a record")
		}
		for name, value := range r.Meta {
			if strings.ContainsAny(name+value, "\r\n") {
				t.Fatal("a line ends in a header")
			}
		}
	})
}
