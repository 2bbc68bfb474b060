package s3

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/xml"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gantry/test/chaos/faultdisk"
)

func sha256Of(text string) string {
	sum := sha256.Sum256([]byte(text))
	return base64.StdEncoding.EncodeToString(sum[:])
}

func compositeOf(parts ...string) string {
	var all string
	for _, p := range parts {
		sum := sha256.Sum256([]byte(p))
		all += string(sum[:])
	}
	return fmt.Sprintf("%s-%d", sha256Of(all), len(parts))
}

// upload puts an object of parts.
func (f *fixture) upload(key string, create, complete http.Header, parts ...string) reply {
	f.t.Helper()
	var pairs []string
	for name := range create {
		pairs = append(pairs, name, create.Get(name))
	}
	id := f.create(key, pairs...)
	etags, order := map[int]string{}, []int{}
	for i, body := range parts {
		f.want(partCall(key, id, i+1, body), 200, "")
		etags[i+1], order = md5Of(body), append(order, i+1)
	}
	c := completeCall(key, id, etags, order...)
	c.header = complete
	return f.want(c, 200, "")
}

func TestPartsOfAnObject(t *testing.T) {
	f := newFixture(t)
	parts := []string{strings.Repeat("a", 1000), strings.Repeat("b", 1000), "c"}
	f.upload("big", headers("X-Amz-Checksum-Algorithm", "SHA256"), nil, parts...)
	for i, want := range parts {
		for _, method := range []string{"GET", "HEAD"} {
			got := f.want(call{method: method, path: "/vol1/big", query: fmt.Sprint("partNumber=", i+1), header: headers("X-Amz-Checksum-Mode", "ENABLED")}, 206, "")
			h := got.header
			if method == "GET" && string(got.body) != want || h.Get("Content-Length") != fmt.Sprint(len(want)) || h.Get("X-Amz-Mp-Parts-Count") != "3" ||
				h.Get("X-Amz-Checksum-Sha256") != sha256Of(want) || h.Get("X-Amz-Checksum-Type") != "COMPOSITE" {
				t.Errorf("%s part %d: %q %v", method, i+1, got.body, h)
			}
		}
	}
	f.want(call{method: "GET", path: "/vol1/big", query: "partNumber=4"}, 400, "InvalidPart")
	f.want(call{method: "GET", path: "/vol1/big", query: "partNumber=0"}, 400, "InvalidArgument")
	f.want(call{method: "GET", path: "/vol1/big", query: "partNumber=1", header: headers("Range", "bytes=0-1")}, 400, "InvalidRequest")
	// What was put whole is its only part.
	f.put("small", "body")
	if got := f.want(call{method: "GET", path: "/vol1/small", query: "partNumber=1"}, 200, ""); string(got.body) != "body" {
		t.Errorf("%q", got.body)
	}
	f.want(call{method: "GET", path: "/vol1/small", query: "partNumber=2"}, 400, "InvalidPart")
	// A pod's change ends what is known of the parts.
	f.write("big", "of a pod")
	if got := f.want(call{method: "GET", path: "/vol1/big", query: "partNumber=1"}, 200, ""); string(got.body) != "of a pod" {
		t.Errorf("%q", got.body)
	}
}

type attributesAnswer struct {
	ETag         string
	StorageClass string
	ObjectSize   *int64
	Checksum     *struct{ ChecksumSHA256, ChecksumType string }
	ObjectParts  *struct {
		PartsCount, PartNumberMarker, NextPartNumberMarker, MaxParts int
		IsTruncated                                                  bool
		Part                                                         []struct {
			PartNumber     int
			Size           int64
			ChecksumSHA256 string
		}
	}
}

func (f *fixture) attributes(key, names string, header ...string) (out attributesAnswer) {
	f.t.Helper()
	got := f.want(call{method: "GET", path: "/vol1/" + key, query: "attributes=", header: headers(append(header, "X-Amz-Object-Attributes", names)...)}, 200, "")
	if err := xml.Unmarshal(got.body, &out); err != nil {
		f.t.Fatal(err)
	}
	return out
}

func TestObjectAttributes(t *testing.T) {
	f := newFixture(t)
	f.put("one", "foo", "X-Amz-Checksum-Sha256", sha256Of("foo"))
	one := f.attributes("one", "ETag,Checksum,ObjectParts,StorageClass,ObjectSize")
	if one.ETag != md5Of("foo") || one.StorageClass != "STANDARD" || one.ObjectSize == nil || *one.ObjectSize != 3 || one.ObjectParts != nil ||
		one.Checksum == nil || one.Checksum.ChecksumSHA256 != sha256Of("foo") || one.Checksum.ChecksumType != "FULL_OBJECT" {
		t.Errorf("%+v", one)
	}
	if only := f.attributes("one", "ObjectSize"); only.ETag != "" || only.Checksum != nil || only.ObjectSize == nil {
		t.Errorf("%+v", only)
	}
	parts := []string{"aa", "bb", "cc", "d"}
	f.upload("many", headers("X-Amz-Checksum-Algorithm", "SHA256"), headers("X-Amz-Checksum-Sha256", compositeOf(parts...)), parts...)
	page := f.attributes("many", "Checksum, ObjectParts", "X-Amz-Max-Parts", "2", "X-Amz-Part-Number-Marker", "1")
	p := page.ObjectParts
	if page.Checksum.ChecksumSHA256 != compositeOf(parts...) || page.Checksum.ChecksumType != "COMPOSITE" || p == nil || p.PartsCount != 4 || p.PartNumberMarker != 1 ||
		p.NextPartNumberMarker != 3 || p.MaxParts != 2 || !p.IsTruncated || len(p.Part) != 2 || p.Part[0].PartNumber != 2 || p.Part[0].Size != 2 || p.Part[0].ChecksumSHA256 != sha256Of("bb") {
		t.Errorf("%+v %+v", page.Checksum, p)
	}
	for marker, left := range map[string]int{"1": 3, "2": 2, "3": 1, "4": 0, "10000": 0} { // the last pages, of which the first is full
		p := f.attributes("many", "ObjectParts", "X-Amz-Max-Parts", "3", "X-Amz-Part-Number-Marker", marker).ObjectParts
		if p.IsTruncated || p.NextPartNumberMarker != 0 || len(p.Part) != left {
			t.Errorf("behind %s: %+v", marker, p)
		}
	}
	f.want(call{method: "GET", path: "/vol1/one", query: "attributes="}, 400, "InvalidArgument")
	f.want(call{method: "GET", path: "/vol1/one", query: "attributes=", header: headers("X-Amz-Object-Attributes", "Colour")}, 400, "InvalidArgument")
	f.want(call{method: "GET", path: "/vol1/none", query: "attributes=", header: headers("X-Amz-Object-Attributes", "ETag")}, 404, "NoSuchKey")
}

func TestChecksumsOfUploads(t *testing.T) {
	f := newFixture(t)
	algorithm := headers("X-Amz-Checksum-Algorithm", "SHA256")
	done := f.upload("a", algorithm, headers("X-Amz-Checksum-Sha256", compositeOf("one", "two")), "one", "two")
	if !strings.Contains(string(done.body), "<ChecksumSHA256>"+compositeOf("one", "two")+"</ChecksumSHA256><ChecksumType>COMPOSITE</ChecksumType>") {
		t.Errorf("%s", done.body)
	}
	head := f.want(call{method: "HEAD", path: "/vol1/a", header: headers("X-Amz-Checksum-Mode", "ENABLED")}, 200, "").header
	if head.Get("X-Amz-Checksum-Sha256") != compositeOf("one", "two") || head.Get("X-Amz-Checksum-Type") != "COMPOSITE" {
		t.Errorf("%v", head)
	}
	id := f.create("b", "X-Amz-Checksum-Algorithm", "SHA256")
	part := partCall("b", id, 1, "one")
	part.header = headers("X-Amz-Checksum-Sha256", sha256Of("other"))
	f.want(part, 400, "BadDigest")
	part.header = headers("X-Amz-Checksum-Sha256", "bad")
	f.want(part, 400, "BadDigest")
	part.header = headers("X-Amz-Checksum-Crc32", "AAAAAA==")
	f.want(part, 400, "InvalidRequest")
	part.header = headers("X-Amz-Checksum-Sha256", sha256Of("one"))
	f.want(part, 200, "")
	complete := completeCall("b", id, map[int]string{1: md5Of("one")}, 1)
	complete.header = headers("X-Amz-Checksum-Sha256", "bad")
	f.want(complete, 400, "BadDigest")
	complete.header = nil
	complete.body = []byte(strings.Replace(string(complete.body), "</ETag>", "</ETag><ChecksumSHA256>"+sha256Of("two")+"</ChecksumSHA256>", 1))
	f.want(complete, 400, "InvalidPart")
	complete.body = []byte(strings.Replace(string(complete.body), sha256Of("two"), sha256Of("one"), 1))
	f.want(complete, 200, "")
	for _, h := range []http.Header{
		headers("X-Amz-Checksum-Algorithm", "CRC64NVME", "X-Amz-Checksum-Type", "COMPOSITE"), headers("X-Amz-Checksum-Algorithm", "SHA1", "X-Amz-Checksum-Type", "FULL_OBJECT"),
		headers("X-Amz-Checksum-Algorithm", "MD4"),
	} {
		f.want(call{method: "POST", path: "/vol1/c", query: "uploads=", header: h}, 400, "InvalidRequest")
	}
	f.leftovers()
}

func TestSizesOfPartsArePacked(t *testing.T) {
	var parts []part
	for i, size := range []int64{5, 5, 5, 3, 5, 0} {
		parts = append(parts, part{number: i + 1, size: size})
	}
	text := packSizes(parts)
	if sizes, ok := unpackSizes(text); text != "5*3,3,5,0" || !ok || !slices.Equal(sizes, []int64{5, 5, 5, 3, 5, 0}) {
		t.Errorf("%s %v", text, sizes)
	}
	for _, bad := range []string{"x", "5*", "5*0", "-1", "5*10001", "9999999999999999", "5,,5"} {
		if _, ok := unpackSizes(bad); ok {
			t.Errorf("%q passes", bad)
		}
	}
}

func TestMetadataKeepsItsNames(t *testing.T) {
	f := newFixture(t)
	const text = "Käse\u00a0\u20ac"
	f.put("a", "x", "X-Amz-Meta-Foo", text)
	w := httptest.NewRecorder()
	r := f.signed(call{method: "GET", path: "/vol1/a"})
	f.h.ServeHTTP(w, r)
	const sent = "x-amz-meta-foo"                                                  // not the canonical form
	if got := w.Header()[sent]; w.Code != 200 || len(got) != 1 || got[0] != text { //nolint:staticcheck // what is to be seen
		t.Errorf("%d %v", w.Code, w.Header())
	}
}

func TestDeletionsMayHaveConditions(t *testing.T) {
	f := newFixture(t)
	del := func(status int, code string, header ...string) {
		t.Helper()
		f.want(call{method: "DELETE", path: "/vol1/a", header: headers(header...)}, status, code)
	}
	f.put("a", "1")
	at := f.want(call{method: "HEAD", path: "/vol1/a"}, 200, "").header.Get("Last-Modified")
	del(412, "PreconditionFailed", "If-Match", `"`+md5Of("2")+`"`)
	del(412, "PreconditionFailed", "X-Amz-If-Match-Size", "2")
	del(412, "PreconditionFailed", "X-Amz-If-Match-Last-Modified-Time", time.Now().Add(time.Hour).UTC().Format(http.TimeFormat))
	del(400, "InvalidArgument", "X-Amz-If-Match-Last-Modified-Time", "yesterday")
	del(204, "", "If-Match", `"`+md5Of("1")+`"`, "X-Amz-If-Match-Size", "1", "X-Amz-If-Match-Last-Modified-Time", at)
	del(204, "", "If-Match", `"gone"`)
	f.put("a", "1")
	f.put("b", "2")
	body := `<Delete><Object><Key>a</Key><ETag>` + md5Of("x") + `</ETag></Object><Object><Key>b</Key><ETag>` + md5Of("2") + `</ETag></Object></Delete>`
	got := f.want(call{method: "POST", path: "/vol1", query: "delete=", body: []byte(body)}, 200, "")
	if !strings.Contains(string(got.body), "<Key>a</Key><Code>PreconditionFailed</Code>") || f.exists("b") || !f.exists("a") {
		t.Errorf("%s", got.body)
	}
}

func TestTheRightRegionIsTold(t *testing.T) {
	f := newFixture(t)
	for _, path := range []string{"/vol1/a", "/vol1", "/"} {
		for _, method := range []string{"GET", "HEAD"} {
			if got := f.want(call{method: method, path: path, region: "us-east-1"}, 400, ""); got.header.Get("X-Amz-Bucket-Region") != testRegion {
				t.Errorf("%s %s: %v", method, path, got.header)
			}
		}
	}
}

func TestBucketsInPages(t *testing.T) {
	f := newFixture(t)
	var all []string
	token := ""
	for range 5 {
		var page struct {
			Buckets           []struct{ Name string } `xml:"Buckets>Bucket"`
			ContinuationToken string
		}
		got := f.want(call{method: "GET", path: "/", query: "max-buckets=2&continuation-token=" + token}, 200, "")
		if err := xml.Unmarshal(got.body, &page); err != nil {
			t.Fatal(err)
		}
		for _, b := range page.Buckets {
			all = append(all, b.Name)
		}
		if token = page.ContinuationToken; token == "" {
			break
		}
	}
	if !slices.Equal(all, []string{"full", "vol1", "vol2"}) {
		t.Errorf("%v", all)
	}
	f.want(call{method: "GET", path: "/", query: "max-buckets=0"}, 400, "InvalidArgument")
}

func syncDir(folder string) error {
	f, err := os.Open(folder)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// TestAPowerCutTakesNothingThatWasAnswered puts and deletes on a disk that forgets what was not synced.
func TestAPowerCutTakesNothingThatWasAnswered(t *testing.T) {
	dir := t.TempDir()
	disk, err := faultdisk.Mount(filepath.Join(dir, "disk"), filepath.Join(dir, "store"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := disk.Close(); err != nil {
			t.Error(err)
		}
	})
	f := newFixtureIn(t, filepath.Join(dir, "disk"), Limits{})
	for name := f.dir; name != dir; name = filepath.Dir(name) { // the volume itself is there
		if err := syncDir(name); err != nil {
			t.Fatal(err)
		}
	}
	f.put("new/deep/a", "1")
	f.put("b", "old")
	f.put("b", "new")
	f.put("c", "only once", "If-None-Match", "*")
	f.put("gone", "1")
	f.delete("gone")
	f.put("many/gone", "1")
	f.want(call{method: "POST", path: "/vol1", query: "delete=", body: []byte("<Delete><Object><Key>many/gone</Key></Object></Delete>")}, 200, "")
	f.want(call{method: "PUT", path: "/vol1/folder/"}, 200, "")
	f.upload("new/parts", nil, nil, "one", "two")
	if err := disk.Cut(); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{"new/deep/a": "1", "b": "new", "c": "only once", "new/parts": "onetwo"} {
		if got := f.do(call{method: "GET", path: "/vol1/" + key}); got.status != 200 || string(got.body) != want {
			t.Errorf("%s: %d %q, want %q", key, got.status, got.body, want)
		}
	}
	f.want(call{method: "GET", path: "/vol1/gone"}, 404, "NoSuchKey")
	f.want(call{method: "GET", path: "/vol1/many/gone"}, 404, "NoSuchKey")
	f.want(call{method: "HEAD", path: "/vol1/folder/"}, 200, "")
}
