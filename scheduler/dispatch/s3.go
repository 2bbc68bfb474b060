package dispatch

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gantry/fleet"
	"gantry/internal/link"
	"gantry/internal/pki"
	"gantry/scheduler/state"
)

// What a host that serves S3 may ask for: keys of one day either side of the clock, and of zones before and behind it,
// and not more often than it needs for what it keeps.
const (
	s3DateSlack = 48 * time.Hour
	s3DateForm  = "20060102"
	s3PerSecond = 100
	s3Burst     = 400
	maxAccess   = 64  // bytes of an access key
	maxRegion   = 191 // bytes
)

var (
	errNoS3Role = status.Error(codes.PermissionDenied, "this host does not have the role s3")
	errNoS3Key  = status.Error(codes.NotFound, "there is no such access key")
)

// S3Access implements link.LinkServer: it tells a host with the role s3 what an access key may do in the host's data
// center, and gives it the key that checks signatures of one day and region, never the secret.
func (s *Server) S3Access(ctx context.Context, in *link.S3AccessRequest) (*link.S3AccessResponse, error) {
	who, err := link.PeerIdentity(ctx)
	if err != nil || who.Role != pki.RoleHost {
		return nil, status.Error(codes.PermissionDenied, "a host certificate is needed")
	}
	if !s.Node.IsLeader() {
		return nil, s.notLeader(ctx)
	}
	now := time.Now()
	if err := checkS3Access(in, now); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, proposeTimeout)
	defer cancel()
	if err := s.paceS3(fleet.HostID(who.ID), now); err != nil {
		return nil, err
	}
	if err := s.Node.Barrier(ctx); err != nil {
		return nil, grpcError(err)
	}
	var found s3Found
	err = s.Store.View(func(v *state.View) error {
		host, ok := v.Host(fleet.HostID(who.ID))
		switch {
		case !ok || host.State == fleet.HostGone || !host.Has(fleet.RoleS3):
			return errNoS3Role
		case !strings.EqualFold(in.GetRegion(), string(host.DataCenter)):
			return status.Error(codes.InvalidArgument, "the region is not this host's data center")
		}
		return found.look(v, in.GetAccessKey(), host.DataCenter, now)
	})
	if err != nil {
		return nil, grpcOrStatus(err)
	}
	return s.answerS3(&found, in)
}

// paceS3 refuses a host that asks too often, before it costs anything. Hosts without the role share what one may ask.
func (s *Server) paceS3(id fleet.HostID, now time.Time) error {
	err := s.Store.View(func(v *state.View) error {
		if host, ok := v.Host(id); !ok || !host.Has(fleet.RoleS3) {
			id = ""
		}
		return nil
	})
	switch {
	case err != nil:
		return grpcError(err)
	case !s.s3Rates.allow(id, now):
		return status.Error(codes.ResourceExhausted, "this host asks for too many access keys")
	}
	return nil
}

// checkS3Access refuses what no signature can be of.
func checkS3Access(in *link.S3AccessRequest, now time.Time) error {
	date, err := time.Parse(s3DateForm, in.GetDate())
	switch {
	case err != nil || date.Sub(now) > s3DateSlack || now.Sub(date) > s3DateSlack+24*time.Hour: // it began then
		return status.Error(codes.InvalidArgument, "the date is not one of these days")
	case in.GetAccessKey() == "" || len(in.GetAccessKey()) > maxAccess:
		return errNoS3Key
	case len(in.GetRegion()) > maxRegion:
		return status.Error(codes.InvalidArgument, "the region is too long")
	}
	return nil
}

// s3Found is what the state has of an access key.
type s3Found struct {
	key      fleet.S3Key
	volumes  []fleet.Volume
	backends map[fleet.BackendID]fleet.Backend
}

func (f *s3Found) look(v *state.View, access string, center fleet.DataCenterID, now time.Time) error {
	var ok bool
	f.key, ok = v.S3Key(access)
	if owner, _ := v.Account(f.key.Account); !ok || owner.Suspended != nil || !f.key.ExpiresAt.IsZero() && !now.Before(f.key.ExpiresAt) {
		return errNoS3Key
	}
	f.backends = map[fleet.BackendID]fleet.Backend{}
	for _, volume := range v.VolumesOf(f.key.Account) {
		if volume.DataCenter != center || volume.State != fleet.VolumeReady {
			continue
		}
		f.volumes = append(f.volumes, volume)
		if b, ok := v.Backend(volume.Backend); ok {
			f.backends[b.ID] = b
		}
	}
	return nil
}

func (s *Server) answerS3(found *s3Found, in *link.S3AccessRequest) (*link.S3AccessResponse, error) {
	if s.S3Secret == nil {
		return nil, errNoS3Key
	}
	secret, err := s.S3Secret(&found.key)
	if err != nil {
		s.Log.Error("open the secret of an S3 key", "account", found.key.Account, "err", err)
		return nil, status.Error(codes.Internal, "internal error")
	}
	out := &link.S3AccessResponse{
		AccountId: string(found.key.Account), ReadOnly: found.key.ReadOnly,
		SigningKey: signingKey(secret, in.GetDate(), in.GetRegion()),
	}
	if !found.key.ExpiresAt.IsZero() {
		out.ExpiresNs = found.key.ExpiresAt.UnixNano()
	}
	opened := map[fleet.BackendID]*link.VolumeBackend{}
	for id := range found.backends {
		b := found.backends[id]
		opened[id] = s.openBackend(&b, false)
	}
	for i := range found.volumes {
		volume := &found.volumes[i]
		if backend := opened[volume.Backend]; backend != nil {
			out.Volumes = append(out.Volumes, &link.S3Volume{
				Volume: encodeVolume(volume, backend), Name: volume.Name, CreatedNs: volume.CreatedAt.UnixNano(), SizeGb: int64(volume.SizeGB),
			})
		}
	}
	return out, nil
}

// signingKey derives the key of AWS Signature Version 4 for one day and region of the service s3.
func signingKey(secret fleet.Secret, date, region string) []byte {
	key := []byte("AWS4" + secret.Reveal())
	for _, part := range []string{date, region, "s3", "aws4_request"} {
		mac := hmac.New(sha256.New, key)
		_, _ = mac.Write([]byte(part)) // a hash never fails
		key = mac.Sum(nil)
	}
	return key
}

// rates bounds how often hosts may ask. Only hosts that had the role are in it, and one for all others.
type rates struct {
	mu      sync.Mutex // guards the field below
	buckets map[fleet.HostID]bucket
}

// bucket is how much a host may ask, as of a time.
type bucket struct {
	left float64
	at   time.Time
}

// allow takes one from a host's bucket, unless it is empty.
func (r *rates) allow(id fleet.HostID, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.buckets == nil {
		r.buckets = map[fleet.HostID]bucket{}
	}
	b, known := r.buckets[id]
	if !known {
		b = bucket{left: s3Burst, at: now}
	}
	if now.After(b.at) {
		b.left, b.at = min(s3Burst, b.left+now.Sub(b.at).Seconds()*s3PerSecond), now
	}
	ok := b.left >= 1
	if ok {
		b.left--
	}
	r.buckets[id] = b
	return ok
}
