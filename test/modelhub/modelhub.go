// Package modelhub is a hub of models for tests: a server with the part of the public API that hosts use.
package modelhub

import (
	"bytes"
	"crypto/sha1" //nolint:gosec // Git's digest of a blob
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"time"
)

// Access says who may read a model.
type Access int

// Who may.
const (
	Public  Access = iota
	Gated          // who has its token; what it consists of everybody may know
	Private        // who has its token
)

// Model is a model of a hub.
type Model struct {
	Access Access
	Tokens []string
	// Revisions are the commits by branch, tag or commit.
	Revisions map[string]*Commit
}

// Commit is a revision of a model.
type Commit struct {
	ID    string // 40 hexadecimal digits
	Files map[string][]byte
	Large []string // files that are kept as such
}

// Request is one that the hub was asked.
type Request struct {
	Method, Path, Token, Range string
}

// Hub is a server.
type Hub struct {
	URL string

	server *httptest.Server
	mu     sync.Mutex
	models map[string]*Model
	seen   []Request
	answer func(w http.ResponseWriter, r *http.Request) bool
}

// New starts a hub without models. The caller closes it.
func New() *Hub {
	h := &Hub{models: map[string]*Model{}}
	h.server = httptest.NewServer(http.HandlerFunc(h.serve))
	h.URL = h.server.URL
	return h
}

// Close ends the server.
func (h *Hub) Close() { h.server.CloseClientConnections(); h.server.Close() }

// Handle has a function see each request before the hub; it may answer it, and reports whether it did. nil: none does.
func (h *Hub) Handle(answer func(w http.ResponseWriter, r *http.Request) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.answer = answer
}

// Put adds or replaces a model.
func (h *Hub) Put(repo string, m Model) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.models[repo] = &m
}

// One is a public model of one commit, which is its branch main; all of its files are large.
func One(commit string, files map[string][]byte) Model {
	c := &Commit{ID: commit, Files: files, Large: slices.Collect(maps.Keys(files))}
	return Model{Revisions: map[string]*Commit{"main": c, commit: c}}
}

// Seen returns the requests with a method so far.
func (h *Hub) Seen(method string) (out []Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.seen {
		if r.Method == method {
			out = append(out, r)
		}
	}
	return out
}

// Files returns the requests for files so far.
func (h *Hub) Files() []Request {
	return slices.DeleteFunc(h.Seen(http.MethodGet), func(r Request) bool { return !strings.Contains(r.Path, "/resolve/") })
}

// Digest is that of a file.
func Digest(content []byte, large bool) string {
	if large {
		sum := sha256.Sum256(content)
		return hex.EncodeToString(sum[:])
	}
	sum := sha1.Sum(append(fmt.Appendf(nil, "blob %d\x00", len(content)), content...)) //nolint:gosec // see the import
	return hex.EncodeToString(sum[:])
}

func (h *Hub) serve(w http.ResponseWriter, r *http.Request) {
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	h.mu.Lock()
	h.seen = append(h.seen, Request{r.Method, r.URL.Path, token, r.Header.Get("Range")})
	answer := h.answer
	h.mu.Unlock()
	if answer != nil && answer(w, r) {
		return
	}
	if rest, ok := strings.CutPrefix(r.URL.Path, "/api/models/"); ok {
		repo, revision, _ := strings.Cut(rest, "/revision/")
		h.tell(w, repo, revision, token)
		return
	}
	repo, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/resolve/")
	revision, name, _ := strings.Cut(rest, "/")
	m, c, status := h.find(repo, revision)
	content, there := []byte(nil), false
	if c != nil {
		content, there = c.Files[name]
	}
	switch {
	case status != 0:
		http.Error(w, "", status)
	case m.Access != Public && !slices.Contains(m.Tokens, token):
		http.Error(w, "", http.StatusForbidden)
	case !there:
		http.NotFound(w, r)
	default:
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
	}
}

func (h *Hub) find(repo, revision string) (m *Model, c *Commit, status int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if m = h.models[repo]; m == nil {
		return nil, nil, http.StatusUnauthorized // as the public one says it
	}
	if c = m.Revisions[revision]; c == nil {
		return nil, nil, http.StatusNotFound
	}
	return m, c, 0
}

// sibling is a file as the API tells it.
type sibling struct {
	Name string `json:"rfilename"`
	Size int    `json:"size"`
	Blob string `json:"blobId"`
	LFS  any    `json:"lfs,omitempty"`
}

func (h *Hub) tell(w http.ResponseWriter, repo, revision, token string) {
	m, c, status := h.find(repo, revision)
	if status == 0 && m.Access == Private && !slices.Contains(m.Tokens, token) {
		status = http.StatusUnauthorized
	}
	if status != 0 {
		http.Error(w, "", status)
		return
	}
	all := []sibling{}
	for _, name := range slices.Sorted(maps.Keys(c.Files)) {
		s := sibling{Name: name, Size: len(c.Files[name]), Blob: Digest(c.Files[name], false)}
		if slices.Contains(c.Large, name) {
			s.LFS = map[string]any{"sha256": Digest(c.Files[name], true), "size": s.Size, "pointerSize": 134}
		}
		all = append(all, s)
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"id": repo, "sha": c.ID, "private": m.Access == Private, "gated": m.Access == Gated, "siblings": all})
}
