package s3

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestWhatARequestAsksFor holds which action a request is, and which right it needs.
func TestWhatARequestAsksFor(t *testing.T) {
	h := New(Config{Region: testRegion})
	for _, tt := range []struct{ method, path, query, source, want string }{
		{"GET", "/", "", "", "listBuckets 0"},
		{"PUT", "/", "", "", "MethodNotAllowed"},
		{"GET", "/vol1", "", "", "listObjects 0"},
		{"GET", "/vol1/", "list-type=2", "", "listObjects 0"},
		{"GET", "/vol1", "location", "", "location 0"},
		{"PUT", "/vol1", "location", "", "NotImplemented"},
		{"GET", "/vol1", "versioning", "", "versioning 0"},
		{"PUT", "/vol1", "versioning", "", "NotImplemented"},
		{"GET", "/vol1", "acl", "", "acl 0"},
		{"PUT", "/vol1", "acl", "", "NotImplemented"},
		{"GET", "/vol1", "uploads", "", "listUploads 0"},
		{"HEAD", "/vol1", "uploads", "", "headBucket 0"},
		{"POST", "/vol1", "delete", "", "deleteObjects 1"},
		{"GET", "/vol1", "delete", "", "listObjects 0"},
		{"GET", "/vol1", "website", "", "NoSuchWebsiteConfiguration"},
		{"DELETE", "/vol1", "website", "", "NotImplemented"},
		{"GET", "/vol1", "inventory", "", "NotImplemented"},
		{"HEAD", "/vol1", "", "", "headBucket 0"},
		{"PUT", "/vol1", "", "", "BucketAlreadyOwnedByYou"},
		{"PUT", "/vol9", "", "", "NotImplemented"},
		{"GET", "/vol1/a", "", "", "getObject 0"},
		{"HEAD", "/vol1/a", "", "", "getObject 0"},
		{"HEAD", "/vol1/a", "uploadId=x", "", "getObject 0"},
		{"PUT", "/vol1/a", "", "", "putObject 2"},
		{"PUT", "/vol1/a", "", "vol1/b", "copyObject 2"},
		{"DELETE", "/vol1/a", "", "vol1/b", "deleteObject 1"},
		{"POST", "/vol1/a", "", "", "MethodNotAllowed"},
		{"POST", "/vol1/a", "uploads", "", "createUpload 2"},
		{"GET", "/vol1/a", "uploads", "", "getObject 0"},
		{"PUT", "/vol1/a", "uploadId=x", "", "putPart 2"},
		{"PUT", "/vol1/a", "uploadId=x", "vol1/b", "copyPart 2"},
		{"GET", "/vol1/a", "uploadId=x", "vol1/b", "listParts 0"},
		{"POST", "/vol1/a", "uploadId=x", "", "completeUpload 2"},
		{"DELETE", "/vol1/a", "uploadId=x", "", "abortUpload 1"},
		{"GET", "/vol1/a", "acl", "", "acl 0"},
		{"PUT", "/vol1/a", "acl", "", "NotImplemented"},
		{"GET", "/vol1/a", "tagging", "", "noTags 0"},
		{"DELETE", "/vol1/a", "tagging", "", "NotImplemented"},
		{"GET", "/vol1/a", "attributes", "", "attributes 0"},
		{"PUT", "/vol1/a", "append", "", "NotImplemented"},
		{"GET", "/vol1/a", "versionId=null", "", "getObject 0"},
		{"GET", "/vol1/a", "versionId=", "", "getObject 0"},
		{"GET", "/vol1/a", "versionId=1", "", "NoSuchVersion"},
	} {
		r := httptest.NewRequest(tt.method, tt.path, nil)
		r.Header.Set("X-Amz-Copy-Source", tt.source)
		query, _ := url.ParseQuery(tt.query)
		x := &exchange{h: h, r: r, query: query, access: Access{Volumes: []Volume{{ID: "vol1"}}}}
		x.bucket, x.key = h.addressed(r.Host, r.URL.Path)
		op, err := x.operation()
		got := ""
		if err != nil {
			got = faultOf(err).code
		} else {
			name := runtime.FuncForPC(reflect.ValueOf(op.do).Pointer()).Name()
			got = fmt.Sprintf("%s %d", name[strings.LastIndexByte(name, '.')+1:], op.needs)
		}
		if got != tt.want {
			t.Errorf("%s %s?%s: %s, want %s", tt.method, tt.path, tt.query, got, tt.want)
		}
	}
}

func TestWhereABucketIsNamed(t *testing.T) {
	h := New(Config{Domains: []string{".S3.Example.com.", "other"}})
	for _, tt := range []struct{ host, path, bucket, key string }{
		{"h", "/vol1/a/b", "vol1", "a/b"},
		{"h", "/vol1", "vol1", ""},
		{"s3.example.com", "/vol1/a", "vol1", "a"},
		{"VOL1.s3.example.com:443", "/a/b", "vol1", "a/b"},
		{"vol1.other", "/", "vol1", ""},
		{"a.vol1.other", "/vol2/a", "vol2", "a"},
		{".other", "/vol2/a", "vol2", "a"},
		{"[fe80::1]", "/vol1/a", "vol1", "a"},
		{"[fe80::1]:80", "/vol1/a", "vol1", "a"},
	} {
		if bucket, key := h.addressed(tt.host, tt.path); bucket != tt.bucket || key != tt.key {
			t.Errorf("%s%s: %q %q", tt.host, tt.path, bucket, key)
		}
	}
}

func TestLimitsHaveDefaults(t *testing.T) {
	want := Limits{Requests: 1024, AccountRequests: 256, VolumeRequests: 64, VolumeThreads: 16, Wait: 5 * time.Second, Stall: time.Minute, FolderEntries: 2_000_000, CacheEntries: 1_000_000}
	if got := (Limits{}).withDefaults(); got != want {
		t.Errorf("%+v", got)
	}
	set := Limits{Requests: 1, AccountRequests: 2, VolumeRequests: 3, VolumeThreads: 4, Wait: 5, Stall: 6, FolderEntries: 7, CacheEntries: 8}
	if got := set.withDefaults(); got != set {
		t.Errorf("%+v", got)
	}
	if got := (Limits{Requests: 3}).withDefaults(); got.AccountRequests != 1 {
		t.Errorf("of 3 requests an account has %d", got.AccountRequests)
	}
}

// TestVolumesInUseAreKept: what is kept of volumes is bounded, but never lost under a request.
func TestVolumesInUseAreKept(t *testing.T) {
	h := New(Config{})
	used := h.hold("used")
	for i := range maxIdleVolumes + 10 {
		h.drop(h.hold(fmt.Sprint("idle", i)))
	}
	if n := len(h.volumes); n > maxIdleVolumes || h.hold("used") != used {
		t.Errorf("%d volumes are kept", n)
	}
}

// TestALargeDocumentTakesAPlace: of large documents an account has only so many at a time.
func TestALargeDocumentTakesAPlace(t *testing.T) {
	f := newFixtureIn(t, t.TempDir(), Limits{VolumeThreads: 1, Wait: 10 * time.Millisecond})
	account := f.h.hold("/acc1")
	defer f.h.drop(account)
	account.threads <- struct{}{}
	const document = "<Delete><Object><Key>a</Key></Object>%s</Delete>"
	remove := func(size int) call {
		body := fmt.Sprintf(document, strings.Repeat(" ", size-len(document)+2))
		return call{method: "POST", path: "/vol1", query: "delete=", body: []byte(body)}
	}
	f.want(remove(largeXML), 200, "")
	if got := f.want(remove(largeXML+1), 503, "SlowDown"); got.header.Get("Retry-After") != "1" {
		t.Errorf("%v", got.header)
	}
	account.threads.give()
	f.want(remove(largeXML+1), 200, "")
}

func TestWhatAnAnswerSays(t *testing.T) {
	f := newFixture(t)
	f.put("a", "0123456789", "X-Amz-Checksum-Sha256", sha256Of("0123456789"), "Cache-Control", "no-store")
	etag := `"` + md5Of("0123456789") + `"`
	get := func(status int, pairs ...string) reply {
		t.Helper()
		return f.want(call{method: "GET", path: "/vol1/a", header: headers(pairs...)}, status, "")
	}
	first, second := get(200).header, get(200).header
	if id := first.Get("X-Amz-Request-Id"); len(id) != 16 || id == second.Get("X-Amz-Request-Id") {
		t.Errorf("request %q", id)
	}
	if first.Get("X-Amz-Checksum-Sha256") != "" {
		t.Error("a checksum that nobody asked for")
	}
	if same := get(304, "If-None-Match", etag).header; same.Get("Etag") != etag || same.Get("Cache-Control") != "no-store" || same.Get("Content-Type") != "" {
		t.Errorf("not modified: %v", same)
	}
	if failed := get(412, "If-Match", `"x"`).header; failed.Get("Etag") != "" || failed.Get("Cache-Control") != "" || failed.Get("Content-Type") != "application/xml" {
		t.Errorf("failed: %v", failed)
	}
	if past := get(416, "Range", "bytes=10-").header; past.Get("Content-Range") != "bytes */10" {
		t.Errorf("past the end: %v", past)
	}
	past, future := time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat), time.Now().Add(time.Hour).UTC().Format(http.TimeFormat)
	for _, tt := range []struct {
		span, guard, want string
		status            int
	}{
		{"bytes=2-4", "", "234", 206},
		{"bytes=2-4", etag, "234", 206},
		{"bytes=2-4", future, "234", 206},
		{"bytes=0-0", "", "0", 206},
		{"bytes=2-4", `"x"`, "0123456789", 200},
		{"bytes=2-4", "W/" + etag, "0123456789", 200},
		{"bytes=2-4", past, "0123456789", 200},
		{"", etag, "0123456789", 200},
		{"bytes=-3", "", "789", 206},
		{"bytes=-30", "", "0123456789", 206},
		{"bytes=9-30", "", "9", 206},
		{"bytes=-0", "", "", 416},
		{"bytes=4-2", "", "0123456789", 200},
		{"bytes=1-2,4-5", "", "0123456789", 200},
		{"bytes=-", "", "0123456789", 200},
		{"bytes=x-", "", "0123456789", 200},
		{"bytes=1-x", "", "0123456789", 200},
		{"lines=1-2", "", "0123456789", 200},
		{"bytes=3", "", "0123456789", 200},
	} {
		got := get(tt.status, "Range", tt.span, "If-Range", tt.guard)
		if tt.status != 416 && string(got.body) != tt.want {
			t.Errorf("%s, if %s: %q", tt.span, tt.guard, got.body)
		}
	}
}

func TestCopiesThatAreRefused(t *testing.T) {
	f := newFixture(t)
	f.put("a", "x")
	f.want(call{method: "PUT", path: "/vol1/d/"}, 200, "")
	for _, tt := range []struct {
		to, from, directive string
		status              int
		code                string
	}{
		{"b", "vol1/a?versionId=null", "", 200, ""},
		{"b", "vol1/a?versionId=1", "", 404, "NoSuchVersion"},
		{"b", "vol1%2Fa", "COPY", 200, ""},
		{"b", "vol1/a", "MOVE", 400, "InvalidArgument"},
		{"b", "vol1/%zz", "", 400, "InvalidArgument"},
		{"b", "vol1", "", 400, "InvalidArgument"},
		{"b", "vol1/", "", 400, "InvalidArgument"},
		{"b", "vol1/d/", "", 400, "InvalidArgument"},
		{"e/", "vol1/a", "", 400, "InvalidArgument"},
		{"d/", "vol1/d/", "", 400, "InvalidRequest"},
		{"../b", "vol1/a", "", 400, "InvalidArgument"},
	} {
		header := headers("X-Amz-Copy-Source", tt.from)
		if tt.directive != "" {
			header.Set("X-Amz-Metadata-Directive", tt.directive)
		}
		f.want(call{method: "PUT", path: "/vol1/" + tt.to, header: header}, tt.status, tt.code)
	}
	f.want(call{method: "PUT", path: "/vol1/b", header: headers("X-Amz-Copy-Source", "vol1/a", "X-Amz-Tagging", "a=b")}, 501, "NotImplemented")
	f.want(call{method: "PUT", path: "/vol1/b", header: headers("X-Amz-Copy-Source", "vol1/a", "X-Amz-Checksum-Algorithm", "MD5")}, 400, "InvalidRequest")
	id := f.create("p")
	part := partCall("p", id, 1, "")
	part.header = headers("X-Amz-Copy-Source", "vol1/d/")
	f.want(part, 400, "InvalidArgument")
	// A copy with a checksum of another kind has that one.
	for _, algorithm := range []string{"SHA256", "CRC32"} {
		done := f.want(call{method: "PUT", path: "/vol1/c", header: headers("X-Amz-Copy-Source", "vol1/a", "X-Amz-Checksum-Algorithm", algorithm)}, 200, "")
		head := f.want(call{method: "HEAD", path: "/vol1/c", header: headers("X-Amz-Checksum-Mode", "enabled")}, 200, "").header
		if sum := head.Get(checksumPrefix + algorithm); sum == "" || !strings.Contains(string(done.body), "<Checksum"+algorithm+">"+sum+"<") {
			t.Errorf("%s: %s %v", algorithm, done.body, head)
		}
	}
}

func TestLongKeys(t *testing.T) {
	f := newFixture(t)
	long := strings.Repeat(strings.Repeat("n", 250)+"/", 4) // 1004 bytes
	f.put(long+strings.Repeat("k", 20), "x")
	f.want(call{method: "PUT", path: "/vol1/" + long + strings.Repeat("k", 21)}, 400, "KeyTooLongError")
	// A pod may make what no key names; a list leaves it out.
	f.write(long+"a", "")
	f.write(long+strings.Repeat("k", 21), "")
	if got := f.list("list-type=2").names(); !slices.Equal(got, []string{long + "a", long + strings.Repeat("k", 20)}) {
		t.Errorf("%q", got)
	}
	if got := f.list("list-type=2&prefix=" + long + "k").names(); !slices.Equal(got, []string{long + strings.Repeat("k", 20)}) {
		t.Errorf("%q", got)
	}
	for _, tt := range []struct {
		name string
		most int
	}{{"prefix", maxKey}, {"delimiter", maxKey}, {"marker", maxKey + maxName}} {
		f.want(call{method: "GET", path: "/vol1", query: tt.name + "=" + strings.Repeat("p", tt.most)}, 200, "")
		f.want(call{method: "GET", path: "/vol1", query: tt.name + "=" + strings.Repeat("p", tt.most+1)}, 400, "KeyTooLongError")
	}
	f.want(call{method: "GET", path: "/vol1", query: "list-type=2&continuation-token=Mg"}, 400, "InvalidArgument")
}

// TestFreshFoldersAreReadAgain: in the tick of a file system's clock in which a folder changed it may change again unseen.
func TestFreshFoldersAreReadAgain(t *testing.T) {
	f := newFixture(t)
	f.write("a", "")
	f.list("")
	if n := f.h.names.order.Len(); n != 0 {
		t.Errorf("names of %d folders are kept", n)
	}
}

func TestUploadsInPages(t *testing.T) {
	f := newFixture(t)
	type one struct{ Key, UploadID string }
	var want []one
	for _, key := range []string{"b", "a", "b", "c", "a", "b/c"} {
		want = append(want, one{key, f.create(key)})
	}
	slices.SortFunc(want, func(a, b one) int {
		return cmp.Or(strings.Compare(a.Key, b.Key), strings.Compare(a.UploadID, b.UploadID))
	})
	type answer struct {
		IsTruncated        bool
		NextKeyMarker      string
		NextUploadIDMarker string `xml:"NextUploadIdMarker"`
		Upload             []struct {
			Key      string
			UploadID string `xml:"UploadId"`
		}
	}
	page := func(query string) (out answer) {
		got := f.want(call{method: "GET", path: "/vol1", query: "uploads=&" + query}, 200, "")
		if err := xml.Unmarshal(got.body, &out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	for most := 1; most <= len(want); most++ {
		var got []one
		at := ""
		for range len(want) {
			p := page(fmt.Sprintf("max-uploads=%d%s", most, at))
			for _, u := range p.Upload {
				got = append(got, one{u.Key, u.UploadID})
			}
			if !p.IsTruncated {
				if p.NextKeyMarker != "" || p.NextUploadIDMarker != "" {
					t.Errorf("the last page goes on at %s %s", p.NextKeyMarker, p.NextUploadIDMarker)
				}
				break
			}
			at = "&key-marker=" + p.NextKeyMarker + "&upload-id-marker=" + p.NextUploadIDMarker
		}
		if !slices.Equal(got, want) {
			t.Errorf("pages of %d: %v, want %v", most, got, want)
		}
	}
	if p := page("key-marker=b"); len(p.Upload) != 2 || p.Upload[0].Key != "b/c" {
		t.Errorf("behind a key: %+v", p)
	}
	if p := page("max-uploads=0"); p.IsTruncated || len(p.Upload) != 0 {
		t.Errorf("none: %+v", p)
	}
	if p := page("upload-id-marker=zzz"); len(p.Upload) != len(want) {
		t.Errorf("an id without a key: %+v", p)
	}
	f.want(call{method: "GET", path: "/vol1", query: "uploads=&max-uploads=x"}, 400, "InvalidArgument")
	f.want(call{method: "GET", path: "/vol1", query: "uploads=&encoding-type=x"}, 400, "InvalidArgument")
}

// TestPartsThatChanged: what a pod does to the parts of an upload that is being completed makes no object of other content.
func TestPartsThatChanged(t *testing.T) {
	f := newFixture(t)
	etags := map[int]string{1: md5Of("one"), 2: md5Of("two")}
	for name, change := range map[string]func(dir, first, second string) error{
		"the second part is gone": func(_, _, second string) error { return os.Remove(second) },
		"the second is a pipe": func(_, _, second string) error {
			_ = os.Remove(second)
			return unix.Mkfifo(second, 0o600)
		},
		"the second is longer": func(_, _, second string) error { return os.WriteFile(second, []byte("longer"), 0o600) },
		"the first is shorter": func(_, first, _ string) error { return os.WriteFile(first, []byte("on"), 0o600) },
		"the first is a pipe": func(_, first, _ string) error {
			_ = os.Remove(first)
			return unix.Mkfifo(first, 0o600)
		},
		"the plan is nonsense": func(dir, _, _ string) error { return os.WriteFile(filepath.Join(dir, planName), []byte("["), 0o600) },
		"the plan is another": func(dir, _, _ string) error {
			return os.WriteFile(filepath.Join(dir, planName), []byte(`["`+part{1, etags[1], 3, ""}.name()+`"]`), 0o600)
		},
	} {
		id := f.create("a")
		dir := filepath.Join(f.file(hidden), id)
		var files []string
		for i, body := range []string{"one", "two"} {
			f.want(partCall("a", id, i+1, body), 200, "")
			files = append(files, filepath.Join(dir, part{i + 1, etags[i+1], 3, ""}.name()))
		}
		if err := change(dir, files[0], files[1]); err != nil {
			t.Fatal(err)
		}
		if got := f.do(completeCall("a", id, etags, 1, 2)); got.status != 400 || got.code() != "InvalidPart" || f.exists("a") {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
		f.want(call{method: "DELETE", path: "/vol1/a", query: "uploadId=" + id}, 204, "")
	}
	f.leftovers()
}
