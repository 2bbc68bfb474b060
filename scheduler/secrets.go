package scheduler

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"

	"gantry/fleet"
	"gantry/internal/pki"
	"gantry/scheduler/state"
)

// purposeSecret is the kind of sealed secrets; see sealPurpose.
const purposeSecret = "account secret"

// PutSecret creates a secret of the caller's account, or gives it another value: pods have it from their next start on.
// Errors: invalid, rule (the account has too many, or a pod could not be started with it).
func (s *Service) PutSecret(ctx context.Context, who fleet.Principal, name string, value fleet.Secret) (fleet.AccountSecret, error) {
	if len(value) > fleet.MaxSecretBytes {
		return fleet.AccountSecret{}, fleet.Invalid("$.value", "must have at most 32768 bytes")
	}
	err := s.read(ctx, func(v *state.View) error { return stillFits(v, who.Account, name, len(value)) })
	if err != nil {
		return fleet.AccountSecret{}, err
	}
	sealed, err := s.Sealer.Seal(sealPurpose(purposeSecret, who.Account, name), []byte(value.Reveal()))
	if err != nil {
		return fleet.AccountSecret{}, err
	}
	now := s.Now()
	made, err := propose[fleet.AccountSecret](ctx, s, state.Put[fleet.AccountSecret]{Record: fleet.AccountSecret{
		Account: who.Account, Name: name, Sealed: sealed, CreatedAt: now, UpdatedAt: now,
	}})
	if err == nil {
		s.Log.Info("secret set", "secret", name, "account", who.Account)
	}
	return made, err
}

// Secrets lists the secrets of the caller's account by name.
func (s *Service) Secrets(ctx context.Context, who fleet.Principal) ([]fleet.AccountSecret, error) {
	return recordsOf[fleet.AccountSecret](ctx, s, who)
}

// DeleteSecret deletes a secret of the caller's account. Errors: not_found, in_use (the environment of a pod that is
// not terminated names it).
func (s *Service) DeleteSecret(ctx context.Context, who fleet.Principal, name string) error {
	return deleteRecord[fleet.AccountSecret](ctx, s, who, name)
}

// The bounds of a pod's environment with its secrets in place: Linux starts no process with a larger variable, and not
// with much more in all.
const (
	maxVariable    = 128<<10 - 1 // bytes of NAME=value
	maxEnvironment = 1 << 20     // bytes of all of them
)

// checkEnvironment refuses an environment that names a secret which the account does not have, or with which no process
// can be started. Errors: not_found, invalid.
func checkEnvironment(v *state.View, account fleet.AccountID, env map[string]string) error {
	return cmp.Or(knownSecrets(v, account, env), fitting(env, func(name string) int {
		s, _ := state.Get[fleet.AccountSecret](v, account, name)
		return len(s.Sealed) - pki.SealOverhead
	}))
}

// fitting refuses an environment that is too large once its secrets, of those sizes, are in place. Errors: invalid.
func fitting(env map[string]string, size func(name string) int) error {
	all := 0
	for _, name := range slices.Sorted(maps.Keys(env)) {
		n := len(name) + len("=") + fleet.SizeWithSecrets(env[name], size)
		if n > maxVariable {
			return fleet.Invalid("$.env."+name, "must have at most 131071 bytes with its name and the values of its secrets")
		}
		all += n
	}
	if all > maxEnvironment {
		return fleet.Invalid("$.env", "must have at most 1048576 bytes in all, with names and the values of secrets")
	}
	return nil
}

// stillFits refuses a value of a secret with which a pod of the account could not be started again. Errors: rule.
func stillFits(v *state.View, account fleet.AccountID, name string, bytes int) error {
	for _, p := range v.PodsOf(account) {
		names, _ := fleet.SecretsOf(p.Spec.Env)
		if p.Status == fleet.StatusTerminated || !slices.Contains(names, name) {
			continue
		}
		err := fitting(p.Spec.Env, func(named string) int {
			if named == name {
				return bytes
			}
			s, _ := state.Get[fleet.AccountSecret](v, account, named)
			return len(s.Sealed) - pki.SealOverhead
		})
		if err != nil {
			return fleet.BreaksRule("with this value the environment of pod %s would be too large to start it", p.ID)
		}
	}
	return nil
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
		if _, err := state.Get[fleet.AccountSecret](v, account, name); err != nil {
			unknown[name] = true
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	err := &fleet.Error{Code: fleet.CodeNotFound, Msg: "resource not found"}
	for _, variable := range slices.Sorted(maps.Keys(env)) {
		named, _ := fleet.SecretsOf(map[string]string{variable: env[variable]})
		if i := slices.IndexFunc(named, func(name string) bool { return unknown[name] }); i >= 0 {
			err.Details = append(err.Details, "$.env."+variable+": no secret has the name "+named[i])
		}
	}
	return err
}

// Environment returns the environment of a pod as its host needs it: with the values of the secrets that it names,
// the pod's own key, and the id of its network volume. It goes to the bound host and nowhere else. A key that the
// pod's owner put there stays. With an error, what could be made out is there all the same; a secret that could not be
// opened is never empty: its reference stays.
func (s *Service) Environment(p *fleet.Pod) (map[string]string, error) {
	var errs []error
	values := map[string]string{}
	names, _ := fleet.SecretsOf(p.Spec.Env)
	for _, name := range names {
		value, err := openRecord(s, p.Account, name, purposeSecret, func(r fleet.AccountSecret) []byte { return r.Sealed })
		if errs = append(errs, err); err == nil {
			values[name] = string(value)
		}
	}
	env := fleet.WithSecrets(p.Spec.Env, func(name string) (string, bool) {
		value, ok := values[name]
		return value, ok
	})
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
