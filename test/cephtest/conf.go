package cephtest

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"strings"
	"text/template"
	"time"
)

// conf is the cluster's configuration. No daemon writes outside of its folder. The sockets are needed also for commands that
// come over the network.
var conf = template.Must(template.New("").Parse(`[global]
fsid = {{.FSID}}
mon host = [v2:{{.Addr}}:{{.Port}}/0]
mon initial members = a
auth cluster required = cephx
auth service required = cephx
auth client required = cephx
keyring = {{.Dir}}/keyring
run dir = {{.Dir}}
admin socket = {{.Dir}}/$type.asok
log file = {{.Dir}}/$type.log
log to stderr = false
crash dir = {{.Dir}}/crash
public addr = {{.Addr}}
cluster addr = {{.Addr}}
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
mon allow pool size one = true
mon warn on pool no redundancy = false
paxos propose interval = 0.05
[mon]
mon data = {{.Dir}}/mon
mon cluster log file = {{.Dir}}/cluster.log
mon data avail warn = 1
mon data avail crit = 1
[mgr]
mgr data = {{.Dir}}/mgr
[osd]
osd data = {{.Dir}}/osd
osd objectstore = bluestore
osd memory target = 939524096
bluestore block size = 8589934592
bluestore fsck on mkfs = false
[mds]
mds data = {{.Dir}}/mds
[client]
admin socket =
log file = /dev/null
client fs = cephfs
client mount timeout = 20
client shutdown timeout = 5
`))

// write chooses a port and makes the daemons' folders, their configuration and their keys.
func (c *Cluster) write() error {
	const mostPath = 107 // of a socket
	if path := c.path("mds.asok"); len(path) > mostPath {
		return fmt.Errorf("the folder is too deep for sockets: %s", path)
	}
	listener, err := net.Listen("tcp4", net.JoinHostPort(c.addr, "0"))
	if err != nil {
		return err
	}
	c.port = listener.Addr().(*net.TCPAddr).Port
	if err := listener.Close(); err != nil {
		return err
	}
	for _, name := range []string{"mon", "mgr", "osd", "mds", "crash"} {
		if err := os.Mkdir(c.path(name), 0o700); err != nil {
			return err
		}
	}
	var text strings.Builder
	err = conf.Execute(&text, struct {
		FSID, Dir, Addr string
		Port            int
	}{c.fsid, c.dir, c.addr, c.port})
	if err != nil {
		return err
	}
	if err := os.WriteFile(c.path("ceph.conf"), []byte(text.String()), 0o600); err != nil {
		return err
	}
	return os.WriteFile(c.path("keyring"), []byte(c.keyring()), 0o600)
}

// keyring makes the keys of all who may speak to the cluster. The monitor takes them over when it is made.
func (c *Cluster) keyring() string {
	var out strings.Builder
	entity := func(name string, caps ...string) string {
		key := newKey()
		fmt.Fprintf(&out, "[%s]\n\tkey = %s\n", name, key)
		for i := 0; i < len(caps); i += 2 {
			fmt.Fprintf(&out, "\tcaps %s = \"%s\"\n", caps[i], caps[i+1])
		}
		return key
	}
	entity("mon.", "mon", "allow *")
	entity("client.admin", "mon", "allow *", "osd", "allow *", "mds", "allow *", "mgr", "allow *")
	entity("mgr."+mgrName, "mon", "allow profile mgr", "osd", "allow *", "mds", "allow *")
	entity("osd.0", "mon", "allow profile osd", "mgr", "allow profile osd", "osd", "allow *")
	entity("mds."+mdsName, "mon", "allow profile mds", "osd", "allow *", "mds", "allow", "mgr", "allow profile mds")
	c.keys[Plain] = entity("client."+Plain, clientCaps("allow rw path="+Folder)...)
	c.keys[Admin] = entity("client."+Admin, clientCaps("allow rwp path="+Folder)...)
	return out.String()
}

// clientCaps are the rights of a client of the file system.
func clientCaps(mds string) []string {
	return []string{"mon", "allow r", "osd", "allow rw tag cephfs data=" + FileSystem, "mds", mds}
}

// newKey makes a secret in Ceph's form: kind, time, length and 16 random bytes.
func newKey() string {
	b := make([]byte, 28)
	binary.LittleEndian.PutUint16(b, 1)                             // AES
	binary.LittleEndian.PutUint32(b[2:], uint32(time.Now().Unix())) //nolint:gosec // of no meaning
	binary.LittleEndian.PutUint16(b[10:], 16)
	_, _ = rand.Read(b[12:]) // never fails
	return base64.StdEncoding.EncodeToString(b)
}

func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
