package s3

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// known sets what is known of an object's parts, as a record of many parts of different sizes, or a tenant, would have it.
func (f *fixture) known(name, parts string) {
	f.t.Helper()
	file, err := os.OpenFile(f.file(name), os.O_RDWR, 0)
	if err != nil {
		f.t.Fatal(err)
	}
	r := readRecord(file)
	r.Parts = parts
	if err := errors.Join(writeRecord(file, r), file.Close()); err != nil {
		f.t.Fatal(err)
	}
}

// TestEachRefusalHasItsAnswer, whatever the request is otherwise, and none of them leaves anything.
func TestEachRefusalHasItsAnswer(t *testing.T) {
	f := newFixture(t)
	f.put("a", "content")
	f.put("parts", "content")
	f.known("parts", manyParts)
	f.put("large", "")
	if err := os.Truncate(f.file("large"), maxPut+1); err != nil {
		t.Fatal(err)
	}
	id := f.create("u")
	f.want(partCall("u", id, 1, "one"), 200, "")
	before, _ := os.ReadDir(f.file(hidden))
	const bad = "/vol1/d//b"
	from := func(source string) http.Header { return headers("X-Amz-Copy-Source", source) }
	attributes := func(pairs ...string) http.Header {
		return headers(append(pairs, "X-Amz-Object-Attributes", "ObjectParts")...)
	}
	for _, tt := range []struct {
		name   string
		c      call
		status int
		code   string
	}{
		{"get, a key that is none", call{method: "GET", path: bad}, 400, "InvalidArgument"},
		{"put", call{method: "PUT", path: bad, body: []byte("x")}, 400, "InvalidArgument"},
		{"put a folder", call{method: "PUT", path: bad + "/"}, 400, "InvalidArgument"},
		{"delete", call{method: "DELETE", path: bad}, 400, "InvalidArgument"},
		{"copy to", call{method: "PUT", path: bad, header: from("/vol1/a")}, 400, "InvalidArgument"},
		{"copy from", call{method: "PUT", path: "/vol1/copy", header: from("/vol1/d//b")}, 400, "InvalidArgument"},
		{"begin an upload", call{method: "POST", path: bad, query: "uploads="}, 400, "InvalidArgument"},
		{"complete one", call{method: "POST", path: bad, query: "uploadId=" + id, body: []byte("<CompleteMultipartUpload/>")}, 400, "InvalidArgument"},
		{"attributes", call{method: "GET", path: bad, query: "attributes=", header: attributes()}, 400, "InvalidArgument"},
		{"attributes of another state", call{method: "GET", path: "/vol1/a", query: "attributes=", header: attributes("If-Match", `"other"`)}, 412, "PreconditionFailed"},
		{"so many parts", call{method: "GET", path: "/vol1/a", query: "attributes=", header: attributes("X-Amz-Max-Parts", "x")}, 400, "InvalidArgument"},
		{"behind such a part", call{method: "GET", path: "/vol1/a", query: "attributes=", header: attributes("X-Amz-Part-Number-Marker", "-1")}, 400, "InvalidArgument"},
		{"parts that are not known", call{method: "GET", path: "/vol1/parts", query: "attributes=", header: attributes()}, 501, "NotImplemented"},
		{"one of them", call{method: "GET", path: "/vol1/parts", query: "partNumber=1"}, 501, "NotImplemented"},
		{"copy a large object", call{method: "PUT", path: "/vol1/copy", header: from("/vol1/large")}, 400, "InvalidArgument"},
		{"copy it as a part", call{method: "PUT", path: "/vol1/u", query: "partNumber=2&uploadId=" + id, header: from("/vol1/large")}, 400, "InvalidArgument"},
		{"a large query", call{method: "GET", path: "/vol1/a", query: strings.Repeat("x=&", maxQuery) + "x="}, 400, "InvalidArgument"},
		{"buckets behind nothing", call{method: "GET", path: "/", query: "continuation-token=!"}, 400, "InvalidArgument"},
		{"delete an odd list", call{method: "POST", path: "/vol1", query: "delete=", body: []byte("<Delete><Object><Key>a</Object></Delete>")}, 400, "MalformedXML"},
		{"complete an odd list", call{method: "POST", path: "/vol1/u", query: "uploadId=" + id, body: []byte("<CompleteMultipartUpload><Part><PartNumber>x</PartNumber></Part></CompleteMultipartUpload>")}, 400, "MalformedXML"},
		{"complete what is none, with no parts", call{method: "POST", path: "/vol1/u", query: "uploadId=none", body: []byte("<CompleteMultipartUpload></CompleteMultipartUpload>")}, 404, "NoSuchUpload"},
		{"abort what is none", call{method: "DELETE", path: "/vol1/u", query: "uploadId=none"}, 404, "NoSuchUpload"},
		{"parts of what is none", call{method: "GET", path: "/vol1/u", query: "uploadId=none"}, 404, "NoSuchUpload"},
		{"a part of what is none", call{method: "PUT", path: "/vol1/u", query: "partNumber=1&uploadId=none", body: []byte("x")}, 404, "NoSuchUpload"},
		{"part 10001", call{method: "PUT", path: "/vol1/u", query: "partNumber=10001&uploadId=" + id, body: []byte("x")}, 400, "InvalidArgument"},
		{"part x", call{method: "PUT", path: "/vol1/u", query: "partNumber=x&uploadId=" + id, body: []byte("x")}, 400, "InvalidArgument"},
		{"part 10000", call{method: "PUT", path: "/vol1/u", query: "partNumber=10000&uploadId=" + id, body: []byte("x")}, 200, ""},
		{"a copied part of what is none", call{method: "PUT", path: "/vol1/u", query: "partNumber=1&uploadId=none", header: from("/vol1/a")}, 404, "NoSuchUpload"},
	} {
		if got := f.do(tt.c); got.status != tt.status || got.code() != tt.code {
			t.Errorf("%s: %d %s, want %d %s", tt.name, got.status, got.code(), tt.status, tt.code)
		} else if got.header.Get("Retry-After") != "" {
			t.Errorf("%s: it is to be tried again", tt.name)
		}
	}
	got := f.want(call{method: "POST", path: "/vol1", query: "delete=", body: []byte("<Delete><Object><Key>a</Key><VersionId>1</VersionId></Object></Delete>")}, 200, "")
	if !strings.Contains(string(got.body), "<Code>NoSuchVersion</Code>") || f.get("a") != "content" {
		t.Errorf("%s", got.body)
	}
	if after, _ := os.ReadDir(f.file(hidden)); len(after) != len(before) || f.exists("d") || f.exists("copy") {
		t.Errorf("left: %v, before %v", after, before)
	}
}

// TestWhoseFaultItIs: what the control plane or the volume does not answer is no fault of the client, and comes as such.
func TestWhoseFaultItIs(t *testing.T) {
	f := newFixtureIn(t, t.TempDir(), Limits{Requests: 1, AccountRequests: 1, Wait: 20 * time.Millisecond})
	f.put("a", "x")
	for range 5 {
		f.get("a") // each gives back what it took
	}
	f.h.requests <- struct{}{}
	if got := f.want(call{method: "GET", path: "/vol1/a"}, 503, "SlowDown"); got.header.Get("Retry-After") != "1" {
		t.Errorf("when to try again is not told: %v", got.header)
	}
	<-f.h.requests
	scans := f.h.volumes["vol1"].scans
	for range cap(scans) {
		scans <- struct{}{}
	}
	f.want(call{method: "GET", path: "/vol1", query: "list-type=2"}, 503, "SlowDown")
	for range cap(scans) {
		<-scans
	}
	f.want(call{method: "GET", path: "/vol1", query: "list-type=2"}, 200, "")
	f.source.lost = errors.New("no scheduler answers")
	f.want(call{method: "GET", path: "/vol1/a"}, 503, "ServiceUnavailable")
	f.source.lost = nil
	if err := os.Rename(f.dir, f.dir+"-away"); err != nil {
		t.Fatal(err)
	}
	f.want(call{method: "GET", path: "/vol1/a"}, 503, "ServiceUnavailable")
	if err := os.Rename(f.dir+"-away", f.dir); err != nil {
		t.Fatal(err)
	}
	f.get("a")
}

// TestACheckOfAllIsNoneOfAPart: what is sent in part has no checksum of the whole.
func TestACheckOfAllIsNoneOfAPart(t *testing.T) {
	f := newFixture(t)
	f.put("a", "content", "X-Amz-Checksum-Sha256", sha256Of("content"))
	for ranged, want := range map[string]string{"": sha256Of("content"), "bytes=0-1": ""} {
		h := headers("X-Amz-Checksum-Mode", "ENABLED")
		if ranged != "" {
			h.Set("Range", ranged)
		}
		if got := f.do(call{method: "GET", path: "/vol1/a", header: h}).header.Get("X-Amz-Checksum-Sha256"); got != want {
			t.Errorf("%q: the checksum is %q", ranged, got)
		}
	}
}

// TestPartsThatNobodyKnows: what a tenant wrote in place of their sizes says nothing.
func TestPartsThatNobodyKnows(t *testing.T) {
	for _, sizes := range []string{manyParts, "odd", "5x", "5*x", "5*0", "-5"} {
		if parts, known := (object{record: record{Parts: sizes}}).parts(); known || len(parts) != 0 {
			t.Errorf("%q: %v, %v", sizes, parts, known)
		}
	}
}

// TestWhatIsDoneAsAnotherUser answers as it would otherwise, also when it fails or panics.
func TestWhatIsDoneAsAnotherUser(t *testing.T) {
	if err := as(testOwner, func() error { return io.ErrNoProgress }); !errors.Is(err, io.ErrNoProgress) {
		t.Errorf("got %v", err)
	}
	if err := as(testOwner, func() error { panic("torn") }); err == nil || !strings.Contains(err.Error(), "torn") {
		t.Errorf("got %v", err)
	}
	ran := false
	if err := as(testOwner, func() error { ran = true; return nil }); err != nil || !ran {
		t.Errorf("it ran: %v, %v", ran, err)
	}
	limit := make(tokens, 1)
	limit <- struct{}{}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := limit.take(ended, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("who left is told %v", err)
	}
}

// TestAPageLooksAtSoMuch and no further, and the next one goes on.
func TestAPageLooksAtSoMuch(t *testing.T) {
	f := newFixture(t)
	for _, key := range []string{"a/x", "b/x", "c/x"} {
		f.put(key, "x")
	}
	l := f.lister("", "", "", 1000)
	defer l.p.release()
	l.visits = maxVisits - 3
	if err := l.page(); err != nil || !l.truncated || len(l.out) != 1 || l.out[0].key != "a/x" {
		t.Fatalf("%v, truncated %v, %v", l.out, l.truncated, err)
	}
	rest := f.lister("", "", l.last, 1000)
	defer rest.p.release()
	if err := rest.page(); err != nil || rest.truncated || len(rest.out) != 2 || rest.out[0].key != "b/x" {
		t.Errorf("%v, truncated %v, %v", rest.out, rest.truncated, err)
	}
	if p := f.list("list-type=2&prefix=b/&start-after=c"); len(p.names()) != 0 {
		t.Errorf("behind all of the prefix: %q", p.names())
	}
}

// TestAFolderThatVanishesIsLeftOut of a list, also one whose name was read a moment ago.
func TestAFolderThatVanishesIsLeftOut(t *testing.T) {
	f := newFixture(t)
	f.write("d/x", "")
	l := f.lister("", "", "", 1000)
	defer l.p.release()
	root := l.p.folder.Root
	for _, name := range []string{"gone/", "d/"} {
		if n, err := l.some(root, "", []entry{{name: name}}); n != 1 || err != nil {
			t.Errorf("%s: %d, %v", name, n, err)
		}
	}
	if len(l.out) != 1 || l.out[0].key != "d/x" {
		t.Errorf("%v", l.out)
	}
	if names, err := l.p.list("d/x", 10); err == nil {
		t.Errorf("a file holds %v", names)
	}
}

// TestPagesOfParts: behind a number, of several of a number the newest, none where none is asked for.
func TestPagesOfParts(t *testing.T) {
	f := newFixture(t)
	id := f.create("u")
	for i, body := range []string{"one", "two", "TWO", "three"} {
		f.want(partCall("u", id, []int{1, 2, 2, 3}[i], body), 200, "")
	}
	l := f.lister("", "", "", 1)
	defer l.p.release()
	u, err := l.p.readUpload(id)
	if err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(f.file(u.dir+"/"+part{number: 2, etag: md5Of("two"), size: 3}.name()), old, old); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		marker, most int
		want         []string
		more         bool
	}{
		{0, 0, nil, false},
		{0, 1, []string{"one"}, true},
		{0, 2, []string{"one", "TWO"}, true},
		{1, 5, []string{"TWO", "three"}, false},
		{2, 1, []string{"three"}, false},
		{3, 5, nil, false},
	} {
		parts, more, err := l.p.partPage(u, tt.marker, tt.most)
		var got, want []string
		for _, p := range parts {
			got = append(got, p.ETag)
		}
		for _, body := range tt.want {
			want = append(want, quote(md5Of(body)))
		}
		if err != nil || more != tt.more || !slices.Equal(got, want) {
			t.Errorf("behind %d at most %d: %v, more %v, %v", tt.marker, tt.most, got, more, err)
		}
	}
}

// TestABodyThatEndsEarly is not kept, whoever counts.
func TestABodyThatEndsEarly(t *testing.T) {
	for size, fails := range map[int64]bool{3: false, 4: true, 2: true} {
		var out bytes.Buffer
		_, err := (&body{src: strings.NewReader("abc"), size: size}).save(&out)
		if (err != nil) != fails || fails && faultOf(err).code != "IncompleteBody" {
			t.Errorf("announced %d: %v", size, err)
		}
	}
}

// TestWhereAnObjectIs is told as its client reached it.
func TestWhereAnObjectIs(t *testing.T) {
	f := newFixture(t)
	for scheme, state := range map[string]*tls.ConnectionState{"http": nil, "https": {}} {
		id := f.create("a")
		f.want(partCall("a", id, 1, "x"), 200, "")
		r := f.signed(completeCall("a", id, map[int]string{1: md5Of("x")}, 1))
		r.TLS = state
		w := httptest.NewRecorder()
		if f.h.ServeHTTP(w, r); !strings.Contains(w.Body.String(), "<Location>"+scheme+"://") {
			t.Errorf("%s: %s", scheme, w.Body)
		}
	}
}

// TestWhatIsNotDoneIsNotAnswered: a name that the file system does not give, and an object of which nobody can say what it is.
func TestWhatIsNotDoneIsNotAnswered(t *testing.T) {
	f := newFixture(t)
	f.put("busy", "old")
	if err := unix.Mount(f.file("busy"), f.file("busy"), "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	got := f.do(call{method: "PUT", path: "/vol1/busy", body: []byte("new")})
	f.want(call{method: "DELETE", path: "/vol1/busy"}, 503, "SlowDown")
	list := f.want(call{method: "POST", path: "/vol1", query: "delete=", body: []byte("<Delete><Object><Key>busy</Key></Object></Delete>")}, 200, "")
	if !strings.Contains(string(list.body), "<Error><Key>busy</Key><Code>SlowDown</Code>") {
		t.Errorf("%s", list.body)
	}
	if err := unix.Unmount(f.file("busy"), unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	if got.status < 500 || f.get("busy") != "old" {
		t.Errorf("%d, and it holds %s", got.status, f.get("busy"))
	}
	if err := os.Symlink("/etc/passwd", f.file("out")); err != nil {
		t.Fatal(err)
	}
	f.want(call{method: "DELETE", path: "/vol1/out", header: headers("If-Match", `"x"`)}, 403, "AccessDenied")
	if _, err := os.Lstat(f.file("out")); err != nil {
		t.Error(err)
	}
	if got := f.want(call{method: "PUT", path: "/vol1/folder/"}, 200, ""); got.header.Get("Etag") != quote(emptyMD5) {
		t.Errorf("the ETag of a folder is %s", got.header.Get("Etag"))
	}
	l := f.lister("", "", "", 1)
	defer l.p.release()
	if names, err := l.p.list("folder", 10); err != nil || len(names) != 0 {
		t.Errorf("an empty folder: %v, %v", names, err)
	}
	id := f.create("u")
	u, err := l.p.readUpload(id)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.p.whole(u, []part{{number: 1, etag: md5Of("x"), size: 1}}); err == nil || faultOf(err).code != "NoSuchUpload" {
		t.Errorf("an upload without its first part: %v", err)
	}
	for want, sum := range map[string]string{"SHA256:x-2": "", "": ""} { // of parts that have none
		if got, err := (&upload{}).checksum(nil, strings.NewReader("x"), want); got != sum || err != nil {
			t.Errorf("%q: %q, %v", want, got, err)
		}
	}
	if _, err := io.ReadAll(newChunks(strings.NewReader("-5\r\n\r\n"), &signature{payload: streamingUnsigned}, 0)); !sameFault(err, badChunk()) {
		t.Errorf("a chunk of less than nothing: %v", err)
	}
}
