// Package files is the face of files of results of public models: GET and HEAD of /v2/files/{name} with the expiry and the signature of a
// URL that a result has. No key is needed. Errors are as on the plane of jobs.
package files

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"gantry/api/v2"
	"gantry/fleet"
	"gantry/internal/share"
)

// Service reads files; see scheduler/files.Files.
type Service interface {
	OpenFile(ctx context.Context, method, name, expires, signature string, header http.Header) (*http.Response, error)
}

const (
	prefix  = "/v2/files/"
	most    = 256              // files that are read at a time
	mostOf  = 32               // by one address
	longest = 10 * time.Minute // that reading one takes
)

// Owns reports whether a path is one of a file.
func Owns(path string) bool { return strings.HasPrefix(path, prefix) }

// API serves files.
type API struct {
	service Service
	log     *slog.Logger
	now     func() time.Time
	held    *share.Held[netip.Addr]
}

// New returns an API. trusted tells addresses that speak for many readers; nil: none.
func New(service Service, now func() time.Time, trusted func(netip.Addr) bool, log *slog.Logger) *API {
	return &API{service, log, now, share.NewHeld(most, mostOf, trusted)}
}

// asked and told are the headers that go to the storage and come from it.
var (
	asked = []string{"Range", "If-Range", "If-None-Match", "If-Modified-Since"}
	told  = []string{"Content-Type", "Content-Length", "Content-Range", "Accept-Ranges", "Etag", "Last-Modified"}
)

// ServeHTTP implements http.Handler.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		a.refuse(w, http.StatusMethodNotAllowed, "method not allowed")
		return
	}
	reader := share.Of(r.RemoteAddr)
	switch a.held.Take(reader) {
	case share.Own:
		w.Header().Set("Retry-After", "1")
		a.refuse(w, http.StatusTooManyRequests, "too many files are read at a time from your address")
		return
	case share.All:
		w.Header().Set("Retry-After", "1")
		a.refuse(w, http.StatusServiceUnavailable, "too many files are read at a time")
		return
	}
	defer a.held.Give(reader)
	ctx, cancel := context.WithTimeout(r.Context(), longest)
	defer cancel()
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(longest)) // a server without deadlines has the context
	header := http.Header{}
	for _, name := range asked {
		if value := r.Header.Get(name); value != "" {
			header.Set(name, value)
		}
	}
	q := r.URL.Query()
	res, err := a.service.OpenFile(ctx, r.Method, strings.TrimPrefix(r.URL.Path, prefix), q.Get("expires"), q.Get("signature"), header)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	defer func() { _ = res.Body.Close() }()
	a.head(w.Header(), res, q.Get("expires"))
	w.WriteHeader(res.StatusCode)
	if r.Method == http.MethodGet {
		_, _ = io.Copy(w, res.Body) // a reader that left is not told
	}
}

// head says what the file is, and that browsers keep it as long as its URL is good, and run nothing of it.
func (a *API) head(h http.Header, res *http.Response, expires string) {
	for _, name := range told {
		if value := res.Header.Get(name); value != "" {
			h.Set(name, value)
		}
	}
	until, _ := strconv.ParseInt(expires, 10, 64)
	h.Set("Cache-Control", "private, immutable, max-age="+strconv.FormatInt(max(until-a.now().Unix(), 0), 10))
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "default-src 'none'; sandbox")
	h.Set("Access-Control-Allow-Origin", "*")
	kind := h.Get("Content-Type")
	shown := strings.HasPrefix(kind, "image/") && kind != "image/svg+xml" || strings.HasPrefix(kind, "video/") || strings.HasPrefix(kind, "audio/")
	if !shown {
		h.Set("Content-Disposition", "attachment")
	}
}

func (a *API) fail(w http.ResponseWriter, r *http.Request, err error) {
	var why *fleet.Error
	switch {
	case fleet.CodeOf(err) == fleet.CodeNotFound:
		a.refuse(w, http.StatusNotFound, "there is no such file, or not any more")
	case errors.As(err, &why) && why.Code == fleet.CodeUnavailable:
		w.Header().Set("Retry-After", "1")
		a.refuse(w, http.StatusServiceUnavailable, why.Msg)
	case r.Context().Err() == nil:
		a.log.Error("a file of a result cannot be served", "err", err)
		a.refuse(w, http.StatusInternalServerError, "internal error")
	}
}

func (a *API) refuse(w http.ResponseWriter, status int, text string) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v2.JobProblem{Error: text}) // a caller that left is not told
}
