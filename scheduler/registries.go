package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// purposeRegistry begins the purpose under which a credential is sealed; its account and id follow, so
// that a sealed value opens in its own record only.
const purposeRegistry = "registry credential"

// sealedCredential is what lies in Registry.Sealed.
type sealedCredential struct {
	Username string `json:"username"`
	Password string `json:"password"`
}

func registryPurpose(account fleet.AccountID, id fleet.RegistryID) string {
	return purposeRegistry + "\x00" + string(account) + "\x00" + string(id)
}

// CreateRegistry makes a registry credential of the caller's account; replayed tells that once was seen
// before.
func (s *Service) CreateRegistry(
	ctx context.Context, who fleet.Principal, name string, cred fleet.Credential, once *fleet.Once,
) (made fleet.Registry, replayed bool, err error) {
	r := fleet.Registry{ID: fleet.RegistryID(fleet.NewID()), Account: who.Account, Name: name, CreatedAt: s.Now()}
	plain, err := json.Marshal(sealedCredential{Username: cred.Username, Password: cred.Password.Reveal()})
	if err != nil {
		return fleet.Registry{}, false, errors.New("encode a registry credential") // the cause may quote it
	}
	if r.Sealed, err = s.Sealer.Seal(registryPurpose(r.Account, r.ID), plain); err != nil {
		return fleet.Registry{}, false, err
	}
	made, replayed, err = proposeOnce[fleet.Registry](ctx, s, state.PutRegistry{Registry: r, Once: once})
	if err == nil && !replayed {
		s.Log.Info("registry credential created", "registry", made.ID, "account", who.Account)
	}
	return made, replayed, err
}

// Credentials opens a registry credential of an account, for the host of a pod that uses it. Errors:
// not_found; it is not the account's, or cannot be opened.
func (s *Service) Credentials(account fleet.AccountID, id fleet.RegistryID) (*fleet.Credential, error) {
	var r fleet.Registry
	err := s.Store.View(func(v *state.View) error {
		var ok bool
		if r, ok = v.Registry(id); !ok || r.Account != account {
			return fleet.NotFound("registry credential")
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	plain, err := s.Sealer.Open(registryPurpose(r.Account, r.ID), r.Sealed)
	if err != nil {
		return nil, fmt.Errorf("open registry credential %s: %w", id, err)
	}
	var c sealedCredential
	if err := json.Unmarshal(plain, &c); err != nil {
		return nil, fmt.Errorf("read registry credential %s: it is not as it was written", id)
	}
	return &fleet.Credential{Username: c.Username, Password: fleet.Secret(c.Password)}, nil
}

// Registries lists the registry credentials of the caller's account, oldest first.
func (s *Service) Registries(ctx context.Context, who fleet.Principal) ([]fleet.Registry, error) {
	var out []fleet.Registry
	err := s.read(ctx, func(v *state.View) error { out = v.RegistriesOf(who.Account); return nil })
	return out, err
}

// Registry returns a registry credential of the caller's account.
func (s *Service) Registry(ctx context.Context, who fleet.Principal, id fleet.RegistryID) (fleet.Registry, error) {
	var out fleet.Registry
	err := s.read(ctx, func(v *state.View) error {
		r, ok := v.Registry(id)
		if !ok || r.Account != who.Account {
			return fleet.NotFound("registry credential")
		}
		out = r
		return nil
	})
	return out, err
}

// DeleteRegistry deletes a registry credential of the caller's account. Errors: not_found, rule (a
// template or a pod that is not terminated uses it).
func (s *Service) DeleteRegistry(ctx context.Context, who fleet.Principal, id fleet.RegistryID) error {
	_, err := propose[any](ctx, s, state.DeleteRegistry{Account: who.Account, Registry: id})
	return err
}

// knownRegistry refuses a registry credential that is not the account's; none is fine.
func knownRegistry(v *state.View, account fleet.AccountID, id fleet.RegistryID) error {
	if id == "" {
		return nil
	}
	if r, ok := v.Registry(id); !ok || r.Account != account {
		return missing("$.registry", "no such registry credential")
	}
	return nil
}
