package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"gantry/api/edge"
	"gantry/api/forward"
	"gantry/api/proxy"
	"gantry/api/rest"
)

const (
	filesEvery = 10 * time.Second // certificate files are looked at
	acmeEvery  = time.Second      // certificates that the leader got are taken over
)

// dnsName is the form of a name that a certificate authority knows.
var dnsName = regexp.MustCompile(`^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z0-9][a-z0-9-]{0,61}[a-z0-9]$`)

// edgeFlags say how users reach the API and the pods' http ports.
type edgeFlags struct {
	TLSCert        []string      `name:"tls-cert" help:"Certificate for users with its chain (PEM); may be repeated, with a --tls-key each. Changed files count within seconds." placeholder:"FILE"`
	TLSKey         []string      `name:"tls-key" help:"Key of the certificate (PEM), not readable for everybody; one for each --tls-cert, in the same order." placeholder:"FILE"`
	ACMEName       []string      `name:"acme-name" help:"Name of the API for which to order a certificate by ACME; may be repeated. To give one is to agree to the terms of the certificate authority." placeholder:"NAME"`
	ACMEDirectory  string        `name:"acme-directory" default:"https://acme-v02.api.letsencrypt.org/directory" help:"The certificate authority." placeholder:"URL"`
	ACMEEmail      string        `name:"acme-email" help:"E-mail address for notices of the certificate authority." placeholder:"ADDRESS"`
	ACMERoots      string        `name:"acme-roots" help:"Certificates (PEM) that vouch for the server of a certificate authority of your own; without it those of the system." placeholder:"FILE"`
	ACMEChallenge  string        `name:"acme-challenge" default:"auto" enum:"auto,http,tls-alpn,dns" help:"How ownership of the names is proved: http (port 80 leads to --http-listen), tls-alpn (port 443 leads to --listen), dns (--acme-dns-command); auto is http with --http-listen, else tls-alpn."`
	ACMEDNSCommand string        `name:"acme-dns-command" type:"path" help:"Program that sets TXT records: it is called with present or cleanup, the record's name, and its value. With it *.PROXY-DOMAIN gets a certificate as well." placeholder:"PROGRAM"`
	ACMEDNSWait    time.Duration `name:"acme-dns-wait" default:"0s" help:"Time that a record takes, after the program has ended, to be at all name servers (at most 5m)."`
	HTTPListen     string        `name:"http-listen" help:"Address, usually port 80, that sends plain HTTP on to https, and answers the certificate authority." placeholder:"HOST:PORT"`
	RedirectPort   int           `name:"redirect-port" help:"Port of https that --http-listen sends clients to; without it the port of --listen." placeholder:"PORT"`
	PlainHTTP      bool          `name:"plain-http" help:"Serve plain HTTP also on an address that is not loopback: behind a load balancer that ends TLS."`
	TrustedProxies []string      `name:"trusted-proxies" help:"Addresses or ranges of load balancers and proxies whose X-Forwarded-For and X-Forwarded-Proto are believed." placeholder:"CIDR"`
}

// tls tells whether TLS ends here.
func (e *edgeFlags) tls() bool { return len(e.TLSCert) > 0 || e.acme() }

func (e *edgeFlags) acme() bool { return len(e.ACMEName) > 0 }

// validate reports every setting that does not go with the others.
func (e *edgeFlags) validate(listen, proxyDomain string) error {
	var faults []error
	if len(e.TLSCert) != len(e.TLSKey) {
		faults = append(faults, errors.New("--tls-cert and --tls-key go together: as many of one as of the other"))
	}
	if !e.tls() && !e.PlainHTTP && !loopback(listen) {
		faults = append(faults, fmt.Errorf("--listen %s is not loopback, so API keys would cross the network in the clear: give --tls-cert and --tls-key, or --acme-name; "+
			"behind a load balancer that ends TLS give --plain-http, and its address with --trusted-proxies", listen))
	}
	if e.tls() && e.PlainHTTP {
		faults = append(faults, errors.New("--plain-http and --tls-cert exclude each other: TLS ends either elsewhere or here"))
	}
	if e.HTTPListen != "" && !e.tls() {
		faults = append(faults, errors.New("--http-listen redirects clients to https, which needs a certificate: give --tls-cert and --tls-key, or --acme-name"))
	}
	if e.RedirectPort < 0 || e.RedirectPort > 65535 {
		faults = append(faults, errors.New("--redirect-port must be 1 to 65535"))
	}
	if _, err := e.trusted(); err != nil {
		faults = append(faults, err)
	}
	return errors.Join(append(faults, e.validateACME(proxyDomain))...)
}

func (e *edgeFlags) validateACME(proxyDomain string) error {
	var faults []error
	if !e.acme() {
		if e.ACMEDNSCommand != "" || e.ACMEEmail != "" || e.ACMEChallenge != "auto" {
			faults = append(faults, errors.New("--acme-name is required: it names the domains to order certificates for"))
		}
		return errors.Join(faults...)
	}
	for _, name := range e.ACMEName {
		if !dnsName.MatchString(name) {
			faults = append(faults, fmt.Errorf("--acme-name %q is not a lower-case DNS name", name))
		}
	}
	if u, err := url.Parse(e.ACMEDirectory); err != nil || u.Scheme != "https" || u.Host == "" {
		faults = append(faults, errors.New("--acme-directory must be an https address"))
	}
	switch way := e.challenge(); {
	case way == edge.ChallengeHTTP && e.HTTPListen == "":
		faults = append(faults, errors.New("--acme-challenge http needs --http-listen, which answers the certificate authority"))
	case way == edge.ChallengeDNS && e.ACMEDNSCommand == "":
		faults = append(faults, errors.New("--acme-challenge dns needs --acme-dns-command"))
	}
	if e.ACMEDNSCommand != "" && !dnsName.MatchString(proxyDomain) {
		faults = append(faults, fmt.Errorf("--proxy-domain %q is not a lower-case DNS name", proxyDomain))
	}
	if e.ACMEDNSWait < 0 || e.ACMEDNSWait > 5*time.Minute {
		faults = append(faults, errors.New("--acme-dns-wait must be 0s to 5m"))
	}
	return errors.Join(faults...)
}

func (e *edgeFlags) challenge() string {
	switch {
	case e.ACMEChallenge != "auto":
		return e.ACMEChallenge
	case e.HTTPListen != "":
		return edge.ChallengeHTTP
	}
	return edge.ChallengeTLS
}

// loopback tells whether only this machine reaches an address.
func loopback(listen string) bool {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.Unmap().IsLoopback()
}

func (e *edgeFlags) trusted() ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, text := range e.TrustedProxies {
		p, err := netip.ParsePrefix(text)
		if a, err2 := netip.ParseAddr(text); err2 == nil {
			p, err = netip.PrefixFrom(a, a.BitLen()), nil
		}
		if p.Addr().Is4In6() && p.Bits() >= 96 { // clients of IPv4 are compared as such
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
		if err != nil {
			return nil, fmt.Errorf("--trusted-proxies %q must be an address or a range, for example 10.0.0.0/24", text)
		}
		out = append(out, p.Masked())
	}
	return out, nil
}

func (e *edgeFlags) files(log *slog.Logger) (*edge.Files, error) {
	if len(e.TLSCert) == 0 {
		return nil, nil
	}
	pairs := make([]edge.Pair, len(e.TLSCert))
	for i := range pairs {
		pairs[i] = edge.Pair{Cert: e.TLSCert[i], Key: e.TLSKey[i]}
	}
	return edge.OpenFiles(pairs, log)
}

// check reads what the flags name beside certificates.
func (e *edgeFlags) check() error {
	_, err := e.roots()
	if e.ACMEDNSCommand == "" {
		return err
	}
	if _, err2 := exec.LookPath(e.ACMEDNSCommand); err2 != nil {
		err = errors.Join(err, fmt.Errorf("--acme-dns-command: %w", err2))
	}
	return err
}

func (e *edgeFlags) roots() (*x509.CertPool, error) {
	if e.ACMERoots == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(e.ACMERoots)
	if err != nil {
		return nil, fmt.Errorf("--acme-roots: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("--acme-roots %s holds no certificate", e.ACMERoots)
	}
	return pool, nil
}

// order makes what orders certificates; nil where they are not ordered.
func (c *frontFlags) order(p ports, store edge.Store, leads func() bool, log *slog.Logger) (*edge.ACME, error) {
	if !c.Edge.acme() {
		return nil, nil
	}
	roots, err := c.Edge.roots()
	if err != nil {
		return nil, err
	}
	conf := edge.ACMEConfig{
		Directory: c.Edge.ACMEDirectory, Email: c.Edge.ACMEEmail, Roots: roots, Names: c.Edge.ACMEName, Challenge: c.Edge.challenge(),
		Command: c.Edge.ACMEDNSCommand, Wait: c.Edge.ACMEDNSWait, Listener: p.api.Addr(), Store: store, Leads: leads,
		Reload: acmeEvery, Log: log,
	}
	if c.Edge.ACMEDNSCommand != "" {
		conf.Wildcard = c.ProxyDomain
	} else {
		log.Warn("pods' http ports have no certificate: ordering one needs --acme-dns-command", "domain", c.ProxyDomain)
	}
	if conf.Challenge == edge.ChallengeHTTP {
		conf.Listener = p.http.Addr()
	}
	return edge.NewACME(conf), nil
}

// equip gives the scheduler what it does for users' connections, and the TLS front end its certificates by ACME.
func (c *runCmd) equip(d *parts, p ports, tlsFront *edge.FrontEnd) (err error) {
	if d.acme, err = c.order(p, d.service, d.member.node.IsLeader, d.log); err != nil {
		return err
	}
	tlsFront.ACME.Store(d.acme)
	d.edge = func(ctx context.Context) error { return c.serveEdge(ctx, p, tlsFront, d.log) }
	return nil
}

// ours tells requests that are not to a pod's page.
func (c *frontFlags) ours(r *http.Request) bool {
	_, toPod, _ := proxy.ParseHost(r.Host, c.ProxyDomain)
	return !toPod
}

// around puts before a handler what is the same for every request of users.
func (c *frontFlags) around(gate *rest.Gate, next http.Handler) (http.Handler, error) {
	trusted, err := c.Edge.trusted()
	if err != nil {
		return nil, err
	}
	inner := next
	next = gate.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/livez" && c.ours(r) {
			alive(w)
			return
		}
		inner.ServeHTTP(w, r)
	}))
	if c.Edge.tls() {
		next = edge.Strict(c.ours, next)
	}
	return forward.Believe(trusted, next), nil
}

// alive answers that the process runs, whatever it can do: who restarts it because of what it waits for helps nobody.
func alive(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write([]byte(`{"status":"ok"}` + "\n")) // a client that left is not told
}

// redirector answers plain HTTP where TLS ends here.
func (c *frontFlags) redirector(p ports, tlsFront *edge.FrontEnd, log *slog.Logger) *rest.Server {
	port := strconv.Itoa(c.Edge.RedirectPort)
	if c.Edge.RedirectPort == 0 {
		_, port, _ = net.SplitHostPort(p.api.Addr().String())
	}
	return rest.NewServer(edge.Redirect(port, func(w http.ResponseWriter, r *http.Request) bool {
		if a := tlsFront.ACME.Load(); a != nil {
			return a.HTTPChallenge(w, r)
		}
		return false
	}), rest.Limits{Connections: c.Shares.MaxConnections, PerAddress: c.Shares.MaxPerAddress}, log)
}

// serveEdge keeps certificates new and answers plain HTTP, until ctx ends. All of it ends before it returns.
func (c *frontFlags) serveEdge(ctx context.Context, p ports, tlsFront *edge.FrontEnd, log *slog.Logger) error {
	group, ctx := errgroup.WithContext(ctx)
	if tlsFront.Files != nil {
		group.Go(func() error { return tlsFront.Files.Run(ctx, filesEvery) })
	}
	if a := tlsFront.ACME.Load(); a != nil {
		group.Go(func() error { return a.Run(ctx) })
	}
	if p.http != nil {
		s := c.redirector(p, tlsFront, log)
		group.Go(func() error {
			if err := s.Serve(p.http); !errors.Is(err, http.ErrServerClosed) {
				return fmt.Errorf("serve plain HTTP: %w", err)
			}
			return nil
		})
		group.Go(func() error {
			<-ctx.Done()
			return drain(ctx, s.Server)
		})
	}
	return group.Wait()
}

// checkProxyURL refuses a --proxy-url that pods' http ports cannot be below.
func (c *runCmd) checkProxyURL() error {
	if c.ProxyURL == "" {
		return nil
	}
	u, err := url.Parse(c.ProxyURL)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.User != nil:
		return errors.New("--proxy-url must be a scheme, a domain and, where it is not the usual one, a port, as in https://proxy.example.com")
	case u.Hostname() != c.ProxyDomain:
		return fmt.Errorf("--proxy-url must name the domain of --proxy-domain, %s", c.ProxyDomain)
	}
	return nil
}

// checkAPIURL refuses an --api-url that no path can be put behind.
func (c *runCmd) checkAPIURL() error {
	u, err := url.Parse(c.APIURL)
	if c.APIURL != "" && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.User != nil) {
		return errors.New("--api-url must be a scheme, a host and, where it is not the usual one, a port, as in https://api.example.com")
	}
	return nil
}

// apiURL is the API as users reach it: as it was given, or what listens here.
func (c *runCmd) apiURL(listening net.Addr) string {
	if c.APIURL != "" {
		return strings.TrimRight(c.APIURL, "/")
	}
	scheme := "http"
	if c.Edge.tls() {
		scheme = "https"
	}
	return scheme + "://" + listening.String()
}

// proxyURL is the proxy domain as users reach it; empty when there is none.
func (c *runCmd) proxyURL(listening net.Addr) string {
	if c.ProxyDomain == "" || c.ProxyURL != "" {
		return strings.TrimRight(c.ProxyURL, "/")
	}
	scheme, usual := "http", "80"
	if c.Edge.tls() {
		scheme, usual = "https", "443"
	}
	_, port, err := net.SplitHostPort(listening.String())
	if err != nil || port == usual {
		return scheme + "://" + c.ProxyDomain
	}
	return scheme + "://" + net.JoinHostPort(c.ProxyDomain, port)
}

// s3URLs returns the addresses of --s3-url by data center, in lower case.
func (c *runCmd) s3URLs() map[string]string {
	out := map[string]string{}
	for _, text := range c.S3URL {
		center, address, _ := strings.Cut(text, "=")
		out[strings.ToLower(center)] = strings.TrimRight(address, "/")
	}
	return out
}

// checkS3URLs refuses an --s3-url that no link can be below, or that would say more in the console's policy than an origin.
func (c *runCmd) checkS3URLs() error {
	for _, text := range c.S3URL {
		center, address, _ := strings.Cut(text, "=")
		u, err := url.Parse(strings.TrimRight(address, "/"))
		if center == "" || err != nil || u.Scheme != "https" && u.Scheme != "http" || !s3Host.MatchString(u.Host) || u.String() != u.Scheme+"://"+u.Host {
			return fmt.Errorf("--s3-url %q must be a data center, an equals sign, and an http or https address of a host without a path", text)
		}
	}
	return nil
}

var s3Host = regexp.MustCompile(`^([A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\])(:[0-9]+)?$`)
