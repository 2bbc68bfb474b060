package ctrd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"gantry/internal/outbound"
)

const (
	resolveTimeout = 2 * time.Minute
	maxRedirects   = 5
)

var (
	errStalled    = errors.New("no byte received for too long")
	errSlow       = errors.New("bytes received too slowly")
	errInsecure   = errors.New("redirect to plain http")
	errElsewhere  = errors.New("redirect of a login to another server")
	errCredential = errors.New("credential refused")
	errResolve    = errors.New("resolve")
)

// source is a remotes.Resolver that reaches registries through a guarded transport and counts
// what it downloads for one pull.
type source struct {
	remotes.Resolver
	pull        *pull
	stall, pace time.Duration
	guard       outbound.Guard
	loopback    bool // registries on loopback are allowed
	transport   *http.Transport
}

func (r *Runtime) newSource(p *pull) *source {
	g := &source{pull: p, stall: r.cfg.PullStall, pace: r.cfg.PullPace, guard: r.guard, loopback: r.cfg.AllowLoopbackRegistries}
	g.transport = g.guard.Transport(false)
	g.Resolver = docker.NewResolver(docker.ResolverOptions{Hosts: g.hosts})
	return g
}

// hosts says how to reach the registry of a reference: plain HTTP only on loopback, where the host
// allows it.
func (g *source) hosts(name string) ([]docker.RegistryHost, error) {
	local, err := docker.MatchLocalhost(name)
	if err != nil {
		return nil, err
	}
	h := docker.RegistryHost{
		Host: name, Scheme: "https", Path: "/v2",
		Capabilities: docker.HostCapabilityPull | docker.HostCapabilityResolve,
	}
	if h.Host, err = docker.DefaultHost(name); err != nil {
		return nil, err
	}
	if local && !g.loopback {
		return nil, fmt.Errorf("registry on loopback: %w", outbound.ErrRefused)
	}
	if local {
		h.Scheme = "http"
		g.transport = g.guard.Transport(true)
	}
	transport := bounded{g.transport}
	h.Client = &http.Client{Transport: homeOnly{transport, h.Scheme, h.Host}, CheckRedirect: redirects(local)}
	login := &http.Client{Transport: secure{transport, local}, CheckRedirect: redirects(local)}
	opts := []docker.AuthorizerOpt{docker.WithAuthClient(login)}
	if auth := g.pull.auth; auth != nil {
		login.CheckRedirect = stay
		opts = append(opts, docker.WithAuthCreds(func(host string) (string, string, error) {
			if host != h.Host {
				return "", "", nil
			}
			return auth.Username, auth.Password.Reveal(), nil
		}))
	}
	h.Authorizer = docker.NewDockerAuthorizer(opts...)
	return []docker.RegistryHost{h}, nil
}

// homeOnly keeps what authorizes requests to a registry from every other server: a redirect may lead
// to one on the same machine or below the same name, to which the standard client would send it.
type homeOnly struct {
	next         http.RoundTripper
	scheme, host string
}

func (h homeOnly) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Header.Get("Authorization") != "" && (req.URL.Scheme != h.scheme || req.URL.Host != h.host) {
		req = req.Clone(req.Context())
		req.Header.Del("Authorization")
	}
	return h.next.RoundTrip(req)
}

// secure carries logins: over TLS alone, but for a registry on loopback and a login server there.
type secure struct {
	next  http.RoundTripper
	local bool
}

func (s secure) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme != "https" {
		onLoopback, err := docker.MatchLocalhost(req.URL.Host)
		if err != nil || !s.local || !onLoopback {
			return nil, errInsecure
		}
	}
	return s.next.RoundTrip(req)
}

// stay follows redirects of a login within its server.
func stay(req *http.Request, via []*http.Request) error {
	if len(via) > maxRedirects {
		return errors.New("too many redirects")
	}
	if first := via[0].URL; req.URL.Scheme != first.Scheme || req.URL.Host != first.Host {
		return errElsewhere
	}
	return nil
}

func (g *source) close() { g.transport.CloseIdleConnections() }

// redirects follows a few, and never from HTTPS to plain HTTP.
func redirects(local bool) func(*http.Request, []*http.Request) error {
	return func(req *http.Request, via []*http.Request) error {
		if len(via) > maxRedirects {
			return errors.New("too many redirects")
		}
		if !local && req.URL.Scheme != "https" {
			return errInsecure
		}
		return nil
	}
}

// bounded cuts every body that is not a layer: manifests and tokens are small.
type bounded struct{ next http.RoundTripper }

type downloadKey struct{}

func (b bounded) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := b.next.RoundTrip(req)
	if err == nil && req.Context().Value(downloadKey{}) == nil {
		resp.Body = &limitedBody{Reader: io.LimitReader(resp.Body, maxMetadata), Closer: resp.Body}
	}
	return resp, err
}

type limitedBody struct {
	io.Reader
	io.Closer
}

func (g *source) Resolve(ctx context.Context, ref string) (string, ocispec.Descriptor, error) {
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	name, desc, err := g.Resolver.Resolve(ctx, ref)
	if err != nil {
		err = fmt.Errorf("%w: %w", errResolve, err)
	}
	return name, desc, err
}

func (g *source) Fetcher(ctx context.Context, ref string) (remotes.Fetcher, error) {
	f, err := g.Resolver.Fetcher(ctx, ref)
	if err != nil {
		return nil, err
	}
	return remotes.FetcherFunc(func(ctx context.Context, desc ocispec.Descriptor) (io.ReadCloser, error) {
		return g.fetch(ctx, f, desc)
	}), nil
}

func (g *source) Pusher(context.Context, string) (remotes.Pusher, error) {
	return nil, errdefs.ErrNotImplemented
}
