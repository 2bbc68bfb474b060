package scheduler

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"time"

	"gantry/fleet"
	"gantry/internal/pki"
	"gantry/scheduler/dispatch"
	"gantry/scheduler/state"
)

// Config is what a Service is made from.
type Config struct {
	Store    *state.Store
	Node     dispatch.Proposer
	Dispatch Hosts
	Sealer   *pki.Sealer
	Log      *slog.Logger
	Now      func() time.Time // nil: time.Now
}

// Hosts reaches the hosts through their sessions; see dispatch.Server.
type Hosts interface {
	// Live returns what the pod's host last said of it; nil when it is not heard.
	Live(host fleet.HostID, pod fleet.PodID) *fleet.Live
	Logs(ctx context.Context, host fleet.HostID, pod fleet.PodID, q fleet.LogQuery, sink fleet.LogSink) error
	OpenPort(ctx context.Context, host fleet.HostID, pod fleet.PodID, port int) (fleet.Stream, error)
	Exec(ctx context.Context, host fleet.HostID, pod fleet.PodID, req fleet.ExecRequest) (fleet.ExecSession, error)
	ReadFiles(ctx context.Context, host fleet.HostID, pod fleet.PodID, path string) (io.ReadCloser, error)
	WriteFiles(ctx context.Context, host fleet.HostID, pod fleet.PodID, path string, tar io.Reader) error
}

// Service serves accounts and operators. Its methods are safe for concurrent use; every call that
// changes something answers after the commit.
type Service struct{ Config }

// New returns a service.
func New(c Config) *Service {
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Service{c}
}

const (
	proposeTimeout = 10 * time.Second
	staleTries     = 16 // picks on a fresh view before a request gives up
	purposeAPIKey  = "api key"
	purposeCAKey   = "ca key"
)

// read runs fn on a view that is at least as new as every write acknowledged before the call.
func (s *Service) read(ctx context.Context, fn func(v *state.View) error) error {
	if err := s.Node.Barrier(ctx); err != nil {
		return err
	}
	return s.Store.View(fn)
}

// propose commits one command and returns its value.
func propose[T any](ctx context.Context, s *Service, cmd state.Command) (T, error) {
	var zero T
	ctx, cancel := context.WithTimeout(ctx, proposeTimeout)
	defer cancel()
	res, err := s.Node.Propose(ctx, cmd)
	if err != nil {
		return zero, err
	}
	if res[0].Err != nil {
		return zero, res[0].Err
	}
	value, ok := res[0].Value.(T)
	if !ok && res[0].Value != nil {
		return zero, errors.New("a command gave a value of an unexpected type")
	}
	return value, nil
}

// untilFresh repeats a decision while it turns out to have been made on an old view.
func untilFresh[T any](ctx context.Context, decide func() (T, error)) (T, error) {
	var value T
	var err error
	for range staleTries {
		value, err = decide()
		if fleet.CodeOf(err) != fleet.CodeStale || ctx.Err() != nil {
			return value, err
		}
	}
	return value, fleet.Unavailable("the fleet changes too quickly to decide", err)
}

// Authenticate returns who holds the key.
func (s *Service) Authenticate(ctx context.Context, key fleet.Secret) (fleet.Principal, error) {
	refused := &fleet.Error{Code: fleet.CodeUnauthorized, Msg: "invalid bearer token"}
	if !fleet.ValidAPIKey(key.Reveal()) {
		return fleet.Principal{}, refused
	}
	hash, err := s.Sealer.MAC(purposeAPIKey, []byte(key.Reveal()))
	if err != nil {
		return fleet.Principal{}, err
	}
	var found fleet.Key
	var ok bool
	err = s.read(ctx, func(v *state.View) error {
		found, ok = v.KeyByHash(hash[:])
		return nil
	})
	if err != nil {
		return fleet.Principal{}, err
	}
	if !ok || (!found.ExpiresAt.IsZero() && !time.Now().Before(found.ExpiresAt)) {
		return fleet.Principal{}, refused
	}
	return fleet.Principal{Key: found.ID, Account: found.Account, Can: found.Can}, nil
}

// CreateKey makes a key of the caller's account. It can do no more than the caller's own.
func (s *Service) CreateKey(
	ctx context.Context, who fleet.Principal, req fleet.KeyRequest,
) (fleet.Key, fleet.Secret, error) {
	name, preset, expires := req.Name, req.Preset, req.ExpiresAt
	can, ok := fleet.Preset(preset)
	if !ok || preset == "admin" {
		return fleet.Key{}, "", fleet.Invalid("$.preset", "value must be one of 'all', 'readOnly'")
	}
	for group, access := range can {
		if !who.May(group, access) {
			return fleet.Key{}, "", &fleet.Error{Code: fleet.CodeForbidden, Msg: "access denied"}
		}
	}
	if !expires.IsZero() && !expires.After(time.Now()) {
		return fleet.Key{}, "", fleet.Invalid("$.expiresAt", "must be in the future")
	}
	return s.newKey(ctx, who.Account, name, can, expires)
}

func (s *Service) newKey(
	ctx context.Context, account fleet.AccountID, name string, can map[fleet.Group]fleet.Access, expires time.Time,
) (fleet.Key, fleet.Secret, error) {
	key, secret, err := NewKey(s.Sealer, account, name, can, time.Now())
	if err != nil {
		return fleet.Key{}, "", err
	}
	key.ExpiresAt = expires
	if _, err := propose[any](ctx, s, state.PutKey{Key: key}); err != nil {
		return fleet.Key{}, "", err
	}
	return key, secret, nil
}

// NewKey makes the record and the secret text of a new key.
func NewKey(
	sealer *pki.Sealer, account fleet.AccountID, name string, can map[fleet.Group]fleet.Access, now time.Time,
) (fleet.Key, fleet.Secret, error) {
	secret := fleet.NewAPIKey()
	hash, err := sealer.MAC(purposeAPIKey, []byte(secret.Reveal()))
	if err != nil {
		return fleet.Key{}, "", err
	}
	return fleet.Key{
		ID: fleet.KeyID(fleet.NewID()), Account: account, Name: name, Hint: fleet.KeyHint(secret),
		Hash: hash[:], Can: can, CreatedAt: now,
	}, secret, nil
}

// Keys lists the keys of the caller's account.
func (s *Service) Keys(ctx context.Context, who fleet.Principal) ([]fleet.Key, error) {
	var out []fleet.Key
	err := s.read(ctx, func(v *state.View) error { out = v.Keys(who.Account); return nil })
	return out, err
}

// DeleteKey revokes a key of the caller's account at once.
func (s *Service) DeleteKey(ctx context.Context, who fleet.Principal, id fleet.KeyID) error {
	_, err := propose[any](ctx, s, state.DeleteKey{Account: who.Account, Key: id})
	return err
}
