package agentrpc

import (
	"crypto/tls"
	"crypto/x509"
	"strings"
	"testing"
	"time"

	"gantry/internal/pki"
)

// rotation is a cluster on its way from one CA to the next.
type rotation struct {
	t         *testing.T
	old, next *pki.CA
	bridge    *x509.Certificate
}

func newRotation(t *testing.T) *rotation {
	t.Helper()
	r := &rotation{t: t, old: newCA(t)}
	var err error
	if r.next, err = r.old.Next(time.Now()); err == nil {
		r.bridge, err = r.old.Bridge(r.next)
	}
	r.must(err)
	return r
}

func (r *rotation) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// both makes a store with a certificate of one CA that trusts both.
func (r *rotation) both(ca *pki.CA, id pki.Identity) *pki.Store {
	r.t.Helper()
	s, err := pki.OpenStore(r.t.TempDir())
	r.must(err)
	r.must(s.Enroll(ca, id, time.Hour, time.Now(), r.next.Cert(), r.old.Cert()))
	s.SetBridge(r.bridge)
	return s
}

// TestEachHandshakeGoesByTheCAsOfThen with configurations that were made before.
func TestEachHandshakeGoesByTheCAsOfThen(t *testing.T) {
	checkLeaks(t)
	r := newRotation(t)
	scheduler, host := newStore(t, r.old, schedulerID), newStore(t, r.old, hostID)
	server, err := ServerTLS(scheduler)
	r.must(err)
	meets := func(s *pki.Store, want bool, what string) {
		t.Helper()
		config, err := HostClientTLS(s)
		r.must(err)
		if _, err := handshake(t, server, config); (err == nil) != want {
			t.Errorf("%s: %v", what, err)
		}
	}
	meets(host, true, "before")
	renewed := r.both(r.next, hostID)
	meets(renewed, false, "a certificate of a CA that the scheduler does not know")
	r.must(scheduler.Trust(r.old.Cert(), r.next.Cert()))
	meets(renewed, true, "both CAs are trusted")
	meets(host, true, "a host that knows the old CA alone, while the scheduler has a certificate of it")
	r.must(scheduler.Enroll(r.next, schedulerID, time.Hour, time.Now(), r.old.Cert()))
	scheduler.SetBridge(r.bridge)
	meets(host, false, "a host that knows the old CA alone")
	meets(r.both(r.old, hostID), true, "a certificate of the old CA while that is trusted")
	r.must(scheduler.Trust(r.next.Cert()))
	meets(r.both(r.old, hostID), false, "a certificate of the old CA afterwards")
	meets(renewed, true, "a certificate of the new CA afterwards")
}

func TestATokenThatNamesTheOldCAIsGoodWhileThatVouchesForTheNewOne(t *testing.T) {
	checkLeaks(t)
	r := newRotation(t)
	config := func(s *pki.Store) *tls.Config {
		server, err := ServerTLS(s)
		r.must(err)
		return server
	}
	tests := []struct {
		name   string
		server *pki.Store
		pinned *pki.CA
		ok     bool
	}{
		{"old certificate, old token", r.both(r.old, schedulerID), r.old, true},
		{"new certificate, old token", r.both(r.next, schedulerID), r.old, true},
		{"new certificate, new token", r.both(r.next, schedulerID), r.next, true},
		{"old certificate, new token", r.both(r.old, schedulerID), r.next, false},
		{"a host's", r.both(r.next, hostID), r.old, false},
		{"afterwards", newStore(t, r.next, schedulerID), r.old, false},
	}
	for _, tt := range tests {
		join := JoinClientTLS(pki.NewJoinToken(tt.pinned.Digest()))
		if _, err := join.Trusted(nil); err == nil {
			t.Errorf("%s: something is trusted before the handshake", tt.name)
		}
		_, err := handshake(t, config(tt.server), join.Config())
		if (err == nil) != tt.ok {
			t.Errorf("%s: %v", tt.name, err)
		}
		if tt.name == "afterwards" && (err == nil || !strings.Contains(err.Error(), "make a new token")) {
			t.Errorf("%s: %v", tt.name, err)
		}
		if !tt.ok {
			continue
		}
		trust, err := join.Trusted(pki.RawCerts([]*x509.Certificate{r.next.Cert(), r.old.Cert()}))
		if err != nil || len(trust) != 2 || !trust[0].Equal(r.next.Cert()) {
			t.Errorf("%s: it is to trust %d CAs: %v", tt.name, len(trust), err)
		}
		if _, err := join.Trusted([][]byte{newCA(t).Cert().Raw}); err == nil {
			t.Errorf("%s: CAs without the scheduler's own were taken", tt.name)
		}
	}
	// Neither another cluster's CA nor one of the same name can vouch.
	twin, err := r.old.Next(time.Now())
	r.must(err)
	forged := certWith(t, twin, schedulerID, time.Now(), twin.Cert(), r.bridge, r.old.Cert())
	server := &tls.Config{Certificates: []tls.Certificate{forged}, NextProtos: []string{ALPNGRPC}}
	if _, err := handshake(t, server, JoinClientTLS(pki.NewJoinToken(r.old.Digest())).Config()); err == nil {
		t.Error("a bridge to another CA was taken")
	}
}
