package hostile

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"gantry/agent/ctrd/ctrdtest"
)

// TestForkBomb fills the pod's processes. Others start beside it, and it can be removed.
func TestForkBomb(t *testing.T) {
	h := newHost(t)
	digest := h.mustLoad("example/fork:1", image(t, nil))
	s := h.spec(digest, "sh", "-c", "echo begin; f() { f | f & f; }; while true; do f; done")
	must(t, h.start(s))
	h.wait(s, "begin")
	must(t, ctrdtest.Eventually(time.Minute, func() error {
		if text := h.written(s); !strings.Contains(text, "fork") {
			return fmt.Errorf("no fork failed: %q", text[:min(len(text), 500)])
		}
		return nil
	}))
	h.other()
	h.remove(s)
}

// TestFileBomb opens files until the limit.
func TestFileBomb(t *testing.T) {
	h := newHost(t)
	digest := h.mustLoad("example/files:1", image(t, nil))
	s := h.spec(digest, "/evil/attacker", "files", "2000000")
	must(t, h.start(s))
	text := h.wait(s, "opened")
	n, err := strconv.Atoi(regexp.MustCompile(`opened (\d+)`).FindStringSubmatch(text)[1])
	if err != nil || n > 1<<20 {
		t.Errorf("%d files were opened, %v", n, err)
	}
	h.other()
	h.remove(s)
}

// TestMemoryBomb takes more memory than the pod has: the kernel ends it, and nothing else.
func TestMemoryBomb(t *testing.T) {
	h := newHost(t)
	digest := h.mustLoad("example/memory:1", image(t, nil))
	text, c := h.run(h.spec(digest, "/evil/attacker", "memory", "4000"))
	if !c.OOMKilled || strings.Contains(text, "took") {
		t.Errorf("ended with %+v and wrote %q", c, text)
	}
	h.other()
}

// TestLogFlood writes as fast as it can: the log stays within its bounds.
func TestLogFlood(t *testing.T) {
	h := newHost(t)
	digest := h.mustLoad("example/flood:1", image(t, nil))
	s := h.spec(digest, "/evil/attacker", "flood")
	must(t, h.start(s))
	must(t, ctrdtest.Eventually(time.Minute, func() error {
		if n := size(t, s.LogDir); n < 1<<20 {
			return fmt.Errorf("%d bytes of log", n)
		}
		return nil
	}))
	h.other()
	if n := size(t, s.LogDir); n > 4<<20 {
		t.Errorf("%d bytes of log", n)
	}
	h.remove(s)
}

func size(t *testing.T, dir string) (n int64) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range entries {
		if info, err := e.Info(); err == nil {
			n += info.Size()
		}
	}
	return n
}

// TestDiskBombs fills the container's disk with bytes, then with files: each meets the pod's own end.
func TestDiskBombs(t *testing.T) {
	h := newHost(t)
	digest := h.mustLoad("example/disk:1", image(t, nil))
	text, _ := h.run(h.spec(digest, "sh", "-c", "dd if=/dev/zero of=/big bs=1M count=3000; wc -c /big"))
	m := regexp.MustCompile(`(\d+) /big`).FindStringSubmatch(text)
	if m == nil || !strings.Contains(text, "No space left on device") {
		t.Fatalf("3 GB on a disk of 1: %q", text)
	}
	if n, err := strconv.ParseInt(m[1], 10, 64); err != nil || n < 1e9 || n > 12e8 {
		t.Errorf("%d bytes fit on a disk of 1 GB, %v", n, err)
	}
	text, _ = h.run(h.spec(digest, "sh", "-c", "mkdir /many; /evil/attacker files-of /many; echo ended"))
	if !strings.Contains(text, "no space left on device") || !strings.Contains(text, "ended") {
		t.Errorf("files without end: %q", text)
	}
	h.other()
}
