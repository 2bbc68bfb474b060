package s3clients

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestLinksLeadNowhere: somebody with a pod exchanges a folder for links, again and again, while others read and write
// through S3. Nothing of another volume or of the host is read, and nothing is written there.
func TestLinksLeadNowhere(t *testing.T) {
	const lasts = 2 * time.Second
	s := start(t)
	must(t, os.WriteFile(filepath.Join(s.dirTwo, "file"), []byte("SECRET"), 0o644))
	must(t, os.Chown(filepath.Join(s.dirTwo, "file"), int(ownerID), int(ownerID)))
	outside := t.TempDir()
	must(t, os.Chmod(outside, 0o777))
	must(t, os.WriteFile(filepath.Join(outside, "file"), []byte("SECRET"), 0o666))
	s.put("real/file", "mine")
	end := time.Now().Add(lasts)
	var busy sync.WaitGroup
	targets := []string{"../" + filepath.Base(s.dirTwo), s.dirTwo, outside, "/", "/proc/self/root" + outside, "..", "real"}
	busy.Go(func() { // the attacker
		link, name := filepath.Join(s.dir, "link"), filepath.Join(s.dir, "dir")
		for i := 0; time.Now().Before(end); i++ {
			_ = os.Remove(link)
			_ = os.Symlink(targets[i%len(targets)], link)
			_ = os.Rename(link, name)
			_ = os.Remove(name)
			_ = os.Mkdir(name, 0o777)
			_ = os.WriteFile(filepath.Join(name, "file"), []byte("mine"), 0o666)
			_ = os.RemoveAll(name)
		}
	})
	var reads, writes atomic.Int64
	for worker := range 4 {
		busy.Go(func() {
			for i := 0; time.Now().Before(end); i++ {
				key := []string{"dir/file", "link/file", "dir/etc/passwd", "dir/proc/1/environ"}[i%4]
				if text := s.tryGet(key); strings.Contains(text, "SECRET") || strings.Contains(text, "root:") {
					t.Errorf("%s is %.100s", key, text)
					return
				} else if text == "mine" {
					reads.Add(1)
				}
				if i%4 == 0 {
					name := fmt.Sprintf("dir/new-%d-%d", worker, i)
					resp, err := s.do(plain, http.MethodPut, name, strings.NewReader("new"), 3)
					if err != nil {
						t.Error(err)
						return
					}
					if resp.StatusCode == http.StatusOK {
						writes.Add(1)
					}
					_ = resp.Body.Close()
				}
			}
		})
	}
	busy.Wait()
	if reads.Load() == 0 || writes.Load() == 0 {
		t.Errorf("%d reads and %d writes went well: the attack did not meet them", reads.Load(), writes.Load())
	}
	for _, dir := range []string{s.dirTwo, outside} {
		list, err := os.ReadDir(dir)
		if err != nil || len(list) != 1 {
			t.Errorf("%s holds %v, %v", dir, list, err)
		}
	}
}

// TestOddFiles: what else somebody with a pod, who is root of his user namespace, can put into a volume. The ids are those that the
// serving process has of the volume.
func TestOddFiles(t *testing.T) {
	s := start(t)
	s.put("mine", "mine")
	// A hard link has no way to another mount, be it of the same file system; that is what a pod has of its volume.
	must(t, os.WriteFile(filepath.Join(s.dirTwo, "file"), []byte("SECRET"), 0o644))
	one, err := s.host.Open(t.Context(), s.opened[bucket])
	must(t, err)
	defer func() { _ = one.Close() }() // read-only
	two, err := s.host.Open(t.Context(), s.opened[bucketTwo])
	must(t, err)
	defer func() { _ = two.Close() }() // read-only
	if err := unix.Linkat(int(two.Fd()), "file", int(one.Fd()), "linked", 0); !errors.Is(err, unix.EXDEV) {
		t.Errorf("a hard link from another volume: %v", err)
	}
	// A device is no object, and a write replaces its name alone.
	for name, dev := range map[string]uint64{"null": unix.Mkdev(1, 3), "zero": unix.Mkdev(1, 5)} {
		must(t, unix.Mknod(filepath.Join(s.dir, name), unix.S_IFCHR|0o666, int(dev)))
		if got := s.tryGet(name); !strings.HasPrefix(got, "403") && !strings.HasPrefix(got, "404") {
			t.Errorf("%s is %.100s", name, got)
		}
		s.put(name, "a file")
		if got := s.tryGet(name); got != "a file" {
			t.Errorf("%s is %.100s", name, got)
		}
	}
	// Links of one volume share their content until one of them is written anew; a set-user-id program does not stay one.
	must(t, os.Link(filepath.Join(s.dir, "mine"), filepath.Join(s.dir, "second")))
	must(t, os.Chmod(filepath.Join(s.dir, "mine"), 0o755|os.ModeSetuid|os.ModeSetgid))
	s.put("mine", "new")
	if got := s.tryGet("second"); got != "mine" {
		t.Errorf("the other link is %.100s", got)
	}
	info, err := os.Stat(filepath.Join(s.dir, "mine"))
	must(t, err)
	if info.Mode() != 0o644 || info.Sys().(*syscall.Stat_t).Uid != ownerID {
		t.Errorf("what was put over a set-user-id program is %v", info.Mode())
	}
	// The mount that the serving process gets makes nothing of either.
	var in unix.Statfs_t
	must(t, unix.Fstatfs(int(one.Fd()), &in))
	if want := int64(unix.ST_NOSUID | unix.ST_NODEV | unix.ST_NOEXEC); in.Flags&want != want {
		t.Errorf("the folder's mount has the flags %x", in.Flags)
	}
}
