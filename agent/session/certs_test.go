package session

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gantry/internal/agentrpc"
	"gantry/internal/pki"
)

// Renew implements agentrpc.JoinServer.
func (s *scene) Renew(_ context.Context, in *agentrpc.RenewRequest) (*agentrpc.RenewResponse, error) {
	return s.onRenew(in)
}

// signed is a certificate of a CA for a host's request.
func (s *scene) signed(ca *pki.CA, in *agentrpc.RenewRequest) *agentrpc.RenewResponse {
	leaf, err := ca.Issue(in.GetCsr(), pki.Identity{Role: pki.RoleHost, ID: "one"}, 1000*time.Hour, time.Now())
	s.must(err)
	return &agentrpc.RenewResponse{Certificate: leaf.Raw}
}

// TestWhichFreshCertificatesAreTaken, with the CAs that come with them, if any.
func TestWhichFreshCertificatesAreTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newScene(t)
		conn, err := connect("a:1", c.store, c.dial)
		c.must(err)
		next, err := c.ca.Next(time.Now())
		c.must(err)
		for _, x := range []struct {
			what   string
			change func(*agentrpc.RenewResponse) error
			words  string // of the error
			trusts int
		}{
			{"refused", func(*agentrpc.RenewResponse) error { return status.Error(codes.PermissionDenied, "not known") }, "not known", 1},
			{"no certificate", func(r *agentrpc.RenewResponse) error { r.Certificate = nil; return nil }, "read the certificate", 1},
			{"what is no CA", func(r *agentrpc.RenewResponse) error { r.Cas = [][]byte{{1}}; return nil }, "", 1},
			{"without CAs", func(*agentrpc.RenewResponse) error { return nil }, "-", 1},
			{"of another CA", func(r *agentrpc.RenewResponse) error { r.Cas = [][]byte{next.Cert().Raw, c.ca.Cert().Raw}; return nil }, "-", 2},
		} {
			time.Sleep(time.Hour)
			c.onRenew = func(in *agentrpc.RenewRequest) (*agentrpc.RenewResponse, error) {
				ca := c.ca
				if x.trusts == 2 {
					ca = next
				}
				out := c.signed(ca, in)
				return out, x.change(out)
			}
			before, err := c.store.Leaf()
			c.must(err)
			err = renew(t.Context(), conn, c.store)
			if (err == nil) != (x.words == "-") || err != nil && !strings.Contains(err.Error(), x.words) {
				t.Errorf("%s: %v", x.what, err)
			}
			after, lerr := c.store.Leaf()
			c.must(lerr)
			trusted, terr := c.store.Trusted()
			c.must(terr)
			if after.Equal(before) == (err == nil) || len(trusted) != x.trusts {
				t.Errorf("%s: it is another one: %v, and %d CAs are trusted", x.what, !after.Equal(before), len(trusted))
			}
		}
		c.must(conn.Close())
	})
}

// TestWhenACertificateIsAskedFor: when it is due, and again in a minute; soon when another CA signs, and then within seconds again.
func TestWhenACertificateIsAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newScene(t)
		conn, err := connect("a:1", c.store, c.dial)
		c.must(err)
		said := &bytes.Buffer{}
		s, err := New(Config{Store: c.store, Changed: NewBell(), Log: slog.New(slog.NewTextHandler(said, nil))})
		c.must(err)
		s.renewal.fraction = 0
		var by atomic.Pointer[pki.CA]
		asked := make(chan time.Time)
		ctx, end := context.WithCancelCause(t.Context())
		c.onRenew = func(in *agentrpc.RenewRequest) (*agentrpc.RenewResponse, error) {
			select {
			case asked <- time.Now():
			case <-ctx.Done():
			}
			if ca := by.Load(); ca != nil {
				out := c.signed(ca, in)
				out.Cas = [][]byte{ca.Cert().Raw}
				return out, nil
			}
			return nil, status.Error(codes.Unavailable, "not now")
		}
		over := make(chan error, 1)
		go func() { over <- s.renewInTime(ctx, conn) }()
		leaf, err := c.store.Leaf()
		c.must(err)
		due := pki.RenewAt(leaf, 0)
		if at := <-asked; at.Sub(due).Abs() > time.Second {
			t.Errorf("it is asked for %v after it is due", at.Sub(due))
		}
		synctest.Wait()
		due, _ = time.Now(), by.CompareAndSwap(nil, c.ca)
		if at := <-asked; at.Sub(due) != renewRetry {
			t.Errorf("it is asked for again after %v", at.Sub(due))
		}
		synctest.Wait()
		if text := said.String(); len(s.Changed) != 1 || strings.Count(text, "renew the host's certificate") != 1 || strings.Count(text, "certificate renewed") != 1 {
			t.Errorf("%d rings, said %s", len(s.Changed), text)
		}
		if leaf, err = c.store.Leaf(); err != nil || time.Until(pki.RenewAt(leaf, 0)) < time.Hour {
			t.Errorf("the next is due in %v, %v", time.Until(pki.RenewAt(leaf, 0)), err)
		}
		// Another CA signs by now, and is alone: the host's certificate is of none that is trusted.
		<-s.Changed
		next, err := c.ca.Next(time.Now())
		c.must(err)
		by.Store(nil)
		began := time.Now()
		s.trust([][]byte{next.Cert().Raw, c.ca.Cert().Raw})
		if len(s.Changed) != 1 {
			t.Error("the scheduler is not told which CAs are trusted")
		}
		<-s.Changed
		if at := <-asked; at.Sub(began) > renewSpread {
			t.Errorf("another CA signs, and it is asked for after %v", at.Sub(began))
		}
		synctest.Wait()
		s.trust([][]byte{next.Cert().Raw})
		began = time.Now()
		if at := <-asked; at.Sub(began) != renewSooner || !s.ousted.Load() {
			t.Errorf("it is asked for again after %v; it is of none that is trusted: %v", at.Sub(began), s.ousted.Load())
		}
		synctest.Wait()
		by.Store(next)
		<-asked
		synctest.Wait()
		if s.ousted.Load() || len(s.Changed) != 1 {
			t.Errorf("it has a certificate, and counts as ousted: %v, %d rings", s.ousted.Load(), len(s.Changed))
		}
		end(io.EOF)
		if err := <-over; err == nil {
			t.Error("it ended without a reason")
		}
		c.must(conn.Close())
	})
}

// TestASessionThatEndsWhileACertificateIsAskedFor says why it ended, and nothing of the certificate: the next one asks at once.
func TestASessionThatEndsWhileACertificateIsAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newScene(t)
		conn, err := connect("a:1", c.store, c.dial)
		c.must(err)
		said := &bytes.Buffer{}
		s, err := New(Config{Store: c.store, Changed: NewBell(), Log: slog.New(slog.NewTextHandler(said, nil))})
		c.must(err)
		ctx, end := context.WithCancelCause(t.Context())
		c.onRenew = func(*agentrpc.RenewRequest) (*agentrpc.RenewResponse, error) {
			end(io.EOF)
			return nil, status.Error(codes.Unavailable, "not now")
		}
		if err := s.renewInTime(ctx, conn); !errors.Is(err, io.EOF) || said.Len() != 0 || !s.renewal.next.IsZero() {
			t.Errorf("%v, said %q, the next is asked for at %v", err, said, s.renewal.next)
		}
		c.must(conn.Close())
	})
}

// TestWhatASchedulerNamesIsKept: CAs and members; what cannot be kept is said once and tried again, and nothing is said of what can.
func TestWhatASchedulerNamesIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newScene(t)
		next, err := c.ca.Next(time.Now())
		c.must(err)
		said := &bytes.Buffer{}
		dir := filepath.Join(t.TempDir(), "dir")
		c.must(os.Mkdir(dir, 0o700))
		where, err := OpenDirectory(dir, []string{"a:1"})
		c.must(err)
		s, err := New(Config{Where: where, Store: c.store, Changed: NewBell(), Log: slog.New(slog.NewTextHandler(said, nil))})
		c.must(err)
		is := func(what, words string, rings, asks int) {
			t.Helper()
			if strings.Contains(said.String(), "level=") != (words != "") || strings.Count(said.String(), words) < 1 || len(s.Changed) != rings || len(s.renewNow) != asks {
				t.Errorf("%s: said %q, %d rings, %d asks", what, said, len(s.Changed), len(s.renewNow))
			}
			said.Reset()
			s.Changed, s.renewNow = NewBell(), NewBell()
		}
		_, err = s.beat(t.Context(), &agentrpc.Down_Beat{Beat: &agentrpc.Beat{Cas: [][]byte{next.Cert().Raw}}})
		c.must(err)
		is("none that signed the host's certificate", "", 0, 1)
		c.must(s.follow(&agentrpc.Welcome{Schedulers: []string{"b:1"}, Cas: [][]byte{next.Cert().Raw, c.ca.Cert().Raw}}))
		trusted, err := c.store.Trusted()
		c.must(err)
		if len(trusted) != 2 || !slices.Contains(where.Known(), "b:1") {
			t.Errorf("%d CAs are trusted, known are %q", len(trusted), where.Known())
		}
		is("a welcome", "", 1, 1)
		s.trust(nil)
		is("nothing", "", 0, 0)
		s.trust([][]byte{c.ca.Cert().Raw})
		is("the CAs of before", "", 0, 1)
		s.trust(nil)
		is("nothing, after them", "", 0, 0)
		s.trust([][]byte{{1}})
		is("what is no CA", "keep which CAs are trusted", 0, 0)
		s.trust(nil)
		is("the same again", "", 0, 0)
		s.trust([][]byte{next.Cert().Raw})
		is("without the host's own", "", 0, 1)
		s.trust([][]byte{next.Cert().Raw})
		is("the same, while it is asked for", "", 0, 0)
		s.trust([][]byte{next.Cert().Raw, c.ca.Cert().Raw})
		if is("with the host's own", "", 1, 1); s.ousted.Load() {
			t.Error("it still counts as ousted")
		}
		c.must(os.RemoveAll(dir))
		s.learn([]string{"c:1"})
		is("members that cannot be kept", "keep where the schedulers are", 0, 0)
	})
}
