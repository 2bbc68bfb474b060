package scheduler

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"gantry/fleet"
	"gantry/internal/pki"
	"gantry/scheduler/state"
)

const (
	purposeAPIKey = "api key"

	maxKeyUses    = 200_000 // keys whose last use is kept in memory
	touchedAtOnce = 10_000  // keys of one command; 90,000 are above what a command may hold
)

// keyUses is when keys were last used, since this scheduler leads; of at most maxKeyUses keys.
type keyUses struct {
	mu   sync.Mutex // guards the fields below
	last map[fleet.KeyID]keyUse
}

// keyUse is one key's last use and the one that is on record; zero: none that is known here.
type keyUse struct{ seen, recorded time.Time }

func (u *keyUses) touch(id fleet.KeyID, at time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.last == nil {
		u.last = map[fleet.KeyID]keyUse{}
	}
	use, known := u.last[id]
	if !known && len(u.last) >= maxKeyUses {
		for other := range u.last { // any one; its next use is recorded again
			delete(u.last, other)
			break
		}
	}
	if at.After(use.seen) {
		use.seen = at
		u.last[id] = use
	}
}

// due returns the uses that are to be recorded, and forgets keys that were not used for a while.
func (u *keyUses) due(now time.Time) map[fleet.KeyID]time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	out := map[fleet.KeyID]time.Time{}
	for id, use := range u.last {
		switch {
		case use.seen.Sub(use.recorded) >= keyUseEvery:
			out[id] = use.seen
		case now.Sub(use.seen) > keyUseEvery:
			delete(u.last, id)
		}
	}
	return out
}

func (u *keyUses) recorded(uses map[fleet.KeyID]time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for id, at := range uses {
		if use, ok := u.last[id]; ok {
			use.recorded = at
			u.last[id] = use
		}
	}
}

// FlushKeyUse records when keys were last used, of those whose recorded use is a minute old or more. What is
// recorded when it fails stays so.
func (s *Service) FlushKeyUse(ctx context.Context) error {
	due := s.uses.due(s.Now())
	for ids := range slices.Chunk(slices.Sorted(maps.Keys(due)), touchedAtOnce) {
		piece := make(map[fleet.KeyID]time.Time, len(ids))
		for _, id := range ids {
			piece[id] = due[id]
		}
		if _, err := propose[any](ctx, s, state.TouchKeys{Used: piece}); err != nil {
			return err
		}
		s.uses.recorded(piece)
	}
	return nil
}

// Authenticate returns who holds the key: an account's, or a pod's own while that is not terminated. Unknown
// and disabled keys are the same: unauthorized; one whose time is over is fleet.ErrKeyEnded, and one of an account that is
// suspended, or of its pods, account_suspended.
func (s *Service) Authenticate(ctx context.Context, key fleet.Secret) (fleet.Principal, error) {
	who, err := s.holder(key, func(fn func(*state.View) error) error { return s.read(ctx, fn) })
	if err == nil {
		fleet.MarkFresh(ctx, fleet.ControlPlane)
	}
	if err == nil && who.Key != "" {
		s.uses.touch(who.Key, s.Now())
	}
	return who, err
}

// KnownKey is Authenticate by what this scheduler has, which may be of a moment ago. It waits for no other
// scheduler, and does not count as a use of the key.
func (s *Service) KnownKey(key fleet.Secret) (fleet.Principal, bool) {
	who, err := s.holder(key, s.Store.View)
	return who, err == nil
}

// holder returns who holds a key in what view shows.
func (s *Service) holder(key fleet.Secret, view func(func(*state.View) error) error) (fleet.Principal, error) {
	refused := &fleet.Error{Code: fleet.CodeUnauthorized, Msg: "invalid bearer token"}
	if !fleet.ValidAPIKey(key.Reveal()) {
		return fleet.Principal{}, refused
	}
	hash, err := s.Sealer.MAC(purposeAPIKey, []byte(key.Reveal()))
	if err != nil {
		return fleet.Principal{}, err
	}
	var found fleet.Key
	var owner fleet.Account
	var who fleet.Principal
	var there, ok bool
	err = view(func(v *state.View) error {
		if found, there = v.KeyByHash(hash[:]); there {
			owner, ok = v.Account(found.Account)
			who = fleet.Principal{Key: found.ID, Account: found.Account, Can: found.Can, Invoke: found.Invoke, Quotas: owner.Quotas}
			var may bool
			who, may = narrowed(v, &found, who)
			ok = ok && may
		}
		return nil
	})
	if err != nil {
		return fleet.Principal{}, err
	}
	if !there {
		for _, of := range []func(fleet.Secret, func(func(*state.View) error) error) (fleet.Principal, bool, error){s.authenticatePod, s.authenticatePerson} {
			if who, ok, err := of(key, view); err != nil || ok {
				return who, err
			}
		}
		return fleet.Principal{}, refused
	}
	switch {
	case !ok || found.Disabled:
		return fleet.Principal{}, refused
	case !found.ExpiresAt.IsZero() && !s.Now().Before(found.ExpiresAt):
		return fleet.Principal{}, fleet.ErrKeyEnded
	case owner.Suspended != nil:
		return fleet.Principal{}, owner.Suspended.Refusal()
	}
	return who, nil
}

// CreateKey makes a key of the caller's account. It can do no more than the caller's own, and no longer: a
// key that expires makes none that does not expire, or later (forbidden; it is refused rather than cut short,
// so that a key is never another than was asked for). Endpoints that the request does not speak of are the
// caller's, when the preset is "all".
func (s *Service) CreateKey(
	ctx context.Context, who fleet.Principal, req fleet.KeyRequest,
) (fleet.Key, fleet.Secret, error) {
	if req.Preset == "admin" || req.Preset == "adminReadOnly" {
		return fleet.Key{}, "", fleet.Invalid("$.preset", "value must be one of 'all', 'readOnly', 'restricted'")
	}
	can, err := permissions(req, fleet.Groups())
	if err != nil {
		return fleet.Key{}, "", err
	}
	for _, group := range slices.Sorted(maps.Keys(can)) {
		if !who.May(group, can[group]) {
			return fleet.Key{}, "", fleet.Forbidden(fmt.Sprintf("this key lacks %s:%s, which the new key would have", group, can[group]))
		}
	}
	var own fleet.Key
	err = s.read(ctx, func(v *state.View) error { own, _ = v.Key(who.Key); return nil })
	if err != nil {
		return fleet.Key{}, "", err
	}
	if who.Person != "" {
		own.Invoke = who.Invoke // by the role
	}
	if req.Invoke == nil && invokesAll(req) {
		req.Invoke = own.Invoke
	}
	switch {
	case !covers(own.Invoke, req.Invoke):
		return fleet.Key{}, "", fleet.Forbidden("the new key would submit jobs to endpoints that this key may not")
	case outlives(req.ExpiresAt, own.ExpiresAt):
		return fleet.Key{}, "", fleet.Forbidden("the new key would outlive this key")
	}
	return s.newKey(ctx, who.Account, req, can)
}

// CreateAccountKey makes a key of an account on an operator's word.
func (s *Service) CreateAccountKey(
	ctx context.Context, account fleet.AccountID, req fleet.KeyRequest,
) (fleet.Key, fleet.Secret, error) {
	can, err := permissions(req, append(fleet.Groups(), fleet.GroupAdmin))
	if err != nil {
		return fleet.Key{}, "", err
	}
	if req.Invoke == nil && invokesAll(req) {
		req.Invoke = []string{fleet.InvokeAll}
	}
	return s.newKey(ctx, account, req, can)
}

// permissions returns what a requested key may do; it may name the known groups.
func permissions(req fleet.KeyRequest, known []fleet.Group) (map[fleet.Group]fleet.Access, error) {
	can, ok := fleet.Preset(presetOf(req))
	if !ok {
		return nil, fleet.Invalid("$.preset", "value must be one of 'all', 'readOnly', 'restricted', 'admin', 'adminReadOnly'")
	}
	for group, access := range req.Can {
		switch {
		case !slices.Contains(known, group):
			return nil, fleet.Invalid("$.permissions", "names a group that does not exist")
		case access == fleet.AccessNone:
			delete(can, group)
		case access == fleet.AccessRead || access == fleet.AccessWrite:
			can[group] = access
		default:
			return nil, fleet.Invalid("$.permissions", "an access must be one of 'none', 'read', 'write'")
		}
	}
	if len(req.Invoke) > 1 && slices.Contains(req.Invoke, fleet.InvokeAll) {
		return nil, fleet.Invalid("$.invoke", "must be 'all' or a list of endpoints")
	}
	return can, nil
}

// presetOf is the preset that a request means: none stands for "restricted" where it lists permissions
// of its own, and for "all" where it does not.
func presetOf(req fleet.KeyRequest) string {
	switch {
	case req.Preset != "":
		return req.Preset
	case req.Can != nil:
		return "restricted"
	}
	return "all"
}

func invokesAll(req fleet.KeyRequest) bool { return presetOf(req) == "all" }

// covers reports whether who may submit jobs to the endpoints of own may do so to those of wanted.
func covers(own, wanted []string) bool {
	if slices.Contains(own, fleet.InvokeAll) {
		return true
	}
	return !slices.ContainsFunc(wanted, func(id string) bool { return !slices.Contains(own, id) })
}

// outlives reports whether a key that expires at end outlives one that does at other; zero: never.
func outlives(end, other time.Time) bool {
	return !other.IsZero() && (end.IsZero() || end.After(other))
}

func (s *Service) newKey(
	ctx context.Context, account fleet.AccountID, req fleet.KeyRequest, can map[fleet.Group]fleet.Access,
) (fleet.Key, fleet.Secret, error) {
	now := s.Now()
	if !req.ExpiresAt.IsZero() && !req.ExpiresAt.After(now) {
		return fleet.Key{}, "", fleet.Invalid("$.expiresAt", "must be in the future")
	}
	key, secret, err := NewKey(s.Sealer, account, req.Name, can, now)
	if err != nil {
		return fleet.Key{}, "", err
	}
	key.Person, key.Device = req.Person, req.Device
	key.ExpiresAt, key.Invoke = req.ExpiresAt, slices.Compact(slices.Sorted(slices.Values(req.Invoke)))
	if _, err := propose[any](ctx, s, state.PutKey{Key: key}); err != nil {
		return fleet.Key{}, "", err
	}
	return key, secret, nil
}

// NewKey makes the record and the secret text of a new key, which may submit jobs to no endpoint.
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

// Key returns a key of the caller's account.
func (s *Service) Key(ctx context.Context, who fleet.Principal, id fleet.KeyID) (fleet.Key, error) {
	var out fleet.Key
	err := s.read(ctx, func(v *state.View) error {
		var ok bool
		if out, ok = v.Key(id); !ok || out.Account != who.Account {
			out = fleet.Key{}
			return fleet.NotFound("key")
		}
		return nil
	})
	return out, err
}

// UpdateKey renames, disables or enables a key of the caller's account. The key that makes the request
// cannot disable itself (not_allowed): who locks themselves out by a slip would need an operator.
func (s *Service) UpdateKey(
	ctx context.Context, who fleet.Principal, id fleet.KeyID, change fleet.KeyUpdate,
) (fleet.Key, error) {
	if id == who.Key && change.Disabled != nil && *change.Disabled {
		return fleet.Key{}, fleet.NotAllowed("a key cannot disable itself")
	}
	return propose[fleet.Key](ctx, s, state.UpdateKey{
		Account: who.Account, Key: id, Name: change.Name, Disabled: change.Disabled,
	})
}

// DeleteKey revokes a key of the caller's account at once.
func (s *Service) DeleteKey(ctx context.Context, who fleet.Principal, id fleet.KeyID) error {
	_, err := propose[any](ctx, s, state.DeleteKey{Account: who.Account, Key: id})
	return err
}
