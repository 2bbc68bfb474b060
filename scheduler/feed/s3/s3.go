// Package s3 tells hosts with the role s3 what access keys may do. It answers from the state, and stores nothing; only how
// often each host has asked is in memory. A secret never leaves it, only keys that check the signatures of one day.
package s3

import (
	"crypto/hmac"
	"crypto/sha256"
	"log/slog"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/scheduler/feed/volumes"
	"gantry/scheduler/state"
)

// What a host that serves S3 may ask for: keys of one day either side of the clock, and of zones before and behind it,
// and not more often than it needs for what it keeps.
const (
	dateSlack = 48 * time.Hour
	dateForm  = "20060102"
	perSecond = 100
	burst     = 400
	maxAccess = 64  // bytes of an access key
	maxRegion = 191 // bytes
)

var (
	errNoRole = status.Error(codes.PermissionDenied, "this host does not have the role s3")
	errNoKey  = status.Error(codes.NotFound, "there is no such access key")
)

// Config is what Keys are made from.
type Config struct {
	Store    *state.Store
	Backends volumes.Backends
	// Secret opens the secret of an S3 key pair; nil: there are none.
	Secret func(*fleet.S3Key) (fleet.Secret, error)
	// Grant knows the access keys of links to files of volumes; nil: there are none.
	Grant func(access string) (fleet.VolumeGrant, bool)
	Log   *slog.Logger
}

// Keys answers what hosts ask of access keys. Its methods are safe for concurrent use.
type Keys struct {
	Config
	rates rates
}

// New returns keys of which nobody has asked yet.
func New(c Config) *Keys { return &Keys{Config: c} }

// Admit refuses, before it costs anything, what no signature can be of, and a host that asks too often. Errors: gRPC
// statuses, or those of the state.
func (k *Keys) Admit(host fleet.HostID, in *agentrpc.S3AccessRequest, now time.Time) error {
	if err := check(in, now); err != nil {
		return err
	}
	return k.pace(host, now)
}

// Answer says what an access key may do in the host's data center, with the key that checks signatures of one day and
// region. Errors: as Admit's.
func (k *Keys) Answer(id fleet.HostID, in *agentrpc.S3AccessRequest, now time.Time) (*agentrpc.S3AccessResponse, error) {
	var f found
	if k.Grant != nil {
		if grant, ok := k.Grant(in.GetAccessKey()); ok {
			f.grant = &grant
		}
	}
	err := k.Store.View(func(v *state.View) error {
		host, ok := v.Host(id)
		switch {
		case !ok || host.State == fleet.HostGone || !host.Has(fleet.RoleS3):
			return errNoRole
		case !strings.EqualFold(in.GetRegion(), string(host.DataCenter)):
			return status.Error(codes.InvalidArgument, "the region is not this host's data center")
		}
		return f.look(v, in.GetAccessKey(), host.DataCenter, now)
	})
	if err != nil {
		return nil, err
	}
	return k.encode(&f, in)
}

// paceS3 refuses a host that asks too often, before it costs anything. Hosts without the role share what one may ask.
func (k *Keys) pace(id fleet.HostID, now time.Time) error {
	err := k.Store.View(func(v *state.View) error {
		if host, ok := v.Host(id); !ok || !host.Has(fleet.RoleS3) {
			id = ""
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case !k.rates.allow(id, now):
		return status.Error(codes.ResourceExhausted, "this host asks for too many access keys")
	}
	return nil
}

// check refuses what no signature can be of.
func check(in *agentrpc.S3AccessRequest, now time.Time) error {
	date, err := time.Parse(dateForm, in.GetDate())
	switch {
	case err != nil || date.Sub(now) > dateSlack || now.Sub(date) > dateSlack+24*time.Hour: // it began then
		return status.Error(codes.InvalidArgument, "the date is not one of these days")
	case in.GetAccessKey() == "" || len(in.GetAccessKey()) > maxAccess:
		return errNoKey
	case len(in.GetRegion()) > maxRegion:
		return status.Error(codes.InvalidArgument, "the region is too long")
	}
	return nil
}

// found is what the state has of an access key.
type found struct {
	key      fleet.S3Key
	grant    *fleet.VolumeGrant // nil: key is one of the state
	volumes  []fleet.Volume
	backends map[fleet.BackendID]fleet.Backend
}

func (f *found) look(v *state.View, access string, center fleet.DataCenterID, now time.Time) error {
	var ok bool
	if f.key, ok = state.Find[fleet.S3Key](v, access); f.grant != nil {
		f.key, ok = fleet.S3Key{ID: access, Account: f.grant.Account, ReadOnly: f.grant.ReadOnly, ExpiresAt: f.grant.ExpiresAt}, true
	}
	if owner, known := v.Account(f.key.Account); !ok || !known || owner.Suspended != nil || !f.key.ExpiresAt.IsZero() && !now.Before(f.key.ExpiresAt) {
		return errNoKey
	}
	f.backends = map[fleet.BackendID]fleet.Backend{}
	for _, volume := range v.VolumesOf(f.key.Account) {
		if volume.DataCenter != center || volume.State != fleet.VolumeReady || f.grant != nil && volume.ID != f.grant.Volume {
			continue
		}
		f.volumes = append(f.volumes, volume)
		if b, ok := v.Backend(volume.Backend); ok {
			f.backends[b.ID] = b
		}
	}
	return nil
}

func (k *Keys) encode(f *found, in *agentrpc.S3AccessRequest) (*agentrpc.S3AccessResponse, error) {
	if k.Secret == nil {
		return nil, errNoKey
	}
	secret, err := k.secret(f)
	if err != nil {
		k.Log.Error("open the secret of an S3 key", "account", f.key.Account, "err", err)
		return nil, status.Error(codes.Internal, "internal error")
	}
	out := &agentrpc.S3AccessResponse{
		AccountId: string(f.key.Account), ReadOnly: f.key.ReadOnly,
		SigningKey: signingKey(secret, in.GetDate(), in.GetRegion()),
	}
	if !f.key.ExpiresAt.IsZero() {
		out.ExpiresNs = f.key.ExpiresAt.UnixNano()
	}
	opened := map[fleet.BackendID]*agentrpc.VolumeBackend{}
	for id := range f.backends {
		b := f.backends[id]
		opened[id] = k.Backends.Open(&b, false)
	}
	for i := range f.volumes {
		volume := &f.volumes[i]
		if backend := opened[volume.Backend]; backend != nil {
			out.Volumes = append(out.Volumes, &agentrpc.S3Volume{
				Volume: volumes.EncodeVolume(volume, backend), Name: volume.Name, CreatedNs: volume.CreatedAt.UnixNano(), SizeGb: int64(volume.SizeGB),
			})
		}
	}
	return out, nil
}

func (k *Keys) secret(f *found) (fleet.Secret, error) {
	if f.grant != nil {
		return f.grant.Secret, nil
	}
	return k.Secret(&f.key)
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
		b = bucket{left: burst, at: now}
	}
	if now.After(b.at) {
		b.left, b.at = min(burst, b.left+now.Sub(b.at).Seconds()*perSecond), now
	}
	ok := b.left >= 1
	if ok {
		b.left--
	}
	r.buckets[id] = b
	return ok
}
