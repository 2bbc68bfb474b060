package s3

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"golang.org/x/sys/unix"
)

// partsIn returns the names in an upload's folder that are those of parts, also of parts that are being written.
func (f *fixture) partsIn(id string) (out []string) {
	f.t.Helper()
	entries, err := os.ReadDir(f.file(hidden + "/" + id))
	if err != nil {
		f.t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "part-") || strings.HasPrefix(e.Name(), "tmp-") {
			out = append(out, e.Name())
		}
	}
	return out
}

// TestAPlaceIsGivenBackOnce, though the file system lets go only after the request has ended.
func TestAPlaceIsGivenBackOnce(t *testing.T) {
	h := New(Config{Limits: Limits{Requests: 2}})
	h.requests <- struct{}{}
	h.requests <- struct{}{}
	s := &seat{h: h}
	s.end()
	if s.leave(); len(h.requests) != 1 || len(h.stuck) != 0 {
		t.Errorf("%d requests, %d stuck", len(h.requests), len(h.stuck))
	}
}

// TestAThreadIsAnotherUserToItsEnd: what is done as a user stays on the thread that has the user's rights, and a user or group that
// the kernel does not know is none.
func TestAThreadIsAnotherUserToItsEnd(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	for range 2 * runtime.GOMAXPROCS(0) {
		all.Go(func() {
			for ctx.Err() == nil {
				runtime.Gosched()
			}
		})
	}
	err := as(testOwner, func() error {
		for range 2000 {
			if uid, _ := unix.SetfsuidRetUid(-1); uid != testOwner {
				return fmt.Errorf("user %d", uid)
			}
			runtime.Gosched()
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	for _, ids := range [][2]uint32{{math.MaxUint32, testOwner}, {testOwner, math.MaxUint32}} {
		done := make(chan error)
		go func() {
			runtime.LockOSThread() // the thread ends with the goroutine
			_, _, err := become(ids[0], ids[1])
			done <- err
		}()
		if err := <-done; err == nil {
			t.Errorf("%d and %d were taken", ids[0], ids[1])
		}
	}
	if err := as(math.MaxUint32, func() error { t.Error("it ran"); return nil }); err == nil {
		t.Error("no user")
	}
}

// TestABodyIsNotReadForNothing: once the file takes no more, no more is read.
func TestABodyIsNotReadForNothing(t *testing.T) {
	read := 0
	src := readFunc(func(p []byte) (int, error) {
		if read++; read > 1000 {
			return 0, io.EOF
		}
		return len(p), nil
	})
	n, err := ingest(writeFunc(func([]byte) (int, error) { return 0, unix.ENOSPC }), src, nil)
	if !errors.Is(err, unix.ENOSPC) || read > 10 {
		t.Errorf("%d bytes in %d reads, %v", n, read, err)
	}
	lost := errors.New("lost")
	if _, err := ingest(io.Discard, io.MultiReader(bytes.NewReader(make([]byte, 3*blockSize)), iotest.ErrReader(lost)), nil); !errors.Is(err, lost) {
		t.Errorf("a connection that breaks: %v", err)
	}
	whole := bytes.Repeat([]byte("x"), 2*blockSize)
	var out bytes.Buffer
	if n, err := ingest(&out, bytes.NewReader(whole), []hash.Hash{}); n != int64(len(whole)) || err != nil || !bytes.Equal(out.Bytes(), whole) {
		t.Errorf("whole blocks: %d bytes, %v", n, err)
	}
}

type writeFunc func([]byte) (int, error)

func (f writeFunc) Write(p []byte) (int, error) { return f(p) }

// TestWhatATenantPutsInThePlan: neither a plan that is no file nor parts that say they are huge are taken.
func TestWhatATenantPutsInThePlan(t *testing.T) {
	f := newFixture(t)
	id := f.create("a")
	f.want(partCall("a", id, 1, "x"), 200, "")
	complete := completeCall("a", id, map[int]string{1: md5Of("x")}, 1)
	plan := f.file(hidden + "/" + id + "/" + planName)
	if err := unix.Mkfifo(plan, 0o600); err != nil {
		t.Fatal(err)
	}
	f.want(complete, 404, "NoSuchKey")
	if err := os.Remove(plan); err != nil {
		t.Fatal(err)
	}
	huge := part{number: 2, etag: md5Of("y"), size: maxObject}
	f.write(hidden+"/"+id+"/"+huge.name(), "")
	f.want(completeCall("a", id, map[int]string{1: md5Of("x"), 2: md5Of("y")}, 1, 2), 400, "EntityTooLarge")
	if f.exists("a") {
		t.Error("an object was made")
	}
	complete.header = headers("Sha256", "no checksum of the body: it has another name")
	f.want(complete, 200, "")
}

// TestNotesThatLeadOut: those of an upload are read in the volume only, and as what they are.
func TestNotesThatLeadOut(t *testing.T) {
	f := newFixture(t)
	id := f.create("a")
	notes := f.file(hidden + "/" + id + "/" + manifestName)
	if err := os.WriteFile(notes, []byte(`{"key":"a","record":{"v":1},"at":3}`), 0o600); err != nil {
		t.Fatal(err)
	}
	f.want(partCall("a", id, 1, "x"), 404, "NoSuchUpload")
	if err := errors.Join(os.Remove(notes), os.Symlink("/etc/passwd", notes)); err != nil {
		t.Fatal(err)
	}
	f.want(partCall("a", id, 1, "x"), 403, "AccessDenied")
	l := f.lister("", "", "", 1)
	defer l.p.release()
	if _, err := l.p.readSmall(hidden, 10); !errors.Is(err, errNotObject) {
		t.Errorf("a folder: %v", err)
	}
	// Who could write them could name a kind of checksum, and no algorithm.
	odd := &upload{manifest: manifest{Kind: compositeType}}
	if got, err := odd.checksum(nil, strings.NewReader("x"), ""); got != "" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

// TestCopiesKeepTheSumsOfParts, where the algorithm asked for is that which they have.
func TestCopiesKeepTheSumsOfParts(t *testing.T) {
	f := newFixture(t)
	f.upload("a", headers("X-Amz-Checksum-Algorithm", "SHA256"), nil, "one", "two")
	f.want(call{method: "PUT", path: "/vol1/b", header: headers("X-Amz-Copy-Source", "/vol1/a", "X-Amz-Checksum-Algorithm", "SHA256")}, 200, "")
	for _, key := range []string{"a", "b"} {
		got := f.want(call{method: "GET", path: "/vol1/" + key, query: "partNumber=2", header: headers("X-Amz-Checksum-Mode", "ENABLED")}, 206, "")
		if string(got.body) != "two" || got.header.Get("X-Amz-Checksum-Sha256") != sha256Of("two") {
			t.Errorf("%s: %s %v", key, got.body, got.header)
		}
	}
	// A part without content has no range.
	f.upload("empty", nil, nil, "")
	got := f.want(call{method: "GET", path: "/vol1/empty", query: "partNumber=1"}, 206, "").header
	if _, ranged := got["Content-Range"]; ranged || got.Get("Content-Length") != "0" {
		t.Errorf("%v", got)
	}
}

// TestWhatFailsLeavesNothing that is being written: no part, no copy.
func TestWhatFailsLeavesNothing(t *testing.T) {
	f := newFixture(t)
	f.put("source", "x")
	id := f.create("a")
	bad := partCall("a", id, 1, "x")
	bad.header = headers("Content-Md5", "1B2M2Y8AsgTpgAmY7PhCfg==")
	f.want(bad, 400, "BadDigest")
	f.write(hidden+"/"+id+"/"+planName, "[]")
	f.want(partCall("a", id, 1, "x"), 409, "OperationAborted")
	copied := partCall("a", id, 1, "")
	copied.header = headers("X-Amz-Copy-Source", "/vol1/source")
	f.want(copied, 409, "OperationAborted")
	if left := f.partsIn(id); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	f.want(call{method: "DELETE", path: "/vol1/a", query: "uploadId=" + id}, 204, "")
	f.want(call{method: "PUT", path: "/vol1/folder/"}, 200, "")
	f.want(call{method: "PUT", path: "/vol1/folder", header: headers("X-Amz-Copy-Source", "/vol1/source")}, 409, "ExistingObjectIsDirectory")
	f.want(call{method: "PUT", path: "/vol1/source/a", header: headers("If-None-Match", "*")}, 409, "ObjectParentIsFile")
	f.leftovers()
	l := f.lister("", "", "", 1)
	defer l.p.release()
	if err := os.RemoveAll(f.file(hidden)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := l.p.temporary(hidden+"/gone", "tmp-"); !errors.Is(err, fs.ErrNotExist) || f.exists(hidden) {
		t.Errorf("in an upload that is gone: %v", err)
	}
}

// TestNoFolderIsMadeInAFile on the way to a key.
func TestNoFolderIsMadeInAFile(t *testing.T) {
	f := newFixture(t)
	f.put("file", "x")
	l := f.lister("", "", "", 1)
	defer l.p.release()
	if err := l.p.makeParents("file/a/b"); faultOf(err).code != "ObjectParentIsFile" {
		t.Error(err)
	}
	f.delete("file/a") // which is not there
	if err := os.Symlink("/etc", f.file("out")); err != nil {
		t.Fatal(err)
	}
	f.want(call{method: "DELETE", path: "/vol1/out/none"}, 403, "AccessDenied")
	if err := l.p.syncFolders("out"); err == nil {
		t.Error("what is not ours was synced")
	}
}

// TestFoldersHaveNoContent, however much the file system takes for them.
func TestFoldersHaveNoContent(t *testing.T) {
	f := newFixture(t)
	f.want(call{method: "PUT", path: "/vol1/d/"}, 200, "")
	copied := f.want(call{method: "PUT", path: "/vol1/e/", header: headers("X-Amz-Copy-Source", "/vol1/d/")}, 200, "")
	if !strings.Contains(string(copied.body), "<ETag>&#34;"+emptyMD5+"&#34;</ETag>") {
		t.Errorf("%s", copied.body)
	}
	if got := f.want(call{method: "GET", path: "/vol1/d/"}, 200, ""); len(got.body) != 0 || got.header.Get("Content-Length") != "0" {
		t.Errorf("%v", got.header)
	}
	if a := f.attributes("d/", "ObjectSize"); a.ObjectSize == nil || *a.ObjectSize != 0 {
		t.Errorf("its size: %+v", a)
	}
}

// TestFoldersAreListedAsWhatTheyAre: one of the hidden folder's name below another one is a tenant's, and one that a client made is
// no object with a longer beginning than its name.
func TestFoldersAreListedAsWhatTheyAre(t *testing.T) {
	f := newFixture(t)
	f.want(call{method: "PUT", path: "/vol1/d/"}, 200, "")
	keys := []string{"d/", "d/" + hidden, "d/xa"}
	f.put(keys[1], "x")
	f.put(keys[2], "x")
	if got := f.list("list-type=2").names(); !slices.Equal(got, keys) {
		t.Errorf("%q", got)
	}
	if got := f.list("list-type=2&prefix=d/x").names(); !slices.Equal(got, keys[2:]) {
		t.Errorf("%q", got)
	}
}

// TestDocumentsOfAnObject: who may do what with it, and what is tied to it.
func TestDocumentsOfAnObject(t *testing.T) {
	f := newFixture(t)
	for name := range f.put("a", "x").header {
		if strings.HasPrefix(strings.ToLower(name), checksumPrefix) {
			t.Errorf("a checksum that nobody asked for: %s", name)
		}
	}
	for query, want := range map[string]string{"acl=": "FULL_CONTROL", "tagging=": "<TagSet></TagSet>"} {
		if got := f.want(call{method: "GET", path: "/vol1/a", query: query}, 200, ""); !strings.Contains(string(got.body), want) {
			t.Errorf("%s: %s", query, got.body)
		}
		f.want(call{method: "GET", path: "/vol1/none", query: query}, 404, "NoSuchKey")
	}
	got := f.want(call{method: "GET", path: "/vol1/a", query: "response-cache-control=a\nb&response-expires=never"}, 200, "").header
	if got.Get("Cache-Control") != "" || got.Get("Expires") != "never" {
		t.Errorf("%v", got)
	}
	f.want(call{method: "POST", path: "/vol1", query: "delete=", body: []byte("<Delete><Object><Key>a</Key><VersionId>null</VersionId></Object></Delete>")}, 200, "")
	if f.exists("a") {
		t.Error("the only version is still there")
	}
	for query, code := range map[string]string{"max-buckets=10000": "", "max-buckets=10001": "InvalidArgument", "max-buckets=0": "InvalidArgument"} {
		if got := f.do(call{method: "GET", path: "/", query: query}); got.code() != code {
			t.Errorf("%s: %d %s", query, got.status, got.body)
		}
	}
}

// TestTheLastPageOfParts says so, and what the parts' sums are.
func TestTheLastPageOfParts(t *testing.T) {
	f := newFixture(t)
	id := f.create("a", "X-Amz-Checksum-Algorithm", "SHA256")
	for n, body := range map[int]string{1: "one", 2: "two"} {
		f.want(partCall("a", id, n, body), 200, "")
	}
	for most, more := range map[int]bool{1: true, 2: false, 3: false} {
		got := string(f.want(call{method: "GET", path: "/vol1/a", query: fmt.Sprintf("uploadId=%s&max-parts=%d", id, most)}, 200, "").body)
		if strings.Contains(got, "<NextPartNumberMarker>") != more || !strings.Contains(got, "<ChecksumSHA256>"+sha256Of("one")+"<") {
			t.Errorf("pages of %d: %s", most, got)
		}
	}
}

// TestOnlyPartsAreListed, wherever the page begins.
func TestOnlyPartsAreListed(t *testing.T) {
	f := newFixture(t)
	id := f.create("a")
	f.want(partCall("a", id, 1, "x"), 200, "")
	for marker, want := range map[string]int{"-1": 1, "0": 1, "1": 0, "x": 1} {
		got := f.want(call{method: "GET", path: "/vol1/a", query: "uploadId=" + id + "&part-number-marker=" + marker}, 200, "")
		if n := strings.Count(string(got.body), "<Part>"); n != want {
			t.Errorf("behind %s: %s", marker, got.body)
		}
	}
}

// TestUploadsOfOneKeyAreInOrder of their ids.
func TestUploadsOfOneKeyAreInOrder(t *testing.T) {
	f := newFixture(t)
	for range 12 {
		f.create("a")
	}
	var out struct {
		IDs []string `xml:"Upload>UploadId"`
	}
	got := f.want(call{method: "GET", path: "/vol1", query: "uploads="}, 200, "")
	if err := xml.Unmarshal(got.body, &out); err != nil || len(out.IDs) != 12 || !slices.IsSorted(out.IDs) {
		t.Errorf("%v, %v", out.IDs, err)
	}
}

// TestNamesAreKeptBetweenPages, of folders that have not changed for a while.
func TestNamesAreKeptBetweenPages(t *testing.T) {
	f := newFixture(t)
	old, err := os.Open("/usr")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = old.Close() }()
	l := f.lister("", "", "", 1)
	defer l.p.release()
	first, err := l.names(old, false)
	if err != nil || len(first) == 0 {
		t.Fatal(first, err)
	}
	l.p.wait = time.Millisecond
	for range cap(l.p.kept.scans) { // no folder can be read now
		l.p.kept.scans <- struct{}{}
	}
	if again, err := l.names(old, false); err != nil || !slices.Equal(again, first) {
		t.Errorf("%v, %v", again, err)
	}
	if _, err := l.names(old, true); faultOf(err).code != "SlowDown" {
		t.Errorf("those of another kind: %v", err)
	}
}

// TestWhatIsLogged: failures whose cause the client is not told, and no others.
func TestWhatIsLogged(t *testing.T) {
	var out bytes.Buffer
	h := New(Config{Log: slog.New(slog.NewTextHandler(&out, nil))})
	for err, logged := range map[error]bool{unix.EACCES: true, unix.EIO: true, unix.ENOSPC: true, unix.ENOENT: false, slowDown(): true, noSuchKey(): false} {
		out.Reset()
		x := &exchange{h: h, w: httptest.NewRecorder(), r: httptest.NewRequest(http.MethodGet, "/vol1/a", nil)}
		x.control = http.NewResponseController(x.w)
		x.fail(err) // also before there is a volume
		x.place = &place{folder: &Folder{}}
		x.fail(err) // and where nobody wants to know of a broken one
		if got := strings.Count(out.String(), "s3 request failed"); (got == 2) != logged || (got == 0) == logged {
			t.Errorf("%v: %s", err, out.String())
		}
	}
	if stale := unavailable(fmt.Errorf("open: %w", unix.ESTALE)); !broken(stale) || !strings.Contains(stale.Error(), unix.ESTALE.Error()) {
		t.Errorf("the cause of an answer is not looked at: %v", stale)
	}
	if got := faultOf(fmt.Errorf("read: %w", context.Canceled)); got.code != "RequestTimeout" {
		t.Errorf("a client that is gone: %v", got)
	}
}

// TestAnAnswerWithoutContentHasNone, whoever sends it on.
func TestAnAnswerWithoutContentHasNone(t *testing.T) {
	f := newFixture(t)
	f.put("a", "x")
	for _, c := range []call{
		{method: "GET", path: "/vol1/a", header: headers("If-None-Match", "*")},
		{method: "HEAD", path: "/vol1/none"},
		{method: "HEAD", path: "/vol1/a"},
	} {
		w := httptest.NewRecorder()
		if f.h.ServeHTTP(w, f.signed(c)); w.Body.Len() != 0 {
			t.Errorf("%s %s: %s", c.method, c.path, w.Body)
		}
	}
}

// deadlines counts the times that a connection is given.
type deadlines struct {
	*httptest.ResponseRecorder
	reads, writes int
}

func (d *deadlines) SetReadDeadline(time.Time) error  { d.reads++; return nil }
func (d *deadlines) SetWriteDeadline(time.Time) error { d.writes++; return nil }

// TestAClientGetsTimeForWhatItDoes: to send where a body is to come, and to take each piece of what it is sent.
func TestAClientGetsTimeForWhatItDoes(t *testing.T) {
	f := newFixture(t)
	f.put("a", "")
	if err := os.Truncate(f.file("a"), 3*piece); err != nil {
		t.Fatal(err)
	}
	get := &deadlines{ResponseRecorder: httptest.NewRecorder()}
	f.h.ServeHTTP(get, f.signed(call{method: "GET", path: "/vol1/a"}))
	if get.Body.Len() != 3*piece || get.reads != 0 || get.writes < 1+1+3 {
		t.Errorf("%d bytes, time to send %d times, to take %d times", get.Body.Len(), get.reads, get.writes)
	}
	put := &deadlines{ResponseRecorder: httptest.NewRecorder()}
	f.h.ServeHTTP(put, f.signed(call{method: "PUT", path: "/vol1/b", body: []byte("x")}))
	if put.Code != 200 || put.reads < 2 || put.writes == 0 {
		t.Errorf("%d, time to send %d times, to take %d times", put.Code, put.reads, put.writes)
	}
}

// TestARefusalOfLongWorkIsWhole when nothing was sent before it: it names what it is about.
func TestARefusalOfLongWorkIsWhole(t *testing.T) {
	f := newFixture(t)
	id := f.create("a")
	got := f.want(completeCall("a", id, map[int]string{1: md5Of("x")}, 1), 400, "InvalidPart")
	if !strings.Contains(string(got.body), "<Resource>/vol1/a</Resource>") {
		t.Errorf("%s", got.body)
	}
}

// TestAPresignedRequestOfAnotherRegion is told so in its own words.
func TestAPresignedRequestOfAnotherRegion(t *testing.T) {
	f := newFixture(t)
	stamp := time.Now().UTC().Format(stampFormat)
	query := testQuery("X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=" + testKey + "/" + stamp[:8] + "/elsewhere/s3/aws4_request&X-Amz-Date=" + stamp +
		"&X-Amz-Expires=60&X-Amz-SignedHeaders=host&X-Amz-Signature=" + strings.Repeat("0", 64))
	r, err := http.NewRequest(http.MethodGet, f.url+"/vol1/a?"+query, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := f.send(r); got.code() != "AuthorizationQueryParametersError" || got.header.Get("X-Amz-Bucket-Region") != testRegion {
		t.Errorf("%d %s", got.status, got.body)
	}
}

// TestManyVolumesInUse are all kept, also beyond what is kept of those that nobody uses, and of few all are kept.
func TestManyVolumesInUse(t *testing.T) {
	h := New(Config{})
	idle := h.hold("idle")
	h.drop(idle)
	h.drop(h.hold("another"))
	if h.hold("idle") != idle {
		t.Error("one of two is forgotten")
	}
	var used []*volume
	for i := range maxIdleVolumes + 1 {
		used = append(used, h.hold(fmt.Sprint(i)))
	}
	for i, v := range used {
		if h.hold(fmt.Sprint(i)) != v {
			t.Fatalf("volume %d is another one", i)
		}
	}
}

// lending is a Source whose folders need not be given back, and that has none at first.
type lending struct {
	*folders
	away bool
}

func (s *lending) Open(context.Context, string, string) (*Folder, error) {
	if s.away {
		return nil, unix.EHOSTDOWN
	}
	root, err := os.OpenRoot(filepath.Join(s.dir, "vol1"))
	return &Folder{Root: root}, err
}

// TestAVolumeThatIsAwayHoldsNoPlace among its requests.
func TestAVolumeThatIsAwayHoldsNoPlace(t *testing.T) {
	f := newFixtureIn(t, t.TempDir(), Limits{VolumeRequests: 1, Wait: 10 * time.Millisecond})
	f.put("a", "x")
	source := &lending{f.source, true}
	f.h.source = source
	for range 3 {
		f.want(call{method: "GET", path: "/vol1/a"}, 503, "ServiceUnavailable")
	}
	source.away = false
	if got := f.get("a"); got != "x" {
		t.Errorf("%q", got)
	}
}
