package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"gantry/internal/ipc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// keys is an Agent of made-up answers.
type keys struct {
	dir   string
	hang  chan struct{}
	calls atomic.Int64
}

func (k *keys) Access(ctx context.Context, asked Asked) (Access, error) {
	k.calls.Add(1)
	switch asked.Key {
	case "hangs":
		select {
		case <-k.hang:
		case <-ctx.Done():
		}
		return Access{}, ctx.Err()
	case "none":
		return Access{}, fmt.Errorf("look: %w", ErrNoKey)
	case "refused":
		return Access{}, &Refused{"no scheduler answers"}
	case "fails":
		return Access{}, errors.New("a secret path")
	case "big":
		return Access{Account: strings.Repeat("x", maxAnswer), SigningKey: make([]byte, 32)}, nil
	case "many":
		a := Access{SigningKey: make([]byte, 32)}
		for i := range 20_000 {
			a.Volumes = append(a.Volumes, Volume{ID: fmt.Sprint("vol-", i), Name: "data"})
		}
		return a, nil
	}
	return Access{
		Account: "acc1", SigningKey: []byte(asked.Date + asked.Region + "--------------------------------")[:32],
		Volumes: []Volume{{ID: "vol1", Name: asked.Key, CreatedAt: time.Unix(5, 0).UTC(), SizeGB: 10, ReadOnly: true}},
	}, nil
}

func (k *keys) Open(_ context.Context, asked Asked, volume string) (*os.File, Opened, error) {
	f, err := os.Open(filepath.Join(k.dir, volume))
	if err != nil {
		return nil, Opened{}, err
	}
	return f, Opened{Owner: 0x80000000}, nil
}

type fixture struct {
	keys   *keys
	socket string
	client *Client
	ends   func()
}

func serving(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{keys: &keys{dir: t.TempDir(), hang: make(chan struct{})}, socket: filepath.Join(t.TempDir(), "s3", "agent.sock")}
	must(t, os.WriteFile(filepath.Join(f.keys.dir, "vol1"), []byte("content"), 0o600))
	f.begin(t)
	f.client = NewClient(func(ctx context.Context) (*net.UnixConn, error) {
		var d net.Dialer
		c, err := d.DialContext(ctx, "unix", f.socket)
		if err != nil {
			return nil, err
		}
		return c.(*net.UnixConn), nil
	})
	t.Cleanup(func() {
		f.client.Close()
		f.ends()
	})
	return f
}

func (f *fixture) begin(t *testing.T) {
	t.Helper()
	l, err := Listen(f.socket)
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		Serve(ctx, l, f.keys, slog.New(slog.DiscardHandler))
	}()
	f.ends = func() { cancel(); <-done }
}

func asked(key string) Asked { return Asked{Key: key, Date: "20260102", Region: "EU-RO-1"} }

func TestAsking(t *testing.T) {
	f := serving(t)
	ctx := t.Context()
	got, err := f.client.Access(ctx, asked("user_1"))
	want, _ := f.keys.Access(ctx, asked("user_1"))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	if got, err := f.client.Access(ctx, asked("many")); err != nil || len(got.Volumes) != 20_000 {
		t.Errorf("%d volumes, %v", len(got.Volumes), err)
	}
	if _, err := f.client.Access(ctx, asked("none")); !errors.Is(err, ErrNoKey) {
		t.Errorf("no key: %v", err)
	}
	for key, sentence := range map[string]string{"refused": "no scheduler answers", "fails": "the host could not do it", "big": "the answer is too long"} {
		var refused *Refused
		if _, err := f.client.Access(ctx, asked(key)); !errors.As(err, &refused) || refused.Sentence != sentence {
			t.Errorf("%s: %v", key, err)
		}
	}
	file, opened, err := f.client.Open(ctx, asked("user_1"), "vol1")
	must(t, err)
	defer file.Close()
	if text, err := io.ReadAll(file); err != nil || string(text) != "content" || opened.Owner != 0x80000000 {
		t.Errorf("%q of %d, %v", text, opened.Owner, err)
	}
	if flags, err := unix.FcntlInt(file.Fd(), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("the folder would be passed on: %v", err)
	}
	if _, _, err := f.client.Open(ctx, asked("user_1"), "vol2"); err == nil {
		t.Error("what is not there was opened")
	}
}

func TestAskingAtOnceAndAcrossARestart(t *testing.T) {
	f := serving(t)
	for range 2 {
		var all sync.WaitGroup
		for i := range 40 {
			all.Go(func() {
				key := fmt.Sprint("user_", i)
				if got, err := f.client.Access(t.Context(), asked(key)); err != nil || got.Volumes[0].Name != key {
					t.Errorf("%s: %+v, %v", key, got, err)
				}
				file, _, err := f.client.Open(t.Context(), asked(key), "vol1")
				if err != nil {
					t.Error(err)
					return
				}
				_ = file.Close()
			})
		}
		all.Wait()
		f.ends() // the kept connections are dead
		f.begin(t)
	}
	f.ends()
	if _, err := f.client.Access(t.Context(), asked("user_1")); err == nil || errors.Is(err, ErrNoKey) {
		t.Errorf("nobody is there: %v", err)
	}
	f.begin(t)
}

func TestAskingEndsWithItsContext(t *testing.T) {
	f := serving(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := f.client.Access(ctx, asked("hangs")); err == nil {
		t.Error("an answer came")
	}
	if _, err := f.client.Access(t.Context(), asked("user_1")); err != nil {
		t.Errorf("after it: %v", err)
	}
	close(f.keys.hang)
}

// TestBadPeers: what is no request ends its connection, and no other.
func TestBadPeers(t *testing.T) {
	f := serving(t)
	const good = `"key":"a","date":"b","region":"c"`
	for _, m := range []ipc.Message{
		{},
		{Verb: opAccess},
		{Verb: opAccess, Body: []byte("{}")},
		{Verb: opAccess, Body: []byte("null")},
		{Verb: "erase", Body: []byte("{" + good + "}")},
		{Verb: opOpen, Body: []byte("{" + good + "}")},
		{Verb: opAccess, Body: []byte("{" + good + `,"volume":"vol1"}`)},
		{Verb: opAccess, Body: []byte(`{"key":"a b","date":"b","region":"c"}`)},
		{Verb: strings.Repeat("x", maxRequest)},
	} {
		text := fmt.Sprintf("%.40s %.40s", m.Verb, m.Body)
		c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: f.socket, Net: "unix"})
		must(t, err)
		must(t, ipc.Write(c, m, maxAnswer))
		must(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
		if n, err := c.Read(make([]byte, 1)); n != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%.40q was answered: %v", text, err)
		}
		must(t, c.Close())
	}
	if f.keys.calls.Load() != 0 {
		t.Error("the agent was asked")
	}
	info, err := os.Stat(filepath.Dir(f.socket))
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the socket's folder: %v, %v", info.Mode(), err)
	}
}

// TestBadAgents: what is no answer is none.
func TestBadAgents(t *testing.T) {
	for name, text := range map[string]string{
		"none": "", "no JSON": "hello", "more": "{}{}", "of another": `{"id":1,"body":{"opened":{"owner":1}}}`, "no key": `{"id":1,"body":{"access":{"signing_key":"AA=="}}}`,
		"to another": `{"id":2}`, "two folders": `{"id":1,"body":{"access":{"signing_key":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="}}}`,
	} {
		here, theirs, err := ipc.Pair()
		must(t, err)
		there, err := ipc.Socket(theirs)
		must(t, err)
		null, err := os.Open(os.DevNull)
		must(t, err)
		done := make(chan error, 1)
		go func() {
			_, _, err := ipc.Read(there, maxRequest)
			if err == nil && text != "" {
				err = ipc.Send(there, []byte(text), maxAnswer, int(null.Fd()), int(null.Fd()))
			}
			done <- errors.Join(err, there.Close(), null.Close())
		}()
		client := NewClient(func(context.Context) (*net.UnixConn, error) { return here, nil })
		if got, err := client.Access(t.Context(), asked("user_1")); err == nil || errors.Is(err, ErrNoKey) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		must(t, <-done)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"key":"user_1","date":"20260102","region":"EU-RO-1"}`))
	f.Add([]byte(`{"key":"user_1","date":"20260102","region":"EU-RO-1","volume":"vol1"}`))
	f.Add([]byte(`{"access":{"account":"a","signing_key":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=","volumes":[{"id":"vol1"}]}}`))
	f.Add([]byte(`{"opened":{"owner":2147483648}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, op := range []string{opAccess, opOpen} {
			if r, err := decodeRequest(op, body); err == nil {
				text, err := json.Marshal(r)
				must(t, err)
				if again, err := decodeRequest(op, text); err != nil || again != r {
					t.Errorf("%+v became %+v, %v", r, again, err)
				}
			}
			a, err := decodeAnswer(op, body)
			if err == nil && (op == opAccess && a.Access == nil || op == opOpen && a.Opened == nil) {
				t.Errorf("an answer without anything: %q", body)
			}
		}
	})
}
