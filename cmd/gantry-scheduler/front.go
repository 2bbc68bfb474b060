package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"gantry/api/edge"
	"gantry/api/forward"
	"gantry/api/problem"
	"gantry/api/rest"
	"gantry/fleet"
	"gantry/internal/share"
	"gantry/internal/sleep"
)

const (
	// leastRoom is how many bytes a disk must have free for a replica to be opened.
	leastRoom = 16 << 20
	lookAgain = 2 * time.Second // for room
)

// apiServer is the API's server. It answers from the first moment on, if only to say what it waits for.
type apiServer struct {
	server  *rest.Server
	gate    *rest.Gate
	handler atomic.Pointer[http.Handler]
	vital   atomic.Pointer[func(*http.Request, share.Why) (fleet.AccountID, bool)]
	ended   chan struct{} // closed when the server has ended
	err     error         // why, unless it was closed; to be read after ended
}

// openFront opens the front tlsFront, with TLS where it ends here.
func (c *frontFlags) openFront(api net.Listener, tlsFront *edge.FrontEnd, log *slog.Logger) (*apiServer, error) {
	f := &apiServer{ended: make(chan struct{})}
	f.waits(rest.Health{Name: "store", Text: "the data is being read"})
	believed, err := c.Edge.believed()
	if err != nil {
		return nil, err
	}
	f.letsThrough(onlyHealth)
	f.gate = rest.NewGate(rest.GateConfig{
		Requests: c.Shares.MaxConnections, PerAddress: c.Shares.MaxPerAddress, Trusted: believed,
		Pod:   func(r *http.Request) bool { return !c.ours(r) },
		Vital: func(r *http.Request, why share.Why) (fleet.AccountID, bool) { return (*f.vital.Load())(r, why) },
	})
	handler, err := c.around(f.gate, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		(*f.handler.Load()).ServeHTTP(w, r)
	}))
	if err != nil {
		return nil, err
	}
	f.server = rest.NewServer(handler, rest.Limits{
		Connections: c.Shares.MaxConnections, PerAddress: c.Shares.MaxPerAddress, Spare: spareSeats, Trusted: believed,
	}, log)
	serve := f.server.Serve
	if c.Edge.tls() {
		f.server.TLSConfig = tlsFront.Config()
		serve = func(ln net.Listener) error { return f.server.ServeTLS(ln, "", "") }
	}
	go func() { // ends with close
		defer close(f.ended)
		if err := serve(api); !errors.Is(err, http.ErrServerClosed) {
			f.err = fmt.Errorf("serve the API: %w", err)
		}
	}()
	return f, nil
}

// opens hands requests to a handler.
func (f *apiServer) opens(h http.Handler) { f.handler.Store(&h) }

// letsThrough says what must get through when clients have all that they may have.
func (f *apiServer) letsThrough(vital func(*http.Request, share.Why) (fleet.AccountID, bool)) {
	f.vital.Store(&vital)
}

// waits has everybody told what is waited for.
func (f *apiServer) waits(h rest.Health) {
	f.opens(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "1")
		if r.URL.Path != "/healthz" {
			refuse(w, r, "This scheduler does not serve yet: "+h.Text+".")
			return
		}
		report := rest.HealthReport{Status: "failing"}
		if v := r.URL.Query().Get("verbose"); v != "" && v != "false" || r.URL.RawQuery == "verbose" {
			report.Conditions = []rest.Health{h}
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusServiceUnavailable)
		_ = json.NewEncoder(w).Encode(report) // a client that left is not told
	}))
}

// refuse answers that the request was not done, and why.
func refuse(w http.ResponseWriter, r *http.Request, why string) {
	id := problem.ChooseRequestID(r)
	w.Header().Set("X-Request-Id", id)
	w.Header().Set(forward.HeaderNothingDone, "1")
	problem.Write(w, problem.For(r, problem.From(fleet.Unavailable(why, nil), id)))
}

// close ends the server. It may be called more than once.
func (f *apiServer) close(ctx context.Context) error {
	err := drain(ctx, f.server.Server)
	<-f.ended
	return errors.Join(err, f.err)
}

// drain ends a server. The requests that it has begun, sent on to the leader or not, may end first, for a while.
func drain(ctx context.Context, s *http.Server) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	err := s.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = nil // a client that takes its time
	}
	return errors.Join(err, s.Close())
}

// openWhenRoom opens the member. While the disk has no room for that it waits and says so: a start that fails
// again and again would tell nobody.
func (c *runCmd) openWhenRoom(ctx context.Context, front *apiServer, o opening) (*member, error) {
	told := false
	for {
		m, err := c.openOnce(o)
		if !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
			return m, err
		}
		front.waits(rest.Health{Name: "disk", Text: "the disk is full: the scheduler starts as soon as there is room in its data folder"})
		if !told {
			told = true
			o.log.Error("the disk is full: waiting for room", "dir", c.DataDir, "err", err)
		}
		if sleep.For(ctx, lookAgain) != nil {
			return nil, ctx.Err()
		}
	}
}

func (c *runCmd) openOnce(o opening) (*member, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(c.DataDir, &fs); err != nil {
		return nil, err
	}
	if fs.Bavail*uint64(fs.Bsize) < leastRoom { //nolint:gosec // a block size is positive
		return nil, unix.ENOSPC
	}
	address, err := keepAddress(c.DataDir, c.Address, c.LinkListen)
	if err != nil {
		return nil, err
	}
	o.dir, o.address, o.timeout = c.DataDir, address, c.RaftTimeout
	o.snapshotEvery, o.snapshotBytes = c.SnapshotEvery, c.SnapshotBytes
	return openMember(o)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
