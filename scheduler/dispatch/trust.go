package dispatch

import (
	"bytes"

	"gantry/internal/pki"
	"gantry/scheduler/state"
)

// trust is which CAs a host is to trust. It is never changed.
type trust struct {
	pem []byte   // as the state has them
	cas [][]byte // DER, the one that signs first; nil: nothing is known
}

// learnTrust looks up which CAs hosts are to trust.
func (s *Server) learnTrust() error {
	var now []byte
	err := s.Store.View(func(v *state.View) error {
		if c, ok := v.Cluster(); ok {
			now = c.Trusted()
		}
		return nil
	})
	if err != nil || bytes.Equal(now, s.trust.Load().pem) {
		return err
	}
	certs, err := pki.ParseTrust(now)
	if err != nil {
		s.trust.Store(&trust{pem: now}) // so that it is said once
		return err
	}
	s.trust.Store(&trust{now, pki.RawCerts(certs)})
	return nil
}
