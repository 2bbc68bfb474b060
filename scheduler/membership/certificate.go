package membership

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"gantry/internal/agentrpc"
	"gantry/internal/pki"
	"gantry/internal/sleep"
	"gantry/scheduler/replica"
	"gantry/scheduler/state"
)

const (
	trustEvery  = 500 * time.Millisecond // between looks at which CAs are to be trusted
	renewEvery  = time.Minute            // between tries to renew the certificate
	renewSooner = 5 * time.Second        // the same, when another CA signs by now
)

// trusted returns the CAs that members are to trust, as a member's state has them, the one that signs first.
func trusted(store *state.Store) ([]*x509.Certificate, error) {
	var data []byte
	err := store.View(func(v *state.View) error {
		c, _ := v.Cluster()
		data = c.Trusted()
		return nil
	})
	if err != nil {
		return nil, err
	}
	return pki.ParseTrust(data)
}

// keepCertificate has this member trust the CAs that the state names, and keeps its certificate fresh, until ctx ends.
func (p *Presence) keepCertificate(ctx context.Context) {
	k := certificateKeeper{Presence: p, fraction: rand.Float64()}
	for {
		if err := k.follow(); err != nil && ctx.Err() == nil {
			p.cfg.Log.Warn("follow the cluster's CAs", "err", err)
		}
		if k.due(time.Now()) {
			leader, _ := p.cfg.Node.Leader()
			p.renew(ctx, leader)
		}
		if sleep.For(ctx, trustEvery) != nil {
			return
		}
	}
}

// certificateKeeper is what keepCertificate remembers.
type certificateKeeper struct {
	*Presence
	fraction float64 // see pki.RenewAt
	tried    time.Time
	seen     []byte // what the state had when it was followed
	ousted   bool   // the certificate is of no CA that is to be trusted
}

// follow makes the CAs that the state names those that this member trusts.
func (k *certificateKeeper) follow() error {
	var cluster state.Cluster
	known := false
	err := k.cfg.Store.View(func(v *state.View) error { cluster, known = v.Cluster(); return nil })
	now := cluster.Trusted()
	if err != nil || !known || bytes.Equal(now, k.seen) && !k.ousted {
		return err
	}
	cas, err := pki.ParseTrust(now)
	if err != nil {
		k.seen = now
		return err
	}
	var bridge *x509.Certificate
	if r := cluster.Rotation; r != nil {
		if bridge, err = pki.ParseCert(r.Bridge); err != nil {
			return err
		}
	}
	k.cfg.Certs.SetBridge(bridge)
	err = k.cfg.Certs.Trust(cas...)
	if k.ousted = errors.Is(err, pki.ErrOusted); k.ousted || errors.Is(err, pki.ErrEarlier) {
		err = nil // what is trusted comes with the next certificate, or as soon as the state is up to date
	}
	if err == nil {
		k.seen = now
	}
	return err
}

// due reports whether the certificate is to be renewed now.
func (k *certificateKeeper) due(now time.Time) bool {
	leaf, err := k.cfg.Certs.Leaf()
	changed := k.ousted || k.cfg.Certs.Outdated()
	wait := renewEvery
	if changed {
		wait = renewSooner
	}
	if now.Sub(k.tried) < wait || err == nil && !changed && now.Before(pki.RenewAt(leaf, k.fraction)) {
		return false
	}
	k.tried = now
	return true
}

// renew makes a new certificate: the leader signs its own, the others ask it.
func (p *Presence) renew(ctx context.Context, leader replica.Member) {
	self := string(p.cfg.Self.ID)
	var err error
	switch leader.ID {
	case "":
		err = errors.New("no leader is known")
	case self:
		var ca *pki.CA
		var cas []*x509.Certificate
		if ca, err = p.cfg.CA(ctx); err == nil {
			cas, err = trusted(p.cfg.Store)
		}
		if err == nil {
			err = p.cfg.Certs.Enroll(ca, pki.Identity{Role: pki.RoleScheduler, ID: self}, CertLife, time.Now(), cas...)
		}
	default:
		err = p.ask(ctx, leader.Address)
	}
	switch {
	case err == nil:
		p.cfg.Log.Info("renewed the scheduler's certificate")
	case ctx.Err() == nil:
		p.cfg.Log.Warn("renew the scheduler's certificate", "err", err)
	}
}

// ask has the leader sign a new certificate.
func (p *Presence) ask(ctx context.Context, leader string) error {
	return renewAt(ctx, p.cfg.Certs, leader, agentrpc.PeerClient.RenewMember, p.call)
}

type renewFunc func(agentrpc.PeerClient, context.Context, *agentrpc.RenewRequest, ...grpc.CallOption) (*agentrpc.RenewResponse, error)

// renewAt has the leader sign a new certificate and installs it. dial calls the scheduler at an address.
func renewAt(
	ctx context.Context, certs *pki.Store, leader string, renew renewFunc,
	dial func(ctx context.Context, address string, fn func(context.Context, agentrpc.PeerClient) error) error,
) error {
	csr, err := certs.Request()
	if err != nil {
		return err
	}
	// Who is asked may have lost leadership since, and then knows who has it.
	for range maxHints {
		var trailer metadata.MD
		err = dial(ctx, leader, func(ctx context.Context, c agentrpc.PeerClient) error {
			out, err := renew(c, ctx, &agentrpc.RenewRequest{Csr: csr}, grpc.Trailer(&trailer))
			if err != nil {
				return err
			}
			return install(certs, out)
		})
		if leader = agentrpc.LeaderHint(trailer); err == nil || leader == "" {
			break
		}
	}
	return err
}

// install puts a new certificate in place.
func install(certs *pki.Store, out *agentrpc.RenewResponse) error {
	leaf, err := x509.ParseCertificate(out.GetCertificate())
	if err != nil {
		return fmt.Errorf("the certificate cannot be read: %w", err)
	}
	var cas []*x509.Certificate // a scheduler of before names none
	if ders := out.GetCas(); len(ders) > 0 {
		if cas, err = pki.ParseTrustDER(ders); err != nil {
			return err
		}
	}
	return certs.Renew(leaf, cas...)
}
