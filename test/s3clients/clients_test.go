package s3clients

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// client runs the programs of one client in a folder of its own, with nothing of the machine's settings.
type client struct {
	*server
	t    testing.TB
	home string
	env  []string
}

const (
	smallSize = 1000
	bigSize   = 20_000_000
)

// newClient has small and big in its folder, and the folder tree with two files.
func newClient(s *server, t testing.TB) *client {
	c := &client{server: s, t: t, home: t.TempDir()}
	c.env = []string{
		"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + c.home, "LANG=C.UTF-8",
		"AWS_ACCESS_KEY_ID=" + accessKey, "AWS_SECRET_ACCESS_KEY=" + secretKey, "AWS_DEFAULT_REGION=" + region, "AWS_EC2_METADATA_DISABLED=true",
		"URL=" + s.url, "BUCKET=" + bucket,
	}
	c.write("small", random(t, smallSize))
	c.write("big", random(t, bigSize))
	c.write("tree/a", random(t, smallSize))
	c.write("tree/deep/b", random(t, smallSize))
	return c
}

func (c *client) path(name string) string { return filepath.Join(c.home, name) }

func (c *client) write(name string, content []byte) {
	c.t.Helper()
	must(c.t, os.MkdirAll(filepath.Dir(c.path(name)), 0o755))
	must(c.t, os.WriteFile(c.path(name), content, 0o644))
}

func (c *client) read(name string) []byte {
	c.t.Helper()
	text, err := os.ReadFile(c.path(name))
	must(c.t, err)
	return text
}

// run runs a program and returns what it writes to its standard output.
func (c *client) run(program string, args ...string) string {
	c.t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.Env = c.home, c.env
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		c.t.Fatalf("%s: %v\n%s%s", cmd, err, out.String(), said.String())
	}
	return out.String()
}

// file returns what the volume's folder has at a name.
func (c *client) file(name string) []byte {
	c.t.Helper()
	text, err := os.ReadFile(filepath.Join(c.dir, name))
	must(c.t, err)
	return text
}

func (c *client) same(name string, want []byte) {
	c.t.Helper()
	if got := c.file(name); !bytes.Equal(got, want) {
		c.t.Errorf("%s holds %d bytes, not the %d of the client", name, len(got), len(want))
	}
}

func (c *client) absent(names ...string) {
	c.t.Helper()
	for _, name := range names {
		if _, err := os.Lstat(filepath.Join(c.dir, name)); !os.IsNotExist(err) {
			c.t.Errorf("%s is there: %v", name, err)
		}
	}
}

// stored fails unless all that the client has is in the volume's folder below a prefix.
func (c *client) stored(prefix string) {
	c.t.Helper()
	for _, name := range []string{"small", "big", "tree/a", "tree/deep/b"} {
		c.same(prefix+name, c.read(name))
	}
}

// came fails unless big.back is what big was.
func (c *client) came() {
	c.t.Helper()
	if !bytes.Equal(c.read("big.back"), c.read("big")) {
		c.t.Error("big.back is not big")
	}
}

// fetch gets a presigned address as anybody can.
func (c *client) fetch(address, like string) {
	c.t.Helper()
	resp, err := plain.Get(strings.TrimSpace(address))
	must(c.t, err)
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK || !bytes.Equal(text, c.read(like)) {
		c.t.Errorf("%s: %s, %d bytes, %v", address, resp.Status, len(text), err)
	}
}

// hasAll fails unless a listing names all words.
func (c *client) hasAll(list string, words ...string) {
	c.t.Helper()
	for _, w := range words {
		if !strings.Contains(list, w) {
			c.t.Errorf("the listing lacks %s:\n%s", w, list)
		}
	}
}

func TestClients(t *testing.T) {
	s := start(t)
	for name, drive := range map[string]func(*client){
		"aws-cli": driveAWS, "aws-cli-pages": pageAWS, "boto3": driveBoto3, "rclone": driveRclone, "s3cmd": driveS3cmd, "s3fs": driveS3fs,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			drive(newClient(s, t))
		})
	}
}

func driveAWS(c *client) {
	aws := func(args ...string) string {
		return c.run("/usr/bin/aws", append([]string{"--endpoint-url", c.url, "s3"}, args...)...)
	}
	at := "s3://" + bucket + "/aws/"
	aws("sync", "--no-progress", ".", at)
	c.stored("aws/")
	c.hasAll(aws("ls", "--recursive", at), "aws/big", "20000000", "aws/small", "aws/tree/deep/b")
	aws("cp", "--no-progress", at+"big", "big.back")
	c.came()
	c.fetch(aws("presign", at+"small"), "small")
	aws("rm", "--recursive", at)
	c.absent("aws/small", "aws/big", "aws/tree/deep/b", "aws")
}

func driveBoto3(c *client) {
	c.write("drive.py", []byte(boto3Script))
	addresses := strings.Fields(c.run("/usr/bin/python3", "drive.py"))
	if len(addresses) != 1 {
		c.t.Fatalf("it says %q", addresses)
	}
	c.fetch(addresses[0], "small")
	c.stored("boto/")
	c.came()
	c.same("boto/copy", c.read("small"))
	c.same("boto/presigned", []byte("presigned"))
	c.absent("boto/gone1", "boto/gone2")
}

const boto3Script = `
import os, urllib.request, boto3
from boto3.s3.transfer import TransferConfig
from botocore.client import Config
s3 = boto3.client("s3", endpoint_url=os.environ["URL"], config=Config(s3={"addressing_style": "path"}))
b = os.environ["BUCKET"]
small = open("small", "rb").read()
put = s3.put_object(Bucket=b, Key="boto/small", Body=small, Metadata={"made": "here"}, ContentType="text/x-small")
got = s3.get_object(Bucket=b, Key="boto/small")
assert got["Body"].read() == small and got["ETag"] == put["ETag"], got
assert {k.lower(): v for k, v in got["Metadata"].items()} == {"made": "here"} and got["ContentType"] == "text/x-small", got
assert s3.get_object(Bucket=b, Key="boto/small", Range="bytes=10-19")["Body"].read() == small[10:20]
parts = TransferConfig(multipart_threshold=5 << 20, multipart_chunksize=5 << 20)
s3.upload_file("big", b, "boto/big", Config=parts)
s3.download_file(b, "boto/big", "big.back", Config=parts)
for name in ("a", "deep/b"):
    s3.upload_file("tree/" + name, b, "boto/tree/" + name)
s3.copy_object(Bucket=b, Key="boto/copy", CopySource={"Bucket": b, "Key": "boto/small"})
for name in ("boto/gone1", "boto/gone2"):
    s3.put_object(Bucket=b, Key=name, Body=b"gone")
s3.delete_objects(Bucket=b, Delete={"Objects": [{"Key": "boto/gone1"}, {"Key": "boto/gone2"}]})
keys = [o["Key"] for p in s3.get_paginator("list_objects_v2").paginate(Bucket=b, Prefix="boto/", PaginationConfig={"PageSize": 2}) for o in p["Contents"]]
assert keys == ["boto/big", "boto/copy", "boto/small", "boto/tree/a", "boto/tree/deep/b"], keys
assert [x["Name"] for x in s3.list_buckets()["Buckets"]] == [b, b + "-two"]
try:
    s3.get_object(Bucket=b, Key="boto/gone1")
    raise SystemExit("a deleted object was got")
except s3.exceptions.NoSuchKey:
    pass
address = s3.generate_presigned_url("put_object", Params={"Bucket": b, "Key": "boto/presigned"})
urllib.request.urlopen(urllib.request.Request(address, data=b"presigned", method="PUT", headers={"Content-Type": ""}))
print(s3.generate_presigned_url("get_object", Params={"Bucket": b, "Key": "boto/small"}))
`

func driveRclone(c *client) {
	c.env = append(c.env, "RCLONE_CONFIG="+c.path("none"), "RCLONE_CONFIG_G_TYPE=s3", "RCLONE_CONFIG_G_PROVIDER=Other", "RCLONE_CONFIG_G_ENV_AUTH=true",
		"RCLONE_CONFIG_G_ENDPOINT="+c.url, "RCLONE_CONFIG_G_REGION="+region, "RCLONE_CONFIG_G_CHUNK_SIZE=5Mi", "RCLONE_CONFIG_G_UPLOAD_CUTOFF=5Mi")
	rclone := func(args ...string) string { return c.run("/usr/bin/rclone", args...) }
	at := "g:" + bucket + "/rclone/"
	rclone("copy", "small", at)
	rclone("copy", "big", at)
	rclone("sync", "tree", at+"tree")
	c.stored("rclone/")
	rclone("check", "--download", "tree", at+"tree")
	c.hasAll(rclone("lsf", "-R", at), "big\n", "small\n", "tree/deep/b\n")
	rclone("copyto", at+"big", "big.back")
	c.came()
	c.fetch(rclone("link", at+"small"), "small")
	must(c.t, os.Remove(c.path("tree/a")))
	rclone("sync", "tree", at+"tree")
	c.absent("rclone/tree/a")
	rclone("purge", at)
	c.absent("rclone/small", "rclone/big", "rclone/tree/deep/b")
}

func driveS3cmd(c *client) {
	c.write(".s3cfg", fmt.Appendf(nil, "[default]\naccess_key = %s\nsecret_key = %s\nhost_base = %s\nhost_bucket = %s\nuse_https = False\nbucket_location = %s\n",
		accessKey, secretKey, c.addr, c.addr, region))
	s3cmd := func(args ...string) string {
		return c.run("/usr/bin/s3cmd", append([]string{"--no-progress"}, args...)...)
	}
	at := "s3://" + bucket + "/s3cmd/"
	s3cmd("put", "small", at+"small")
	s3cmd("put", "--multipart-chunk-size-mb=5", "big", at+"big")
	s3cmd("sync", "tree", at)
	c.stored("s3cmd/")
	c.hasAll(s3cmd("ls", "-r", at), at+"small", at+"tree/deep/b", "20000000")
	s3cmd("get", at+"big", "big.back")
	c.came()
	s3cmd("del", "-r", "-f", at)
	c.absent("s3cmd/small", "s3cmd/big", "s3cmd/tree/deep/b")
}

func driveS3fs(c *client) {
	c.write("passwd", []byte(accessKey+":"+secretKey+"\n"))
	must(c.t, os.Chmod(c.path("passwd"), 0o600))
	at := c.path("mnt")
	must(c.t, os.Mkdir(at, 0o755))
	cmd := exec.Command("/usr/bin/s3fs", bucket, at, "-f", "-o", "url="+c.url, "-o", "use_path_request_style", "-o", "endpoint="+region,
		"-o", "passwd_file="+c.path("passwd"), "-o", "multipart_size=5", "-o", "tmpdir="+c.home)
	cmd.Env = c.env
	said := &text{}
	cmd.Stdout, cmd.Stderr = said, said
	must(c.t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	defer func() {
		_ = unix.Unmount(at, unix.MNT_DETACH)
		_ = cmd.Process.Kill()
		if err := <-ended; c.t.Failed() {
			c.t.Logf("s3fs: %v:\n%s", err, said)
		}
	}()
	waitFor(c.t, "s3fs to mount", func() bool {
		var st unix.Statfs_t
		if len(ended) > 0 {
			c.t.Fatal("s3fs has ended")
		}
		return unix.Statfs(at, &st) == nil && st.Type == unix.FUSE_SUPER_MAGIC
	})
	in := at + "/s3fs"
	c.run("/bin/mkdir", in)
	c.run("/bin/cp", "-r", "small", "big", "tree", in)
	c.stored("s3fs/")
	c.put("s3fs/by-s3", "other")
	c.same("s3fs/by-s3", []byte("other"))
	c.hasAll(c.run("/usr/bin/find", in, "-type", "f"), in+"/small", in+"/tree/deep/b", in+"/by-s3")
	c.run("/usr/bin/cmp", "big", in+"/big")
	c.run("/bin/mv", in+"/small", in+"/moved")
	c.same("s3fs/moved", c.read("small"))
	c.run("/bin/rm", "-r", in)
	c.absent("s3fs/small", "s3fs/moved", "s3fs/big", "s3fs/tree/deep/b")
}

// pageAWS lists 10,000 files of the other volume, which pods made, in pages.
func pageAWS(c *client) {
	const objects = 10_000
	for i := range objects {
		name := filepath.Join(c.dirTwo, fmt.Sprintf("%05d", i))
		must(c.t, os.WriteFile(name, []byte("x"), 0o600))
		must(c.t, os.Chown(name, int(ownerID)+1000, int(ownerID)+1000))
	}
	list := strings.Fields(c.run("/usr/bin/aws", "--endpoint-url", c.url, "s3api", "list-objects-v2", "--bucket", bucketTwo, "--page-size", "1000",
		"--query", "Contents[].Key", "--output", "text"))
	if len(list) != objects {
		c.t.Fatalf("%d keys are listed", len(list))
	}
	for i, key := range list {
		if key != fmt.Sprintf("%05d", i) {
			c.t.Fatalf("key %d is %s", i, key)
		}
	}
}
