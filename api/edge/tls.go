package edge

import (
	"crypto/tls"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// FrontEnd chooses the certificate of a connection. ACME comes later than the listener, which must answer from the first
// moment on. It is safe for concurrent use.
type FrontEnd struct {
	Files  *Files // nil: none
	Orders bool   // ACME comes: a certificate authority's question waits for it, for 3 s at most
	ACME   atomic.Pointer[ACME]
}

// Config is the configuration of TLS for users: 1.2 at least, HTTP/2.
func (f *FrontEnd) Config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1", ALPN}, GetCertificate: f.certificate,
	}
}

func (f *FrontEnd) certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	if f.Orders && isChallenge(hello) {
		_ = soon(hello.Context(), func() error {
			if f.ACME.Load() == nil {
				return errors.New("not yet")
			}
			return nil
		}) // if it has not come, it is refused like everybody
	}
	if a := f.ACME.Load(); a != nil {
		if c, err := a.Certificate(hello); c != nil || err != nil {
			return c, err
		}
	}
	if f.Files != nil {
		return f.Files.Certificate(hello), nil
	}
	return nil, fmt.Errorf("there is no certificate for %q (yet)", hello.ServerName)
}

// Ends tells when the certificates for users end, by name. The zero time stands for one that was ordered and has not come.
func (f *FrontEnd) Ends() map[string]time.Time {
	out := map[string]time.Time{}
	if f.Files != nil {
		f.Files.ends(out)
	}
	if a := f.ACME.Load(); a != nil {
		a.ends(out)
	}
	return out
}
