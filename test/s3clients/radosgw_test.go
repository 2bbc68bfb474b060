package s3clients

import (
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"testing"

	"gantry/test/cephtest"
)

// radosgw starts the S3 server of Ceph, of Debian's package radosgw, on a cluster of this machine, with the same key and bucket.
func radosgw(b *testing.B) *server {
	b.Helper()
	cluster := cephtest.StartT(b)
	admin := exec.Command("radosgw-admin", "--conf", cluster.Conf(), "user", "create", "--uid=bench", "--display-name=bench",
		"--access-key="+accessKey, "--secret-key="+secretKey)
	if out, err := admin.CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(b, err)
	s := &server{t: b, addr: l.Addr().String(), said: &text{}}
	s.url = "http://" + s.addr
	must(b, l.Close())
	cmd := exec.Command("radosgw", "--conf", cluster.Conf(), "--name", "client.admin", "--foreground", "--rgw-data", b.TempDir(),
		"--rgw-frontends", "beast endpoint="+s.addr)
	cmd.Stdout, cmd.Stderr = s.said, s.said
	must(b, cmd.Start())
	b.Cleanup(func() {
		_ = cmd.Process.Kill()
		if err := cmd.Wait(); b.Failed() {
			b.Logf("radosgw: %v: %s", err, s.said)
		}
	})
	waitFor(b, "radosgw", func() bool {
		resp, err := s.do(plain, http.MethodPut, "", nil, 0) // the bucket
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	return s
}

// BenchmarkRadosgw is BenchmarkBig and BenchmarkSmall with Ceph's S3 server, whose objects are in its own store.
func BenchmarkRadosgw(b *testing.B) {
	s := radosgw(b)
	b.Cleanup(keeping.CloseIdleConnections)
	big, small := random(b, benchBig), random(b, benchSmall)
	benchObjects(b, "small=put", func(i int) { s.transfer(http.MethodPut, fmt.Sprint("small/", i), small) })
	benchObjects(b, "small=get", func(i int) { s.transfer(http.MethodGet, fmt.Sprint("small/", i), nil) })
	benchBytes(b, "big=put", func() { s.transfer(http.MethodPut, "big", big) })
	benchBytes(b, "big=get", func() { s.transfer(http.MethodGet, "big", nil) })
}
