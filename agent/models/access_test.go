package models

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"gantry/agent/pod"
	"gantry/test/modelhub"
)

// restricted puts a model that is not everybody's.
func (w *world) restricted(access modelhub.Access, tokens ...string) {
	m := modelhub.One(first, map[string][]byte{"w": weights, "c": []byte("1")})
	m.Access, m.Tokens = access, tokens
	w.hub.Put("org/name", m)
}

// A copy of a model that is not public is given to those alone of whom the hub says so now. The token is shown only where it is needed.
func TestWhoMayHaveAModel(t *testing.T) {
	for _, access := range []modelhub.Access{modelhub.Private, modelhub.Gated} {
		w := newWorld(t, 10*mb)
		w.restricted(access, "good", "also")
		w.refuses("p1", "", "org/name", "set HF_TOKEN", pod.Fatal)
		w.refuses("p1", "bad", "org/name", "may not be read with the endpoint's HF_TOKEN", pod.Fatal)
		dir := w.must("p1", "good", "org/name")
		n := len(w.hub.Files())
		w.refuses("p2", "", "org/name", "set HF_TOKEN", pod.Fatal)
		w.refuses("p2", "bad", "org/name", "may not be read", pod.Fatal)
		if w.must("p2", "also", "org/name") != dir || len(w.hub.Files()) != n {
			t.Error("it was fetched again")
		}
		w.restricted(access, "also") // the other's was taken away
		w.refuses("p3", "good", "org/name", "may not be read", pod.Fatal)
		for _, r := range w.hub.Files() {
			if r.Token != "good" {
				t.Errorf("read with %q", r.Token)
			}
		}
		if text := w.log.String(); strings.Contains(text, "good") || strings.Contains(text, "bad ") {
			t.Errorf("a token is in the log: %s", text)
		}
		w.hub.Close()
		w.refuses("p4", "also", "org/name", "the hub does not answer", pod.Retry)
	}
	w := newWorld(t, 10*mb)
	w.restricted(modelhub.Public)
	w.must("p1", "mine", "org/name")
	for _, r := range append(w.hub.Seen(http.MethodGet), w.hub.Seen(http.MethodHead)...) {
		if r.Token != "" {
			t.Errorf("the token was shown for a public model: %+v", r)
		}
	}
}

// A model that is not public any more is given to nobody without the hub, whoever had it.
func TestAModelThatIsNotPublicAnyMore(t *testing.T) {
	w := newWorld(t, 10*mb)
	w.restricted(modelhub.Public)
	w.must("p1", "", "org/name")
	w.restricted(modelhub.Private, "good")
	w.refuses("p2", "", "org/name", "set HF_TOKEN", pod.Fatal)
	w.hub.Close()
	w.refuses("p2", "", "org/name", "the hub does not answer", pod.Retry)

	w = newWorld(t, 10*mb)
	w.restricted(modelhub.Public)
	w.must("p1", "", "org/name")
	w.restricted(modelhub.Private, "good")
	w.must("p2", "good", "org/name") // that was said by who may have it
	w.end()
	w.start(10 * mb)
	w.hub.Close()
	w.refuses("p3", "", "org/name", "the hub does not answer", pod.Retry)
}

// Without the hub, what everybody may have is given to everybody, also after another start.
func TestAPublicModelWithoutTheHub(t *testing.T) {
	w := newWorld(t, 10*mb)
	w.restricted(modelhub.Public)
	dir := w.must("p1", "", "org/name")
	w.hub.Handle(func(rw http.ResponseWriter, _ *http.Request) bool { rw.WriteHeader(http.StatusBadGateway); return true })
	if w.must("p2", "", "org/name") != dir || w.must("p3", "", "org/name:"+first) != dir {
		t.Error("another folder")
	}
	w.hub.Close()
	w.end()
	w.start(10 * mb)
	if w.must("p4", "", "org/name") != dir {
		t.Error("another folder")
	}
	w.refuses("p4", "", "org/name:v2", "the hub does not answer", pod.Retry)
}

// Who waits for another's fetch is not refused because the other's token is: it goes on with its own.
func TestARefusedTokenIsItsOwners(t *testing.T) {
	w := newWorld(t, 10*mb)
	w.restricted(modelhub.Private, "one", "two")
	waits, refused := make(chan struct{}), atomic.Bool{}
	w.hub.Handle(func(rw http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/resolve/") || !strings.HasSuffix(r.Header.Get("Authorization"), "one") {
			return false
		}
		<-waits
		refused.Store(true)
		rw.WriteHeader(http.StatusForbidden)
		return true
	})
	over := make(chan error)
	go func() { _, err := w.get("p1", "one", "org/name"); over <- err }()
	for len(w.hub.Files()) == 0 {
		if t.Context().Err() != nil {
			t.Fatal("nothing is fetched")
		}
	}
	go func() { _, err := w.get("p2", "two", "org/name"); over <- err }()
	for { // until it has joined
		w.cache.mu.Lock()
		joined := false
		for _, f := range w.cache.flights {
			joined = f.waiters == 2
		}
		w.cache.mu.Unlock()
		if joined {
			break
		}
	}
	close(waits)
	a, b := <-over, <-over
	if (a == nil) == (b == nil) || !refused.Load() {
		t.Errorf("%v and %v", a, b)
	}
}

// Where the hub redirects to hears no token, also if it is below the hub's own name, and is reached over TLS alone.
func TestRedirects(t *testing.T) {
	w := newWorld(t, 10*mb)
	w.restricted(modelhub.Private, "good")
	var tokens atomic.Pointer[string]
	cdn := httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		token := r.Header.Get("Authorization") + r.Header.Get("Cookie")
		tokens.Store(&token)
		if strings.HasSuffix(r.URL.Path, "/w") {
			w.serveRest(rw, r)
		} else {
			_, _ = rw.Write([]byte("1"))
		}
	}))
	defer cdn.Close()
	var to atomic.Pointer[string]
	leads := func(at string) { to.Store(&at) }
	leads(cdn.URL)
	w.hub.Handle(func(rw http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/resolve/") || !strings.HasSuffix(r.Header.Get("Authorization"), "good") {
			return false
		}
		http.Redirect(rw, r, *to.Load()+r.URL.Path+"?signature=secret", http.StatusFound)
		return true
	})
	w.refuses("p1", "good", "org/name", "is at an address that is not allowed", pod.Fatal) // it is on loopback
	leads(strings.Replace(cdn.URL, "https", "http", 1))
	w.refuses("p1", "good", "org/name", "is at an address that is not allowed", pod.Fatal)
	if tokens.Load() != nil {
		t.Error("what is not allowed was reached")
	}
	leads(cdn.URL)
	client := cdn.Client().Transport.(*http.Transport) //nolint:forcetypeassert // httptest's is one
	w.cache.others = client
	w.must("p1", "good", "org/name")
	if got := tokens.Load(); got == nil || *got != "" {
		t.Errorf("what the hub redirects to heard %v", got)
	}
	if strings.Contains(w.log.String(), "signature") {
		t.Errorf("a signed address is in the log: %s", w.log.String())
	}
}

// A redirect within the hub says nothing of who may have a model: as of one with a new name, whose old name anybody may ask for.
func TestARenamedModelIsNotOpenedByItsRedirect(t *testing.T) {
	w := newWorld(t, 10*mb)
	w.restricted(modelhub.Gated, "good")
	w.must("p1", "good", "org/name")
	w.hub.Handle(func(rw http.ResponseWriter, r *http.Request) bool {
		at := strings.Replace(r.URL.Path, "/org/old/", "/org/name/", 1)
		if at != r.URL.Path {
			http.Redirect(rw, r, at, http.StatusTemporaryRedirect)
		}
		return at != r.URL.Path
	})
	w.refuses("p2", "", "org/old", "set HF_TOKEN", pod.Fatal)
	w.refuses("p2", "bad", "org/old", "may not be read", pod.Fatal)
	w.must("p2", "good", "org/old")
}
