package ctrd

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"gantry/fleet"
	"gantry/internal/sleep"
)

// A process that runc made waits to write to a fifo in runc's state, and then becomes the image's
// command; "runc start" reads from the fifo and removes it. A daemon that dies meanwhile takes "runc
// start" with it: the command runs, and the shim, which heard of no success, believes that it waits.
// The next "runc start" waits for ever for somebody to write, with the shim's lock held, or, where the
// fifo is gone, says that the command runs already, every time. So the agent writes in the process's
// stead, and all come to know that it runs.
const (
	startFIFO     = "exec.fifo"
	startPatience = time.Second // far more than a start takes
	startPoll     = 100 * time.Millisecond
)

// begun reports whether runc's container has become the image's command. The shim may not be able to say.
func (r *Runtime) begun(id fleet.PodID) bool {
	text, err := os.ReadFile(filepath.Join(r.runcState(), string(id), "state.json"))
	var state struct {
		PID int `json:"init_process_pid"`
	}
	if err != nil || json.Unmarshal(text, &state) != nil || state.PID <= 1 {
		return false
	}
	dir := filepath.Join(procFolder, strconv.Itoa(state.PID), "fd")
	open, err := os.ReadDir(dir)
	for _, fd := range open {
		if to, _ := os.Readlink(filepath.Join(dir, fd.Name())); strings.HasSuffix(to, "/"+startFIFO) {
			return false // it waits
		}
	}
	return err == nil
}

// letStart writes to the fifo of a container that has begun, as often as somebody waits for that,
// until ctx ends. One more write than needed does no harm: runc reads once, or all that there is.
func (r *Runtime) letStart(ctx context.Context, id fleet.PodID, patience time.Duration) {
	for {
		if sleep.For(ctx, patience) != nil {
			return
		}
		patience = startPoll
		if !r.begun(id) {
			continue
		}
		fd, err := unix.Open(filepath.Join(r.runcState(), string(id), startFIFO), unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
		if err != nil {
			continue // nobody waits
		}
		if _, err := unix.Write(fd, []byte("0")); err == nil {
			r.cfg.Log.Warn("completing an interrupted container start", "pod", id)
		}
		_ = unix.Close(fd)
	}
}

// restartable reports whether the container has begun and its shim does not know; then runc will wait
// once more for what letStart writes.
func (r *Runtime) restartable(id fleet.PodID) bool {
	if !r.begun(id) {
		return false
	}
	err := unix.Mkfifo(filepath.Join(r.runcState(), string(id), startFIFO), 0o600)
	return err == nil || errors.Is(err, fs.ErrExist)
}
