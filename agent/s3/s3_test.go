package s3

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"gantry/fleet"
	"gantry/internal/link"
	"gantry/storage/helper"
	"gantry/storage/s3/broker"
	"gantry/storage/volume"
)

// helperName is how the test program is started as a helper process.
const helperName = "storage-helper-of-s3"

func init() {
	if len(os.Args) == 2 && os.Args[1] == helperName {
		os.Exit(helper.Main(volume.HelperFuncs()))
	}
}

// scheduler answers as a scheduler.
type scheduler struct {
	link.UnimplementedLinkServer

	mu     sync.Mutex
	asked  int
	answer func(*link.S3AccessRequest) (*link.S3AccessResponse, error)
}

func (s *scheduler) S3Access(_ context.Context, in *link.S3AccessRequest) (*link.S3AccessResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	return s.answer(in)
}

func (s *scheduler) set(answer func(*link.S3AccessRequest) (*link.S3AccessResponse, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = answer
}

// fixture is a broker with a scheduler behind it, a clock and a host with one volume.
type fixture struct {
	*testing.T
	scheduler *scheduler
	broker    *Broker
	conn      *grpc.ClientConn
	clock     time.Time
	mu        sync.Mutex
	dir       string // of the volume
	volume    *link.NetworkVolume
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{T: t, scheduler: &scheduler{}, clock: time.Now()}
	f.serve()
	root := t.TempDir()
	name := strings.Repeat("a", 26)
	f.dir = filepath.Join(root, name)
	f.must(os.WriteFile(filepath.Join(root, volume.MarkerName), []byte("local\n"), 0o600))
	f.must(os.Mkdir(f.dir, 0o755))
	f.must(os.WriteFile(filepath.Join(f.dir, "file"), []byte("content"), 0o644))
	caller := &helper.Caller{Argv: []string{os.Args[0], helperName}, Env: []string{"GORACE=atexit_sleep_ms=0"}}
	t.Cleanup(caller.Close)
	host, err := volume.New(volume.Config{RunDir: filepath.Join(t.TempDir(), "run"), Caller: caller})
	f.must(err)
	t.Cleanup(func() { f.must(host.Clean(context.Background())) })
	f.volume = &link.NetworkVolume{
		VolumeId: "vol1", Dir: name, IdBase: fleet.VolumeIDsFirst, ReadOnly: true, Ready: true,
		Backend: &link.VolumeBackend{Id: "local", Kind: "local", Path: root},
	}
	f.scheduler.set(f.says)
	f.broker = New(host.Open, slog.New(slog.DiscardHandler))
	f.broker.now = func() time.Time {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.clock
	}
	return f
}

func (f *fixture) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) serve() {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	f.must(err)
	srv := grpc.NewServer()
	link.RegisterLinkServer(srv, f.scheduler)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Serve(ln)
	}()
	f.conn, err = grpc.NewClient("passthrough:///"+ln.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	f.must(err)
	f.Cleanup(func() {
		_ = f.conn.Close()
		srv.Stop()
		<-done
	})
}

func (f *fixture) later(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.clock = f.clock.Add(d)
}

func (f *fixture) says(in *link.S3AccessRequest) (*link.S3AccessResponse, error) {
	if in.GetAccessKey() != "user_1" {
		return nil, status.Error(codes.NotFound, "there is no such access key")
	}
	return &link.S3AccessResponse{
		AccountId: "acc1", SigningKey: []byte(strings.Repeat("k", 32)), ReadOnly: true,
		Volumes: []*link.S3Volume{{Volume: f.volume, Name: "data", CreatedNs: 5, SizeGb: 10}},
	}, nil
}

// fails is an answer that is none.
func fails(code codes.Code) func(*link.S3AccessRequest) (*link.S3AccessResponse, error) {
	return func(*link.S3AccessRequest) (*link.S3AccessResponse, error) { return nil, status.Error(code, "refused") }
}

// wants fails unless the key user_1 gets in after asking the scheduler so often in all.
func (f *fixture) wants(in bool, questions int) {
	f.Helper()
	got, err := f.broker.Access(f.Context(), broker.Asked{Key: "user_1", Date: "20260102", Region: "EU-RO-1"})
	if (err == nil) != in || in && (got.Account != "acc1" || len(got.Volumes) != 1) {
		f.Errorf("%+v, %v", got, err)
	}
	f.scheduler.mu.Lock()
	defer f.scheduler.mu.Unlock()
	if f.scheduler.asked != questions {
		f.Errorf("the scheduler was asked %d times, not %d", f.scheduler.asked, questions)
	}
}

func TestAnswersAreKept(t *testing.T) {
	f := newFixture(t)
	f.wants(false, 0) // no session
	ended := f.broker.During(f.conn)
	f.wants(true, 1)
	f.later(freshFor - time.Second)
	f.wants(true, 1)
	f.later(2 * time.Second)
	f.wants(true, 2)

	f.scheduler.set(fails(codes.Unavailable)) // no scheduler leads
	f.later(freshFor)
	f.wants(true, 3)
	f.wants(true, 3) // not asked again at once
	ended()
	f.later(staleFor - time.Minute)
	f.wants(true, 3)
	f.later(2 * time.Minute)
	f.wants(false, 3)

	defer f.broker.During(f.conn)()
	f.scheduler.set(f.says)
	f.wants(true, 4)
	f.later(freshFor)
	f.scheduler.set(fails(codes.NotFound)) // the key was deleted
	f.wants(false, 5)
	f.wants(false, 5)
	f.later(noKeyFor)
	f.wants(false, 6)
}

// TestWhatTheSchedulerTakesBack: a host without the role has nothing of what it had.
func TestWhatTheSchedulerTakesBack(t *testing.T) {
	f := newFixture(t)
	defer f.broker.During(f.conn)()
	f.wants(true, 1)
	f.later(freshFor)
	f.scheduler.set(fails(codes.PermissionDenied))
	f.wants(false, 2)
	f.scheduler.set(fails(codes.Unavailable))
	f.wants(false, 3)

	f.scheduler.set(func(in *link.S3AccessRequest) (*link.S3AccessResponse, error) {
		out, err := f.says(in)
		out.ExpiresNs = f.broker.now().Add(time.Second).UnixNano()
		return out, err
	})
	f.wants(true, 4)
	f.scheduler.set(fails(codes.Unavailable))
	f.later(2 * time.Second)
	f.wants(false, 5)
}

func TestMadeUpKeys(t *testing.T) {
	f := newFixture(t)
	defer f.broker.During(f.conn)()
	f.wants(true, 1)
	f.later(time.Second)
	for i := range 2 * mostStrangers {
		_, err := f.broker.Access(t.Context(), broker.Asked{Key: fmt.Sprint("user_made_up", i), Date: "20260102", Region: "EU-RO-1"})
		if err == nil || (i >= mostStrangers) == errors.Is(err, broker.ErrNoKey) {
			t.Fatalf("key %d: %v", i, err)
		}
	}
	// A key of yesterday is none of the made-up ones.
	if _, err := f.broker.Access(t.Context(), broker.Asked{Key: "user_1", Date: "20260103", Region: "EU-RO-1"}); err != nil {
		t.Errorf("on the next day: %v", err)
	}
	f.later(freshFor)
	f.wants(true, mostStrangers+3)
	// Nor is one that was not used for a while, however many are made up.
	f.later(freshFor)
	for i := range 2 * mostKept {
		f.broker.put(broker.Asked{Key: fmt.Sprint("made up", i)}, &answer{at: f.broker.now().Add(-noKeyFor)})
	}
	if f.broker.kept(broker.Asked{Key: "user_1", Date: "20260102", Region: "EU-RO-1"}) == nil {
		t.Error("a key that there is was forgotten for ones that there are not")
	}
	for i := range 2 * mostKept {
		f.broker.put(broker.Asked{Key: fmt.Sprint(i)}, &answer{said: &link.S3AccessResponse{}, at: f.broker.now()})
	}
	if n := len(f.broker.known); n > mostKept {
		t.Errorf("%d answers are kept", n)
	}
}

func TestFoldersComeThroughTheSocket(t *testing.T) {
	f := newFixture(t)
	defer f.broker.During(f.conn)()
	socket := filepath.Join(t.TempDir(), "s3", "agent.sock")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.broker.Serve(ctx, socket)
	}()
	client := broker.NewClient(func(ctx context.Context) (*net.UnixConn, error) {
		for {
			c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
			if err == nil || ctx.Err() != nil {
				return c, err
			}
			time.Sleep(time.Millisecond)
		}
	})
	asked := broker.Asked{Key: "user_1", Date: "20260102", Region: "EU-RO-1"}
	mount, opened, err := client.Open(t.Context(), asked, "vol1")
	f.must(err)
	defer mount.Close()
	if opened.Owner != fleet.VolumeIDsFirst {
		t.Errorf("its files are user %d's", opened.Owner)
	}
	fd, err := unix.Openat(int(mount.Fd()), "file", unix.O_RDWR|unix.O_CLOEXEC, 0) // also of a volume over its size
	f.must(err)
	file := os.NewFile(uintptr(fd), "file")
	defer file.Close()
	if text, err := io.ReadAll(file); err != nil || string(text) != "content" {
		t.Errorf("%q, %v", text, err)
	}
	for key, volume := range map[string]string{"user_1": "vol2", "user_2": "vol1"} {
		asked.Key = key
		if _, _, err := client.Open(t.Context(), asked, volume); err == nil {
			t.Errorf("%s opened %s", key, volume)
		}
	}
	client.Close()
	cancel()
	<-done
	if _, err := os.Stat(filepath.Dir(socket)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket's folder is left: %v", err)
	}
}
