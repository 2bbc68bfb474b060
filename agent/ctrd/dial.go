package ctrd

import (
	"context"
	"fmt"
	"math"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// hostLimits is what a container's process inherits from the daemon and cannot exceed.
type hostLimits struct {
	files  uint64 // hard limit of open files
	locked uint64 // hard limit of bytes that are kept in memory
	oomAdj int    // lowest value that a child can be given without privilege
	bound  bool   // the daemon lacks CAP_SYS_RESOURCE: it sets no limits of processes in user namespaces that root does not own
}

// dialOptions replace the client's own dialer, which waits many seconds for a socket that is not
// there, and bound how long a daemon that came back stays unseen.
func (r *Runtime) dialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithContextDialer(r.dial),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
	}
}

func (r *Runtime) dial(ctx context.Context, _ string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", r.cfg.Socket)
	if err != nil {
		return nil, err
	}
	if uc, ok := conn.(*net.UnixConn); ok {
		limits := limitsOf(peerPID(uc))
		r.daemon.Store(&limits)
	}
	return conn, nil
}

// limits returns those of the daemon, or this process's own before the first contact.
func (r *Runtime) limits() hostLimits {
	if l := r.daemon.Load(); l != nil {
		return *l
	}
	return limitsOf(0)
}

// peerPID returns the process at the other end of a socket, 0 when that cannot be told.
func peerPID(c *net.UnixConn) int {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0
	}
	pid := 0
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	})
	return pid
}

// limitsOf reads the limits of a process, of this one for 0 and for one that cannot be read.
func limitsOf(pid int) hostLimits {
	dir := "/proc/self"
	if pid > 0 {
		dir = fmt.Sprintf("/proc/%d", pid)
	}
	text, err := os.ReadFile(dir + "/limits")
	if err != nil && pid > 0 {
		return limitsOf(0)
	}
	l := hostLimits{files: min(wantedFiles, hardLimit(text, "Max open files")), locked: hardLimit(text, "Max locked memory")}
	if text, err = os.ReadFile(dir + "/oom_score_adj"); err == nil {
		l.oomAdj, _ = strconv.Atoi(strings.TrimSpace(string(text)))
	}
	if text, err = os.ReadFile(dir + "/status"); err == nil {
		l.bound = !maySetLimits(text)
	}
	return l
}

// maySetLimits reads CAP_SYS_RESOURCE from the text of a process's status.
func maySetLimits(status []byte) bool {
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "CapEff:"); ok {
			caps, err := strconv.ParseUint(strings.TrimSpace(rest), 16, 64)
			return err != nil || caps&(1<<unix.CAP_SYS_RESOURCE) != 0
		}
	}
	return true
}

func bootID() string {
	text, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(text))
}

// hardLimit finds one in the text of a process's limits. One that is not there is none.
func hardLimit(text []byte, name string) uint64 {
	for line := range strings.Lines(string(text)) {
		rest, ok := strings.CutPrefix(line, name)
		if f := strings.Fields(rest); ok && len(f) >= 2 {
			if n, err := strconv.ParseUint(f[1], 10, 64); err == nil {
				return n
			}
		}
	}
	return math.MaxUint64 // RLIM_INFINITY
}
