package s3

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestABusyVolumeSaysSo: where a volume's threads are all taken, no request says that there is nothing, or that it is done.
func TestABusyVolumeSaysSo(t *testing.T) {
	f := newFixtureIn(t, t.TempDir(), Limits{VolumeThreads: 1, Wait: 10 * time.Millisecond, Stall: 10 * time.Second})
	f.put("a", "x")
	id := f.create("up")
	f.want(partCall("up", id, 1, "x"), 200, "")
	requests := []call{
		{method: "GET", path: "/vol1/a"},
		{method: "PUT", path: "/vol1/b"},
		{method: "PUT", path: "/vol1/d/"},
		{method: "DELETE", path: "/vol1/a"},
		{method: "GET", path: "/vol1"},
		{method: "GET", path: "/vol1", query: "uploads="},
		{method: "POST", path: "/vol1/b", query: "uploads="},
		{method: "POST", path: "/vol1", query: "delete=", body: []byte("<Delete><Object><Key>a</Key></Object></Delete>")},
		{method: "GET", path: "/vol1/a", query: "acl="},
		{method: "GET", path: "/vol1/a", query: "tagging="},
		{method: "GET", path: "/vol1/a", query: "attributes=", header: headers("X-Amz-Object-Attributes", "ETag")},
		{method: "GET", path: "/vol1/up", query: "uploadId=" + id},
		{method: "DELETE", path: "/vol1/up", query: "uploadId=" + id},
		{method: "PUT", path: "/vol1/b", header: headers("X-Amz-Copy-Source", "vol1/a")},
		{method: "PUT", path: "/vol1/up", query: "partNumber=2&uploadId=" + id, header: headers("X-Amz-Copy-Source", "vol1/a")},
		partCall("up", id, 2, "y"), completeCall("up", id, map[int]string{1: md5Of("x")}, 1),
	}
	f.h.mu.Lock()
	v := f.h.volumes["vol1"]
	f.h.mu.Unlock()
	v.threads <- struct{}{}
	for _, c := range requests {
		f.want(c, 503, "SlowDown")
	}
	v.threads.give()
	if f.get("a") != "x" || f.exists("b") || f.exists("d") {
		t.Error("a refused request did something")
	}
	f.want(completeCall("up", id, map[int]string{1: md5Of("x")}, 1), 200, "")
	f.leftovers()
}

// TestOneCompletesAnUpload: a host that completes an upload keeps those of other hosts from it, by a lock of its file.
func TestOneCompletesAnUpload(t *testing.T) {
	f := newFixtureIn(t, t.TempDir(), Limits{Stall: 100 * time.Millisecond})
	id := f.create("a")
	f.want(partCall("a", id, 1, "x"), 200, "")
	other, err := os.OpenFile(filepath.Join(f.file(hidden), id, manifestName), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	if err := unix.Flock(int(other.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	done := completeCall("a", id, map[int]string{1: md5Of("x")}, 1)
	if got := f.do(done); got.code() != "OperationAborted" || f.exists("a") {
		t.Errorf("%d %s", got.status, got.body)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	f.want(done, 200, "")
	if f.get("a") != "x" {
		t.Error("other content")
	}
}

// TestASeatIsGivenUpOnce: a request that a dead file system keeps leaves its place to one other, not to several.
func TestASeatIsGivenUpOnce(t *testing.T) {
	h := New(Config{Limits: Limits{Requests: 2}})
	h.requests <- struct{}{}
	h.requests <- struct{}{}
	s := &seat{h: h}
	s.leave()
	s.leave()
	if len(h.requests) != 1 || len(h.stuck) != 1 {
		t.Errorf("%d requests, %d stuck", len(h.requests), len(h.stuck))
	}
	s.end()
	s.leave()
	if len(h.requests) != 1 || len(h.stuck) != 0 {
		t.Errorf("after its end: %d requests, %d stuck", len(h.requests), len(h.stuck))
	}
	for range cap(h.stuck) { // so many are stuck that the next one keeps its place
		h.stuck <- struct{}{}
	}
	s = &seat{h: h}
	if s.leave(); len(h.requests) != 1 {
		t.Errorf("beside all that may be stuck: %d requests", len(h.requests))
	}
	if s.end(); len(h.requests) != 0 || len(h.stuck) != cap(h.stuck) {
		t.Errorf("after its end: %d requests, %d stuck", len(h.requests), len(h.stuck))
	}
}

func TestWhatAnUploadAnswers(t *testing.T) {
	f := newFixture(t)
	id := f.create("a", "X-Amz-Checksum-Algorithm", "SHA256")
	got := f.want(partCall("a", id, 1, "x"), 200, "").header
	if got.Get("Etag") != `"`+md5Of("x")+`"` || got.Get("X-Amz-Checksum-Sha256") != sha256Of("x") || got.Get("X-Amz-Checksum-Type") != "" {
		t.Errorf("a part: %v", got)
	}
	done := string(f.want(completeCall("a", id, map[int]string{1: md5Of("x")}, 1), 200, "").body)
	if !strings.Contains(done, "<Location>"+f.url+"/vol1/a</Location>") {
		t.Errorf("%s", done)
	}
	// A checksum of the content is checked also where the parts have none.
	for sum, code := range map[string]string{sha256Of("x"): "", sha256Of("y"): "BadDigest"} {
		id := f.create("b")
		f.want(partCall("b", id, 1, "x"), 200, "")
		c := completeCall("b", id, map[int]string{1: md5Of("x")}, 1)
		c.header = headers("X-Amz-Checksum-Sha256", sum)
		if got := f.do(c); got.code() != code {
			t.Errorf("%s: %d %s", sum, got.status, got.body)
		}
	}
	// A range that makes no sense is told as such, also of a source that is empty.
	f.put("empty", "")
	id = f.create("c")
	from := partCall("c", id, 1, "")
	from.header = headers("X-Amz-Copy-Source", "vol1/empty", "X-Amz-Copy-Source-Range", "0-1")
	f.want(from, 400, "InvalidArgument")
	// Line ends are no part of a token.
	f.want(call{method: "GET", path: "/vol1", query: "list-type=2&continuation-token=\n"}, 400, "InvalidArgument")
	// A plan whose first part is gone, and no file of the whole: it has become the object, or a pod removed it.
	name := part{1, md5Of("x"), 1, ""}.name()
	f.want(partCall("c", id, 1, "x"), 200, "")
	f.write(hidden+"/"+id+"/"+planName, fmt.Sprintf("[%q]", name))
	if err := os.Remove(f.file(hidden + "/" + id + "/" + name)); err != nil {
		t.Fatal(err)
	}
	f.want(completeCall("c", id, map[int]string{1: md5Of("x")}, 1), 404, "NoSuchUpload")
}

// TestLeftoversAreSweptUnderLoad: that a volume is written to all the time does not put off the search for leftovers.
func TestLeftoversAreSweptUnderLoad(t *testing.T) {
	f := newFixture(t)
	f.put("a", "x")
	left, long := hidden+"/put-"+random(), time.Now().Add(-8*24*time.Hour)
	f.write(left, "x")
	if err := os.Chtimes(f.file(left), long, long); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	for n := 1; n <= 3; n++ {
		now := begin.Add(time.Duration(n) * (sweepEvery/3 + time.Minute))
		f.h.now = func() time.Time { return now }
		f.want(call{method: http.MethodPut, path: "/vol1/a", at: now}, 200, "")
	}
	if f.exists(left) {
		t.Error("not swept")
	}
}

func TestWhatBucketsAndFoldersAnswer(t *testing.T) {
	f := newFixture(t)
	if got := f.want(call{method: "HEAD", path: "/vol1"}, 200, "").header.Get("X-Amz-Bucket-Region"); got != testRegion {
		t.Errorf("region %q", got)
	}
	for region, want := range map[string]int{"": 3, testRegion: 3, "elsewhere": 0} {
		got := f.want(call{method: "GET", path: "/", query: "bucket-region=" + region}, 200, "")
		if n := strings.Count(string(got.body), "<Bucket>"); n != want {
			t.Errorf("%d buckets are in %q, want %d", n, region, want)
		}
	}
	f.create("a/1")
	f.create("b/1")
	got := f.want(call{method: "GET", path: "/vol1", query: "uploads=&prefix=a/"}, 200, "")
	if !strings.Contains(string(got.body), "<Key>a/1</Key>") || strings.Contains(string(got.body), "<Key>b/1</Key>") {
		t.Errorf("%s", got.body)
	}
	f.want(call{method: "PUT", path: "/vol1/d/"}, 200, "")
	if etag := f.want(call{method: "HEAD", path: "/vol1/d/"}, 200, "").header.Get("Etag"); etag != `"`+emptyMD5+`"` {
		t.Errorf("a folder's ETag is %s", etag)
	}
	one := call{method: "GET", path: "/vol1/d/", query: "attributes=", header: headers("X-Amz-Object-Attributes", "ETag")}
	if at, err := http.ParseTime(f.want(one, 200, "").header.Get("Last-Modified")); err != nil || at.IsZero() {
		t.Errorf("last modified: %v", err)
	}
}
