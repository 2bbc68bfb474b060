package s3

import (
	"bytes"
	"crypto/md5"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"hash/crc64"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

func (f *fixture) create(key string, header ...string) string {
	f.t.Helper()
	got := f.want(call{method: "POST", path: "/vol1/" + key, query: "uploads=", header: headers(header...)}, 200, "")
	var out struct {
		ID string `xml:"UploadId"`
	}
	if err := xml.Unmarshal(got.body, &out); err != nil || out.ID == "" {
		f.t.Fatalf("%s %v", got.body, err)
	}
	return out.ID
}

func partCall(key, id string, number int, body string) call {
	return call{method: "PUT", path: "/vol1/" + key, query: fmt.Sprintf("uploadId=%s&partNumber=%d", id, number), body: []byte(body)}
}

func completeCall(key, id string, etags map[int]string, order ...int) call {
	var b strings.Builder
	b.WriteString("<CompleteMultipartUpload>")
	for _, n := range order {
		fmt.Fprintf(&b, "<Part><ETag>&quot;%s&quot;</ETag><PartNumber>%d</PartNumber></Part>", etags[n], n)
	}
	b.WriteString("</CompleteMultipartUpload>")
	return call{method: "POST", path: "/vol1/" + key, query: "uploadId=" + id, body: []byte(b.String())}
}

func multipartETag(parts ...string) string {
	var all []byte
	for _, p := range parts {
		sum := md5.Sum([]byte(p))
		all = append(all, sum[:]...)
	}
	sum := md5.Sum(all)
	return fmt.Sprintf("%s-%d", hex.EncodeToString(sum[:]), len(parts))
}

func TestUpload(t *testing.T) {
	f := newFixture(t)
	id := f.create("d/big", "Content-Type", "text/big", "X-Amz-Meta-A", "1")
	content := map[int]string{1: strings.Repeat("one", 300_000), 2: "2", 5: strings.Repeat("five", 200_000)}
	etags := map[int]string{}
	f.want(partCall("d/big", id, 2, "another two"), 200, "")
	for n, body := range content {
		f.want(partCall("d/big", id, n, body), 200, "")
		etags[n] = md5Of(body)
	}
	f.put("source", "0123456789")
	from := partCall("d/big", id, 6, "")
	from.header = headers("X-Amz-Copy-Source", "vol1/source", "X-Amz-Copy-Source-Range", "bytes=2-4")
	var copied struct{ ETag string }
	if err := xml.Unmarshal(f.want(from, 200, "").body, &copied); err != nil {
		t.Fatal(err)
	}
	etags[6] = strings.Trim(copied.ETag, `"`)
	from.header.Set("X-Amz-Copy-Source-Range", "bytes=2-10")
	f.want(from, 416, "InvalidRange")
	from.header.Set("X-Amz-Copy-Source-Range", "2-10")
	f.want(from, 400, "InvalidArgument")

	var parts struct {
		IsTruncated          bool
		NextPartNumberMarker int
		Part                 []struct {
			PartNumber int
			ETag       string
			Size       int
		}
	}
	got := f.want(call{method: "GET", path: "/vol1/d/big", query: "uploadId=" + id + "&max-parts=2"}, 200, "")
	if err := xml.Unmarshal(got.body, &parts); err != nil || !parts.IsTruncated || parts.NextPartNumberMarker != 2 || len(parts.Part) != 2 || parts.Part[0].Size != 900_000 {
		t.Errorf("%s", got.body)
	}
	if p := f.list("list-type=2"); len(p.Contents) != 1 || f.exists("d") {
		t.Errorf("an upload is seen: %v", p.names())
	}
	if got := f.want(call{method: "GET", path: "/vol1", query: "uploads=&prefix=d/"}, 200, ""); !strings.Contains(string(got.body), "<UploadId>"+id+"</UploadId>") {
		t.Errorf("%s", got.body)
	}

	f.want(completeCall("d/big", id, etags, 2, 1), 400, "InvalidPartOrder")
	f.want(completeCall("d/big", id, map[int]string{1: md5Of("x")}, 1), 400, "InvalidPart")
	f.want(completeCall("d/big", id, etags), 400, "MalformedXML")
	f.want(completeCall("other", id, etags, 1), 404, "NoSuchUpload")
	f.want(completeCall("d/big", strings.Repeat("a", 26), etags, 1), 404, "NoSuchUpload")
	f.want(completeCall("d/big", "../../vol2", etags, 1), 404, "NoSuchUpload")
	f.want(completeCall("d/big", id, etags, 1, 2, 5, 6), 200, "")
	whole := content[1] + content[2] + content[5] + "234"
	if f.get("d/big") != whole {
		t.Error("other content")
	}
	h := f.want(call{method: "HEAD", path: "/vol1/d/big"}, 200, "").header
	if !strings.HasSuffix(h.Get("Etag"), `-4"`) || h.Get("Content-Type") != "text/big" || h.Get("X-Amz-Meta-A") != "1" {
		t.Errorf("%v", h)
	}
	// Whoever asks again gets the same answer.
	f.want(completeCall("d/big", id, etags, 1, 2, 5, 6), 200, "")
	f.want(completeCall("d/big", id, etags, 1, 2), 404, "NoSuchUpload")
	f.leftovers()
}

func TestUploadETagIsThatOfAWS(t *testing.T) {
	f := newFixture(t)
	id := f.create("a")
	etags := map[int]string{}
	for n, body := range map[int]string{1: "a", 2: "b"} {
		f.want(partCall("a", id, n, body), 200, "")
		etags[n] = md5Of(body)
	}
	// Of many at once all get the same answer.
	var all sync.WaitGroup
	for range 8 {
		r := f.signed(completeCall("a", id, etags, 1, 2))
		all.Go(func() {
			got, err := testClient.Do(r)
			if err != nil {
				t.Error(err)
				return
			}
			_ = got.Body.Close()
			if got.StatusCode != 200 {
				t.Errorf("status %d", got.StatusCode)
			}
		})
	}
	all.Wait()
	if got := f.want(call{method: "HEAD", path: "/vol1/a"}, 200, "").header.Get("Etag"); got != `"`+multipartETag("a", "b")+`"` {
		t.Error(got)
	}
	if f.get("a") != "ab" {
		t.Error("other content")
	}
	f.leftovers()
}

func TestCompleteGoesOnWhereItStopped(t *testing.T) {
	f := newFixture(t)
	for stopped := range 5 {
		key := fmt.Sprint("a", stopped)
		id := f.create(key)
		etags := map[int]string{}
		bodies := []string{"", "first", "the second", "third"}
		for n := 1; n <= 3; n++ {
			f.want(partCall(key, id, n, bodies[n]), 200, "")
			etags[n] = md5Of(bodies[n])
		}
		dir := filepath.Join(f.file(hidden), id)
		name := func(n int) string { return part{n, etags[n], int64(len(bodies[n])), ""}.name() }
		raw := fmt.Sprintf("[%q,%q,%q]", name(1), name(2), name(3))
		whole := bodies[1]
		steps := []func() error{
			func() error { return os.WriteFile(filepath.Join(dir, planName), []byte(raw), 0o600) },
			func() error { return os.Rename(filepath.Join(dir, name(1)), filepath.Join(dir, wholeName)) },
			func() error { return os.WriteFile(filepath.Join(dir, wholeName), []byte(whole+"the sec"), 0o644) },
			func() error {
				return os.WriteFile(filepath.Join(dir, wholeName), []byte(whole+bodies[2]+bodies[3]), 0o644)
			},
			func() error { return os.Remove(filepath.Join(dir, name(2))) },
		}
		for _, step := range steps[:stopped+1] {
			if err := step(); err != nil {
				t.Fatal(err)
			}
		}
		f.want(partCall(key, id, 4, "late"), 409, "OperationAborted")
		f.want(completeCall(key, id, etags, 1, 2), 400, "InvalidPart")
		f.want(completeCall(key, id, etags, 1, 2, 3), 200, "")
		if f.get(key) != "firstthe secondthird" {
			t.Errorf("stopped after %d: %q", stopped, f.get(key))
		}
	}
	f.leftovers()
}

func TestAbort(t *testing.T) {
	f := newFixture(t)
	id := f.create("a")
	f.want(partCall("a", id, 1, "x"), 200, "")
	f.want(call{method: "DELETE", path: "/vol1/a", query: "uploadId=" + id}, 204, "")
	f.want(call{method: "DELETE", path: "/vol1/a", query: "uploadId=" + id}, 404, "NoSuchUpload")
	f.want(partCall("a", id, 1, "x"), 404, "NoSuchUpload")
	f.want(partCall("a", f.create("a"), 0, "x"), 400, "InvalidArgument")
	f.want(partCall("a", f.create("a"), 10_001, "x"), 400, "InvalidArgument")
}

func TestLeftoversAreSwept(t *testing.T) {
	f := newFixture(t)
	old := f.create("old")
	f.want(partCall("old", old, 1, "x"), 200, "")
	young := f.create("young")
	left := "put-" + random()
	long := time.Now().Add(-8 * 24 * time.Hour)
	age := func(names ...string) {
		t.Helper()
		for _, name := range names {
			if err := os.Chtimes(f.file(name), long, long); err != nil {
				t.Fatal(err)
			}
		}
	}
	f.write(hidden+"/"+left, "x")
	f.write(hidden+"/notes of a pod", "x")
	age(hidden+"/"+left, hidden+"/"+old, hidden+"/notes of a pod")
	f.put("a", "x") // too early for another sweep
	if !f.exists(hidden + "/" + left) {
		t.Error("swept twice")
	}
	now := time.Now().Add(sweepEvery)
	f.h.now = func() time.Time { return now }
	f.want(call{method: "PUT", path: "/vol1/b", at: now}, 200, "")
	if f.exists(hidden+"/"+left) || f.exists(hidden+"/"+old) || !f.exists(hidden+"/"+young) || !f.exists(hidden+"/notes of a pod") {
		t.Error("wrong leftovers")
	}
	// The hidden folder is a link to a folder with old files of such names.
	if err := os.RemoveAll(f.file(hidden)); err != nil {
		t.Fatal(err)
	}
	f.write("mine/"+left, "x")
	age("mine/" + left)
	if err := os.Symlink("mine", f.file(hidden)); err != nil {
		t.Fatal(err)
	}
	now = now.Add(sweepEvery)
	f.want(call{method: "PUT", path: "/vol1/b", at: now.Add(-maxSkew / 2)}, 200, "")
	if !f.exists("mine/" + left) {
		t.Error("what a link leads to was swept")
	}
}

// TestChecksumOfAWholeUpload: what clients send with the request to complete is the object's checksum, not the body's.
func TestChecksumOfAWholeUpload(t *testing.T) {
	f := newFixture(t)
	etags := map[int]string{1: md5Of("one"), 2: md5Of("two")}
	sum := crc64.Checksum([]byte("onetwo"), nvme)
	nvmeSum := base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint64(nil, sum))
	for what, c := range map[string]struct {
		header  http.Header
		code    string
		checked string
	}{
		"full":    {headers("X-Amz-Checksum-Crc64nvme", nvmeSum, "X-Amz-Checksum-Type", "FULL_OBJECT"), "", nvmeSum},
		"wrong":   {headers("X-Amz-Checksum-Crc64nvme", "AAAAAAAAAAA="), "BadDigest", nvmeSum},
		"another": {headers("X-Amz-Checksum-Crc32", "AAAAAA==-2"), "BadDigest", nvmeSum},
		"none":    {nil, "", nvmeSum},
	} {
		id := f.create(what, "X-Amz-Checksum-Algorithm", "CRC64NVME", "X-Amz-Checksum-Type", "FULL_OBJECT")
		f.want(partCall(what, id, 1, "one"), 200, "")
		f.want(partCall(what, id, 2, "two"), 200, "")
		done := completeCall(what, id, etags, 1, 2)
		done.header = c.header
		got := f.do(done)
		if got.code() != c.code {
			t.Errorf("%s: %d %s", what, got.status, got.body)
			continue
		}
		if c.code != "" { // without it, the parts are still there
			f.want(completeCall(what, id, etags, 1, 2), 200, "")
		}
		head := f.want(call{method: "HEAD", path: "/vol1/" + what, header: headers("X-Amz-Checksum-Mode", "ENABLED")}, 200, "").header
		if head.Get("X-Amz-Checksum-Crc64nvme") != c.checked || f.get(what) != "onetwo" {
			t.Errorf("%s: %v", what, head)
		}
	}
	f.leftovers()
}

func TestATenantMayTouchTheHiddenFolder(t *testing.T) {
	f := newFixture(t)
	f.put("a", "1")
	if err := os.RemoveAll(f.file(hidden)); err != nil {
		t.Fatal(err)
	}
	f.put("a", "2")
	id := f.create("b")
	f.want(partCall("b", id, 1, "x"), 200, "")
	for _, raw := range []string{"", "null", `{"key":"../x"}`, `{"key":"b","record":{"v":1,"m":{"a\n":"x"}}}`, strings.Repeat("x", maxManifest+1)} {
		f.write(hidden+"/"+id+"/"+manifestName, raw)
		f.want(completeCall("b", id, map[int]string{1: md5Of("x")}, 1), 404, "NoSuchUpload")
	}
	f.want(call{method: "GET", path: "/vol1", query: "uploads="}, 200, "")
	if err := os.RemoveAll(f.file(hidden)); err != nil {
		t.Fatal(err)
	}
	f.write(hidden, "a file")
	f.want(call{method: "PUT", path: "/vol1/c"}, 403, "AccessDenied")
	if !bytes.Equal([]byte(f.get("a")), []byte("2")) {
		t.Error("other content")
	}
}

func FuzzPartName(f *testing.F) {
	f.Add("part-00001-d41d8cd98f00b204e9800998ecf8427e-0")
	f.Fuzz(func(t *testing.T, name string) {
		if p, ok := parsePart(name); ok && (p.name() != name || strings.Contains(name, "/") || p.number < 1) {
			t.Fatal(name)
		}
	})
}

func FuzzXML(f *testing.F) {
	f.Add([]byte("<Delete><Object><Key>a</Key></Object></Delete>"))
	f.Add([]byte("<CompleteMultipartUpload><Part><ETag>&quot;d41d8cd98f00b204e9800998ecf8427e&quot;</ETag><PartNumber>1</PartNumber></Part></CompleteMultipartUpload>"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var d deleteRequest
		if parseXML(raw, &d) == nil && len(d.Objects) > maxDeletes {
			t.Fatal("too many keys")
		}
		var c completeRequest
		if parseXML(raw, &c) == nil && len(c.Parts) > maxParts {
			t.Fatal("too many parts")
		}
		_, _ = c.Parts.check()
	})
}
