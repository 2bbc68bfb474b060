package rest_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"gantry/api/rest"
	"gantry/fleet"
	"gantry/test/plane"
)

// snapshots is a service whose snapshots the test writes.
type snapshots struct {
	rest.Service
	write func(context.Context, io.Writer) error
}

func (s snapshots) SaveSnapshot(ctx context.Context, w io.Writer) error { return s.write(ctx, w) }

func snapshotSite(t *testing.T, limits rest.Limits, write func(context.Context, io.Writer) error) *site {
	t.Helper()
	return newSite(t, func(cfg *rest.Config) { cfg.Service = snapshots{cfg.Service, write} }, limits)
}

const snapshotPath = "/admin/v1/snapshot"

func TestSnapshotIsStreamed(t *testing.T) {
	limits := rest.Limits{Header: 100 * time.Millisecond, Read: 100 * time.Millisecond, Write: 100 * time.Millisecond}
	next := make(chan struct{})
	s := snapshotSite(t, limits, func(_ context.Context, w io.Writer) error {
		for range 3 { // each piece after the server's limits of a request have passed
			if _, err := io.WriteString(w, strings.Repeat("x", 100_000)); err != nil {
				return err
			}
			<-next
		}
		return nil
	})
	resp := s.open(t, "GET", snapshotPath, plane.Operator, "")
	defer resp.Body.Close()
	h := resp.Header
	if resp.StatusCode != http.StatusOK || h.Get("Content-Type") != "application/octet-stream" || h.Get("Cache-Control") != "no-store" ||
		h.Get("Content-Disposition") != `attachment; filename="gantry-20261001T120000Z.snapshot"` {
		t.Errorf("%s %v", resp.Status, h)
	}
	buf := make([]byte, 100_000)
	for i := range 3 {
		n, err := io.ReadFull(resp.Body, buf[:50_000]) // nothing waits in a buffer until the piece is whole
		if err != nil {
			t.Fatalf("piece %d: %d bytes: %v", i, n, err)
		}
		timer := time.NewTimer(2 * limits.Write)
		<-timer.C
		next <- struct{}{}
		if _, err := io.ReadFull(resp.Body, buf[:50_000]); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := resp.Body.Read(buf); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %d %v", n, err)
	}
}

// take reads a snapshot and says how it ended; the status is 0 when there was no answer at all.
func take(t *testing.T, s *site) (status int, err error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.base+snapshotPath, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+plane.KeyText(plane.Operator).Reveal())
	resp, err := s.client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

func TestSnapshotThatFailsIsNoAnswerOrNoWholeOne(t *testing.T) {
	for _, size := range []int{0, 10, 1 << 20} {
		s := snapshotSite(t, rest.Limits{}, func(_ context.Context, w io.Writer) error {
			if size > 0 {
				if _, err := w.Write(make([]byte, size)); err != nil {
					return err
				}
			}
			return fleet.Unavailable("the copy was lost", nil)
		})
		status, err := take(t, s)
		if whole := err == nil; whole != (size == 0) || whole != (status == http.StatusServiceUnavailable) {
			t.Errorf("after %d bytes: %d, then %v", size, status, err)
		}
	}
}

func TestSnapshotEndsWhenNobodyReads(t *testing.T) {
	ended := make(chan error, 1)
	s := snapshotSite(t, rest.Limits{}, func(ctx context.Context, w io.Writer) error {
		var err error
		for err == nil {
			_, err = w.Write(make([]byte, 64<<10))
		}
		ended <- err
		return err
	})
	resp := s.open(t, "GET", snapshotPath, plane.Operator, "")
	_, _ = resp.Body.Read(make([]byte, 10))
	_ = resp.Body.Close()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("the snapshot is whole")
		}
	case <-time.After(time.Minute):
		t.Fatal("the snapshot is still written")
	}
	head := s.open(t, "HEAD", snapshotPath, plane.Operator, "")
	_ = head.Body.Close()
	if err := <-ended; head.StatusCode != http.StatusOK || err == nil {
		t.Errorf("HEAD: %s, %v", head.Status, err)
	}
}

func TestSnapshotOfTheRealState(t *testing.T) {
	s := newSite(t, nil, rest.Limits{})
	resp := s.open(t, "GET", snapshotPath, plane.Operator, "")
	defer resp.Body.Close()
	n, err := io.Copy(io.Discard, resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK || n == 0 {
		t.Errorf("%s, %d bytes, %v", resp.Status, n, err)
	}
	s.plane.CutSnapshot(1)
	if status, err := take(t, s); err == nil {
		t.Errorf("a snapshot that was cut looks whole: %d", status)
	}
	for _, key := range []string{plane.User, plane.Reader} {
		refused(t, s.ask(t, "GET", snapshotPath, key, ""), http.StatusForbidden)
	}
	s.plane.SetDown(true)
	p := refused(t, s.ask(t, "GET", snapshotPath, plane.Operator, ""), http.StatusServiceUnavailable)
	if p.Code != fleet.CodeUnavailable {
		t.Errorf("%+v", p)
	}
}
