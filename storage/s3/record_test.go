package s3

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const etagX = "9dd4e461268c8034f5c8564e155c67a6" // of "x"

// TestRecordsOfAnybody: who can write a file can write its record, so only what a header can say is believed.
func TestRecordsOfAnybody(t *testing.T) {
	crc := func(n int) string { return strings.TrimSuffix(strings.Repeat(`"AAAAAA==",`, n), ",") }
	for _, tt := range []struct {
		name, raw string
		known     bool // the record is believed at all
		parts     bool // and what it says of the parts
	}{
		{"all", `{"v":1,"e":"` + etagX + `-2","c":"crc32:AAAAAA==-2","p":"3,4","q":[` + crc(2) + `],"h":{"content-type":"a\tb"},"m":{"a_1.z-0":"b"}}`, true, true},
		{"no form", `{"e":"` + etagX + `"}`, false, false},
		{"another form", `{"v":2,"e":"` + etagX + `"}`, false, false},
		{"no JSON", `{"v":1`, false, false},
		{"more behind it", `{"v":1}{`, false, false},
		{"a wrong type", `{"v":1,"s":"x"}`, false, false},
		{"an ETag that is none", `{"v":1,"e":"` + etagX[1:] + `"}`, false, false},
		{"a checksum that is none", `{"v":1,"c":"md5:AAAAAA=="}`, false, false},
		{"sums without a checksum", `{"v":1,"p":"3,4","q":[` + crc(2) + `]}`, true, false},
		{"a sum too many", `{"v":1,"c":"crc32:AAAAAA==","p":"3,4","q":[` + crc(3) + `]}`, true, false},
		{"sums that are none", `{"v":1,"c":"crc32:AAAAAA==","p":"3","q":["a b"]}`, true, false},
		{"sums of sums", `{"v":1,"c":"crc32:AAAAAA==","p":"3","q":["AAAAAA==-2"]}`, true, false},
		{"sizes that are none", `{"v":1,"p":"3,x"}`, true, false},
		{"sizes without sums", `{"v":1,"p":"3*2,4"}`, true, true},
		{"another header", `{"v":1,"h":{"location":"x"}}`, false, false},
		{"a header of two lines", `{"v":1,"h":{"expires":"a\nb"}}`, false, false},
		{"a header with a DEL", `{"v":1,"h":{"expires":"a\u007f"}}`, false, false},
		{"a name with a space", `{"v":1,"m":{"a b":"x"}}`, false, false},
		{"a name in capitals", `{"v":1,"m":{"A":"x"}}`, false, false},
		{"a name of all kinds", `{"v":1,"m":{"az09!#$%&'*+-.^_|~":"x"}}`, true, false},
		{"a name with a colon", `{"v":1,"m":{"a:":"x"}}`, false, false},
		{"a name with a slash", `{"v":1,"m":{"a/":"x"}}`, false, false},
		{"an empty name", `{"v":1,"m":{"":"x"}}`, false, false},
		{"a value of two lines", `{"v":1,"m":{"a":"b\r"}}`, false, false},
		{"the largest", pad(`{"v":1,"m":{"a":"%s"}}`, maxRecord), true, false},
		{"too large", pad(`{"v":1,"m":{"a":"%s"}}`, maxRecord+1), false, false},
	} {
		r := parseRecord([]byte(tt.raw))
		if (r.Form == recordForm) != tt.known || (r.Parts != "") != tt.parts {
			t.Errorf("%s: %+v", tt.name, r)
		}
		if !tt.known && !reflect.DeepEqual(r, record{}) {
			t.Errorf("%s: half a record: %+v", tt.name, r)
		}
	}
}

// pad fills the place in a text so that it has a length.
func pad(text string, length int) string {
	return fmt.Sprintf(text, strings.Repeat("x", length-len(text)+2))
}

func TestSizesOfAnybody(t *testing.T) {
	for text, want := range map[string]int{
		"": 0, manyParts: 0, "0": 1, "3,4": 2, "3*2,4": 3, "1*10000": 10_000, "1*9999,1": 10_000, strconv.Itoa(maxObject): 1,
		"1*10001": -1, "1*10000,1": -1, "1*0": -1, "1*-1": -1, "1*x": -1, "x": -1, "-1": -1, strconv.Itoa(maxObject + 1): -1, "1,": -1,
	} {
		sizes, ok := unpackSizes(text)
		if ok != (want >= 0) || ok && len(sizes) != want {
			t.Errorf("%q: %d sizes, %v", text, len(sizes), ok)
		}
	}
	if parts, known := (object{record: record{Parts: manyParts}}).parts(); known || parts != nil {
		t.Errorf("of many parts: %v %v", parts, known)
	}
}

func TestWhatIsKeptOfHeaders(t *testing.T) {
	got, err := recordOf(http.Header{
		"Content-Type": {"text/a"}, "Content-Encoding": {"gzip, AWS-chunked,, br"}, "Expires": {""}, "Location": {"x"}, "X-Amz-Meta-": {"x"}, "X-Amz-Meta-A": {"1", "2"},
	})
	want := record{Form: recordForm, Headers: map[string]string{"content-type": "text/a", "content-encoding": "gzip, br"}, Meta: map[string]string{"a": "1, 2"}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v %v", got, err)
	}
	for name, header := range map[string]http.Header{
		"metadata": headers("X-Amz-Meta-A", strings.Repeat("x", maxMeta-1)), "headers": headers("Content-Type", strings.Repeat("x", maxHeaders)),
	} {
		_, err := recordOf(header)
		refusedFor(t, "the most "+name, err, "", "")
		for only := range header {
			header.Set(only, header.Get(only)+"x")
		}
		_, err = recordOf(header)
		refusedFor(t, "more "+name, err, "MetadataTooLarge", "")
	}
}

func TestRecordsThatFit(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "a"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	long := func(n int) []string { return strings.Split(strings.Repeat("AAAAAA== ", n)[:9*n-1], " ") }
	sizes := func(n int) string { return strings.Repeat("1,2,", n/2-1) + "1,2" }
	for _, tt := range []struct {
		name  string
		in    record
		parts string
		sums  int
		code  string
	}{
		{"few parts", record{Checksum: "crc32:AAAAAA==-4", Parts: sizes(4), Sums: long(4)}, sizes(4), 4, ""},
		{"sums that are too many", record{Checksum: "crc32:AAAAAA==-400", Parts: sizes(400), Sums: long(400)}, sizes(400), 0, ""},
		{"sizes that are too many", record{Checksum: "crc32:AAAAAA==-4000", Parts: sizes(4000), Sums: long(4000)}, manyParts, 0, ""},
		{"the largest", record{Meta: map[string]string{"a": strings.Repeat("<", maxRecord-len(`{"v":1,"m":{"a":""}}`))}}, "", 0, ""},
		{"too large", record{Meta: map[string]string{"a": strings.Repeat("<", maxRecord-len(`{"v":1,"m":{"a":""}}`)+1)}}, "", 0, "MetadataTooLarge"},
	} {
		err := writeRecord(f, tt.in)
		refusedFor(t, tt.name, err, tt.code, "")
		if r := readRecord(f); err == nil && (r.Form != recordForm || r.Parts != tt.parts || len(r.Sums) != tt.sums || r.Checksum != tt.in.Checksum || r.Meta["a"] != tt.in.Meta["a"]) {
			t.Errorf("%s: %d parts, %d sums, %d bytes", tt.name, len(r.Parts), len(r.Sums), len(r.Meta["a"]))
		}
	}
	// What the file system refuses for another reason is told: a pipe can have no such attribute.
	name := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
	pipe, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := writeRecord(pipe, record{}); err == nil || !strings.Contains(err.Error(), "set attribute") {
		t.Errorf("of a pipe: %v", err)
	}
	_ = pipe.Close()
	if err := writeRecord(pipe, record{}); err == nil {
		t.Error("a closed file has a record")
	}
}

// statInfo is the state of a file that never was.
type statInfo struct {
	fs.FileInfo
	size     int64
	modified time.Time
	st       syscall.Stat_t
}

func (s statInfo) Size() int64        { return s.size }
func (s statInfo) ModTime() time.Time { return s.modified }
func (s statInfo) Sys() any           { return &s.st }

// TestAnETagNamesOneState: a file that a pod wrote has another ETag after each change, but the same one on each host.
func TestAnETagNamesOneState(t *testing.T) {
	base := statInfo{size: 3, modified: time.Unix(5, 7), st: syscall.Stat_t{Ino: 9, Ctim: syscall.Timespec{Sec: 1, Nsec: 2}}}
	seen := map[string]string{etagOf(base): "the file itself"}
	for name, change := range map[string]func(*statInfo){
		"another size":         func(s *statInfo) { s.size++ },
		"another time":         func(s *statInfo) { s.modified = s.modified.Add(1) },
		"another file":         func(s *statInfo) { s.st.Ino++ },
		"a change of its name": func(s *statInfo) { s.st.Ctim.Nsec++ },
	} {
		other := base
		change(&other)
		if same, ok := seen[etagOf(other)]; ok {
			t.Errorf("%s has the ETag of %s", name, same)
		}
		seen[etagOf(other)] = name
	}
	there := base
	there.st.Dev = 7
	if etagOf(there) != etagOf(base) || !etagForm.MatchString(etagOf(base)) {
		t.Errorf("another device: %s, not %s", etagOf(there), etagOf(base))
	}
}

func TestNamesOfParts(t *testing.T) {
	good := part{number: 7, etag: etagX, size: 5}
	summed := part{number: maxParts, etag: etagX, sum: strings.Repeat("ab", 32)}
	for _, p := range []part{good, summed} {
		if got, ok := parsePart(p.name()); !ok || got != p {
			t.Errorf("%s: %+v %v", p.name(), got, ok)
		}
	}
	for _, name := range []string{
		"", "part-00007-" + etagX, "port-00007-" + etagX + "-5", good.name() + "-ab-cd", good.name() + "-", good.name() + "-xy",
		good.name() + "-" + strings.Repeat("ab", 33), "part-7-" + etagX + "-5", "part-00007-" + etagX + "-05", "part-00007-" + etagX + "-+5",
		"part-00000-" + etagX + "-5", "part-10001-" + etagX + "-5", "part-x-" + etagX + "-5", "part-00007-" + etagX + "-x",
		"part-00007-" + strings.ToUpper(etagX) + "-5", "part-00007-" + etagX[1:] + "-5",
	} {
		if p, ok := parsePart(name); ok {
			t.Errorf("%s is part %+v", name, p)
		}
	}
}

func TestPlansOfAnybody(t *testing.T) {
	name := func(number int, size int64) string { return part{number: number, etag: etagX, size: size}.name() }
	asked := completeParts{{PartNumber: 1, ETag: etagX}, {PartNumber: 3, ETag: etagX}}
	plan := func(names ...string) []byte { raw, _ := json.Marshal(names); return raw }
	for what, tt := range map[string]struct {
		raw  []byte
		good bool
	}{
		"in order":          {plan(name(1, 5), name(3, 6)), true},
		"the largest":       {plan(name(1, 5), name(3, maxObject-5)), true},
		"too large":         {plan(name(1, 5), name(3, maxObject-4)), false},
		"no JSON":           {[]byte("["), false},
		"none":              {[]byte("null"), false},
		"a part less":       {plan(name(1, 5)), false},
		"another part":      {plan(name(1, 5), name(2, 6)), false},
		"another content":   {plan(name(1, 5), strings.Replace(name(3, 6), etagX, md5Of("y"), 1)), false},
		"a name of no part": {plan(name(1, 5), "../3"), false},
	} {
		parts, err := parsePlan(tt.raw, asked)
		if (err == nil) != tt.good || tt.good && len(parts) != 2 {
			t.Errorf("%s: %v %v", what, parts, err)
		}
	}
}

func TestPartsThatMakeAnObject(t *testing.T) {
	one := func(number int, etag string) completePart { return completePart{PartNumber: number, ETag: etag} }
	for what, tt := range map[string]struct {
		parts completeParts
		code  string
	}{
		"in order":        {completeParts{one(1, etagX), one(maxParts, ` "`+etagX+`" `)}, ""},
		"none":            {nil, "MalformedXML"},
		"twice":           {completeParts{one(1, etagX), one(1, etagX)}, "InvalidPartOrder"},
		"back":            {completeParts{one(2, etagX), one(1, etagX)}, "InvalidPartOrder"},
		"number 0":        {completeParts{one(0, etagX)}, "InvalidPartOrder"},
		"a high number":   {completeParts{one(maxParts+1, etagX)}, "InvalidPart"},
		"no ETag":         {completeParts{one(1, "")}, "InvalidPart"},
		"half an ETag":    {completeParts{one(1, etagX[2:])}, "InvalidPart"},
		"an upload's own": {completeParts{one(1, etagX+"-1")}, "InvalidPart"},
	} {
		etag, err := tt.parts.check()
		refusedFor(t, what, err, tt.code, "")
		if err == nil && etag != multipartETag("x", "x") {
			t.Errorf("%s: %s", what, etag)
		}
	}
	document := func(n int) []byte {
		return []byte("<CompleteMultipartUpload>" + strings.Repeat("<Part><PartNumber>1</PartNumber></Part>", n) + "</CompleteMultipartUpload>")
	}
	var in completeRequest
	if err := parseXML(document(maxParts), &in); err != nil || len(in.Parts) != maxParts {
		t.Errorf("%d parts: %v", len(in.Parts), err)
	}
	refusedFor(t, "a part too many", parseXML(document(maxParts+1), &completeRequest{}), "MalformedXML", "")
	refusedFor(t, "a number that is none", parseXML([]byte("<CompleteMultipartUpload><Part><PartNumber>x</PartNumber></Part></CompleteMultipartUpload>"), &in), "MalformedXML", "")
}
