package rest

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"gantry/api/limit"
	"gantry/api/problem"
	"gantry/fleet"
)

// Config is what an API needs. Service and Log must be set.
type Config struct {
	Service Service
	Health  HealthSource // nil: always healthy
	Log     *slog.Logger
	Version string           // of the product, shown in the document
	Now     func() time.Time // nil: time.Now

	Rates    limit.Quotas // per account; they must be valid
	Failures int          // authentications that may fail per minute and client address; 0: any number

	// CallTimeout bounds one call that is not a stream. Default 20 s; it must be shorter than the
	// read limit of the server.
	CallTimeout time.Duration
}

// API is the REST face as an http.Handler. It is safe for concurrent use.
type API struct {
	*engine
	maxBody int64

	mux        *http.ServeMux
	huma       huma.API
	routes     []Route
	operations map[string]*operation // by id
	faults     []error
	bodies     map[string]bool // components that are part of a request body
	described  map[string]bool // components that are whole
	render     func() rendering
}

// engine is what all faces stand on.
type engine struct {
	svc         Service
	health      HealthSource
	log         *slog.Logger
	now         func() time.Time
	callTimeout time.Duration

	pace      pace
	streams   *counter // logs that are followed
	sessions  *counter // of exec
	transfers *counter // of files
	checks    *counter // of private networks
	watches   *counter // of events
	rates     *limit.Limiter
	guard     *limit.Guard
	podTexts  *podTexts

	closing sync.Once
	closed  chan struct{}
}

// New returns the API with all its routes. It fails when a route declares no scope, no limit class or
// a schema that cannot be checked, and when the quotas are not valid.
func New(cfg Config) (*API, error) {
	if err := cfg.Rates.Validate(); err != nil {
		return nil, err
	}
	a := newAPI(cfg)
	a.registerPods()
	a.registerLogs()
	a.registerMeasures()
	a.registerExec()
	a.registerFiles()
	a.registerCatalog()
	a.registerTemplates()
	a.registerRegistries()
	a.registerServerless()
	a.registerClusters()
	a.registerDelegations()
	a.registerVolumes()
	a.registerS3Keys()
	a.registerNetwork()
	a.registerAccount()
	a.registerKeys()
	a.registerMe()
	a.registerSecrets()
	a.registerBilling()
	a.registerEvents()
	a.registerAudit()
	a.registerOperators()
	a.registerHealth()
	a.registerDocument("/v2/openapi.json", "Operators")
	a.registerDocs("/docs", "Operators")
	return a, a.finish()
}

// NewInside returns an API with the routes alone that Flow tells of. Its Service needs InsideService, KeyChecker, Pod and NoteAudit.
func NewInside(cfg Config) (*API, error) {
	a := newAPI(cfg)
	a.registerLogs()
	a.registerExec()
	a.registerFiles()
	return a, a.finish()
}

func newAPI(cfg Config) *API {
	a := onEngine(&engine{}, document(cfg.Version))
	a.begin(cfg)
	return a
}

func onEngine(e *engine, doc *huma.OpenAPI) *API {
	a := &API{
		engine: e, mux: http.NewServeMux(), operations: map[string]*operation{}, bodies: map[string]bool{}, described: map[string]bool{}, maxBody: maxBodyBytes,
	}
	a.huma = huma.NewAPI(huma.Config{OpenAPI: doc}, humago.NewAdapter(a.mux, ""))
	return a
}

// begin sets all but the routes and the document: what the API stands on, and that nobody asked it anything so far.
func (a *engine) begin(cfg Config) {
	a.svc, a.health, a.log, a.now, a.callTimeout, a.pace = cfg.Service, cfg.Health, cfg.Log, cfg.Now, cfg.CallTimeout, defaultPace()
	if a.health == nil {
		a.health = func() []Health { return nil }
	}
	if a.now == nil {
		a.now = time.Now
	}
	if a.callTimeout == 0 {
		a.callTimeout = 20 * time.Second
	}
	a.streams, a.sessions, a.transfers = newCounter(maxStreams), newCounter(maxSessions), newCounter(maxTransfers)
	a.checks = newCounter(1)
	a.watches = newCounter(maxWatches)
	a.watches.all, a.watches.reserve = maxAllWatches, reservedWatches
	a.rates, a.guard = limit.New(cfg.Rates, a.now), limit.NewGuard(cfg.Failures, a.now)
	a.podTexts = newPodTexts(podTextsMost, podTextsShare)
	a.closing, a.closed = sync.Once{}, make(chan struct{})
}

// finish ends registration: it reports faults and fixes the document.
func (a *API) finish() error {
	if len(a.faults) > 0 {
		return fmt.Errorf("register routes: %w", errors.Join(a.faults...))
	}
	a.openSchemas()
	a.render = sync.OnceValue(func() rendering { return render(a.huma.OpenAPI()) })
	return nil
}

// rendering is the document and its page. They are made when somebody first asks for one: that takes longer than all the
// rest of a start.
type rendering struct {
	document []byte
	docs     docs
	err      error
}

func render(api *huma.OpenAPI) (out rendering) {
	if out.document, out.err = encodeDocument(api); out.err != nil {
		out.err = fmt.Errorf("encode document: %w", out.err)
		return out
	}
	out.docs, out.err = renderDocs(api)
	return out
}

// Close ends all open log streams, exec sessions and transfers of files, so that a server can shut down; readers of logs
// reconnect elsewhere with the last event's id. Other requests go on.
func (a *engine) Close() { a.closing.Do(func() { close(a.closed) }) }

// ServeHTTP answers one request. Every answer carries x-request-id; a panic is answered 500.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) { a.Guarded(a.route).ServeHTTP(w, r) }

// Guarded returns a handler that gives a request its id and answers a panic of next 500.
func (a *API) Guarded(next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := problem.ChooseRequestID(r)
		w.Header().Set("X-Request-Id", id)
		r = r.WithContext(problem.WithRequestID(r.Context(), id))
		t := &tracker{ResponseWriter: w}
		defer a.recover(t, r)
		next(t, r)
	})
}

func (a *API) route(w http.ResponseWriter, r *http.Request) {
	if !cleanPath(r.URL.Path) {
		a.noPath(w, r)
		return
	}
	if _, pattern := a.mux.Handler(r); pattern == "" {
		a.noRoute(w, r)
		return
	}
	a.mux.ServeHTTP(w, r)
}

// cleanPath reports whether the mux would take the path as it is, without a redirect.
func cleanPath(p string) bool {
	clean := path.Clean(p)
	if strings.HasSuffix(p, "/") && clean != "/" {
		clean += "/"
	}
	return strings.HasPrefix(p, "/") && clean == p
}

// noRoute answers 405 with Allow where another method has a route, and 404 otherwise.
func (a *API) noRoute(w http.ResponseWriter, r *http.Request) {
	seen := &discard{header: http.Header{}}
	a.mux.ServeHTTP(seen, r)
	if seen.status != http.StatusMethodNotAllowed {
		a.noPath(w, r)
		return
	}
	if err := a.countMiss(w, r); err != nil {
		problem.Answer(w, r, a.log, err)
		return
	}
	id := problem.RequestID(r.Context())
	w.Header().Set("Allow", seen.header.Get("Allow"))
	problem.Write(w, problem.For(r, problem.From(&fleet.Error{Code: fleet.CodeMethod, Msg: "the method is not allowed for this path"}, id)))
}

// noPath answers 404 to a path that no route has.
func (a *API) noPath(w http.ResponseWriter, r *http.Request) {
	if err := a.countMiss(w, r); err != nil {
		problem.Answer(w, r, a.log, err)
		return
	}
	problem.Write(w, problem.For(r, problem.NoPath(problem.RequestID(r.Context()))))
}

func (a *API) recover(t *tracker, r *http.Request) {
	v := recover()
	if v == nil {
		return
	}
	if err, ok := v.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		panic(v)
	}
	id := problem.RequestID(r.Context())
	a.log.Error("request panicked", "request", id, "method", r.Method, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
	if t.begun {
		panic(http.ErrAbortHandler) // the answer is cut, so that it cannot be taken for a whole one
	}
	problem.Write(t, problem.For(r, problem.From(&fleet.Error{Code: fleet.CodeInternal}, id)))
}

// tracker knows whether an answer was begun.
type tracker struct {
	http.ResponseWriter
	begun bool
}

func (t *tracker) WriteHeader(status int) {
	t.begun = true
	t.ResponseWriter.WriteHeader(status)
}

func (t *tracker) Write(p []byte) (int, error) {
	t.begun = true
	return t.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController reach the connection.
func (t *tracker) Unwrap() http.ResponseWriter { return t.ResponseWriter }

// discard takes an answer and keeps its status and header.
type discard struct {
	header http.Header
	status int
}

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(p []byte) (int, error) { return len(p), nil }
func (d *discard) WriteHeader(status int)      { d.status = status }
