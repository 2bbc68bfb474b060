package scheduler

import (
	"context"
	"strings"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// purposeRegistry is the kind of sealed credentials; see sealPurpose.
const purposeRegistry = "registry credential"

// CreateRegistry makes a registry credential of the caller's account; replayed tells that once was seen before.
func (s *Service) CreateRegistry(
	ctx context.Context, who fleet.Principal, name string, cred fleet.Credential, once *fleet.Once,
) (made fleet.Registry, replayed bool, err error) {
	r := fleet.Registry{ID: fleet.RegistryID(fleet.NewID()), Account: who.Account, Name: name, CreatedAt: s.Now()}
	if r, err = s.withCredential(r, cred); err != nil {
		return fleet.Registry{}, false, err
	}
	return writeRecord(ctx, s, who, r.ID, r, once)
}

// UpdateRegistry gives a registry credential of the caller's account another user name and password, which count from the next pull on.
// Errors: not_found.
func (s *Service) UpdateRegistry(ctx context.Context, who fleet.Principal, id fleet.RegistryID, cred fleet.Credential) (fleet.Registry, error) {
	return untilFresh(ctx, func() (fleet.Registry, error) {
		r, err := s.Registry(ctx, who, id)
		if err == nil {
			r, err = s.withCredential(r, cred)
		}
		if err == nil {
			r, _, err = writeRecord(ctx, s, who, id, r, nil)
		}
		return r, err
	})
}

func (s *Service) withCredential(r fleet.Registry, cred fleet.Credential) (_ fleet.Registry, err error) {
	plain := cred.Username + "\x00" + cred.Password.Reveal() // no user name has a NUL
	r.Sealed, err = s.Sealer.Seal(sealPurpose(purposeRegistry, r.Account, string(r.ID)), []byte(plain))
	return r, err
}

// Credentials opens a registry credential of an account, for the host of a pod that uses it. Errors: not_found; it
// cannot be opened.
func (s *Service) Credentials(account fleet.AccountID, id fleet.RegistryID) (*fleet.Credential, error) {
	plain, err := openRecord(s, account, id, purposeRegistry, func(r fleet.Registry) []byte { return r.Sealed })
	if err != nil {
		return nil, err
	}
	username, password, _ := strings.Cut(string(plain), "\x00")
	return &fleet.Credential{Username: username, Password: fleet.Secret(password)}, nil
}

// Registries lists the registry credentials of the caller's account, oldest first.
func (s *Service) Registries(ctx context.Context, who fleet.Principal) ([]fleet.Registry, error) {
	return recordsOf[fleet.Registry](ctx, s, who)
}

// Registry returns a registry credential of the caller's account.
func (s *Service) Registry(ctx context.Context, who fleet.Principal, id fleet.RegistryID) (fleet.Registry, error) {
	return record[fleet.Registry](ctx, s, who, id)
}

// DeleteRegistry deletes a registry credential of the caller's account. Errors: not_found, in_use (a template or a pod
// that is not terminated uses it).
func (s *Service) DeleteRegistry(ctx context.Context, who fleet.Principal, id fleet.RegistryID) error {
	return deleteRecord[fleet.Registry](ctx, s, who, id)
}

// knownRegistry refuses a registry credential that is not the account's; none is fine.
func knownRegistry(v *state.View, account fleet.AccountID, id fleet.RegistryID) error {
	if id == "" {
		return nil
	}
	if _, err := state.Get[fleet.Registry](v, account, id); err != nil {
		return noRegistry()
	}
	return nil
}

func noRegistry() error { return missing("$.registry", "no such registry credential") }
