package scrape

import (
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"gantry/internal/pki"
)

const (
	reload     = 30 * time.Second // until changed files count
	leastToken = 16               // bytes
)

// Flags say how scrapers of another machine reach the metrics.
type Flags struct {
	TLSCert   string `name:"metrics-tls-cert" help:"Certificate with its chain (PEM) for the metrics, which then may be on an address that is not loopback. Changed files count within a minute." placeholder:"FILE"`
	TLSKey    string `name:"metrics-tls-key" help:"Key of that certificate (PEM)." placeholder:"FILE"`
	ClientCA  string `name:"metrics-client-ca" help:"Certificates (PEM) that vouch for who may read metrics." placeholder:"FILE"`
	TokenFile string `name:"metrics-token-file" help:"File, readable for this daemon alone, with the bearer token that who reads metrics has to show (at least 16 characters)." placeholder:"FILE"`
}

// Validate says what is wrong with the flags and the address of --metrics, which may be empty: beyond loopback there has to be TLS,
// and a client certificate or a token.
func (f Flags) Validate(addr string) error {
	if addr == "" {
		return nil
	}
	var faults []error
	if (f.TLSCert == "") != (f.TLSKey == "") {
		faults = append(faults, errors.New("--metrics-tls-cert and --metrics-tls-key go together"))
	}
	if f.TLSCert == "" && (f.ClientCA != "" || f.TokenFile != "") {
		faults = append(faults, errors.New("--metrics-client-ca and --metrics-token-file need --metrics-tls-cert and --metrics-tls-key"))
	}
	check := CheckAddress
	if f.TLSCert != "" && (f.ClientCA != "" || f.TokenFile != "") {
		check = checkAnyAddress
	}
	if err := check(addr); err != nil {
		faults = append(faults, fmt.Errorf("--metrics %w", err))
	}
	if len(faults) == 0 && f.Used() {
		if _, err := f.Read(); err != nil {
			faults = append(faults, err)
		}
	}
	return errors.Join(faults...)
}

// Used tells whether metrics are served over TLS.
func (f Flags) Used() bool { return f.TLSCert != "" }

// Source returns Read, or nil where metrics are served in the clear.
func (f Flags) Source() func() (Material, error) {
	if !f.Used() {
		return nil
	}
	return f.Read
}

// Material is what the files of Flags hold.
type Material struct {
	Cert     []byte `json:"cert"`
	Key      []byte `json:"key"`
	ClientCA []byte `json:"clientCA,omitempty"` // empty: no certificate is asked for
	Token    []byte `json:"token,omitempty"`    // empty: no token is
}

// Read reads the files.
func (f Flags) Read() (m Material, err error) {
	if m.Cert, err = os.ReadFile(f.TLSCert); err != nil {
		return Material{}, fmt.Errorf("--metrics-tls-cert: %w", err)
	}
	key, err := pki.ReadSecretFile(f.TLSKey)
	if err != nil {
		return Material{}, fmt.Errorf("--metrics-tls-key: %w", err)
	}
	m.Key = []byte(key)
	if f.ClientCA != "" {
		if m.ClientCA, err = os.ReadFile(f.ClientCA); err != nil {
			return Material{}, fmt.Errorf("--metrics-client-ca: %w", err)
		}
		if len(m.ClientCA) == 0 { // which would stand for no certificate being asked for
			return Material{}, errors.New("--metrics-client-ca holds no certificate")
		}
	}
	if f.TokenFile != "" {
		token, err := pki.ReadSecretFile(f.TokenFile)
		if err != nil {
			return Material{}, fmt.Errorf("--metrics-token-file: %w", err)
		}
		m.Token = []byte(strings.TrimSpace(string(token)))
		if len(m.Token) < leastToken {
			return Material{}, fmt.Errorf("--metrics-token-file: the token has fewer than %d characters", leastToken)
		}
	}
	_, err = m.config()
	return m, err
}

// config is the configuration of TLS with the material.
func (m Material) config() (*tls.Config, error) {
	pair, err := tls.X509KeyPair(m.Cert, m.Key)
	if err != nil {
		return nil, fmt.Errorf("--metrics-tls-cert and --metrics-tls-key: %w", err)
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, NextProtos: []string{"http/1.1"}, SessionTicketsDisabled: true}
	if len(m.ClientCA) > 0 {
		c.ClientCAs, c.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
		if !c.ClientCAs.AppendCertsFromPEM(m.ClientCA) {
			return nil, errors.New("--metrics-client-ca holds no certificate")
		}
	}
	return c, nil
}

// keeper has the material that counts at a time.
type keeper struct {
	read func() (Material, error)

	mu     sync.Mutex
	at     time.Time
	now    Material
	config *tls.Config
}

// current returns the material, read again when it is old. What cannot be read again counts on.
func (k *keeper) current() (Material, *tls.Config, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.config != nil && time.Since(k.at) < reload {
		return k.now, k.config, nil
	}
	m, err := k.read()
	var c *tls.Config
	if err == nil {
		c, err = m.config()
	}
	k.at = time.Now()
	if err != nil && k.config == nil {
		return Material{}, nil, err
	}
	if err == nil {
		k.now, k.config = m, c
	}
	return k.now, k.config, nil
}

// tls is the configuration of the listener.
func (k *keeper) tls() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		_, c, err := k.current()
		return c, err
	}}
}

// guard lets those through who show the token, where there is one.
func (k *keeper) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m, _, err := k.current()
		if err != nil {
			http.Error(w, "the token cannot be read", http.StatusServiceUnavailable)
			return
		}
		shown, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if len(m.Token) > 0 && !same([]byte(shown), m.Token) {
			w.Header().Set("Www-Authenticate", "Bearer")
			http.Error(w, "a token is needed", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// same compares without telling by its time how much is right.
func same(a, b []byte) bool {
	x, y := sha256.Sum256(a), sha256.Sum256(b)
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}
