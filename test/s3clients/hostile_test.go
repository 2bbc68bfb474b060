package s3clients

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestLinksLeadNowhere: somebody with a pod exchanges a folder for links, again and again, while others read and write
// through S3. Nothing of another volume or of the host is read, and nothing is written there.
func TestLinksLeadNowhere(t *testing.T) {
	const lasts = 3 * time.Second
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
