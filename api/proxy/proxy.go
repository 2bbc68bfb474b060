// Package proxy forwards requests for "<podId>-<port>.<proxy domain>" to the http ports of pods,
// WebSockets, streams and calls of gRPC included, through tunnels that a fleet.Dialer opens and that are
// kept for the next request. http ports are public by contract, unless a pod's owner set that one needs a key.
// It never changes a body, never buffers one, and stores nothing.
package proxy

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"strings"
	"sync"
	"time"

	"gantry/api/forward"
	"gantry/api/relay"
	"gantry/fleet"
	"gantry/internal/share"
)

// DefaultDomain is the proxy domain unless it is set.
const DefaultDomain = "proxy.localhost"

// Targets knows which ports of pods may be reached.
type Targets interface {
	// HTTPPort returns whose pod it is, and what is set for the port, when the pod runs and lists the
	// port as http. It is asked for every request, so it answers from memory. Errors: not_found when
	// there is no such pod or port, not_allowed when the pod does not run (with what is set for the port
	// nevertheless), unavailable when that cannot be told.
	HTTPPort(ctx context.Context, pod fleet.PodID, port int) (fleet.AccountID, fleet.HTTPSetting, error)
	// OpensPort reports whether a key or the token of a link lets requests pass to a port that needs one.
	OpensPort(ctx context.Context, pod fleet.PodID, port int, credential fleet.Secret) bool
}

// Config is what a Proxy needs. Targets, Dialer and Log must be set; the zero value of the others
// means their default.
type Config struct {
	Domain  string // DefaultDomain
	Targets Targets
	Dialer  fleet.Dialer // the context of DialPod bounds connecting only
	Log     *slog.Logger

	Dial       time.Duration // to open a tunnel; 10 s
	ClientIdle time.Duration // without progress while a client sends or takes a body; 5 min
	Tunnels    int           // idle tunnels kept for one port of a pod; 64
	TunnelIdle time.Duration // how long they are kept; 30 s

	// Requests at a time, WebSockets included.
	PerPod     int // for one pod; 1024
	PerAddress int // of one client address, an IPv6 /64 being one; DefaultPerAddress
	PerAccount int // for the pods of one account; DefaultPerAccount
	All        int // DefaultAll
	// Trusted tells addresses that speak for many clients, such as a load balancer's. nil: none.
	Trusted func(netip.Addr) bool
}

// Defaults of requests at a time.
const (
	DefaultPerAddress = 256
	DefaultPerAccount = 2048
	DefaultAll        = 6144
)

// Proxy forwards to pods. It is safe for concurrent use.
type Proxy struct {
	cfg       Config
	transport *http.Transport
	grpc      *http.Transport // HTTP/2 without TLS, for calls of gRPC
	reverse   *httputil.ReverseProxy
	buffers   relay.Buffers

	stop context.CancelFunc
	life context.Context //nolint:containedctx // ends with the proxy, which owns the requests

	pods      *share.Held[fleet.PodID]
	accounts  *share.Held[fleet.AccountID]
	addresses *share.Held[netip.Addr]
	refused   counts

	mu     sync.Mutex
	closed bool
	wg     sync.WaitGroup
}

// New returns a proxy. Close must be called.
func New(cfg Config) *Proxy {
	cfg.defaults()
	p := &Proxy{
		cfg: cfg, pods: share.NewHeld[fleet.PodID](cfg.All, cfg.PerPod, nil), accounts: share.NewHeld[fleet.AccountID](0, cfg.PerAccount, nil),
		addresses: share.NewHeld(0, cfg.PerAddress, cfg.Trusted),
	}
	p.life, p.stop = context.WithCancel(context.Background())
	p.transport = &http.Transport{
		DialContext:            p.dial,
		DisableCompression:     true,
		MaxIdleConns:           4096,
		MaxIdleConnsPerHost:    cfg.Tunnels,
		IdleConnTimeout:        cfg.TunnelIdle,
		ExpectContinueTimeout:  time.Second,
		MaxResponseHeaderBytes: 256 << 10,
	}
	p.grpc = p.transport.Clone()
	p.grpc.Protocols = new(http.Protocols)
	p.grpc.Protocols.SetUnencryptedHTTP2(true)
	p.reverse = &httputil.ReverseProxy{
		Rewrite: rewrite,
		ModifyResponse: func(resp *http.Response) error {
			resp.Header.Del(forward.HeaderNothingDone) // a pod has no say in whether schedulers repeat a request
			ownCookies(resp.Header)
			if route := routeOf(resp.Request); route != nil {
				return route.Answered(resp)
			}
			return nil
		},
		Transport:     roundTripper(p.roundTrip),
		FlushInterval: relay.FlushAfter,
		BufferPool:    &p.buffers,
		ErrorHandler:  p.failed,
		ErrorLog:      slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug),
	}
	return p
}

func (c *Config) defaults() {
	if c.Domain == "" {
		c.Domain = DefaultDomain
	}
	if c.Dial == 0 {
		c.Dial = 10 * time.Second
	}
	if c.ClientIdle == 0 {
		c.ClientIdle = 5 * time.Minute
	}
	if c.TunnelIdle == 0 {
		c.TunnelIdle = 30 * time.Second
	}
	if c.Tunnels == 0 {
		c.Tunnels = 64
	}
	for _, d := range []struct {
		of *int
		to int
	}{{&c.PerPod, 1024}, {&c.PerAddress, DefaultPerAddress}, {&c.PerAccount, DefaultPerAccount}, {&c.All, DefaultAll}} {
		if *d.of == 0 {
			*d.of = d.to
		}
	}
}

// Close ends all requests, WebSockets included, waits for them and closes the tunnels.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.stop()
	p.wg.Wait()
	p.transport.CloseIdleConnections()
	p.grpc.CloseIdleConnections()
}

type roundTripper func(*http.Request) (*http.Response, error)

func (t roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }

func (p *Proxy) roundTrip(r *http.Request) (*http.Response, error) {
	if route := routeOf(r); route != nil {
		return p.routed(r, route)
	}
	return p.trip(r)
}

func (p *Proxy) trip(r *http.Request) (*http.Response, error) {
	if isGRPC(r) {
		return p.grpc.RoundTrip(r)
	}
	return p.transport.RoundTrip(r)
}

// isGRPC reports whether a request is a call of gRPC, which pods take over HTTP/2 alone.
func isGRPC(r *http.Request) bool {
	kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	kind = strings.ToLower(strings.TrimSpace(kind))
	return r.ProtoMajor >= 2 && (kind == "application/grpc" || strings.HasPrefix(kind, "application/grpc+"))
}

// Wrap returns a handler that forwards requests for the proxy domain and gives the others to next.
func (p *Proxy) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		target, ours, ok := ParseHost(r.Host, p.cfg.Domain)
		switch {
		case !ours:
			next.ServeHTTP(w, r)
		case !ok:
			refuse(w, r, http.StatusNotFound, textNoTarget)
		case r.Method == http.MethodConnect:
			refuse(w, r, http.StatusMethodNotAllowed, "CONNECT is not allowed")
		default:
			p.forward(w, r, target)
		}
	})
}

func (p *Proxy) forward(w http.ResponseWriter, r *http.Request, target Target) {
	if !p.enter() {
		refuse(w, r, http.StatusServiceUnavailable, textFull)
		return
	}
	defer p.wg.Done()
	client := share.Of(r.RemoteAddr)
	if p.addresses.Take(client) != share.Free {
		p.refused.address.Add(1)
		refuse(w, r, http.StatusTooManyRequests, textGreedy)
		return
	}
	defer p.addresses.Give(client)
	switch p.pods.Take(target.Pod) {
	case share.Own:
		p.refused.pod.Add(1)
		refuse(w, r, http.StatusServiceUnavailable, textBusy)
		return
	case share.All:
		p.refused.all.Add(1)
		refuse(w, r, http.StatusServiceUnavailable, textFull)
		return
	}
	defer p.pods.Give(target.Pod)
	owner, setting, err := p.cfg.Targets.HTTPPort(r.Context(), target.Pod, target.Port)
	if setting.Keyed && !p.admit(w, r, target) { //nolint:contextcheck // it is the request's; nor is anybody else told how the pod is
		return
	}
	if err != nil {
		status, text := meaning(err)
		if fleet.CodeOf(err) == fleet.CodeUnavailable {
			status, text = http.StatusServiceUnavailable, textUnknown
		}
		refuse(w, r, status, text)
		return
	}
	if p.accounts.Take(owner) != share.Free {
		p.refused.account.Add(1)
		refuse(w, r, http.StatusServiceUnavailable, textPopular)
		return
	}
	defer p.accounts.Give(owner)
	if setting.Most > 0 {
		most := time.Duration(setting.Most) * time.Second
		ctx, cancel := context.WithTimeoutCause(r.Context(), most, errTooLong)
		defer cancel()
		r = r.WithContext(ctx)
	}
	p.pass(w, r, target)
}

// errTooLong ends a request after the time that the pod's owner set.
var errTooLong = errors.New("the request took longer than the pod's owner allows")

// pass sends a request to its pod, and the answer back.
func (p *Proxy) pass(w http.ResponseWriter, r *http.Request, target Target) {
	ctx, cancel := context.WithCancel(context.WithValue(r.Context(), targetKey{}, target))
	defer cancel()
	defer context.AfterFunc(p.life, cancel)() //nolint:contextcheck // a request ends with the client or with the proxy

	rc := http.NewResponseController(w)
	var body io.ReadCloser = &relay.Body{ReadCloser: r.Body, Control: rc, Idle: p.cfg.ClientIdle}
	if isGRPC(r) {
		body = r.Body // a call may wait for its next message for as long as both ends like
	}
	if r.ContentLength == 0 || isGRPC(r) {
		_ = rc.SetReadDeadline(time.Time{}) // the server's limit for a whole request does not hold for the answer
	}
	r = r.WithContext(ctx)
	r.Body = body
	p.reverse.ServeHTTP(&relay.Writer{ResponseWriter: w, Control: rc, Idle: p.cfg.ClientIdle}, r)
	_ = rc.SetReadDeadline(time.Now().Add(lingering)) // for the rest of a body that the pod did not want
}

const lingering = 5 * time.Second

func (p *Proxy) enter() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.wg.Add(1)
	return true
}

type targetKey struct{}

// rewrite addresses the request to its target and says who asked. What the client said of that is
// dropped: this proxy is the first that is trusted.
func rewrite(pr *httputil.ProxyRequest) {
	target, _ := pr.In.Context().Value(targetKey{}).(Target)
	if routeOf(pr.In) != nil && pr.Out.Body == nil && !isGRPC(pr.In) && pr.In.Method != http.MethodPost {
		// The transport sends a request without a body again by itself, when a connection ends before its answer.
		pr.Out.Body, pr.Out.ContentLength, pr.Out.TransferEncoding = io.NopCloser(strings.NewReader("")), 0, []string{"identity"}
	}
	pr.Out.URL.Scheme = "http"
	pr.Out.URL.Host = target.key()
	pr.Out.URL.RawQuery = pr.In.URL.RawQuery // as it came, readable or not
	pr.Out.Host = pr.In.Host
	pr.Out.Trailer = pr.In.Trailer // the server fills in its values at the body's end
	for name := range pr.Out.Header {
		if strings.HasPrefix(name, "X-Forwarded-") {
			delete(pr.Out.Header, name)
		}
	}
	for _, name := range []string{"X-Real-Ip", forward.HeaderForwarded, forward.HeaderClient, forward.HeaderScheme, forward.HeaderNothingDone} {
		pr.Out.Header.Del(name)
	}
	// Under its usual name the transport takes it for leave to send the request twice. Pods make no such promise.
	for _, name := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
		if values, ok := pr.Out.Header[name]; ok {
			delete(pr.Out.Header, name)
			pr.Out.Header[strings.ToLower(name)] = values
		}
	}
	pr.SetXForwarded()
	scheme := forward.Scheme(pr.In)
	pr.Out.Header.Set("X-Forwarded-Proto", scheme)
	pr.Out.Header.Set("Forwarded", forwarded(pr.Out.Header.Get("X-Forwarded-For"), pr.In.Host, scheme))
}

// forwarded says who asked, as RFC 7239 has it.
func forwarded(client, host, scheme string) string {
	if client == "" {
		client = "unknown"
	} else if strings.Contains(client, ":") {
		client = `"[` + client + `]"`
	}
	host = strings.NewReplacer(`"`, "", `\`, "").Replace(host) // what follows its colon is the client's
	return "for=" + client + `;host="` + host + `";proto=` + scheme
}

func (p *Proxy) dial(ctx context.Context, _, addr string) (net.Conn, error) {
	target, ok := parseKey(addr)
	if !ok {
		return nil, fleet.NotFound("pod")
	}
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Dial)
	defer cancel()
	stream, err := p.cfg.Dialer.DialPod(ctx, target.Pod, target.Port)
	if err != nil {
		return nil, err
	}
	return &conn{Stream: stream, to: address(target.key())}, nil
}

// failed answers a request that got no answer from its pod.
func (p *Proxy) failed(w http.ResponseWriter, r *http.Request, err error) {
	if route := routeOf(r); route != nil {
		route.Failed(w, err)
		return
	}
	if errors.Is(context.Cause(r.Context()), errTooLong) {
		refuse(w, r, http.StatusGatewayTimeout, errTooLong.Error())
		return
	}
	if r.Context().Err() != nil && p.life.Err() == nil {
		return // the client left
	}
	var tooLarge *http.MaxBytesError
	status, text := meaning(err)
	if errors.As(err, &tooLarge) {
		status, text = http.StatusRequestEntityTooLarge, "the body is too large"
	}
	target, _ := r.Context().Value(targetKey{}).(Target)
	p.cfg.Log.Debug("pod did not answer", "pod", target.Pod, "port", target.Port, "err", err)
	refuse(w, r, status, text)
}
