package scheduler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// purposeSecret begins the purpose under which a secret is sealed; its account and name follow.
const purposeSecret = "account secret"

func secretPurpose(account fleet.AccountID, name string) string {
	return purposeSecret + "\x00" + string(account) + "\x00" + name
}

// PutSecret creates a secret of the caller's account, or gives it another value: pods have it from their next start on.
// Errors: invalid, rule (the account has too many).
func (s *Service) PutSecret(ctx context.Context, who fleet.Principal, name string, value fleet.Secret) (fleet.AccountSecret, error) {
	if len(value) > fleet.MaxSecretBytes {
		return fleet.AccountSecret{}, fleet.Invalid("$.value", "must have at most 32768 bytes")
	}
	sealed, err := s.Sealer.Seal(secretPurpose(who.Account, name), []byte(value.Reveal()))
	if err != nil {
		return fleet.AccountSecret{}, err
	}
	now := s.Now()
	made, err := propose[fleet.AccountSecret](ctx, s, state.PutSecret{Secret: fleet.AccountSecret{
		Account: who.Account, Name: name, Sealed: sealed, CreatedAt: now, UpdatedAt: now,
	}})
	if err == nil {
		s.Log.Info("secret set", "secret", name, "account", who.Account)
	}
	return made, err
}

// Secrets lists the secrets of the caller's account by name.
func (s *Service) Secrets(ctx context.Context, who fleet.Principal) ([]fleet.AccountSecret, error) {
	var out []fleet.AccountSecret
	err := s.read(ctx, func(v *state.View) error { out = v.Secrets(who.Account); return nil })
	return out, err
}

// DeleteSecret deletes a secret of the caller's account. Errors: not_found, rule (the environment of a pod that is
// not terminated names it).
func (s *Service) DeleteSecret(ctx context.Context, who fleet.Principal, name string) error {
	_, err := propose[any](ctx, s, state.DeleteSecret{Account: who.Account, Name: name})
	if err == nil {
		s.Log.Info("secret deleted", "secret", name, "account", who.Account)
	}
	return err
}

// knownSecrets refuses an environment that names a secret which the account does not have. Errors: not_found,
// invalid (it names too many).
func knownSecrets(v *state.View, account fleet.AccountID, env map[string]string) error {
	names, uses := fleet.SecretsOf(env)
	if uses > fleet.MaxSecretUses {
		return fleet.Invalid("$.env", "must have at most 50 references to secrets")
	}
	unknown := map[string]bool{}
	for _, name := range names {
		if _, ok := v.Secret(account, name); !ok {
			unknown[name] = true
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	err := &fleet.Error{Code: fleet.CodeNotFound, Msg: "resource not found"}
	for _, variable := range slices.Sorted(maps.Keys(env)) {
		named, _ := fleet.SecretsOf(map[string]string{variable: env[variable]})
		if slices.ContainsFunc(named, func(name string) bool { return unknown[name] }) {
			err.Details = append(err.Details, "$.env."+variable+": no such secret")
		}
	}
	return err
}

// Environment returns the environment of a pod as its host needs it: with the values of the secrets that it names,
// the pod's own key, and the id of its network volume. It goes to the bound host and nowhere else. A key that the
// pod's owner put there stays. With an error, what could be made out is there all the same.
func (s *Service) Environment(p *fleet.Pod) (map[string]string, error) {
	var errs []error
	values := map[string]string{}
	names, _ := fleet.SecretsOf(p.Spec.Env)
	for _, name := range names {
		value, err := s.openSecret(p.Account, name)
		errs = append(errs, err)
		values[name] = value
	}
	env := fleet.WithSecrets(p.Spec.Env, func(name string) string { return values[name] })
	if env == nil {
		env = map[string]string{}
	}
	key, err := s.podKey(p.ID)
	errs = append(errs, err)
	for _, prefix := range []string{"RUNPOD_", "GANTRY_"} {
		if _, own := env[prefix+"API_KEY"]; !own && err == nil {
			env[prefix+"API_KEY"] = key.Reveal()
		}
		if m := p.Spec.Network; m != nil {
			env[prefix+"VOLUME_ID"] = string(m.Volume)
		}
	}
	return env, errors.Join(errs...)
}

// openSecret returns the value of a secret.
func (s *Service) openSecret(account fleet.AccountID, name string) (string, error) {
	var secret fleet.AccountSecret
	err := s.Store.View(func(v *state.View) error {
		var ok bool
		if secret, ok = v.Secret(account, name); !ok {
			return fleet.NotFound("secret")
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	plain, err := s.Sealer.Open(secretPurpose(account, name), secret.Sealed)
	if err != nil {
		return "", fmt.Errorf("open secret %s: %w", name, err)
	}
	return string(plain), nil
}
