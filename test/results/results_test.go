// Package results tests the files of results of public models with a real S3 server in front of a real folder.
package results

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	filesface "gantry/api/files"
	"gantry/fleet"
	"gantry/scheduler/files"
	"gantry/scheduler/state"
	"gantry/serverless/queue"
	"gantry/test/bucket"
	"gantry/test/plane"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// site is a scheduler's files, their face and the storage.
type site struct {
	*plane.Plane
	t     *testing.T
	dir   string
	files *files.Files
	api   *httptest.Server
	store fleet.ObjectStore
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{Plane: plane.New(t), t: t}
	url, dir := bucket.Serve(t)
	s.dir = dir
	log := slog.New(slog.DiscardHandler)
	c := files.Config{Store: s.Store, Node: s.Node, Sealer: s.Sealer, HTTP: files.NewHTTP(), Log: log, Now: s.Now}
	s.api = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		filesface.New(s.files, s.Now, nil, log).ServeHTTP(w, r)
	}))
	t.Cleanup(s.api.Close)
	c.URL = s.api.URL
	s.files = files.New(c)
	t.Cleanup(s.files.Close)
	s.store = fleet.ObjectStore{
		Endpoint: url, Region: bucket.Region, Bucket: bucket.Name, Prefix: "results/", AccessKey: bucket.AccessKey, AccountBytes: 100_000, AllBytes: 150_000,
	}
	s.put()
	return s
}

// put sets the storage.
func (s *site) put() {
	s.t.Helper()
	if _, err := s.PutObjectStore(s.t.Context(), s.store, bucket.Secret); err != nil {
		s.t.Fatal(err)
	}
}

// result has an output with a PNG of so many bytes kept, and returns its URL.
func (s *site) result(bytes int) (string, error) {
	s.t.Helper()
	output := []byte(`{"image_url":"data:image/png;base64,` + base64.StdEncoding.EncodeToString(content(bytes)) + `","seed":7}`)
	got, err := s.files.Result(s.t.Context(), &queue.Sale{Account: s.Who(plane.User).Account, Model: "draw"}, output)
	if err != nil {
		return "", err
	}
	var out struct {
		URL  string `json:"image_url"`
		Seed int
	}
	if err := json.Unmarshal(got, &out); err != nil || out.Seed != 7 {
		s.t.Fatalf("%s, %v", got, err)
	}
	return out.URL, nil
}

func content(n int) []byte { return bytes.Repeat([]byte("0123456789"), (n+9)/10)[:n] }

// answer is what a request was answered with.
type answer struct {
	status int
	header http.Header
	length int64
	body   string
}

// ask makes a request.
func (s *site) ask(method, url string, header ...string) answer {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, url, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	res, err := s.api.Client().Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	body, err := io.ReadAll(res.Body)
	if err := errors.Join(err, res.Body.Close()); err != nil {
		s.t.Fatal(err)
	}
	return answer{res.StatusCode, res.Header, res.ContentLength, string(body)}
}

// status makes a request that is answered with a status.
func (s *site) status(what, method, url string, want int, header ...string) answer {
	s.t.Helper()
	got := s.ask(method, url, header...)
	if got.status != want {
		s.t.Errorf("%s: %d %.200s, want %d", what, got.status, got.body, want)
	}
	return got
}

// objects counts what is in the bucket, and what the state says is.
func (s *site) objects() (there int, known int64) {
	s.t.Helper()
	found, err := filepath.Glob(filepath.Join(s.dir, "results", "*.png"))
	if err != nil {
		s.t.Fatal(err)
	}
	s.View(func(v *state.View) { o, _ := v.ObjectStore(); known = o.Files })
	return len(found), known
}

func TestAFileOfAResultIsServed(t *testing.T) {
	s := newSite(t)
	url, err := s.result(5000)
	if err != nil {
		t.Fatal(err)
	}
	whole := s.status("the file", "GET", url, 200)
	etag := whole.header.Get("ETag")
	for name, want := range map[string]string{
		"Content-Type": "image/png", "Content-Length": "5000", "Cache-Control": "private, immutable, max-age=604800", "X-Content-Type-Options": "nosniff",
		"Accept-Ranges": "bytes", "Content-Disposition": "", "Content-Security-Policy": "default-src 'none'; sandbox",
	} {
		if got := whole.header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if whole.body != string(content(5000)) || etag == "" {
		t.Errorf("%d bytes, ETag %q", len(whole.body), etag)
	}
	part := s.status("a range", "GET", url, 206, "Range", "bytes=10-19")
	if part.body != "0123456789" || part.header.Get("Content-Range") != "bytes 10-19/5000" {
		t.Errorf("%q of %s", part.body, part.header.Get("Content-Range"))
	}
	s.status("a range beyond", "GET", url, 416, "Range", "bytes=9000-")
	if head := s.status("its head", "HEAD", url, 200); head.body != "" || head.length != 5000 {
		t.Errorf("%q, %d bytes", head.body, head.length)
	}
	s.status("what the browser has", "GET", url, 304, "If-None-Match", etag)
	if post := s.status("a POST", "POST", url, 405); post.header.Get("Allow") != "GET, HEAD" {
		t.Error(post.header)
	}
}

// A URL is good for exactly one file and time: whatever is changed of it leads nowhere.
func TestAURLThatWasChangedLeadsNowhere(t *testing.T) {
	s := newSite(t)
	url, err := s.result(10)
	if err != nil {
		t.Fatal(err)
	}
	other, err := s.result(20)
	if err != nil {
		t.Fatal(err)
	}
	path, query, _ := strings.Cut(url, "?")
	otherPath, _, _ := strings.Cut(other, "?")
	expires, signature, _ := strings.Cut(strings.TrimPrefix(query, "expires="), "&signature=")
	until, err := strconv.ParseInt(expires, 10, 64)
	if err != nil || until != s.Now().Add(7*24*time.Hour).Unix() {
		t.Errorf("it expires at %s", expires)
	}
	flipped := []byte(signature)
	flipped[3] ^= 1
	for what, wrong := range map[string]string{
		"no signature": path + "?expires=" + expires, "no query": path, "a later expiry": path + "?expires=" + strconv.FormatInt(until+1, 10) + "&signature=" + signature,
		"another signature": path + "?expires=" + expires + "&signature=" + string(flipped), "a short signature": path + "?" + query[:len(query)-2],
		"another file": otherPath + "?" + query, "no number": path + "?expires=x&signature=" + signature, "another folder": path + "/x?" + query,
		"no file": s.api.URL + "/v2/files/?" + query, "a folder above": s.api.URL + "/v2/files/..%2F..%2Fx?" + query,
	} {
		s.status(what, "GET", wrong, 404)
	}
	s.status("as it was", "GET", url, 200)
}

// The file is there for seven days to the second, and then neither the URL nor the bucket nor the state has it.
func TestAFileIsGoneAfterSevenDays(t *testing.T) {
	s := newSite(t)
	url, err := s.result(10)
	if err != nil {
		t.Fatal(err)
	}
	s.Advance(fleet.FileLife - time.Second)
	if last := s.status("a second before", "GET", url, 200); last.header.Get("Cache-Control") != "private, immutable, max-age=1" {
		t.Error(last.header)
	}
	if n, err := s.files.Sweep(t.Context()); err != nil || n != 0 {
		t.Errorf("swept too early: %d, %v", n, err)
	}
	s.Advance(time.Second)
	s.status("after seven days", "GET", url, 404)
	if n, err := s.files.Sweep(t.Context()); err != nil || n != 1 {
		t.Errorf("swept %d, %v", n, err)
	}
	if there, known := s.objects(); there != 0 || known != 0 {
		t.Errorf("%d objects are left, %d are known", there, known)
	}
}

func TestFilesHaveABound(t *testing.T) {
	s := newSite(t)
	if _, err := s.result(60_000); err != nil {
		t.Fatal(err)
	}
	if _, err := s.result(50_000); fleet.CodeOf(err) != fleet.CodeLimited {
		t.Errorf("beyond the account's bound: %v", err)
	}
	if there, known := s.objects(); there != 1 || known != 1 {
		t.Errorf("%d objects, %d are known", there, known)
	}
}

// What a storage that fails leaves is found by the sweep, and the storage cannot be changed meanwhile.
func TestAStorageThatFails(t *testing.T) {
	s := newSite(t)
	s.store.AccessKey = "user_other"
	s.put()
	if _, err := s.result(10); fleet.CodeOf(err) != fleet.CodeInvalid {
		t.Errorf("keys that are wrong: %v", err)
	}
	if there, known := s.objects(); there != 0 || known != 1 {
		t.Errorf("%d objects, %d are known", there, known)
	}
	if err := s.DeleteObjectStore(t.Context()); fleet.CodeOf(err) != fleet.CodeInUse {
		t.Errorf("taken away with files in it: %v", err)
	}
	s.store.AccessKey = bucket.AccessKey
	s.put()
	s.Advance(fleet.FileLife)
	if n, err := s.files.Sweep(t.Context()); err != nil || n != 1 {
		t.Errorf("swept %d, %v", n, err)
	}
	if err := s.DeleteObjectStore(t.Context()); err != nil {
		t.Error(err)
	}
	output := []byte(`{"image_url":"data:image/png;base64,AAEC"}`)
	if got, err := s.files.Result(t.Context(), &queue.Sale{}, output); err != nil || !bytes.Equal(got, output) {
		t.Errorf("without a storage: %s, %v", got, err)
	}
}

func TestAStorageThatIsNone(t *testing.T) {
	s := newSite(t)
	for field, change := range map[string]func(*fleet.ObjectStore){
		"$.endpoint": func(o *fleet.ObjectStore) { o.Endpoint = "https://s3.example.com/path" }, "$.region": func(o *fleet.ObjectStore) { o.Region = "a b" },
		"$.bucket": func(o *fleet.ObjectStore) { o.Bucket = "../x" }, "$.accessKey": func(o *fleet.ObjectStore) { o.AccessKey = "a/b" },
		"$.prefix": func(o *fleet.ObjectStore) { o.Prefix = "a//b/" },
	} {
		store := s.store
		change(&store)
		_, err := s.PutObjectStore(t.Context(), store, bucket.Secret)
		var why *fleet.Error
		if !errors.As(err, &why) || why.Code != fleet.CodeInvalid || len(why.Details) != 1 || !strings.HasPrefix(why.Details[0], field+": ") {
			t.Errorf("%s: %v", field, err)
		}
	}
}
