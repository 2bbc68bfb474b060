package pod

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// NoticesDir is where the container of an interruptible pod sees its notices, and noticeName the file that is there once it is interrupted.
const (
	NoticesDir = "/run/gantry"
	noticeName = "interruption.json"
	noticesDir = "notices" // in the pod's folder
)

// notice is what the file says.
type notice struct {
	Event  string    `json:"event"`
	Reason string    `json:"reason"`
	At     time.Time `json:"at"`
	KillAt time.Time `json:"killAt"` // when what still runs gets SIGKILL
}

// noticesFor makes the folder that the container of an interruptible pod sees, empty; it returns none for others.
func (m *machine) noticesFor(dir string, want Assignment) (string, error) {
	if !want.Interruptible {
		return "", nil
	}
	notices := filepath.Join(dir, noticesDir)
	if err := os.RemoveAll(notices); err != nil {
		return "", fmt.Errorf("empty the pod's notices: %w", err)
	}
	if err := os.Mkdir(notices, 0o755); err != nil { //nolint:gosec // read by the container's users
		return "", fmt.Errorf("make the pod's notices: %w", err)
	}
	return notices, nil
}

// give writes why the pod is interrupted where its container sees it. A pod that has no place for that is not told.
func (m *machine) give(want Assignment, grace time.Duration) {
	dir := filepath.Join(m.Dir, string(m.id), noticesDir)
	if _, err := os.Stat(dir); want.Notice == "" || err != nil {
		return
	}
	now := time.Now().UTC()
	text, err := json.Marshal(notice{Event: "interrupted", Reason: want.Notice, At: now, KillAt: now.Add(grace)})
	if err == nil {
		temp := filepath.Join(dir, "."+noticeName)
		if err = os.WriteFile(temp, append(text, '\n'), 0o644); err == nil { //nolint:gosec // read by the container's users
			err = os.Rename(temp, filepath.Join(dir, noticeName))
		}
	}
	if err != nil {
		m.Log.Warn("give the pod its notice", "err", err)
	}
	m.Logs.System(m.id, want.Notice)
}
