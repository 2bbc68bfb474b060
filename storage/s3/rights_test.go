package s3

import (
	"os"
	"testing"
)

func TestWhoMayWrite(t *testing.T) {
	f := newFixture(t)
	f.put("a", "x")
	if err := os.WriteFile(f.dir+"/../full/a", []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	f.want(call{method: "PUT", path: "/full/b"}, 403, "AccessDenied")
	f.want(call{method: "POST", path: "/full/b", query: "uploads="}, 403, "AccessDenied")
	f.want(call{method: "GET", path: "/full/a"}, 200, "")
	f.want(call{method: "DELETE", path: "/full/a"}, 204, "") // so that there is room again
	reader := *f
	reader.key = readKey
	for _, method := range []string{"PUT", "DELETE"} {
		reader.want(call{method: method, path: "/vol1/a"}, 403, "AccessDenied")
	}
	reader.want(call{method: "POST", path: "/vol1", query: "delete=", body: []byte("<Delete><Object><Key>a</Key></Object></Delete>")}, 403, "AccessDenied")
	reader.want(call{method: "GET", path: "/vol1/a"}, 200, "")
	id := f.create("up")
	f.want(partCall("up", id, 1, "x"), 200, "")
	from := headers("X-Amz-Copy-Source", "/vol1/a")
	for _, c := range []call{
		{method: "PUT", path: "/vol2/copy", header: from},
		{method: "PUT", path: "/vol1/a", header: headers("X-Amz-Copy-Source", "/vol1/a", "X-Amz-Metadata-Directive", "REPLACE")},
		{method: "PUT", path: "/vol1/folder/"},
		{method: "POST", path: "/vol1/b", query: "uploads="},
		partCall("up", id, 2, "x"),
		{method: "PUT", path: "/vol1/up", query: "uploadId=" + id + "&partNumber=3", header: from},
		completeCall("up", id, map[int]string{1: md5Of("x")}, 1),
		{method: "DELETE", path: "/vol1/up", query: "uploadId=" + id},
	} {
		reader.want(c, 403, "AccessDenied")
	}
	// Another account's volume is like one that is not there, as a bucket and as a source.
	if err := os.Mkdir(f.dir+"/../foreign", 0o755); err != nil {
		t.Fatal(err)
	}
	for _, bucket := range []string{"foreign", "nothing"} {
		f.want(call{method: "GET", path: "/" + bucket + "/a"}, 404, "NoSuchBucket")
		f.want(call{method: "PUT", path: "/" + bucket + "/a"}, 404, "NoSuchBucket")
		f.want(call{method: "PUT", path: "/vol1/copy", header: headers("X-Amz-Copy-Source", "/"+bucket+"/a")}, 404, "NoSuchBucket")
		f.want(call{method: "GET", path: "/a", host: bucket + ".s3.example.com"}, 404, "NoSuchBucket")
	}
	if f.exists("folder") || f.exists("copy") || f.exists("b") {
		t.Error("a key that may only read wrote")
	}
	f.source.frozen.Store(true)
	f.want(call{method: "DELETE", path: "/vol1/a"}, 403, "AccessDenied")
	f.want(call{method: "GET", path: "/vol1/a"}, 200, "")
}
