package podlog

import (
	"cmp"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"gantry/fleet"
)

// What is kept of the logs of stopped pods that have left the host; beyond that, those go first that were written to the longest
// ago.
const (
	keptLogs     = 2000
	keptLogBytes = 2 << 30
)

// Leave keeps the log of a pod that leaves the host, and removes the oldest of such logs when there are too many.
func (l *Logs) Leave(id fleet.PodID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.release(id)
	l.prune(keptLogs, keptLogBytes)
}

// keptLog is the log folder of a pod that is not on the host.
type keptLog struct {
	pod   fleet.PodID
	bytes int64
	at    time.Time // when it was last written to
}

// prune removes logs of pods that are not on the host until at most so many of them, of so many bytes, are left. The caller holds mu.
func (l *Logs) prune(most int, bytes int64) {
	entries, err := os.ReadDir(l.root)
	if err != nil {
		l.log.Warn("list the logs of pods", "err", err)
		return
	}
	var kept []keptLog
	for _, e := range entries {
		id := fleet.PodID(e.Name())
		if l.present(id) {
			continue
		}
		kept = append(kept, l.measure(id))
	}
	slices.SortFunc(kept, func(a, b keptLog) int { return cmp.Or(b.at.Compare(a.at), cmp.Compare(a.pod, b.pod)) })
	for i, log := range kept {
		if bytes -= log.bytes; i < most && bytes >= 0 {
			continue
		}
		if err := os.RemoveAll(l.Dir(log.pod)); err != nil {
			l.log.Warn("remove the log of a pod that left the host", "pod", log.pod, "err", err)
		}
	}
}

// measure finds how large a log is and when it was last written to; what cannot be read counts as nothing.
func (l *Logs) measure(id fleet.PodID) keptLog {
	out := keptLog{pod: id}
	_ = filepath.WalkDir(l.Dir(id), func(_ string, e fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // see above
		}
		if info, err := e.Info(); err == nil && !e.IsDir() {
			out.bytes += info.Size()
			if info.ModTime().After(out.at) {
				out.at = info.ModTime()
			}
		}
		return nil
	})
	return out
}

// Has reports whether there is a log of a pod, which may have left the host.
func (l *Logs) Has(id fleet.PodID) bool {
	if id == "." || !filepath.IsLocal(string(id)) || filepath.Base(string(id)) != string(id) {
		return false
	}
	info, err := os.Stat(l.Dir(id))
	return err == nil && info.IsDir()
}
