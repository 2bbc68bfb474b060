package scheduler

import (
	"crypto/x509"
	"strings"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/internal/pki"
	"gantry/scheduler/membership"
	"gantry/scheduler/state"
)

// TestWhomAStepOfANewCAWaitsFor goes by what hosts and schedulers said, also of those that are away.
func TestWhomAStepOfANewCAWaitsFor(t *testing.T) {
	begun := time.Date(2026, 10, 1, 12, 0, 0, 0, time.UTC)
	old, err := pki.NewCA("c", begun.AddDate(-9, 0, 0))
	if err != nil {
		t.Fatal(err)
	}
	next, err := old.Next(begun)
	if err != nil {
		t.Fatal(err)
	}
	a, b := old.Digest().String(), next.Digest().String()
	host := func(id fleet.HostID, is fleet.HostState, ca string, trusts ...string) *fleet.Host {
		return &fleet.Host{ID: id, State: is, Inventory: fleet.Inventory{Certificate: fleet.NodeCertificate{CA: ca, Trusts: trusts}}}
	}
	hosts := []*fleet.Host{
		host("knows", fleet.HostReady, a, a, b), host("renewed", fleet.HostReady, b, a, b), host("lags", fleet.HostUnreachable, a, a),
		host("silent", fleet.HostJoining, ""), host("gone", fleet.HostGone, a, a),
	}
	scheduler := func(id fleet.MemberID, ca string, trusts ...string) fleet.MemberView {
		return fleet.MemberView{Member: fleet.Member{ID: id}, Certificate: fleet.NodeCertificate{CA: ca, Trusts: trusts}}
	}
	members := []fleet.MemberView{scheduler("m-knows", a, a, b), scheduler("m-renewed", b, a, b), scheduler("m-silent", "")}
	members = append(members, fleet.MemberView{Member: fleet.Member{ID: "m-removed", RemovedAt: begun}})
	spreads := &state.Rotation{Step: fleet.RotationSpreads, BegunAt: begun}
	renews := &state.Rotation{Step: fleet.RotationRenews, BegunAt: begun, SignsAt: begun.Add(time.Hour)}
	for _, tt := range []struct {
		name string
		r    *state.Rotation
		now  time.Time
		want string
		ends time.Time
	}{
		{"none", nil, begun, "", time.Time{}},
		{"spreads", spreads, begun, "lags m-silent silent", time.Time{}},
		{"renews", renews, begun.Add(2 * time.Hour), "knows lags m-knows m-silent silent", renews.SignsAt.Add(membership.CertLife + certMargin)},
		{"hosts' old certificates are over", renews, renews.SignsAt.Add(pki.LeafTTL + certMargin), "m-knows m-silent", renews.SignsAt.Add(membership.CertLife + certMargin)},
		{"all old certificates are over", renews, renews.SignsAt.Add(membership.CertLife + certMargin), "", time.Time{}},
	} {
		cas := []*x509.Certificate{old.Cert()}
		switch tt.r {
		case spreads:
			cas = append(cas, next.Cert())
		case renews:
			cas = []*x509.Certificate{next.Cert(), old.Cert()}
		}
		v := caView(cas, tt.r, hosts, members, nil, tt.now)
		var ids []string
		for _, n := range v.Nodes[:v.Waiting] {
			ids = append(ids, n.ID)
		}
		if got := strings.Join(ids, " "); got != tt.want || !v.EndsBy.Equal(tt.ends) || len(v.Nodes) != 7 || len(v.CAs) != len(cas) {
			t.Errorf("%s: it waits for %q until %v, of %d nodes", tt.name, got, v.EndsBy, len(v.Nodes))
		}
	}
}
