//go:build guest

package volume

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gantry/fleet"
	"gantry/test/nfslab/nfsserver"
)

const nfsExported = "rw,no_root_squash,no_subtree_check,fsid=5"

// nfsBackend exports a backend with two volumes from a kernel's NFS server.
func nfsBackend(t testing.TB) (*nfsserver.Server, Backend) {
	t.Helper()
	s := nfsserver.Start(t)
	const dir = "/volumes"
	must(t, os.Mkdir(dir, 0o711))
	must(t, unix.Mount("volumes", dir, "tmpfs", 0, "mode=0711"))
	t.Cleanup(func() {
		s.Unexport(dir)
		must(t, unix.Unmount(dir, unix.MNT_DETACH))
		must(t, os.Remove(dir))
	})
	b := localBackend(t, "far", dir)
	b.Kind, b.Server, b.Options = fleet.BackendNFS, nfsserver.Addr, "noatime"
	s.Export(dir, nfsExported)
	return s, b
}

func isDown(h *Host) bool { list := h.Health(); return len(list) == 1 && !list[0].Down.IsZero() }

// refused attaches in vain, soon and with a sentence.
func refused(t testing.TB, h *Host, v Volume, sentence string, limit time.Duration) {
	t.Helper()
	begin := time.Now()
	_, err := h.Attach(t.Context(), "late", v)
	if said, ok := errors.AsType[*Error](err); !ok || said.Sentence != sentence || time.Since(begin) > limit {
		t.Errorf("attached after %v: %v, want %q", time.Since(begin), err, sentence)
	}
	must(t, h.Detach(t.Context(), "late"))
}

// asks has calls end and the state found out sooner than on a real host.
func asks(c *Config) {
	c.CallTimeout, c.ProbeEvery, c.ProbeTimeout = 3*time.Second, 300*time.Millisecond, 2*time.Second
}

// TestNFS has two hosts share a volume, and takes the server, the wire, the export and the marker away.
func TestNFS(t *testing.T) {
	s, b := nfsBackend(t)
	run := t.TempDir()
	h, stop := startHost(t, run, asks)
	two := newHost(t, t.TempDir(), asks)
	a := attached(t, h, "p1", volumeOf(b, dirA))
	other := attached(t, two, "p1", volumeOf(b, dirA))
	write(t, a, "from p1")
	reads(t, other, "from p1")
	if _, err := os.Stat(filepath.Join(attached(t, h, "p2", volumeOf(b, dirB)), "f")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("another volume has the file: %v", err)
	}
	text, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	for line := range bytes.Lines(text) {
		if bytes.Contains(line, []byte(" "+a+" ")) && (!bytes.Contains(line, []byte(" rw,nosuid,nodev,noatime - nfs4 ")) ||
			!bytes.Contains(line, []byte("vers=4.2,")) || !bytes.Contains(line, []byte(",hard,"))) {
			t.Errorf("mounted as %s", line)
		}
	}

	stop()
	before, err := h.mounted("far")
	must(t, err)
	h = newHost(t, run, asks) // the agent starts again
	attached(t, h, "p3", volumeOf(b, dirA))
	if after, err := h.mounted("far"); err != nil || after != before {
		t.Errorf("mounted at %s, %v; before at %s", after, err, before)
	}
	takenAway(t, s, h, b, a)
	reads(t, other, "the old one works, too")
}

// takenAway breaks what the backend needs, one after the other; a is what a pod has of it.
func takenAway(t *testing.T, s *nfsserver.Server, h *Host, b Backend, a string) {
	t.Run("server down", func(t *testing.T) {
		s.Down()
		written := make(chan error, 1)
		go func() { written <- os.WriteFile(filepath.Join(a, "f"), []byte("meanwhile"), 0o644) }()
		waitFor(t, "the backend to count as dead", func() bool { return isDown(h) })
		refused(t, h, volumeOf(b, dirA), sentenceDead, time.Second)
		must(t, h.Detach(t.Context(), "p2"))
		s.Up()
		waitFor(t, "the backend to be back", func() bool { return !isDown(h) })
		must(t, <-written)
		reads(t, a, "meanwhile")
		attached(t, h, "p2", volumeOf(b, dirB))
	})
	t.Run("wire cut", func(t *testing.T) {
		s.Cut()
		waitFor(t, "the backend to count as dead", func() bool { return isDown(h) })
		refused(t, h, volumeOf(b, dirA), sentenceDead, time.Second)
		s.Heal()
		waitFor(t, "the backend to be back", func() bool { return !isDown(h) })
		waitFor(t, "the stuck calls to end", func() bool { return h.cfg.Caller.Stuck("far") == 0 })
	})
	t.Run("export ends", func(t *testing.T) {
		s.Unexport(b.Path)
		waitFor(t, "the backend to count as down", func() bool { return isDown(h) })
		refused(t, h, volumeOf(b, dirA), sentenceRefused, 5*time.Second)
		s.Export(b.Path, nfsExported)
		attached(t, h, "late", volumeOf(b, dirA)) // at a new mount
		write(t, a, "the old one works, too")
	})
	t.Run("another's marker", func(t *testing.T) {
		must(t, os.WriteFile(filepath.Join(b.Path, MarkerName), []byte("other\n"), 0o644))
		waitFor(t, "the backend to count as down", func() bool { return isDown(h) })
		refused(t, h, volumeOf(b, dirA), sentenceMarker, 5*time.Second)
		must(t, os.WriteFile(filepath.Join(b.Path, MarkerName), []byte("far\n"), 0o644))
		waitFor(t, "the backend to be back", func() bool {
			_, err := h.Attach(t.Context(), "p4", volumeOf(b, dirA))
			return err == nil
		})
	})
}
