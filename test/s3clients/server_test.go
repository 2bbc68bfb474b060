// Package s3clients drives gantry-s3 with the S3 clients that people use: a real server process, a real folder of a
// backend, and an agent of which only the answers on access keys are made up.
package s3clients

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"gantry/fleet"
	"gantry/storage/helper"
	"gantry/storage/s3/broker"
	"gantry/storage/volume"
)

const (
	region    = "EU-RO-1"
	accessKey = "user_s3clients000000000000000000"
	secretKey = "rps_0123456789abcdefghijklmnopqrstuvwxyz0123456"
	bucket    = "vol-s3clients"
	bucketTwo = "vol-s3clients-two"
	ownerID   = fleet.VolumeIDsFirst
)

// program is gantry-s3, built once.
var program string

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "storage-helper" {
		os.Exit(helper.Main(volume.HelperFuncs()))
	}
	dir, err := os.MkdirTemp("", "s3clients")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	program = filepath.Join(dir, "gantry-s3")
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", program, "gantry/cmd/gantry-s3")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	status := 1
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "%v\n%s", err, out)
	} else if status = m.Run(); status == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			status = 1
		}
	}
	_ = os.RemoveAll(dir)
	os.Exit(status)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func waitFor(t testing.TB, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("waited in vain for", what)
		}
	}
}

// server is a running gantry-s3 with what it needs.
type server struct {
	t      testing.TB
	url    string
	addr   string
	socket string
	dir    string // of the first volume
	dirTwo string
	cmd    *exec.Cmd
	said   *text
	ended  chan error

	host   *volume.Host
	opened map[string]volume.Volume
	gone   atomic.Bool // the key
	opens  atomic.Int64
	ends   func() // of the agent's side
}

// text is what a process says.
type text struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (x *text) Write(p []byte) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.buf.Write(p)
}

func (x *text) String() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.buf.String()
}

func signingKey(date, region string) []byte {
	key := []byte("AWS4" + secretKey)
	for _, part := range []string{date, region, "s3", "aws4_request"} {
		key = mac(key, part)
	}
	return key
}

func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	_, _ = io.WriteString(h, text)
	return h.Sum(nil)
}

// Access implements broker.Agent.
func (s *server) Access(_ context.Context, asked broker.Asked) (broker.Access, error) {
	if asked.Key != accessKey || s.gone.Load() {
		return broker.Access{}, broker.ErrNoKey
	}
	if asked.Region != region {
		return broker.Access{}, &broker.Refused{Sentence: "the region is not this host's data center"}
	}
	made := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return broker.Access{Account: "acc1", SigningKey: signingKey(asked.Date, asked.Region), Volumes: []broker.Volume{
		{ID: bucket, Name: "data", CreatedAt: made, SizeGB: 10}, {ID: bucketTwo, Name: "more", CreatedAt: made, SizeGB: 10},
	}}, nil
}

// Open implements broker.Agent.
func (s *server) Open(ctx context.Context, _ broker.Asked, id string) (*os.File, broker.Opened, error) {
	v, ok := s.opened[id]
	if !ok {
		return nil, broker.Opened{}, &broker.Refused{Sentence: "the access key does not reach the volume"}
	}
	s.opens.Add(1)
	f, err := s.host.Open(ctx, v)
	return f, broker.Opened{Owner: v.IDBase}, err
}

// start starts a server on a fresh backend, whose folder is on the disk that holds temporary files.
func start(t testing.TB) *server {
	t.Helper()
	return startWith(t, nil)
}

func startWith(t testing.TB, args []string) *server {
	t.Helper()
	s := &server{t: t, opened: map[string]volume.Volume{}, said: &text{}}
	dir := t.TempDir()
	root := filepath.Join(dir, "backend")
	must(t, os.Mkdir(root, 0o711))
	must(t, os.WriteFile(filepath.Join(root, volume.MarkerName), []byte("s3clients\n"), 0o600))
	backend := volume.Backend{ID: "s3clients", Kind: fleet.BackendLocal, Path: root}
	for id, name := range map[string]string{bucket: strings.Repeat("a", 26), bucketTwo: strings.Repeat("b", 26)} {
		must(t, os.Mkdir(filepath.Join(root, name), 0o755))
		must(t, os.Chown(filepath.Join(root, name), int(ownerID), int(ownerID)))
		s.opened[id] = volume.Volume{ID: fleet.VolumeID(id), Backend: backend, Dir: name, IDBase: ownerID, Ready: true}
	}
	s.dir, s.dirTwo = filepath.Join(root, strings.Repeat("a", 26)), filepath.Join(root, strings.Repeat("b", 26))
	caller := &helper.Caller{Argv: []string{os.Args[0], "storage-helper"}, Env: []string{"GORACE=atexit_sleep_ms=0"}}
	t.Cleanup(caller.Close)
	host, err := volume.New(volume.Config{RunDir: filepath.Join(dir, "run"), Caller: caller})
	must(t, err)
	t.Cleanup(func() { must(t, host.Clean(context.Background())) })
	s.host = host
	s.socket = filepath.Join(dir, "s3", "agent.sock")
	s.serveAgent()
	t.Cleanup(func() { s.ends() })
	s.run(args)
	return s
}

// serveAgent begins to answer as the agent.
func (s *server) serveAgent() {
	s.t.Helper()
	l, err := broker.Listen(s.socket)
	must(s.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		broker.Serve(ctx, l, s, slog.New(slog.NewTextHandler(s.said, nil)))
	}()
	s.ends = func() { cancel(); <-done }
}

func (s *server) run(args []string) {
	t := s.t
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	s.addr = l.Addr().String()
	must(t, l.Close())
	s.url = "http://" + s.addr
	args = append([]string{"run", "--agent-socket", s.socket, "--region", region, "--listen", s.addr, "--domain", "s3.test"}, args...)
	s.cmd = exec.Command(program, args...)
	s.cmd.Stderr = s.said
	must(t, s.cmd.Start())
	s.ended = make(chan error, 1)
	go func() { s.ended <- s.cmd.Wait() }()
	t.Cleanup(func() {
		s.stop()
		if t.Failed() {
			t.Logf("gantry-s3 and the agent said:\n%s", s.said)
		}
	})
	waitFor(t, "gantry-s3 to serve; it says "+s.said.String(), func() bool { return s.served() || s.over() })
	if s.over() {
		t.Fatalf("gantry-s3 has ended:\n%s", s.said)
	}
}

func (s *server) served() bool { return strings.Contains(s.said.String(), "serving S3") }

func (s *server) over() bool { return len(s.ended) > 0 }

// stop ends the server as systemd does, and is no error twice.
func (s *server) stop() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case err := <-s.ended:
		if err != nil && s.cmd.ProcessState.ExitCode() >= 0 {
			s.t.Errorf("gantry-s3: %v", err)
		}
	case <-time.After(time.Minute):
		s.t.Error("gantry-s3 does not end")
		_ = s.cmd.Process.Kill()
		s.t.Log(<-s.ended)
	}
	s.cmd = nil
}

func random(t testing.TB, n int) []byte {
	t.Helper()
	out := make([]byte, n)
	_, err := rand.Read(out)
	must(t, err)
	return out
}
