package edge

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/mholt/acmez/v3/acme"
	"go.uber.org/zap"

	"gantry/fleet"
	"gantry/internal/sleep"
)

// Ways to show a certificate authority whose a name is.
const (
	ChallengeHTTP = "http"     // by an answer on port 80
	ChallengeTLS  = "tls-alpn" // by an answer on port 443
	ChallengeDNS  = "dns"      // by a TXT record
)

// ALPN is the protocol of the authority's own connections under ChallengeTLS; see Config.
const ALPN = "acme-tls/1"

const (
	orderEvery  = time.Hour // looked at; ordered when a third of a certificate's time is left
	orderWithin = 10 * time.Minute
	comesWithin = 3 * time.Second // from the leader to another scheduler
	retryFirst  = time.Minute     // after a failure; doubled with each, up to orderEvery
)

// ACMEConfig is what certificates by ACME need.
type ACMEConfig struct {
	Directory string         // URL of the certificate authority
	Email     string         // of whom it writes to; may be empty
	Roots     *x509.CertPool // that vouch for its own server; nil: the system's
	Names     []string       // by Challenge
	Challenge string
	Wildcard  string        // ordered as *.Wildcard, by ChallengeDNS; empty: none
	Command   string        // the program that sets TXT records, for ChallengeDNS
	Wait      time.Duration // after it has set one
	Listener  net.Addr      // where this process answers the challenges of Names, but for ChallengeDNS
	Store     Store
	Leads     func() bool // whether this scheduler leads, and orders
	Reload    time.Duration
	Log       *slog.Logger
}

// ACME has certificates of a certificate authority. The leader orders them and puts them where every scheduler has them.
// It is safe for concurrent use.
type ACME struct {
	cfg     ACMEConfig
	cache   *certmagic.Cache
	store   *storage
	issuer  *certmagic.ACMEIssuer
	configs map[string]*certmagic.Config // by name
	order   []string

	mu    sync.RWMutex
	certs map[string]loaded
}

type loaded struct {
	pem  []byte
	cert *tls.Certificate
}

// quietIssuer asks nobody at a terminal for an address to write to.
type quietIssuer struct{ *certmagic.ACMEIssuer }

// PreCheck implements certmagic.PreChecker.
func (i quietIssuer) PreCheck(ctx context.Context, names []string, _ bool) error {
	return i.ACMEIssuer.PreCheck(ctx, names, false)
}

// NewACME begins with what is there already. Close ends it.
func NewACME(cfg ACMEConfig) *ACME {
	a := &ACME{cfg: cfg, configs: map[string]*certmagic.Config{}, certs: map[string]loaded{}}
	quiet := zap.NewNop() // what fails is in the errors
	var plain *certmagic.Config
	a.cache = certmagic.NewCache(certmagic.CacheOptions{
		GetConfigForCert: func(certmagic.Certificate) (*certmagic.Config, error) { return plain, nil }, Logger: quiet,
	})
	a.store = &storage{store: cfg.Store, leads: cfg.Leads, locks: map[string]chan struct{}{}}
	config := func(dns bool) (*certmagic.Config, *certmagic.ACMEIssuer) {
		c := certmagic.New(a.cache, certmagic.Config{
			Storage: a.store, Logger: quiet, DisableARI: true, DisableStorageCheck: true,
			OCSP: certmagic.OCSPConfig{DisableStapling: true},
		})
		i := certmagic.NewACMEIssuer(c, a.template(dns, quiet))
		c.Issuers = []certmagic.Issuer{quietIssuer{i}}
		return c, i
	}
	plain, a.issuer = config(cfg.Challenge == ChallengeDNS)
	for _, name := range cfg.Names {
		a.configs[name] = plain
		a.order = append(a.order, name)
	}
	if cfg.Wildcard != "" {
		name := "*." + cfg.Wildcard
		a.configs[name], _ = config(true)
		a.order = append(a.order, name)
	}
	a.load()
	return a
}

func (a *ACME) template(dns bool, log *zap.Logger) certmagic.ACMEIssuer {
	out := certmagic.ACMEIssuer{
		CA: a.cfg.Directory, Email: a.cfg.Email, Agreed: true, TrustedRoots: a.cfg.Roots, Logger: log, CertObtainTimeout: orderWithin,
		DisableHTTPChallenge:    dns || a.cfg.Challenge != ChallengeHTTP,
		DisableTLSALPNChallenge: dns || a.cfg.Challenge != ChallengeTLS,
	}
	if dns {
		out.DNS01Solver = &command{path: a.cfg.Command, wait: a.cfg.Wait, grace: cleanupWithin}
		return out
	}
	// It tries to listen there itself, sees that somebody does, and leaves the answers to that.
	if at, ok := a.cfg.Listener.(*net.TCPAddr); ok {
		out.ListenHost, out.AltHTTPPort, out.AltTLSALPNPort = at.IP.String(), at.Port, at.Port
	}
	return out
}

// Close ends what NewACME began; of nil it ends nothing.
func (a *ACME) Close() {
	if a != nil {
		a.cache.Stop()
	}
}

// Certificate returns the certificate for what a client asks for; nil: there is none. A client that asks for no name, as a
// load balancer that looks after its members, gets the first.
func (a *ACME) Certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	if isChallenge(hello) {
		return a.challengeCertificate(hello)
	}
	a.mu.RLock()
	defer a.mu.RUnlock()
	name := strings.ToLower(strings.TrimSuffix(hello.ServerName, "."))
	if name == "" {
		for _, first := range a.order {
			if got, ok := a.certs[first]; ok {
				return got.cert, nil
			}
		}
	}
	if got, ok := a.certs[name]; ok {
		return got.cert, nil
	}
	if _, domain, ok := strings.Cut(name, "."); ok {
		if got, ok := a.certs["*."+domain]; ok {
			return got.cert, nil
		}
	}
	return nil, nil
}

// isChallenge tells the connections of a certificate authority (RFC 8737, section 3) from those of clients.
func isChallenge(hello *tls.ClientHelloInfo) bool {
	return slices.Equal(hello.SupportedProtos, []string{ALPN})
}

func (a *ACME) challengeCertificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	config := a.configs[hello.ServerName]
	if config == nil || a.cfg.Challenge != ChallengeTLS {
		return nil, fmt.Errorf("no certificate is being ordered for %q", hello.ServerName)
	}
	var cert *tls.Certificate
	err := soon(hello.Context(), func() (err error) {
		cert, err = config.GetCertificate(hello)
		return err
	})
	return cert, err
}

// soon repeats what the certificate authority may ask for before this scheduler is ready, or has it from the leader.
func soon(ctx context.Context, answer func() error) error {
	ctx, cancel := context.WithTimeout(ctx, comesWithin)
	defer cancel()
	for {
		err := answer()
		if err == nil {
			return nil
		}
		if sleep.For(ctx, comesWithin/60) != nil {
			return err
		}
	}
}

func (a *ACME) ends(out map[string]time.Time) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	for _, name := range a.order {
		out[name] = time.Time{}
		if got, ok := a.certs[name]; ok {
			out[name] = got.cert.Leaf.NotAfter
		}
	}
}

// HTTPChallenge answers a request of the certificate authority, and reports whether it was one.
func (a *ACME) HTTPChallenge(w http.ResponseWriter, r *http.Request) bool {
	host := nameOf(r)
	if a.cfg.Challenge != ChallengeHTTP || a.configs[host] == nil || !certmagic.LooksLikeHTTPChallenge(r) {
		return false
	}
	return soon(r.Context(), func() error {
		if !a.issuer.HandleHTTPChallenge(w, r) {
			return fmt.Errorf("no certificate is being ordered for %q", host)
		}
		return nil
	}) == nil
}

// Run takes over what the leader has ordered, until ctx ends.
func (a *ACME) Run(ctx context.Context) error {
	tick := time.NewTicker(a.cfg.Reload)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			a.load()
		case <-ctx.Done():
			return nil
		}
	}
}

// load reads what is stored. What cannot be read, or is half written, stays as it was.
func (a *ACME) load() {
	for _, name := range a.order {
		chain, _, err := a.cfg.Store.TLSFile(certmagic.StorageKeys.SiteCert(a.issuer.IssuerKey(), name))
		a.mu.RLock()
		same := err == nil && bytes.Equal(chain, a.certs[name].pem)
		a.mu.RUnlock()
		if same || fleet.CodeOf(err) == fleet.CodeNotFound {
			continue
		}
		var cert tls.Certificate
		if err == nil {
			var key []byte
			if key, _, err = a.cfg.Store.TLSFile(certmagic.StorageKeys.SitePrivateKey(a.issuer.IssuerKey(), name)); err == nil {
				cert, err = tls.X509KeyPair(chain, key)
			}
		}
		if err != nil {
			a.cfg.Log.Warn("read a stored certificate", "name", name, "err", err)
			continue
		}
		a.mu.Lock()
		a.certs[name] = loaded{chain, &cert}
		a.mu.Unlock()
		a.cfg.Log.Info("certificate activated", "name", name, "until", cert.Leaf.NotAfter)
	}
}

// Order orders what is missing or has a third of its time left, while this scheduler leads, until ctx ends. It is asked
// again, more and more slowly, after a failure, since authorities count those.
func (a *ACME) Order(ctx context.Context) error {
	type plan struct {
		next time.Time
		wait time.Duration
	}
	plans := map[string]*plan{}
	for _, name := range a.order {
		plans[name] = &plan{wait: retryFirst}
	}
	for {
		soonest := time.Now().Add(orderEvery)
		for _, name := range a.order {
			p := plans[name]
			if !time.Now().Before(p.next) {
				p.next = time.Now().Add(orderEvery)
				if err := a.one(ctx, name); ctx.Err() != nil {
					return nil //nolint:nilerr // the next leader goes on
				} else if err != nil {
					a.cfg.Log.Error("no certificate was got", "name", name, "again", p.wait.String(), "err", err)
					p.next = time.Now().Add(p.wait)
					p.wait = min(2*p.wait, orderEvery)
				} else {
					p.wait = retryFirst
				}
			}
			if p.next.Before(soonest) {
				soonest = p.next
			}
		}
		if sleep.For(ctx, time.Until(soonest)) != nil {
			return nil
		}
	}
}

// one orders a certificate if it is missing or near its end.
func (a *ACME) one(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, orderWithin)
	defer cancel()
	err := a.configs[name].RenewCertSync(ctx, name, false)
	a.load()
	var p acme.Problem
	if errors.As(err, &p) && len(p.Subproblems) == 0 {
		return fmt.Errorf("the certificate authority refuses: %s (%s)", p.Detail, p.Type)
	}
	return err
}
