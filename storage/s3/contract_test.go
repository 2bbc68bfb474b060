package s3

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestWhenAnObjectWasChanged is told by each answer that has it, to the second.
func TestWhenAnObjectWasChanged(t *testing.T) {
	f := newFixture(t)
	f.put("a", "x")
	at := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	if err := os.Chtimes(f.file("a"), at, at); err != nil {
		t.Fatal(err)
	}
	for _, method := range []string{"GET", "HEAD"} {
		if h := f.want(call{method: method, path: "/vol1/a"}, 200, "").header; h.Get("Last-Modified") != at.Format(http.TimeFormat) || h.Get("Accept-Ranges") != "bytes" {
			t.Errorf("%s: %v", method, h)
		}
	}
	if got := f.list("list-type=2").Contents[0].LastModified; got != "2026-03-04T05:06:07.000Z" {
		t.Errorf("listed: %s", got)
	}
	got := f.want(call{method: "GET", path: "/vol1/a", query: "response-content-type=text/x&response-cache-control=no-store&response-expires="}, 200, "").header
	if got.Get("Content-Type") != "text/x" || got.Get("Cache-Control") != "no-store" || got.Get("Expires") != "" {
		t.Errorf("as asked: %v", got)
	}
}

// TestAListSaysWhereItBegan as it was asked, and nothing that was not asked for.
func TestAListSaysWhereItBegan(t *testing.T) {
	f := newFixture(t)
	for _, key := range []string{"a", "b", "c"} {
		f.put(key, "x")
	}
	token := f.list("list-type=2&max-keys=1").NextContinuationToken
	for query, want := range map[string][]string{
		"list-type=2":                                   {},
		"list-type=2&start-after=a":                     {"<StartAfter>a</StartAfter>"},
		"list-type=2&start-after=":                      {"<StartAfter></StartAfter>"},
		"list-type=2&continuation-token=" + token:       {"<ContinuationToken>" + token + "</ContinuationToken>"},
		"list-type=2&max-keys=1":                        {"<NextContinuationToken>"},
		"list-type=2&start-after=a+b&encoding-type=url": {"<StartAfter>a%2Bb</StartAfter>"},
		"":                    {"<Marker></Marker>"},
		"marker=a":            {"<Marker>a</Marker>"},
		"marker=a&max-keys=1": {"<Marker>a</Marker>", "<NextMarker>b</NextMarker>"},
	} {
		text := string(f.want(call{method: "GET", path: "/vol1", query: query}, 200, "").body)
		for _, part := range want {
			if !strings.Contains(text, part) {
				t.Errorf("%s: no %s in %s", query, part, text)
			}
		}
		for _, name := range []string{"StartAfter", "ContinuationToken", "NextContinuationToken", "Marker", "NextMarker"} {
			asked := slices.ContainsFunc(want, func(part string) bool { return strings.HasPrefix(part, "<"+name+">") })
			if strings.Contains(text, "<"+name+">") != asked {
				t.Errorf("%s: %s in %s", query, name, text)
			}
		}
	}
}

// TestBucketsByTheBeginOfTheirNames.
func TestBucketsByTheBeginOfTheirNames(t *testing.T) {
	f := newFixture(t)
	for query, want := range map[string]string{
		"": "full vol1 vol2", "prefix=vol": "vol1 vol2", "prefix=vol2": "vol2", "prefix=x": "",
		"bucket-region=" + testRegion: "full vol1 vol2", "bucket-region=elsewhere": "",
	} {
		text := string(f.want(call{method: "GET", path: "/", query: query}, 200, "").body)
		var got []string
		for _, part := range strings.Split(text, "<Name>")[1:] {
			name, _, _ := strings.Cut(part, "<")
			got = append(got, name)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %v", query, got)
		}
	}
}

// TestWhatAnUploadIsMadeOf: its answer says how its checksums are made; an object of parts without checksums has none.
func TestWhatAnUploadIsMadeOf(t *testing.T) {
	f := newFixture(t)
	for _, c := range []struct{ algorithm, kind, wantKind string }{
		{"SHA256", "", "COMPOSITE"}, {"CRC32", "FULL_OBJECT", "FULL_OBJECT"}, {"CRC64NVME", "", "FULL_OBJECT"}, {"", "", ""},
	} {
		header := http.Header{}
		if c.algorithm != "" {
			header = headers("X-Amz-Checksum-Algorithm", c.algorithm)
		}
		if c.kind != "" {
			header.Set("X-Amz-Checksum-Type", c.kind)
		}
		h := f.want(call{method: "POST", path: "/vol1/up", query: "uploads=", header: header}, 200, "").header
		if h.Get("X-Amz-Checksum-Algorithm") != c.algorithm || h.Get("X-Amz-Checksum-Type") != c.wantKind {
			t.Errorf("%+v: %v", c, h)
		}
	}
	f.want(call{method: "POST", path: "/vol1/folder/", query: "uploads="}, 400, "InvalidArgument")
	f.upload("plain", nil, nil, "aa", "bb", "c")
	got := f.attributes("plain", "Checksum,ObjectParts")
	if got.Checksum != nil || got.ObjectParts != nil && slices.ContainsFunc(got.ObjectParts.Part, func(p struct {
		PartNumber     int
		Size           int64
		ChecksumSHA256 string
	},
	) bool {
		return p.ChecksumSHA256 != ""
	}) {
		t.Errorf("checksums that nobody made: %+v", got)
	}
	for i, want := range []string{"aa", "bb", "c"} {
		part := f.want(call{method: "GET", path: "/vol1/plain", query: fmt.Sprint("partNumber=", i+1), header: headers("X-Amz-Checksum-Mode", "ENABLED")}, 206, "")
		if string(part.body) != want || part.header.Get("X-Amz-Checksum-Sha256") != "" {
			t.Errorf("part %d is %q: %v", i+1, part.body, part.header)
		}
	}
}

// TestAnUploadWhoseNotesAPodChanged is none: its key may lead anywhere.
func TestAnUploadWhoseNotesAPodChanged(t *testing.T) {
	f := newFixture(t)
	id := f.create("big")
	for _, notes := range []string{`{"Key":"a/"}`, `{"key":"a/"}`, `{"Key":"../a","key":"../a"}`, `{"Key":"a","key":"a","Algorithm":"none","algorithm":"none"}`, `{`, ``} {
		if err := os.WriteFile(f.file(hidden+"/"+id+"/"+manifestName), []byte(notes), 0o600); err != nil {
			t.Fatal(err)
		}
		f.want(partCall("big", id, 1, "x"), 404, "NoSuchUpload")
		f.want(completeCall("big", id, map[int]string{1: md5Of("x")}, 1), 404, "NoSuchUpload")
	}
	for _, id := range []string{"none", "..", "a%2Fb", strings.Repeat("a", 32)} {
		c := call{method: "PUT", path: "/vol1/big", query: "uploadId=" + id + "&partNumber=1", header: headers("X-Amz-Copy-Source", "/vol1/none")}
		f.want(c, 404, "NoSuchUpload")
	}
	for _, n := range []string{"0", "10001", "x", "-1"} {
		f.want(call{method: "PUT", path: "/vol1/big", query: "uploadId=x&partNumber=" + n, header: headers("X-Amz-Copy-Source", "/vol1/none")}, 400, "InvalidArgument")
	}
}

func TestSourcesThatAreNone(t *testing.T) {
	f := newFixture(t)
	f.put("a", "x")
	for from, code := range map[string]string{
		"/vol1/%zz": "InvalidArgument", "vol1": "InvalidArgument", "/vol1/": "InvalidArgument", "/": "InvalidArgument",
		"/vol1/a?versionId=3": "NoSuchVersion", "/vol1/a?x": "NoSuchVersion",
	} {
		got := f.do(call{method: "PUT", path: "/vol1/b", header: headers("X-Amz-Copy-Source", from)})
		if got.code() != code {
			t.Errorf("%s: %d %s", from, got.status, got.code())
		}
	}
	f.want(call{method: "PUT", path: "/vol1/b", header: headers("X-Amz-Copy-Source", "/vol1/a?versionId=null")}, 200, "")
	f.leftovers()
}

func TestFoldersWhereAFileIs(t *testing.T) {
	f := newFixture(t)
	f.put("file", "x")
	for _, key := range []string{"file/", "file/sub/", "file/sub/deep/", "file/a"} {
		if got := f.do(call{method: "PUT", path: "/vol1/" + key}); got.status != 400 && got.status != 409 {
			t.Errorf("%s: %d %s", key, got.status, got.code())
		}
	}
	if f.get("file") != "x" {
		t.Error("the file is another one")
	}
	for range 2 { // one that is there already is no fault
		f.want(call{method: "PUT", path: "/vol1/deep/er/folder/"}, 200, "")
	}
	if info, err := os.Stat(f.file("deep/er/folder")); err != nil || !info.IsDir() {
		t.Error(err)
	}
	f.leftovers()
}

// TestWhichFilesAreParts of an upload: a pod may put others beside them.
func TestWhichFilesAreParts(t *testing.T) {
	etag, sum := strings.Repeat("0a", 16), strings.Repeat("0b", 32)
	for name, ok := range map[string]bool{
		"part-00001-" + etag + "-5":                     true,
		"part-10000-" + etag + "-0":                     true,
		"part-00001-" + etag + "-5-" + sum:              true,
		"tail-1-" + etag + "-5":                         false,
		"part-00000-" + etag + "-5":                     false,
		"part-10001-" + etag + "-5":                     false,
		"part-1-" + etag + "-5":                         false,
		"part-00001-" + etag[1:] + "-5":                 false,
		"part-00001-" + strings.ToUpper(etag) + "-5":    false,
		"part-00001-" + strings.Repeat("zz", 16) + "-5": false,
		"part-00001-" + etag + "--5":                    false,
		"part-00001-" + etag + "-x":                     false,
		"part-00001-" + etag + "-05":                    false,
		"part-00001-" + etag + "-5-":                    false,
		"part-00001-" + etag + "-5-" + sum + "00":       false,
		"part-00001-" + etag + "-5-zz":                  false,
		"part-00001-" + etag + "-5-0bzz":                false,
		"part-00001-" + etag + "-5-" + sum + "-1":       false,
		"part-00001-" + etag:                            false,
		"part":                                          false,
		"":                                              false,
	} {
		p, got := parsePart(name)
		if got != ok {
			t.Errorf("%q is a part: %v", name, got)
		}
		if ok && (p.etag != etag || p.name() != name || hex.EncodeToString([]byte(p.sum)) == "" && p.sum != "") {
			t.Errorf("%q: %+v", name, p)
		}
	}
}

// TestWhatIsLeftOutOfAList, and what ends it: a fault of the disk is none of a name.
func TestWhatIsLeftOutOfAList(t *testing.T) {
	wrap := func(err error) error { return fmt.Errorf("open: %w", &fs.PathError{Op: "openat", Path: "x", Err: err}) }
	for _, c := range []struct {
		err           error
		vanished, odd bool
	}{
		{unix.ENOENT, true, false},
		{unix.ENOTDIR, true, false},
		{unix.ELOOP, true, false},
		{unix.EACCES, true, false},
		{unix.EPERM, true, false},
		{unix.ENXIO, false, true},
		{unix.ENODEV, false, true},
		{unix.EAGAIN, false, true},
		{unix.EIO, false, false},
		{unix.EMFILE, false, false},
		{unix.ESTALE, false, false},
	} {
		if got := vanished(wrap(c.err)) == nil; got != c.vanished {
			t.Errorf("%v is left out as what is gone: %v", c.err, got)
		}
		if got := oddity(wrap(c.err)) == nil; got != c.odd {
			t.Errorf("%v is left out as what cannot be opened: %v", c.err, got)
		}
	}
	if vanished(nil) != nil || oddity(nil) != nil {
		t.Error("none is one")
	}
	if err := uploadFault(wrap(unix.ENOENT)); faultOf(err).code != "NoSuchUpload" {
		t.Errorf("%v", err)
	}
	if err := uploadFault(wrap(unix.EIO)); !errors.Is(err, unix.EIO) || faultOf(err).code == "NoSuchUpload" {
		t.Errorf("%v", err)
	}
}

// TestNothingIsHeldBetweenRequests: what an account and a volume may have under way is forgotten when they have nothing.
func TestNothingIsHeldBetweenRequests(t *testing.T) {
	f := newFixture(t)
	f.put("a", "x")
	f.get("a")
	f.want(call{method: "GET", path: "/vol9/a"}, 404, "NoSuchBucket")
	f.want(call{method: "PUT", path: "/full/a"}, 403, "AccessDenied")
	f.want(call{method: "GET", path: "/"}, 200, "")
	for range 100 { // the answer comes a moment before
		f.h.mu.Lock()
		held := 0
		for _, v := range f.h.volumes {
			held += v.users
		}
		f.h.mu.Unlock()
		if held == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Error("something is held, and nobody asks for anything")
}
