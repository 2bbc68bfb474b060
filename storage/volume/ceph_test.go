package volume

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gantry/fleet"
	"gantry/storage/provision"
	"gantry/test/cephtest"
)

// cephBackend is a backend on a real cluster, with two volumes.
func cephBackend(t testing.TB, c *cephtest.Cluster) (plain, admin Backend) {
	t.Helper()
	plain = Backend{
		ID: "ceph-1", Kind: fleet.BackendCeph, Monitors: c.Monitors(), FileSystem: cephtest.FileSystem, Path: cephtest.Folder,
		User: cephtest.Plain, Key: fleet.Secret(c.Key(cephtest.Plain)),
	}
	admin = plain
	admin.User, admin.Key = cephtest.Admin, fleet.Secret(c.Key(cephtest.Admin))
	return plain, admin
}

// provisioned makes the backend's volumes through a mount of its own.
func provisioned(t testing.TB, h *Host, admin Backend) {
	t.Helper()
	root, err := h.Root(t.Context(), admin)
	must(t, err)
	at := provision.Root{Kind: provision.CephFS, Backend: string(admin.ID), Dir: root, Fresh: true}
	for i, dir := range []string{dirA, dirB} {
		must(t, provision.Make(t.Context(), at, provision.Volume{Dir: dir, SizeGB: 10, IDBase: 0x80000000 + uint32(i)<<16}))
	}
}

// quick finds out faster.
func quick(c *Config) {
	c.MountTimeout = 10 * time.Second // half of it a client tries with a key that is refused
	c.CallTimeout, c.ProbeEvery, c.ProbeTimeout, c.KillAfter = 10*time.Second, 300*time.Millisecond, time.Second, time.Second
}

func down(h *Host) bool {
	list := h.Health()
	return slices.ContainsFunc(list, func(s Health) bool { return s.Backend == "ceph-1" && !s.Down.IsZero() })
}

func attachFails(t testing.TB, h *Host, v Volume, sentence string) {
	t.Helper()
	_, err := h.Attach(t.Context(), "late", v)
	if said, ok := errors.AsType[*Error](err); !ok || said.Sentence != sentence {
		t.Errorf("%v, want %q", err, sentence)
	}
	must(t, h.Detach(t.Context(), "late"))
}

// clients are the daemons of the pods' mounts.
func clients(t testing.TB, run string) []int {
	t.Helper()
	pids, err := daemons(t.Context(), daemonsIn{Folder: filepath.Join(run, backendsFolder, "ceph-1")})
	must(t, err)
	return pids
}

func TestCeph(t *testing.T) {
	cluster := cephtest.StartT(t)
	plain, admin := cephBackend(t, cluster)
	run := t.TempDir()
	h := newHost(t, run, quick)
	provisioned(t, h, admin)
	v := volumeOf(plain, dirA)

	t.Run("two hosts share a volume", func(t *testing.T) {
		other := newHost(t, t.TempDir(), quick)
		one, two := attached(t, h, "p1", v), attached(t, other, "p1", v)
		write(t, one, "from one")
		reads(t, two, "from one")
		again := attached(t, h, "p2", v)
		reads(t, again, "from one")
		if n := len(clients(t, run)); n != 1 {
			t.Errorf("%d clients", n)
		}
		noSecrets(t, run, plain, admin)
	})
	t.Run("a restart takes over what is mounted", func(t *testing.T) {
		before := clients(t, run)
		next, stop := startHost(t, run, quick)
		defer stop()
		keyless := v
		keyless.Backend.Key = ""
		dir := attached(t, next, "p3", keyless)
		reads(t, dir, "from one")
		if after := clients(t, run); !slices.Equal(before, after) {
			t.Errorf("clients %v, were %v", after, before)
		}
		must(t, next.Detach(t.Context(), "p3"))
	})
	t.Run("the metadata server stops", func(t *testing.T) {
		near := localBackend(t, "near", t.TempDir())
		must(t, cluster.StopMDS())
		waitFor(t, "the backend to count as dead", func() bool { return down(h) })
		attachFails(t, h, v, sentenceDead)
		attached(t, h, "n", volumeOf(near, dirA))
		must(t, h.Detach(t.Context(), "n"))
		must(t, h.Detach(t.Context(), "p2"))
		must(t, cluster.StartMDS(t.Context()))
		waitFor(t, "the backend to be back", func() bool { return !down(h) })
		reads(t, attached(t, h, "p2", v), "from one")
	})
	t.Run("the cluster ends the session", func(t *testing.T) { sessionEnds(t, cluster, h, v) })
	t.Run("the client dies", func(t *testing.T) { clientDies(t, cluster, h, run, v) })
	t.Run("a dead client is killed for pods that end", func(t *testing.T) { clientHangs(t, cluster, h, run, v) })
	t.Run("the key is revoked", func(t *testing.T) { keyRevoked(t, cluster, h, v) })
	t.Run("nobody needs it", func(t *testing.T) {
		for _, id := range []fleet.PodID{"p1", "p2"} {
			must(t, h.Detach(t.Context(), id))
		}
		_, stop := startHost(t, run, func(c *Config) {
			quick(c)
			c.Idle = 500 * time.Millisecond
		})
		defer stop()
		waitFor(t, "the clients to end", func() bool { return len(clients(t, run)) == 0 })
	})
}

// noSecrets: neither the arguments of a client nor a file that is left has a key.
func noSecrets(t *testing.T, run string, backends ...Backend) {
	t.Helper()
	for _, pid := range clients(t, run) {
		line, err := os.ReadFile("/proc/" + itoa(pid) + "/cmdline")
		must(t, err)
		env, err := os.ReadFile("/proc/" + itoa(pid) + "/environ")
		must(t, err)
		for _, b := range backends {
			if strings.Contains(string(line)+string(env), b.Key.Reveal()) {
				t.Error("a client's arguments have its key")
			}
		}
	}
	for _, b := range []string{"ceph-1", "ceph-1" + adminSuffix} {
		if list := entries(filepath.Join(run, backendsFolder, b)); len(list) != 1 {
			t.Errorf("left beside the mount: %v", list)
		}
	}
}

// sessionEnds: the next pod gets a new mount, and the ones that run get errors and do not wait. Which errors, the client does
// not say alike.
func sessionEnds(t *testing.T, cluster *cephtest.Cluster, h *Host, v Volume) {
	old := filepath.Join(h.attachedDir("ceph-1"), "p1", "f")
	fails := func() bool {
		_, err := os.ReadFile(old)
		return err != nil
	}
	must(t, cluster.Evict(t.Context(), cephtest.Plain))
	waitFor(t, "the pod that ran to get an error", fails)
	reads(t, attached(t, h, "p2", v), "from one")
	if !fails() {
		t.Error("the pod that ran has another mount")
	}
	reads(t, attached(t, h, "p1", v), "from one")
	waitFor(t, "the backend to be well", func() bool { return !down(h) })
}

// connection returns a copy of a client's end of its connection, as the programs that it starts have it.
func connection(t *testing.T, pid int) *os.File {
	t.Helper()
	process, err := unix.PidfdOpen(pid, 0)
	must(t, err)
	defer func() { must(t, unix.Close(process)) }()
	dir := "/proc/" + itoa(pid) + "/fd/"
	for _, name := range entries(dir) {
		if to, _ := os.Readlink(dir + name); to == "/dev/fuse" {
			number, err := strconv.Atoi(name)
			must(t, err)
			fd, err := unix.PidfdGetfd(process, number, 0)
			must(t, err)
			return os.NewFile(uintptr(fd), to)
		}
	}
	t.Fatal("a client without a connection")
	return nil
}

// clientDies: the next pod gets a new mount, and the ones that run are not touched. The cluster would let the new one wait
// for a minute for what the dead one may do alone.
func clientDies(t *testing.T, cluster *cephtest.Cluster, h *Host, run string, v Volume) {
	pids := clients(t, run)
	must(t, cluster.Evict(t.Context(), cephtest.Plain))
	for _, pid := range pids {
		must(t, unix.Kill(pid, unix.SIGKILL))
	}
	reads(t, attached(t, h, "p2", v), "from one")
	if _, err := os.ReadFile(filepath.Join(h.attachedDir("ceph-1"), "p1", "f")); !errors.Is(err, unix.ENOTCONN) {
		t.Errorf("the pod that ran reads: %v", err)
	}
	reads(t, attached(t, h, "p1", v), "from one")
	if _, err := os.ReadFile(filepath.Join(h.attachedDir("ceph-1"), "p1", "f")); err != nil {
		t.Errorf("after its next start: %v", err)
	}
}

// clientHangs: a process whose request the client in user space has taken cannot be killed before the client is.
func clientHangs(t *testing.T, cluster *cephtest.Cluster, h *Host, run string, v Volume) {
	stuck := exec.Command("sh", "-c", `while :; do i=$((i+1)); test -e "$0/$$.$i"; done`, attached(t, h, "p1", v))
	must(t, stuck.Start())
	ended := make(chan error, 1)
	go func() { ended <- stuck.Wait() }()
	must(t, cluster.Freeze(cephtest.MDS))
	waitFor(t, "the backend to count as dead", func() bool { return down(h) })
	before := clients(t, run)
	for _, pid := range before {
		defer func(f *os.File) { must(t, f.Close()) }(connection(t, pid))
	}
	must(t, stuck.Process.Kill())
	h.Ending("p1")
	select {
	case <-time.After(1500 * time.Millisecond):
	case err := <-ended:
		t.Error("it has ended by itself:", err)
	}
	if got := clients(t, run); !slices.Equal(got, before) {
		t.Error("the client is killed though a pod needs it")
	}
	h.Ending("p2")
	select {
	case err := <-ended:
		t.Log("the process:", err)
	case <-time.After(time.Minute):
		t.Error("the process is still there")
	}
	for _, id := range []fleet.PodID{"p1", "p2"} {
		must(t, h.Detach(t.Context(), id))
	}
	must(t, cluster.Thaw(cephtest.MDS))
	must(t, cluster.Evict(t.Context(), cephtest.Plain)) // as in clientDies
	waitFor(t, "another mount", func() bool {
		_, err := h.Attach(t.Context(), "p1", v)
		return err == nil
	})
	reads(t, attached(t, h, "p2", v), "from one")
}

// keyRevoked: new pods wait with a sentence until there is a key again.
func keyRevoked(t *testing.T, cluster *cephtest.Cluster, h *Host, v Volume) {
	must(t, cluster.Revoke(t.Context(), cephtest.Plain))
	waitFor(t, "the backend to be refused", func() bool { return down(h) })
	waitFor(t, "new pods to be refused", func() bool { // what the client was asked before may have no answer
		_, err := h.Attach(t.Context(), "late", v)
		said, ok := errors.AsType[*Error](err)
		return ok && said.Sentence == sentenceRefused
	})
	must(t, h.Detach(t.Context(), "late"))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	key, err := cluster.AddClient(ctx, cephtest.Plain, "allow rw path="+cephtest.Folder)
	must(t, err)
	v.Backend.Key = fleet.Secret(key)
	reads(t, attached(t, h, "p1", v), "from one")
	waitFor(t, "the backend to be back", func() bool { return !down(h) })
}
