package rest_test

import (
	"archive/tar"
	"bytes"
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

// pack makes a tar archive of names and contents.
func pack(t *testing.T, files ...string) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for i := 0; i < len(files); i += 2 {
		if err := w.WriteHeader(&tar.Header{Name: files[i], Mode: 0o644, Size: int64(len(files[i+1]))}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, files[i+1]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func unpack(t *testing.T, archive io.Reader) map[string]string {
	t.Helper()
	out := map[string]string{}
	r := tar.NewReader(archive)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		out[h.Name] = string(text)
	}
}

// put sends an archive and returns the status of the answer, 0 for none.
func (s *site) put(t *testing.T, path string, body io.Reader) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, s.base+path, body)
	if err != nil {
		t.Error(err)
		return 0
	}
	req.Header.Set("Authorization", "Bearer "+plane.KeyText(plane.User).Reveal())
	req.Header.Set("Content-Type", "application/x-tar")
	resp, err := s.client.Do(req)
	if err != nil {
		t.Error(err)
		return 0
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

func TestFilesThereAndBack(t *testing.T) {
	s := newSite(t, nil, rest.Limits{})
	id := makePod(t, s.plane, fleet.EventRunning)
	path := "/v2/pods/" + string(id) + "/files?path="
	big := strings.Repeat("0123456789", 300_000) // above the bound of JSON bodies
	if status := s.put(t, path+"/data", bytes.NewReader(pack(t, "in/a.txt", "one", "in/big", big))); status != http.StatusNoContent {
		t.Fatal(status)
	}
	if text, _ := s.plane.File(id, "/data/in/a.txt"); text != "one" {
		t.Errorf("the file has %q", text)
	}
	for ask, want := range map[string]map[string]string{
		"/data/in/a.txt": {"a.txt": "one"}, "/data/in": {"in/a.txt": "one", "in/big": big}, "/data/../data/in/": {"in/a.txt": "one", "in/big": big},
	} {
		resp := s.open(t, "GET", path+ask, plane.User, "")
		if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "application/x-tar" {
			t.Fatal(resp.Status, resp.Header)
		}
		got := unpack(t, resp.Body)
		_ = resp.Body.Close()
		if len(got) != len(want) {
			t.Errorf("%s: %d files", ask, len(got))
		}
		for name, text := range want {
			if got[name] != text {
				t.Errorf("%s: %s has %d bytes, want %d", ask, name, len(got[name]), len(text))
			}
		}
	}
}

// TestSlowFilesPass moves files for longer than the server's limits, a piece at a time.
func TestSlowFilesPass(t *testing.T) {
	limits := rest.Limits{Header: 100 * time.Millisecond, Read: 100 * time.Millisecond, Write: 100 * time.Millisecond}
	archive := pack(t, "a.txt", strings.Repeat("x", 5000))
	s := newSite(t, func(cfg *rest.Config) { cfg.Service = slowFiles{cfg.Service, archive, limits.Read} }, limits)
	id := makePod(t, s.plane, fleet.EventRunning)
	path := "/v2/pods/" + string(id) + "/files?path=/"
	if status := s.put(t, path, &slow{r: bytes.NewReader(archive), pause: limits.Read}); status != http.StatusNoContent {
		t.Error(status)
	}
	resp := s.open(t, "GET", path, plane.User, "")
	defer resp.Body.Close()
	if got := unpack(t, resp.Body); len(got["a.txt"]) != 5000 {
		t.Errorf("%d bytes", len(got["a.txt"]))
	}
}

// slow reads in pieces with pauses.
type slow struct {
	r     io.Reader
	pause time.Duration
}

func (s *slow) Read(p []byte) (int, error) {
	<-time.After(s.pause)
	return s.r.Read(p[:min(len(p), 1500)])
}

func (s *slow) Close() error { return nil }

type slowFiles struct {
	rest.Service
	archive []byte
	pause   time.Duration
}

func (f slowFiles) ReadPodFiles(context.Context, fleet.Principal, fleet.PodID, string) (io.ReadCloser, error) {
	return &slow{r: bytes.NewReader(f.archive), pause: f.pause}, nil
}

// brokenFiles fails in the middle of an archive.
type brokenFiles struct{ rest.Service }

func (brokenFiles) ReadPodFiles(context.Context, fleet.Principal, fleet.PodID, string) (io.ReadCloser, error) {
	return io.NopCloser(io.MultiReader(strings.NewReader("begin"), failing{})), nil
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("read /var/lib/secret") }

// TestCutFilesAreNoticed breaks the source after the answer has begun: the client must not take it for whole.
func TestCutFilesAreNoticed(t *testing.T) {
	s := newSite(t, func(cfg *rest.Config) { cfg.Service = brokenFiles{cfg.Service} }, rest.Limits{})
	resp := s.open(t, "GET", "/v2/pods/"+string(makePod(t, s.plane, fleet.EventRunning))+"/files?path=/a", plane.User, "")
	defer resp.Body.Close()
	if _, err := io.ReadAll(resp.Body); err == nil {
		t.Error("a cut archive looks whole")
	}
}

// held keeps transfers under way until their context ends.
type held struct {
	rest.Service
	begun chan struct{}
}

func (h held) ReadPodFiles(ctx context.Context, _ fleet.Principal, _ fleet.PodID, _ string) (io.ReadCloser, error) {
	h.begun <- struct{}{}
	<-ctx.Done()
	return nil, ctx.Err()
}

func (h held) WritePodFiles(_ context.Context, _ fleet.Principal, _ fleet.PodID, _ string, stream io.Reader) error {
	h.begun <- struct{}{}
	_, err := io.Copy(io.Discard, stream)
	return err
}

// TestTransfersAreLimited opens as many as an account may, then one more; closing the API ends all of them.
func TestTransfersAreLimited(t *testing.T) {
	begun := make(chan struct{})
	s := newSite(t, func(cfg *rest.Config) { cfg.Service = held{cfg.Service, begun} }, rest.Limits{})
	path := "/v2/pods/" + string(makePod(t, s.plane, fleet.EventRunning)) + "/files?path=/a"
	ended := make(chan answer)
	in, feed := io.Pipe() // a body that never comes
	t.Cleanup(func() { _ = feed.Close() })
	for i := range 16 {
		go func() {
			if i == 0 {
				ended <- answer{request: "PUT", status: s.put(t, path, in)}
				return
			}
			got := s.ask(t, "GET", path, plane.User, "")
			ended <- got
		}()
		<-begun
	}
	if p := refused(t, s.ask(t, "GET", path, plane.User, ""), http.StatusTooManyRequests); p.Code != fleet.CodeLimited {
		t.Error(p)
	}
	s.api.Close()
	for range 16 {
		if got := <-ended; got.status != http.StatusServiceUnavailable {
			t.Errorf("%s: %d", got.request, got.status)
		}
	}
}
