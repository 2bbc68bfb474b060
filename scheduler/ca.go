package scheduler

import (
	"cmp"
	"context"
	"crypto/x509"
	"fmt"
	"slices"
	"time"

	"gantry/fleet"
	"gantry/internal/pki"
	"gantry/scheduler/membership"
	"gantry/scheduler/state"
)

// certMargin is how much later than its certificate may end a node counts as cut off: clocks differ, and a request may have been under
// way when the next CA began to sign.
const certMargin = time.Hour

// CAStatus returns the cluster's CA, the certificates of hosts and schedulers, and who is still to follow a change of the CA.
func (s *Service) CAStatus(ctx context.Context) (fleet.CAView, error) {
	members, err := s.Cluster(ctx)
	if err != nil {
		return fleet.CAView{}, err
	}
	var cluster state.Cluster
	var hosts []*fleet.Host
	var gateways []fleet.Gateway
	err = s.read(ctx, func(v *state.View) error {
		cluster, _ = v.Cluster()
		hosts, gateways = v.HostRows(), v.Gateways()
		return nil
	})
	if err != nil {
		return fleet.CAView{}, err
	}
	slices.SortFunc(hosts, func(a, b *fleet.Host) int { return cmp.Compare(a.ID, b.ID) })
	cas, err := pki.ParseTrust(cluster.Trusted())
	if err != nil {
		return fleet.CAView{}, fmt.Errorf("read the cluster's CAs: %w", err)
	}
	return caView(cas, cluster.Rotation, hosts, members.Members, s.heard(gateways), s.Now()), nil
}

// RotateCA begins to replace the cluster's CA by a new one; the rest is done by control.Rotator. Errors: rule (it is being replaced
// already, or a scheduler does not answer or is too old).
func (s *Service) RotateCA(ctx context.Context) error {
	view, err := s.CAStatus(ctx)
	if err != nil {
		return err
	}
	if view.Step != "" {
		return fleet.BreaksRule("The cluster's CA is being replaced already.")
	}
	for _, n := range view.Nodes {
		if n.Scheduler && n.Certificate.CA == "" {
			return fleet.BreaksRule("The scheduler %s does not answer, or its program is too old for this: start it or upgrade it, or take it out.", n.ID)
		}
	}
	old, err := s.CA(ctx)
	if err != nil {
		return err
	}
	now := s.Now()
	next, err := old.Next(now)
	if err != nil {
		return err
	}
	bridge, err := old.Bridge(next)
	if err != nil {
		return err
	}
	key, err := next.EncodeKey()
	if err != nil {
		return err
	}
	sealed, err := s.Sealer.Seal(purposeCAKey, key)
	if err != nil {
		return err
	}
	_, err = propose[any](ctx, s, state.BeginRotation{
		CA: pki.EncodeCert(next.Cert()), SealedKey: sealed, Bridge: pki.EncodeCert(bridge), At: now,
	})
	if err == nil {
		s.Log.Warn("CA rotation in progress", "old", old.Digest().String(), "new", next.Digest().String())
	}
	return err
}

// FinishCAStep ends the present step of a change of the CA, which the caller names, without the hosts that it waits for: they have to
// join again. Errors: rule (it is not at that step, or it waits for a scheduler).
func (s *Service) FinishCAStep(ctx context.Context, step fleet.RotationStep) error {
	view, err := s.CAStatus(ctx)
	if err != nil {
		return err
	}
	if view.Step == "" || view.Step != step {
		return fleet.BreaksRule("The cluster's CA is not at this step of being replaced. Look again.")
	}
	for _, n := range view.Nodes {
		if n.Scheduler && n.Waits != "" {
			return fleet.BreaksRule("The scheduler %s would be cut off, and cannot come back: start it, or take it out.", n.ID)
		}
	}
	_, err = propose[any](ctx, s, state.AdvanceRotation{From: step, BegunAt: view.BegunAt, At: s.Now()})
	if err == nil {
		s.Log.Warn("CA rotation: an operator skipped a step", "step", step, "without_hosts", view.Waiting)
	}
	return err
}

// caView says what the step waits for. cas are those that are trusted, the one that signs first.
func caView(cas []*x509.Certificate, r *state.Rotation, hosts []*fleet.Host, members []fleet.MemberView, gateways []fleet.GatewayView, now time.Time) fleet.CAView {
	out := fleet.CAView{CAs: []fleet.CARecord{caRecord(cas[0], fleet.CASigns)}}
	if r != nil {
		other := fleet.CANext
		if r.Step == fleet.RotationRenews {
			other = fleet.CAOld
		}
		out.Step, out.BegunAt, out.SignsAt = r.Step, r.BegunAt, r.SignsAt
		out.CAs = append(out.CAs, caRecord(cas[len(cas)-1], other))
	}
	for _, m := range members {
		if r := m.Member; r.RemovedAt.IsZero() {
			out.Nodes = append(out.Nodes, fleet.CANode{Scheduler: true, ID: string(r.ID), Name: r.Name, Certificate: m.Certificate})
		}
	}
	for _, g := range gateways {
		out.Nodes = append(out.Nodes, fleet.CANode{Gateway: true, ID: string(g.ID), Name: g.Name, Certificate: g.Certificate})
	}
	for _, h := range hosts {
		if h.State != fleet.HostGone {
			out.Nodes = append(out.Nodes, fleet.CANode{ID: string(h.ID), Name: h.Name, Certificate: h.Inventory.Certificate})
		}
	}
	for i := range out.Nodes {
		n := &out.Nodes[i]
		ends := certificatesEnd(&out, n.Scheduler)
		if n.Waits = lacks(&out, n, ends, now); n.Waits == "" {
			continue
		}
		out.Waiting++
		if ends.After(out.EndsBy) {
			out.EndsBy = ends
		}
	}
	rank := func(n fleet.CANode) int { return -min(len(n.Waits), 1) }
	slices.SortStableFunc(out.Nodes, func(a, b fleet.CANode) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), a.Certificate.EndsAt.Compare(b.Certificate.EndsAt), cmp.Compare(a.ID, b.ID))
	})
	return out
}

func caRecord(cert *x509.Certificate, is fleet.CAState) fleet.CARecord {
	return fleet.CARecord{Digest: pki.DigestOf(cert).String(), State: is, NotBefore: cert.NotBefore, NotAfter: cert.NotAfter}
}

// certificatesEnd returns from when on no certificate of the old CA is valid any more; zero: the old one still signs.
func certificatesEnd(v *fleet.CAView, scheduler bool) time.Time {
	if v.Step != fleet.RotationRenews {
		return time.Time{}
	}
	end := v.SignsAt.Add(pki.LeafTTL)
	if scheduler {
		end = v.SignsAt.Add(membership.CertLife)
	}
	if old := v.CAs[1].NotAfter; old.Before(end) {
		end = old
	}
	return end.Add(certMargin)
}

// lacks says what the present step waits for of a node whose certificate of the old CA ends at ends at the latest; empty: nothing.
func lacks(v *fleet.CAView, n *fleet.CANode, ends, now time.Time) string {
	c := &n.Certificate
	switch {
	case v.Step == fleet.RotationSpreads && c.CA == "":
		return "it has not said yet whom it trusts: it was not connected since it joined, or its program is too old"
	case v.Step == fleet.RotationSpreads && !slices.Contains(c.Trusts, v.CAs[1].Digest):
		return "it does not know the new CA yet"
	case v.Step == fleet.RotationRenews && c.CA != v.CAs[0].Digest && now.Before(ends):
		return "its certificate is not of the new CA yet"
	}
	return ""
}
