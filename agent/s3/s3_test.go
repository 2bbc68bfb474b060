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
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"gantry/fleet"
	"gantry/internal/agentrpc"
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
	agentrpc.UnimplementedLinkServer

	mu     sync.Mutex
	asked  int
	answer func(*agentrpc.S3AccessRequest) (*agentrpc.S3AccessResponse, error)
}

func (s *scheduler) S3Access(_ context.Context, in *agentrpc.S3AccessRequest) (*agentrpc.S3AccessResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	return s.answer(in)
}

func (s *scheduler) set(answer func(*agentrpc.S3AccessRequest) (*agentrpc.S3AccessResponse, error)) {
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
	volume    *agentrpc.NetworkVolume
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
	f.volume = &agentrpc.NetworkVolume{
		VolumeId: "vol1", Dir: name, IdBase: fleet.VolumeIDsFirst, ReadOnly: true, Ready: true,
		Backend: &agentrpc.VolumeBackend{Id: "local", Kind: "local", Path: root},
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
	agentrpc.RegisterLinkServer(srv, f.scheduler)
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

func (f *fixture) says(in *agentrpc.S3AccessRequest) (*agentrpc.S3AccessResponse, error) {
	if in.GetAccessKey() != "user_1" {
		return nil, status.Error(codes.NotFound, "there is no such access key")
	}
	return &agentrpc.S3AccessResponse{
		AccountId: "acc1", SigningKey: []byte(strings.Repeat("k", 32)), ReadOnly: true,
		Volumes: []*agentrpc.S3Volume{{Volume: f.volume, Name: "data", CreatedNs: 5, SizeGb: 10}},
	}, nil
}

// fails is an answer that is none.
func fails(code codes.Code) func(*agentrpc.S3AccessRequest) (*agentrpc.S3AccessResponse, error) {
	return func(*agentrpc.S3AccessRequest) (*agentrpc.S3AccessResponse, error) {
		return nil, status.Error(code, "refused")
	}
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
	for range mostStrangers { // who is known is none of them
		f.broker.mayAskOfStranger(f.broker.now())
	}
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

	f.scheduler.set(func(in *agentrpc.S3AccessRequest) (*agentrpc.S3AccessResponse, error) {
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
		f.broker.put(broker.Asked{Key: fmt.Sprint(i)}, &answer{said: &agentrpc.S3AccessResponse{}, at: f.broker.now()})
	}
	if n := len(f.broker.known); n > mostKept {
		t.Errorf("%d answers are kept", n)
	}
}

// TestWhichAnswersAreKept: all that count, and of those some go only when nothing else makes room.
func TestWhichAnswersAreKept(t *testing.T) {
	name := func(i int) broker.Asked { return broker.Asked{Key: fmt.Sprint(i)} }
	for what, c := range map[string]struct {
		live, late, none, old int // answers: that count, that count while no scheduler answers, that there is no such key, that count no more
		add                   int // the number of the one that is added
		left                  int // of all
	}{
		"there is room":             {live: 10, late: 10, none: 10, old: mostKept - 31, add: -1, left: mostKept},
		"there is none":             {live: 10, late: 10, none: 10, old: mostKept - 30, add: -1, left: 21},
		"one is known already":      {live: mostKept, add: 0, left: mostKept},
		"some count no more":        {live: mostKept - 2, late: 1, old: 1, add: -1, left: mostKept},
		"there are no such keys":    {live: 1, late: mostKept - 3, none: 2, add: -1, left: mostKept - 1},
		"all of them would be used": {live: mostKept / 2, late: mostKept / 2, add: -1, left: mostKept*3/4 + 1},
	} {
		d := New(nil, slog.New(slog.DiscardHandler))
		now := time.Now()
		d.now = func() time.Time { return now }
		said := &agentrpc.S3AccessResponse{}
		i := 0
		fill := func(n int, k *answer) {
			for range n {
				d.known[name(i)] = k
				i++
			}
		}
		fill(c.live, &answer{said: said, at: now})
		fill(c.late, &answer{said: said, at: now.Add(-freshFor)})
		fill(c.none, &answer{at: now.Add(-noKeyFor)})
		fill(c.old, &answer{said: said, at: now.Add(-freshFor - staleFor)})
		added := &answer{}
		d.put(name(c.add), added)
		if len(d.known) != c.left || d.known[name(c.add)] != added {
			t.Errorf("%s: %d are left", what, len(d.known))
		}
		for i := range c.live + c.late {
			if c.left != mostKept*3/4+1 && d.known[name(i)] == nil {
				t.Fatalf("%s: one that counts was let go of", what)
			}
		}
	}
}

// TestWhoIsAStranger: who has no key on the days beside, either; and strangers have a bound in each second, whatever the clock does.
func TestWhoIsAStranger(t *testing.T) {
	d := New(nil, slog.New(slog.DiscardHandler))
	on := func(date string) broker.Asked { return broker.Asked{Key: "k", Date: date, Region: "r"} }
	d.known[on("20260102")] = &answer{}
	for date, want := range map[string]bool{"20260101": true, "20260103": true, "today": true} {
		if d.stranger(on(date)) != want {
			t.Errorf("of %s, with none on the second: %v", date, !want)
		}
	}
	d.known[on("20260102")] = &answer{said: &agentrpc.S3AccessResponse{}}
	for date, want := range map[string]bool{"20251231": true, "20260101": false, "20260103": false, "20260104": true} {
		if d.stranger(on(date)) != want {
			t.Errorf("of %s, with one on the second: %v", date, !want)
		}
	}
	now := time.Now()
	for _, at := range []time.Time{now, now.Add(time.Second), now.Add(-time.Hour)} {
		for i := range mostStrangers + 1 {
			if got := d.mayAskOfStranger(at.Add(time.Duration(i))); got != (i < mostStrangers) {
				t.Errorf("%v: %d: %v", at.Sub(now), i, got)
			}
		}
	}
}

// TestAnOldAnswerCountsToItsEnd, though it is not yet time to ask again.
func TestAnOldAnswerCountsToItsEnd(t *testing.T) {
	f := newFixture(t)
	first := f.broker.During(f.conn)
	second := f.broker.During(f.conn)
	f.wants(true, 1)
	f.scheduler.set(fails(codes.Unavailable))
	f.later(freshFor + staleFor - time.Second)
	f.wants(true, 2)
	f.later(time.Second)
	f.wants(false, 2)
	f.later(askAgain)
	f.wants(false, 3)
	other := &grpc.ClientConn{}
	newer := f.broker.During(other)
	if first(); f.broker.conn != other {
		t.Error("the end of an earlier session takes the connection of the newest")
	}
	second()
	if newer(); f.broker.conn != nil {
		t.Error("the connection of a session that ended is used")
	}
}

// TestWhyAFolderIsNotOpened is a sentence for who asked.
func TestWhyAFolderIsNotOpened(t *testing.T) {
	f := newFixture(t)
	ended := f.broker.During(f.conn)
	asked := broker.Asked{Key: "user_1", Date: "20260102", Region: "EU-RO-1"}
	wants := func(ctx context.Context, id string, want error, sentence string) {
		t.Helper()
		file, _, err := f.broker.Open(ctx, asked, id)
		var refused *broker.Refused
		if file != nil || err == nil || want != nil && !errors.Is(err, want) || sentence != "" && (!errors.As(err, &refused) || refused.Sentence != sentence) {
			t.Errorf("%v, %v", file, err)
		}
	}
	wants(t.Context(), "vol2", nil, "the access key does not reach the volume")
	for want, sentence := range map[error]string{
		&volume.Error{Sentence: "the storage does not answer", Err: io.EOF}: "the storage does not answer", io.EOF: "",
	} {
		f.broker.open = func(context.Context, volume.Volume) (*os.File, error) { return nil, want }
		if sentence == "" {
			wants(t.Context(), "vol1", want, "")
		} else {
			wants(t.Context(), "vol1", nil, sentence)
		}
	}
	f.volume.Backend.Kind = "tape"
	f.later(freshFor)
	wants(t.Context(), "vol1", nil, "")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f.must(f.broker.opens.Acquire(t.Context(), opensAtOnce))
	if _, err := f.broker.openFolder(ctx, volume.Volume{}); err == nil || err.Error() != "the host opens too many volumes at once" {
		t.Errorf("one more than there may be: %v", err)
	}
	f.broker.opens.Release(opensAtOnce)
	asked.Key = "user_2"
	wants(t.Context(), "vol1", broker.ErrNoKey, "")
	ended()
	asked.Key = "user_3"
	wants(t.Context(), "vol1", errNoScheduler, "")
}

// TestQuestionsHaveAnEnd: who waits for too many others is told that no scheduler answers, and who has gone does not wait.
func TestQuestionsHaveAnEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := New(nil, slog.New(slog.DiscardHandler))
		d.During(&grpc.ClientConn{})
		if err := d.asks.Acquire(t.Context(), asksAtOnce); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if _, err := d.ask(t.Context(), broker.Asked{Key: "k"}); !errors.Is(err, errNoScheduler) || time.Since(began) != askWithin {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := d.ask(ctx, broker.Asked{Key: "k"}); !errors.Is(err, errNoScheduler) || time.Since(began) != askWithin+time.Second {
			t.Errorf("one that has gone: after %v: %v", time.Since(began), err)
		}
		time.Sleep(askWithin) // of its question
	})
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
