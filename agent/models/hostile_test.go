package models

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/test/modelhub"
)

// sha is a digest of a small file that nobody asks for.
const sha = "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"

func siblings(list string) string { return `{"sha":"` + first + `","siblings":[` + list + `]}` }

func named(name string) string {
	text, _ := json.Marshal(name) // a string
	return `{"rfilename":` + string(text) + `,"size":0,"blobId":"` + sha + `"}`
}

// TestHostileAnswers: whatever a hub says, nothing is written beside the model's folder, nothing without an end is read, and the owner
// hears in words what is wrong.
func TestHostileAnswers(t *testing.T) {
	many := strings.Repeat(named("a")+",", maxFiles) + named("b")
	for says, answer := range map[string]string{
		"is not what an answer is":               "<html>",
		"is not what an answer is ":              siblings(`{"rfilename":1}`),
		"names no commit":                        `{"sha":"../../x","siblings":[` + named("a") + `]}`,
		"names no commit ":                       `{}`,
		"has no files":                           siblings(""),
		"has more than 10000 files":              siblings(many),
		"is larger than 8 MiB":                   siblings(named(strings.Repeat("x", maxAnswer))),
		"name that is not allowed":               siblings(named("../x")),
		"name that is not allowed ":              siblings(named("/etc/passwd")),
		"name that is not allowed  ":             siblings(named("a/../../x")),
		"name that is not allowed   ":            siblings(named("a//b")),
		"name that is not allowed    ":           siblings(named("a\x00b")),
		"name that is not allowed     ":          siblings(named(".")),
		"name that is not allowed      ":         siblings(named(`a\b`)),
		"name that is not allowed       ":        siblings(named(strings.Repeat("x", 256))),
		"name that is not allowed        ":       siblings(named(strings.Repeat("x/", 16) + "x")),
		"name that is not allowed         ":      siblings(named("")),
		"names a file twice":                     siblings(named("a") + "," + named("a")),
		"is also a folder":                       siblings(named("a") + "," + named("a/b/c")),
		"has no digest":                          siblings(`{"rfilename":"a","size":1,"blobId":"../x"}`),
		"has no digest ":                         siblings(`{"rfilename":"a","size":1,"blobId":"` + sha + `","lfs":{"sha256":"x","size":1}}`),
		"has no size":                            siblings(`{"rfilename":"a","blobId":"` + sha + `"}`),
		"has no size ":                           siblings(`{"rfilename":"a","size":-1,"blobId":"` + sha + `"}`),
		"has no size  ":                          siblings(`{"rfilename":"a","size":99999999999999999,"blobId":"` + sha + `"}`),
		"two files of one digest have two sizes": siblings(named("a") + `,{"rfilename":"b","size":1,"blobId":"` + sha + `"}`),
	} {
		w := newWorld(t, mb)
		w.hub.Handle(func(rw http.ResponseWriter, _ *http.Request) bool { _, _ = io.WriteString(rw, answer); return true })
		w.refuses("p1", "", "org/name", strings.TrimSpace(says), pod.Fatal)
		if got := names(filepath.Join(w.dir, partialDir)); len(got)+len(w.cache.Names()) > 0 {
			t.Errorf("%s: there is %v", says, got)
		}
	}
}

// TestHostileFiles: what a hub gives out as a file is bounded in size and time, and is that of its digest or nothing.
func TestHostileFiles(t *testing.T) {
	endless := func(rw http.ResponseWriter, r *http.Request) {
		for chunk := make([]byte, 1<<16); r.Context().Err() == nil; {
			if _, err := rw.Write(chunk); err != nil {
				return
			}
		}
	}
	for name, c := range map[string]struct {
		answer func(rw http.ResponseWriter, r *http.Request)
		says   string
		class  pod.Class
	}{
		"an endless body": {endless, "is not what its digests promise", pod.Fatal},
		"another content": {func(rw http.ResponseWriter, _ *http.Request) {
			_, _ = rw.Write(bytes.Repeat([]byte("x"), len(weights)))
		}, "is not what its digests promise", pod.Fatal},
		"a short body": {func(rw http.ResponseWriter, _ *http.Request) { _, _ = rw.Write(weights[:0]) }, "the hub broke off", pod.Retry},
		"an encoded body": {func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Content-Encoding", "gzip")
			endless(rw, r)
		}, "comes encoded", pod.Fatal},
		"a redirect to a file": {func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Location", "file:///etc/passwd")
			rw.WriteHeader(http.StatusFound)
		}, "not allowed", pod.Fatal},
		"a redirect to metadata": {func(rw http.ResponseWriter, r *http.Request) {
			http.Redirect(rw, r, "https://169.254.169.254/latest", http.StatusFound)
		}, "not allowed", pod.Fatal},
		"a private redirect": {func(rw http.ResponseWriter, r *http.Request) {
			http.Redirect(rw, r, "https://10.0.0.1/x", http.StatusFound)
		}, "not allowed", pod.Fatal},
		"redirects in a ring": {func(rw http.ResponseWriter, r *http.Request) { http.Redirect(rw, r, r.URL.Path, http.StatusFound) }, "does not answer", pod.Retry},
		"not there":           {func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(404) }, "is not on the hub", pod.Fatal},
		"a teapot":            {func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(418) }, "status 418", pod.Fatal},
		"too many requests":   {func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(429) }, "does not answer", pod.Retry},
		"no byte": {func(rw http.ResponseWriter, r *http.Request) {
			rw.WriteHeader(200)
			rw.(http.Flusher).Flush() //nolint:forcetypeassert // net/http's is one
			<-r.Context().Done()
		}, "the hub stopped sending", pod.Retry},
		"another part": {func(rw http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Range") == "" {
				rw.Header().Set("Content-Length", fmt.Sprint(len(weights)))
				_, _ = rw.Write(weights[:100])
				return
			}
			rw.Header().Set("Content-Range", "bytes 0-9/1000000")
			rw.WriteHeader(206)
		}, "a part of a file is not the one that was asked for", pod.Fatal},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 10*mb)
			w.cache.stall /= 10
			w.hub.Put("org/name", modelhub.One(first, map[string][]byte{"w": weights}))
			w.hub.Handle(func(rw http.ResponseWriter, r *http.Request) bool {
				file := r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/resolve/")
				if file {
					if r.URL.Path == "/org/name/resolve/"+first+"/w" {
						c.answer(rw, r)
					}
				}
				return file
			})
			w.refuses("p1", "", "org/name", c.says, c.class)
			if len(w.cache.Names()) > 0 {
				t.Errorf("there is %v", w.cache.Names())
			}
			if left := bytesBelow(filepath.Join(w.dir, partialDir)); left > int64(len(weights))+1 {
				t.Errorf("%d bytes were kept", left)
			}
		})
	}
}

// A body that comes a byte at a time is given up, as one that does not come.
func TestASlowHub(t *testing.T) {
	w := newWorld(t, 10*mb)
	w.cache.stall /= 10
	w.hub.Put("org/name", modelhub.One(first, map[string][]byte{"w": weights}))
	w.hub.Handle(func(rw http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/resolve/") {
			return false
		}
		for i := 0; i < 100 && r.Context().Err() == nil; i++ {
			_, _ = rw.Write([]byte("0"))
			rw.(http.Flusher).Flush() //nolint:forcetypeassert // net/http's is one
			select {
			case <-time.After(w.cache.stall / 5):
			case <-r.Context().Done():
			}
		}
		return true
	})
	w.cache.pause = 0
	_, err := w.get("p1", "", "org/name")
	var e *pod.Error
	if !errors.As(err, &e) || e.Class != pod.Fatal && !strings.Contains(e.Sentence, "too slow") {
		t.Errorf("%v", err)
	}
}

// A folder that is in the way of a file, or a link, is not followed.
func TestALinkIsNotFollowed(t *testing.T) {
	w := newWorld(t, 10*mb)
	w.hub.Put("org/name", modelhub.One(first, map[string][]byte{"w": weights}))
	target := filepath.Join(t.TempDir(), "target")
	part := filepath.Join(w.dir, partialDir, "models--org--name@"+first, "hub/blobs", modelhub.Digest(weights, true)+".incomplete")
	if err := errors.Join(os.WriteFile(target, []byte("mine"), 0o600), os.MkdirAll(filepath.Dir(part), 0o700), os.Symlink(target, part)); err != nil {
		t.Fatal(err)
	}
	w.refuses("p1", "", "org/name", "could not be fetched", pod.Retry)
	w.holds(target, "mine")
}

// An order of a hub that is none is refused before anything is sent.
func TestAHubThatIsNone(t *testing.T) {
	w := newWorld(t, mb)
	for _, hub := range []string{"", "http://192.0.2.1", "file:///etc"} {
		order := w.order("secret", "org/name")
		order.Hub = hub
		if _, err := w.cache.Get(t.Context(), "p1", order, nil); err == nil || !strings.Contains(err.Error(), "address of the hub") {
			t.Errorf("%q: %v", hub, err)
		}
	}
}

// FuzzReadManifest: whatever is read names files below one folder, each once, of sizes that can be added up.
func FuzzReadManifest(f *testing.F) {
	f.Add([]byte(siblings(named("a") + "," + named("b/c"))))
	f.Add([]byte(siblings(`{"rfilename":"a","size":1,"blobId":"` + sha + `","lfs":{"sha256":"` + strings.Repeat("a", 64) + `","size":1}}`)))
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := readManifest(bytes.NewReader(text))
		if err != nil {
			return
		}
		seen := map[string]bool{}
		for _, one := range m.files {
			at := filepath.Join("/a", one.name)
			if !strings.HasPrefix(at, "/a/") || seen[at] || filepath.Base(one.digest) != one.digest || one.size < 0 {
				t.Errorf("%+v", one)
			}
			for dir := filepath.Dir(at); dir != "/a"; dir = filepath.Dir(dir) {
				if seen[dir] {
					t.Errorf("%s is below a file", at)
				}
			}
			seen[at] = true
		}
		if m.total < 0 || len(m.files) == 0 || !commitForm.MatchString(m.commit) || m.largest().size > m.total {
			t.Errorf("%+v", m)
		}
		if name := entryName(fleet.ModelRef{Repo: "o/n"}, m.commit); filepath.Base(name) != name {
			t.Errorf("folder %s", name)
		}
	})
}
