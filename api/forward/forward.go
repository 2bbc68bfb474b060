package forward

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"gantry/api/problem"
	"gantry/api/relay"
	"gantry/fleet"
)

// The headers between schedulers. What clients send under these names is dropped.
const (
	HeaderForwarded   = "X-Gantry-Forwarded"    // id of the member that sends a request on
	HeaderClient      = "X-Gantry-Client"       // address and port of the client that it came from
	HeaderScheme      = "X-Gantry-Scheme"       // https when the client came that way
	HeaderNothingDone = "X-Gantry-Nothing-Done" // of an answer: "1" when nothing was done for the request
)

// Leaders knows who leads; it answers at once.
type Leaders interface {
	// Leads reports whether this member leads.
	Leads() bool
	// Leader returns the link address of the member that leads; empty: none is known.
	Leader() string
	// Changes returns a channel that is closed when either may have changed since the call.
	Changes() <-chan struct{}
}

// Config is what a Forwarder needs. The zero value of a duration or size means its default.
type Config struct {
	Member  string // id of this member
	Leaders Leaders
	// Dial connects to the listener for forwarded requests of the member at an address.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// Local serves requests here, when this member leads.
	Local http.Handler
	// Always tells the requests that are served here in any case; nil: none.
	Always func(*http.Request) bool
	Log    *slog.Logger

	Wait       time.Duration // for a leader that can be asked; 5 s
	Dialling   time.Duration // of one connection; 2 s
	Handover   time.Duration // for what an earlier leader still answers after another was elected; 250 ms
	ClientIdle time.Duration // without progress while a client sends or takes a body; 5 min
	Buffer     int64         // bytes of a body that are kept to try again; 1 MiB
	Buffers    int64         // the same of all requests together; 64 MiB
	Idle       int           // connections kept for the next requests, as many as are on their way under load: each costs a handshake; 256
}

func (c *Config) defaults() {
	for _, d := range []struct {
		of *time.Duration
		to time.Duration
	}{{&c.Wait, 5 * time.Second}, {&c.Dialling, 2 * time.Second}, {&c.Handover, 250 * time.Millisecond}, {&c.ClientIdle, 5 * time.Minute}} {
		if *d.of == 0 {
			*d.of = d.to
		}
	}
	if c.Buffer == 0 {
		c.Buffer = 1 << 20
	}
	if c.Buffers == 0 {
		c.Buffers = 64 << 20
	}
	if c.Idle == 0 {
		c.Idle = 256
	}
	if c.Always == nil {
		c.Always = func(*http.Request) bool { return false }
	}
}

// Forwarder is the handler of direct clients. It is safe for concurrent use.
type Forwarder struct {
	cfg       Config
	transport *http.Transport
	reverse   *httputil.ReverseProxy
	buffers   relay.Buffers
	terms     terms
	kept      atomic.Int64 // bytes of bodies

	stop context.CancelFunc
	life context.Context //nolint:containedctx // ends with the forwarder, which owns what it has sent on

	mu     sync.Mutex
	closed bool
	wg     sync.WaitGroup
}

// New returns a Forwarder. Close must be called.
func New(cfg Config) *Forwarder {
	cfg.defaults()
	f := &Forwarder{cfg: cfg}
	f.life, f.stop = context.WithCancel(context.Background())
	f.terms.grace = cfg.Handover
	f.transport = &http.Transport{
		DialContext:            f.dial,
		DisableCompression:     true,
		MaxIdleConns:           2 * cfg.Idle,
		MaxIdleConnsPerHost:    cfg.Idle,
		IdleConnTimeout:        30 * time.Second, // less than servers keep them
		ExpectContinueTimeout:  time.Second,
		MaxResponseHeaderBytes: 256 << 10,
	}
	f.reverse = &httputil.ReverseProxy{
		Rewrite:       f.rewrite,
		Transport:     roundTripper(f.roundTrip),
		FlushInterval: relay.FlushAfter,
		BufferPool:    &f.buffers,
		ErrorHandler:  f.failed,
		ErrorLog:      slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug),
	}
	f.wg.Go(f.follow)
	return f
}

// Close ends what was sent on, upgraded connections included, and waits for it. Requests that come later are
// answered 503.
func (f *Forwarder) Close() {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.stop()
	f.wg.Wait()
	f.transport.CloseIdleConnections()
}

// call is one request on its way.
type call struct {
	in   *http.Request // as the client sent it
	body []byte        // kept to try again
	kept bool          // body is all of it
	read *readOnce     // nil when kept
	sent atomic.Bool   // the leader may have it
}

type callKey struct{}

// ServeHTTP serves a request here or sends it to the leader.
func (f *Forwarder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	r.Header.Del(HeaderForwarded)
	r.Header.Del(HeaderClient)
	r.Header.Del(HeaderScheme)
	r.Header.Del(HeaderNothingDone)
	if f.cfg.Leaders.Leads() || f.cfg.Always(r) {
		f.cfg.Local.ServeHTTP(w, r)
		return
	}
	if r.Method == http.MethodConnect || !f.enter() {
		w.Header().Set(HeaderNothingDone, "1")
		f.refuse(w, r, fleet.Unavailable("This scheduler cannot take the request. Please try again.", nil))
		return
	}
	defer f.wg.Done()
	c, err := f.begin(w, r)
	defer func() { f.kept.Add(-int64(len(c.body))) }()
	if err != nil {
		f.refuse(w, r, &fleet.Error{Code: fleet.CodeMalformed, Msg: "The body of the request could not be read.", Err: err})
		return
	}
	ctx, cancel := context.WithCancelCause(context.WithValue(r.Context(), callKey{}, c))
	defer cancel(nil)
	defer context.AfterFunc(f.life, func() { cancel(errClosed) })() //nolint:contextcheck // a request ends with the client or with the forwarder
	rc := http.NewResponseController(w)
	out := r.WithContext(ctx)
	if c.kept {
		_ = rc.SetReadDeadline(time.Time{}) // the server's limit for a whole request does not hold for the answer
		out.Body, out.ContentLength = http.NoBody, 0
	} else {
		_ = rc.EnableFullDuplex() // an answer may begin while the body still comes
		out.Body = c.read
	}
	f.reverse.ServeHTTP(&relay.Writer{ResponseWriter: w, Control: rc, Idle: f.cfg.ClientIdle}, out)
	_ = rc.SetReadDeadline(time.Now().Add(lingering)) // for the rest of a body that nobody wanted
}

const lingering = 5 * time.Second

// begin keeps a small body, so that the request can be tried again, while there is room for it: it may be anybody's.
func (f *Forwarder) begin(w http.ResponseWriter, r *http.Request) (*call, error) {
	c := &call{in: r}
	keep := r.ContentLength >= 0 && r.ContentLength <= f.cfg.Buffer && (r.ContentLength == 0 || r.Header.Get("Expect") == "")
	if keep && f.kept.Add(r.ContentLength) > f.cfg.Buffers {
		f.kept.Add(-r.ContentLength)
		keep = false
	}
	if !keep {
		c.read = &readOnce{Body: relay.Body{ReadCloser: r.Body, Control: http.NewResponseController(w), Idle: f.cfg.ClientIdle}}
		return c, nil
	}
	c.kept = true
	if r.ContentLength == 0 {
		return c, nil
	}
	c.body = make([]byte, r.ContentLength)
	_, err := io.ReadFull(r.Body, c.body)
	return c, err
}

func (f *Forwarder) enter() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return false
	}
	f.wg.Add(1)
	return true
}

// rewrite marks a request as sent on and says from where it came. The address is set by roundTrip.
func (f *Forwarder) rewrite(pr *httputil.ProxyRequest) {
	pr.Out.URL.Scheme, pr.Out.URL.Host = "http", "leader"
	pr.Out.URL.RawQuery = pr.In.URL.RawQuery // as it came, readable or not
	pr.Out.Host = pr.In.Host
	for name, values := range pr.In.Header { // what to believe of these is decided by the leader, as with a direct client
		if strings.HasPrefix(name, "X-Forwarded-") || name == "Forwarded" {
			pr.Out.Header[name] = values
		}
	}
	pr.Out.Header.Set(HeaderForwarded, f.cfg.Member)
	pr.Out.Header.Set(HeaderClient, pr.In.RemoteAddr)
	pr.Out.Header.Set(HeaderScheme, Scheme(pr.In))
	if _, ok := pr.Out.Header["User-Agent"]; !ok {
		pr.Out.Header["User-Agent"] = nil // none, rather than Go's
	}
}

// failed answers a request that got no answer from the leader.
func (f *Forwarder) failed(w http.ResponseWriter, r *http.Request, err error) {
	c, _ := r.Context().Value(callKey{}).(*call)
	switch {
	case c == nil || c.in.Context().Err() != nil:
		return // the client left
	case errors.Is(err, errLeads):
		if c.kept {
			c.in.Body = io.NopCloser(newReader(c.body))
		}
		f.cfg.Local.ServeHTTP(w, c.in)
		return
	}
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		err = &fleet.Error{Code: fleet.CodeTooLarge, Msg: "the body is too large", Err: err}
	case c.sent.Load():
		err = fleet.Unavailable("The leader of the control plane was lost meanwhile: the outcome is not known. Please look before trying again.", err)
	default:
		w.Header().Set(HeaderNothingDone, "1")
		err = fleet.Unavailable("No scheduler leads at the moment: nothing was done. Please try again.", err)
	}
	f.refuse(w, c.in, err)
}

// refuse answers a request by itself.
func (f *Forwarder) refuse(w http.ResponseWriter, r *http.Request, err error) {
	id := problem.ChooseRequestID(r)
	w.Header().Set("X-Request-Id", id)
	problem.Answer(w, r.WithContext(problem.WithRequestID(r.Context(), id)), f.cfg.Log, err)
}
