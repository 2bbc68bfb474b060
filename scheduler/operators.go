package scheduler

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"gantry/fleet"
	"gantry/internal/pki"
	"gantry/scheduler/state"
)

const (
	purposeCAKey    = "ca key"
	defaultTokenTTL = 15 * time.Minute
	maxTokenTTL     = 30 * 24 * time.Hour
)

// Hosts lists every host, for some days those that are gone, too.
func (s *Service) Hosts(ctx context.Context) ([]fleet.HostView, error) {
	var rows []*fleet.Host
	if err := s.read(ctx, func(v *state.View) error { rows = v.HostRows(); return nil }); err != nil {
		return nil, err
	}
	slices.SortFunc(rows, func(a, b *fleet.Host) int { return cmp.Compare(a.ID, b.ID) })
	out := make([]fleet.HostView, 0, len(rows))
	err := inPieces(s, rows, func(v *state.View, h *fleet.Host) {
		if view, ok := v.HostUsage(h.ID); ok {
			out = append(out, view)
		}
	})
	return out, err
}

// Host returns one host, which may be gone.
func (s *Service) Host(ctx context.Context, id fleet.HostID) (fleet.HostView, error) {
	var out fleet.HostView
	err := s.read(ctx, func(v *state.View) error {
		var ok bool
		if out, ok = v.HostUsage(id); !ok {
			return fleet.NotFound("host")
		}
		return nil
	})
	return out, err
}

// SetHostCloud moves a host to another tier; pods that are on it stay. Errors: not_found, invalid.
func (s *Service) SetHostCloud(ctx context.Context, id fleet.HostID, cloud fleet.Cloud) (fleet.HostView, error) {
	if cloud != fleet.CloudSecure && cloud != fleet.CloudCommunity {
		return fleet.HostView{}, fleet.Invalid("$.cloud", "value must be one of 'SECURE', 'COMMUNITY'")
	}
	if _, err := propose[any](ctx, s, state.SetHostCloud{Host: id, Cloud: cloud}); err != nil {
		return fleet.HostView{}, err
	}
	s.Log.Info("host moved to another tier", "host", id, "cloud", cloud)
	return s.Host(ctx, id)
}

// CreateJoinToken returns the text of a token with which one host can join, once.
func (s *Service) CreateJoinToken(
	ctx context.Context, dc fleet.DataCenterID, cloud fleet.Cloud, ttl time.Duration,
) (fleet.Secret, time.Time, error) {
	if cloud == "" {
		cloud = fleet.CloudSecure
	}
	return s.createToken(ctx, fleet.JoinToken{DataCenter: dc, Cloud: cloud}, ttl, defaultTokenTTL)
}

// createToken makes a token that lets one node join as t says, for ttl, or else for as long as is standard.
func (s *Service) createToken(ctx context.Context, t fleet.JoinToken, ttl, standard time.Duration) (fleet.Secret, time.Time, error) {
	switch {
	case ttl == 0:
		ttl = standard
	case ttl < 0 || ttl > maxTokenTTL:
		return "", time.Time{}, fleet.Invalid("$.ttlSeconds", "must be 1 second to 30 days")
	}
	ca, err := s.CA(ctx)
	if err != nil {
		return "", time.Time{}, err
	}
	token := pki.NewJoinToken(ca.Digest())
	hash := pki.Hash(token.Secret)
	now := s.Now()
	t.ID, t.Hash, t.ExpiresAt = token.ID, hash[:], now.Add(ttl)
	if _, err = propose[any](ctx, s, state.PutToken{At: now, Token: t}); err != nil {
		return "", time.Time{}, err
	}
	return fleet.Secret(token.Text()), t.ExpiresAt, nil
}

// CA opens the cluster's CA.
func (s *Service) CA(ctx context.Context) (*pki.CA, error) {
	var cluster state.Cluster
	var ok bool
	err := s.read(ctx, func(v *state.View) error { cluster, ok = v.Cluster(); return nil })
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, errNoCA
	}
	if o := s.opened.Load(); o != nil && bytes.Equal(o.cert, cluster.CA) && bytes.Equal(o.sealed, cluster.SealedCAKey) {
		return o.ca, nil
	}
	ca, err := OpenCA(s.Sealer, cluster)
	if err != nil {
		return nil, err
	}
	s.opened.Store(&openedCA{cluster.CA, cluster.SealedCAKey, ca})
	return ca, nil
}

// openedCA is a CA that was opened before, with what it was made from: each host that joins needs it.
type openedCA struct {
	cert, sealed []byte
	ca           *pki.CA
}

// OpenCA opens the CA of a cluster's record.
func OpenCA(sealer *pki.Sealer, cluster state.Cluster) (*pki.CA, error) {
	key, err := sealer.Open(purposeCAKey, cluster.SealedCAKey)
	if err != nil {
		return nil, err
	}
	return pki.ParseCA(cluster.CA, key)
}

// Bootstrap is the command that makes a cluster with the CA.
func Bootstrap(sealer *pki.Sealer, ca *pki.CA, now time.Time) (state.Bootstrap, error) {
	key, err := ca.EncodeKey()
	if err != nil {
		return state.Bootstrap{}, err
	}
	sealed, err := sealer.Seal(purposeCAKey, key)
	if err != nil {
		return state.Bootstrap{}, err
	}
	return state.Bootstrap{
		ClusterID: ca.ClusterID(), CA: pki.EncodeCert(ca.Cert()), SealedCAKey: sealed, Catalog: DefaultCatalog(), At: now,
		Level: state.Level,
	}, nil
}

// errNoCA says that the cluster was not bootstrapped.
var errNoCA = errors.New("the cluster has no CA: it was not initialised")
