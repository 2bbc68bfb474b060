//go:build guest

package guest

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	diskpool "gantry/storage/disk"
	"gantry/test/nfslab/nfsserver"
)

// lab is a server with an export, and the client's mount of it.
type lab struct {
	*nfsserver.Server
	dir, root string
}

// TestNFS shows what the mounts of network volumes rest on.
func TestNFS(t *testing.T) {
	l := &lab{Server: nfsserver.Start(t), dir: "/export"}
	disk(t, l.dir, 300<<20, "ext4", "")
	l.Export(l.dir, exported)
	l.root = mount(t, l.dir)
	for _, test := range []struct {
		name string
		run  func(l *lab, t *testing.T)
	}{
		{"ids of user namespaces", (*lab).ids},
		{"clone of one folder", (*lab).clones},
		{"made read-only inside another mount namespace", (*lab).readOnly},
		{"server comes back", (*lab).serverBack},
		{"export ends", (*lab).exportEnds},
		{"wire cut", (*lab).wireCut},
		{"sized disk below the export", (*lab).sizedDisk},
		{"project quota", (*lab).projectQuota},
	} {
		if !t.Run(test.name, func(t *testing.T) { test.run(l, t) }) {
			return // the server may be down
		}
	}
}

// volume makes a volume's folder through the mount, as a storage host does.
func (l *lab) volume(t testing.TB, name string, id int) string {
	t.Helper()
	dir := filepath.Join(l.root, name)
	must(t, os.Mkdir(dir, 0o755))
	must(t, os.Chown(dir, id, id))
	return dir
}

// onServer returns the path of a file of the export on the server.
func (l *lab) onServer(name string) string { return filepath.Join(l.dir, name) }

// clone makes a mount of one folder alone.
func clone(t testing.TB, dir string) string {
	t.Helper()
	fd, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	must(t, err)
	defer func() { _ = unix.Close(fd) }()
	must(t, unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{
		Attr_set: unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOSUID, Propagation: unix.MS_PRIVATE,
	}))
	at := t.TempDir()
	must(t, os.Chmod(filepath.Dir(at), 0o755)) // others' ids may go there
	must(t, unix.MoveMount(fd, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH))
	t.Cleanup(func() { gone(at) })
	return at
}

func owner(t testing.TB, path string) int {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Lstat(path, &st))
	if st.Uid != st.Gid {
		t.Errorf("%s has user %#x and group %#x", path, st.Uid, st.Gid)
	}
	return int(st.Uid)
}

// ids has root and a user of a pod write in the pod's volume, and others fail.
func (l *lab) ids(t *testing.T) {
	at := clone(t, l.volume(t, "ids", idBase))
	must(t, os.Chmod(at, 0o777))
	pod, other := inUserNamespace(idBase), inUserNamespace(otherID)
	try(t, pod, "", "write "+at+"/root's", "list "+at, "read "+at+"/root's")
	try(t, pod, "operation not permitted", "chown "+at+"/root's 1000")
	try(t, pod, "", "user 1000", "write "+at+"/user's", "read "+at+"/user's")
	try(t, pod, "permission denied", "user 1000", "read "+at+"/root's")
	try(t, pod, "permission denied", "read "+at+"/user's") // on the server it is not root
	try(t, other, "permission denied", "read "+at+"/root's")
	try(t, other, "permission denied", "write "+at+"/root's")
	for name, want := range map[string]int{"ids/root's": idBase, "ids/user's": idBase + 1000} {
		if got := owner(t, l.onServer(name)); got != want {
			t.Errorf("%s belongs to %#x, want %#x", name, got, want)
		}
	}
}

// clones shows one folder alone, without devices; it does not need the mount that it was cloned from.
func (l *lab) clones(t *testing.T) {
	root := mount(t, l.dir)
	l.volume(t, "secret", otherID)
	must(t, unix.Mknod(l.volume(t, "clone", idBase)+"/null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	at := clone(t, root+"/clone")
	gone(root)
	try(t, inUserNamespace(idBase), "", "write "+at+"/file")
	if _, err := os.Open(at + "/null"); !errors.Is(err, unix.EACCES) {
		t.Errorf("a device: %v", err)
	}
	if _, err := os.Stat(at + "/../secret"); err == nil {
		t.Error("the folder above is seen")
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	for line := range strings.Lines(string(mounts)) { // the path in the file system stands at the source
		if strings.Contains(line, " "+at+" ") && (!strings.Contains(line, nfsserver.Addr+":"+l.dir+"/clone ") || !strings.Contains(line, "nosuid,nodev")) {
			t.Error(line)
		}
	}
}

// readOnly stops a process that writes. The kernel refuses while a file is open for writing there.
func (l *lab) readOnly(t *testing.T) {
	at := clone(t, l.volume(t, "ro", idBase))
	holder := begin(t, inUserNamespace(idBase), "hold "+at+"/held")
	eventually(t, "an open file", func() bool { _, err := os.Stat(l.onServer("ro/held")); return err == nil })
	if err := setReadOnly(holder.cmd.Process.Pid, at); !errors.Is(err, unix.EBUSY) {
		t.Errorf("while a file is open for writing: %v", err)
	}
	must(t, holder.in.Close())
	must(t, holder.within(t, 5*time.Second))
	pod := begin(t, inUserNamespace(idBase), "follow "+at)
	eventually(t, "a file", func() bool { _, err := os.Stat(l.onServer("ro/0")); return err == nil })
	eventually(t, "read-only", func() bool { return setReadOnly(pod.cmd.Process.Pid, at) == nil })
	if err := pod.within(t, 5*time.Second); err == nil || !strings.Contains(err.Error(), "read-only file system") {
		t.Errorf("the writer ended with %v", err)
	}
	try(t, nil, "", "write "+at+"/elsewhere") // the mount of this namespace is as it was
}

// setReadOnly changes a mount in the namespace of another process.
func setReadOnly(pid int, at string) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked
		ns, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/ns/mnt", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			done <- err
			return
		}
		defer func() { _ = unix.Close(ns) }()
		err = unix.Unshare(unix.CLONE_FS)
		if err == nil {
			err = unix.Setns(ns, unix.CLONE_NEWNS)
		}
		if err == nil {
			err = unix.MountSetattr(unix.AT_FDCWD, at, 0, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
		}
		done <- err
	}()
	return <-done
}

// serverBack has a writer wait for the server, which then knows its files again.
func (l *lab) serverBack(t *testing.T) {
	const n = 60
	writer := begin(t, nil, "lines "+l.root+"/file "+strconv.Itoa(n))
	eventually(t, "a line", func() bool { st, err := os.Stat(l.onServer("file")); return err == nil && st.Size() > 0 })
	l.Down()
	prober := begin(t, nil, "statfs "+l.root)
	select {
	case err := <-prober.end:
		t.Fatal("a server that is down answers: ", err)
	case <-time.After(time.Second):
	}
	l.Up()
	up := time.Now()
	must(t, prober.within(t, 20*time.Second))
	t.Logf("went on after %.1f s", time.Since(up).Seconds())
	must(t, writer.within(t, 20*time.Second))
	text, err := os.ReadFile(l.onServer("file"))
	must(t, err)
	want := ""
	for i := range n {
		want += strconv.Itoa(i) + "\n"
	}
	if string(text) != want {
		t.Errorf("the file: %q", text)
	}
}

// exportEnds takes the export away and gives it back, and a volume for good. What was seen lately is answered from the
// client's memory; statfs is not.
func (l *lab) exportEnds(t *testing.T) {
	at := clone(t, l.volume(t, "gone", idBase))
	l.Unexport(l.dir)
	try(t, nil, "permission denied", "statfs "+l.root)
	try(t, nil, "permission denied", "write "+l.root+"/new")
	l.Export(l.dir, exported)
	try(t, nil, "", "statfs "+l.root, "write "+l.root+"/new", "write "+at+"/file")
	must(t, os.RemoveAll(l.onServer("gone")))
	try(t, nil, "stale", "statfs "+at)
	try(t, nil, "stale", "write "+at+"/new")
	try(t, nil, "", "statfs "+l.root)
}

// wireCut loses everything: who asks the server hangs, and can be killed; mounts can be taken away.
func (l *lab) wireCut(t *testing.T) {
	at := clone(t, l.volume(t, "cut", idBase))
	l.Cut()
	waiting := begin(t, nil, "statfs "+l.root)
	asks, writes := begin(t, nil, "statfs "+at), begin(t, nil, "write "+at+"/file")
	asks.hangs(t, time.Second)
	writes.hangs(t, 0)
	began := time.Now()
	must(t, unix.Unmount(at, unix.MNT_DETACH))
	if took := time.Since(began); took > time.Second {
		t.Errorf("a lazy unmount took %v", took)
	}
	l.Heal()
	healed := time.Now()
	must(t, waiting.within(t, 20*time.Second))
	t.Logf("went on after %.1f s", time.Since(healed).Seconds())
	try(t, nil, "", "write "+l.root+"/file")
}

// sizedDisk has a file system of its own for a volume, below the export.
func (l *lab) sizedDisk(t *testing.T) {
	must(t, os.Mkdir(l.onServer("sized"), 0))
	disk(t, l.onServer("sized"), 12<<20, "ext4", "")
	must(t, os.Chown(l.onServer("sized"), idBase, idBase))
	at := clone(t, l.root+"/sized")
	t.Cleanup(func() { gone(l.root + "/sized") }) // the client made it when it met the other file system
	wantSize(t, at, 9<<20, 12<<20)
	pod := inUserNamespace(idBase)
	try(t, pod, "no space left", "fill "+at+"/big 13000000")
	try(t, pod, "", "remove "+at+"/big")
	eventually(t, "room", func() bool { // the server has the file open for a moment
		return begin(t, pod, "fill "+at+"/small 5000000").within(t, 20*time.Second) == nil
	})
}

// projectQuota has the disk of a volume limited by the file system of the export.
func (l *lab) projectQuota(t *testing.T) {
	const dir = "/quota"
	disk(t, dir, 8<<30, "xfs", "prjquota")
	pool, err := diskpool.Open(diskpool.Config{Dir: dir, Direct: true, Mechanism: diskpool.Project})
	must(t, err)
	vol, err := pool.Keep(t.Context(), "vol", 1)
	must(t, err)
	must(t, os.Chown(vol, idBase, idBase))
	l.Export(dir, strings.ReplaceAll(exported, "77", "78"))
	t.Cleanup(func() { l.Unexport(dir) }) // after the mount, which would wait for the server otherwise
	at := clone(t, mount(t, dir)+"/vol")
	wantSize(t, at, 1_000_000_000, 1_100_000_000)
	pod := inUserNamespace(idBase)
	try(t, pod, "", "allocate "+at+"/promised 1000000000")
	try(t, pod, "no space left", "allocate "+at+"/more 100000000")
	_, err = pool.Keep(t.Context(), "vol", 2)
	must(t, err)
	try(t, pod, "", "allocate "+at+"/more 900000000")
	wantSize(t, at, 2_000_000_000, 2_200_000_000)
}

// wantSize asks the client how large a file system is.
func wantSize(t testing.TB, at string, least, most uint64) {
	t.Helper()
	var st unix.Statfs_t
	must(t, unix.Statfs(at, &st))
	if size := st.Blocks * uint64(st.Bsize); size < least || size > most {
		t.Errorf("%s has %d bytes, want %d to %d", at, size, least, most)
	}
}
