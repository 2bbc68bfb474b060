package containerfs

import (
	"archive/tar"
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"gantry/fleet"
	"gantry/internal/userns"
)

const idBase = 0x10050000

// tenant is a process that is root of a user namespace, and the namespace.
type tenant struct {
	users *os.File
	pid   int
}

func newTenant(t testing.TB) tenant {
	t.Helper()
	held, err := userns.New(idBase, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = held.Close() })
	cmd := exec.Command("nsenter", "--user="+opened(held.User), "-S0", "-G0", "sh", "-c", "echo there; exec cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "there\n" {
		t.Fatal(line, err)
	}
	return tenant{held.User, cmd.Process.Pid}
}

// opened is a path by which other programs open a file that is open here.
func opened(f *os.File) string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), f.Fd()) }

// run runs a command as the namespace's root, in a folder.
func (n tenant) run(t testing.TB, dir *os.File, command string) string {
	t.Helper()
	cmd := exec.Command("nsenter", "--user="+opened(n.users), "-S0", "-G0", "sh", "-c", "cd /proc/self/fd/3/ && "+command)
	cmd.ExtraFiles = []*os.File{dir}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%s: %v\n%s", command, err, out)
	}
	return string(out)
}

// tenantBox is a box whose folder belongs to a tenant.
func tenantBox(t *testing.T) (*box, tenant) {
	t.Helper()
	b, n := newBox(t), newTenant(t)
	ids, err := ReadIDs(n.pid)
	b.must(err)
	b.root.WithIDs(ids)
	b.must(os.Chown(b.dir, idBase, idBase))
	return b, n
}

func owned(m member, uid, gid int) member {
	m.Uid, m.Gid = uid, gid
	return m
}

func (b *box) owner(name string) string {
	b.Helper()
	var st syscall.Stat_t
	b.must(syscall.Lstat(b.path(name), &st))
	return fmt.Sprintf("%d:%d %o", int64(st.Uid)-idBase, int64(st.Gid)-idBase, st.Mode&0o7777)
}

func ownedArchive(t testing.TB) []byte {
	suid := owned(file("suid", "x"), 0, 0)
	suid.Mode = 0o4755
	return archive(t, owned(file("root", "x"), 0, 0), owned(file("a/b/user", "x"), 1000, 100), owned(file("last", "x"), 65535, 65535), suid,
		owned(file("far", "x"), 65536, 4_000_000_000), owned(folder("d"), 33, 34),
		owned(member{Header: tar.Header{Typeflag: tar.TypeSymlink, Name: "l", Linkname: "root"}}, 5, 6),
		member{Header: tar.Header{Typeflag: tar.TypeLink, Name: "h", Linkname: "a/b/user"}},
		owned(file("last", "again"), 7, 7))
}

// wantOwners are those of ownedArchive, as the container sees them.
func wantOwners() map[string]string {
	return map[string]string{
		"root": "0:0 644", "a": "0:0 755", "a/b": "0:0 755", "a/b/user": "1000:100 644", "last": "7:7 644", "suid": "0:0 755",
		"far": "65534:65534 644", "d": "33:34 755", "l": "5:6 777", "h": "1000:100 644",
	}
}

func TestOwnersAreThoseOfTheContainer(t *testing.T) {
	b, n := tenantBox(t)
	b.must(b.unpack("/", ownedArchive(t)))
	b.mkdir("hosts")
	b.write("hosts/f", "not the container's")
	checkOwners(t, b, "")
	dir, err := os.Open(b.dir)
	b.must(err)
	defer dir.Close()
	got := n.run(t, dir, "stat -c '%u:%g %a' a/b/user far && chown 3:3 a/b/user && rm far && mkdir a/mine && stat -c %u:%g a/mine")
	if diff := cmp.Diff("1000:100 644\n65534:65534 644\n0:0\n", got); diff != "" {
		t.Errorf("in the container (-want +got):\n%s", diff)
	}
	if got := b.owner("a/b/user"); got != "3:3 644" {
		t.Errorf("after the container's own change: %s", got)
	}
}

// checkOwners compares folder's files with wantOwners, on the host and as they are read. Files of the
// host's, in hosts, are nobody's.
func checkOwners(t *testing.T, b *box, folder string) {
	t.Helper()
	data, err := b.pack("/" + folder)
	b.must(err)
	read, lead := listing(t, data), folder+"/"
	if folder == "" {
		lead = "./"
	}
	for name, want := range wantOwners() {
		if got := b.owner(folder + "/" + name); got != want {
			t.Errorf("%s is %s on the host, want %s", name, got, want)
		}
		owner, mode, _ := strings.Cut(want, " ")
		got := read[lead+name] + read[lead+name+"/"]
		if !strings.Contains(got, " "+mode+" "+owner) && !strings.HasPrefix(got, "link ") {
			t.Errorf("%s is read as %q, want %s", name, got, want)
		}
	}
	if got := read[lead+"hosts/f"]; !strings.Contains(got, " 65534:65534 ") {
		t.Errorf("the host's file is read as %q", got)
	}
	again, err := b.pack("/" + folder)
	b.must(err)
	if folder != "" {
		return
	}
	b.mkdir("copy")
	b.must(os.Chown(b.path("copy"), idBase, idBase))
	b.must(b.unpack("/copy", again))
	for name, want := range wantOwners() {
		if got := b.owner("copy/" + name); got != want {
			t.Errorf("the copy of %s is %s, want %s", name, got, want)
		}
	}
}

// TestOwnersOnAVolume writes to a mount whose owners on the disk are other ones: 0 to 65535.
func TestOwnersOnAVolume(t *testing.T) {
	b, n := tenantBox(t)
	b.mkdir("disk", "vol", "disk/hosts")
	b.write("disk/hosts/f", "not the container's")
	b.must(os.Chown(b.path("disk/hosts/f"), 70_000, 70_000))
	b.mapped("disk", "vol", n)
	for range 2 { // also over what is there
		b.must(b.unpack("/vol", ownedArchive(t)))
	}
	checkOwners(t, b, "vol")
	var st syscall.Stat_t
	b.must(syscall.Lstat(b.path("disk/a/b/user"), &st))
	if st.Uid != 1000 || st.Gid != 100 {
		t.Errorf("on the disk it belongs to %d:%d", st.Uid, st.Gid)
	}
	vol, err := os.Open(b.path("vol"))
	b.must(err)
	defer vol.Close()
	if got := n.run(t, vol, "stat -c '%u:%g' a/b/user a; touch a/mine; stat -c %u a/mine"); got != "1000:100\n0:0\n0\n" {
		t.Errorf("in the container: %q", got)
	}
	private := owned(folder("private"), 1000, 1000)
	private.Mode = 0o700
	b.must(b.unpack("/vol", archive(t, private, owned(file("private/f", "x"), 1000, 1000)))) // root of the container passes everywhere
	if got := b.owner("vol/private/f"); got != "1000:1000 644" {
		t.Errorf("in a private folder: %s", got)
	}
}

// mapped mounts a folder of the box with a tenant's owners.
func (b *box) mapped(source, target string, n tenant) {
	b.Helper()
	tree, err := unix.OpenTree(unix.AT_FDCWD, b.path(source), unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	b.must(err)
	defer unix.Close(tree)
	attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(n.users.Fd())}
	b.must(unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, attr))
	b.must(unix.MoveMount(tree, "", unix.AT_FDCWD, b.path(target), unix.MOVE_MOUNT_F_EMPTY_PATH))
	b.Cleanup(func() { b.must(unix.Unmount(b.path(target), unix.MNT_DETACH)) })
}

// TestAContainerWithoutIDs has a process that went to a namespace in which it mapped none.
func TestAContainerWithoutIDs(t *testing.T) {
	b := newBox(t)
	b.root.WithIDs(IDs{users: idMap{}, groups: idMap{}})
	b.write("f", "x")
	wantCode(t, "write", b.unpack("/", archive(t, file("g", "x"))), fleet.CodeNotAllowed, "no root")
	data, err := b.pack("/f")
	if got := listing(t, data)["f"]; err != nil || !strings.Contains(got, " 65534:65534 ") {
		t.Errorf("read %q, %v", got, err)
	}
	b.root.WithIDs(IDs{users: idMap{{0, idBase, 1}}, groups: idMap{{0, idBase, 1}}})
	wantCode(t, "write as somebody", b.unpack("/", archive(t, owned(file("g", "x"), 1, 0))), fleet.CodeNotAllowed, "no nobody")
	if left, err := os.ReadDir(b.dir); err != nil || len(left) != 1 {
		t.Errorf("left %v, %v", left, err)
	}
}

// TestWritingLeavesTheThreadsAsTheyWere: no other work of the agent happens with a pod's ids.
func TestWritingLeavesTheThreadsAsTheyWere(t *testing.T) {
	b, _ := tenantBox(t)
	in, out := io.Pipe()
	into, err := b.root.Into("/")
	b.must(err)
	defer into.Close()
	done := make(chan error, 1)
	go func() { done <- into.Unpack(t.Context(), in) }()
	data := archive(t, file("f", "text"), file("g", "text"))
	_, err = out.Write(data[:1024]) // it is in the midst of it
	b.must(err)
	b.write("host", "")
	if got := b.owner("host"); got != fmt.Sprintf("%d:%d 644", -idBase, -idBase) {
		t.Errorf("meanwhile the agent's files belong to %s", got)
	}
	_, err = out.Write(data[1024:])
	b.must(errors.Join(err, out.Close()))
	b.must(<-done)
	if got := b.owner("g"); got != "0:0 644" {
		t.Errorf("the pod's file belongs to %s", got)
	}
}

func TestReadIDs(t *testing.T) {
	ids, err := ReadIDs(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []uint32{0, 1000, 70_000, 1<<32 - 2} {
		host, ok := ids.users.toHost(id)
		if !ok || host != id || ids.groups.toInside(id) != id {
			t.Errorf("%d is %d, %v", id, host, ok)
		}
	}
	if _, err := ReadIDs(1 << 30); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no process: %v", err)
	}
	for _, text := range []string{"0 1", "0 1 2 3", "0 0 0", "a 0 1", "0 -1 1", "0 0 4294967296", "4294967295 0 1", "1 0 4294967295", "0 4294967000 1000", strings.Repeat("0 0 1\n", maxMap)} {
		if m, err := parseMap(text); err == nil {
			t.Errorf("%.20q is %v", text, m)
		}
	}
}

func TestIDsThereAndBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var text bytes.Buffer
		inside, host := uint32(0), uint32(1)
		for range rapid.IntRange(1, 5).Draw(t, "lines") {
			inside += rapid.Uint32Range(0, 1<<20).Draw(t, "gap")
			host += rapid.Uint32Range(0, 1<<28).Draw(t, "host gap")
			count := rapid.Uint32Range(1, 1<<20).Draw(t, "count")
			fmt.Fprintf(&text, "%10d %10d %10d\n", inside, host, count)
			inside, host = inside+count, host+count
		}
		m, err := parseMap(text.String())
		if err != nil {
			t.Fatal(err)
		}
		id := rapid.Uint32Range(0, inside+10).Draw(t, "id")
		if out, ok := m.toHost(id); ok && (m.toInside(out) != id || out == 0) || !ok && id < m[0].count && m[0].inside == 0 {
			t.Errorf("%d became %d, %v, and came back as %d", id, out, ok, m.toInside(out))
		}
		if m.toInside(0) != nobody {
			t.Error("the host's root is somebody in the container")
		}
	})
}
