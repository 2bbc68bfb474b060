package edge

import (
	"crypto/tls"
	"fmt"
	"sync/atomic"
	"time"
)

// Door chooses the certificate of a connection. ACME comes later than the listener, which must answer from the first
// moment on. It is safe for concurrent use.
type Door struct {
	Files *Files // nil: none
	ACME  atomic.Pointer[ACME]
}

// Config is the configuration of TLS for users: 1.2 at least, HTTP/2.
func (d *Door) Config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1", ALPN}, GetCertificate: d.certificate,
	}
}

func (d *Door) certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	if a := d.ACME.Load(); a != nil {
		if c, err := a.Certificate(hello); c != nil || err != nil {
			return c, err
		}
	}
	if d.Files != nil {
		return d.Files.Certificate(hello), nil
	}
	return nil, fmt.Errorf("there is no certificate for %q (yet)", hello.ServerName)
}

// Ends tells when the certificates for users end, by name. The zero time stands for one that was ordered and has not come.
func (d *Door) Ends() map[string]time.Time {
	out := map[string]time.Time{}
	if d.Files != nil {
		d.Files.ends(out)
	}
	if a := d.ACME.Load(); a != nil {
		a.ends(out)
	}
	return out
}
