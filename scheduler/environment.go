package scheduler

import (
	"cmp"
	"errors"
	"maps"
	"slices"

	"gantry/fleet"
	"gantry/internal/pki"
	"gantry/scheduler/state"
)

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
		return secretSize(v, account, name)
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
			return secretSize(v, account, named)
		})
		if err != nil {
			return fleet.BreaksRule("with this value the environment of pod %s would be too large to start it", p.ID)
		}
	}
	return nil
}

// secretSize returns how many bytes the value of a secret has.
func secretSize(v *state.View, account fleet.AccountID, name string) int {
	s, _ := state.Get[fleet.AccountSecret](v, account, name)
	return len(s.Sealed) - pki.SealOverhead
}

// knownSecrets refuses an environment that names a secret which the account does not have. Errors: not_found, invalid (it
// names too many).
func knownSecrets(v *state.View, account fleet.AccountID, env map[string]string) error {
	unknown, uses := &fleet.Error{Code: fleet.CodeNotFound, Msg: "resource not found"}, 0
	for _, variable := range slices.Sorted(maps.Keys(env)) {
		names, n := fleet.SecretsOf(map[string]string{variable: env[variable]})
		uses += n
		for _, name := range names {
			if _, err := state.Get[fleet.AccountSecret](v, account, name); err != nil {
				unknown.Details = append(unknown.Details, "$.env."+variable+": no secret has the name "+name)
				break
			}
		}
	}
	switch {
	case uses > fleet.MaxSecretUses:
		return fleet.Invalid("$.env", "must have at most 50 references to secrets")
	case len(unknown.Details) > 0:
		return unknown
	}
	return nil
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
	if p.Owner.Kind == fleet.OwnerEndpoint {
		workerEnvironment(env, p)
		balances := false
		errs = append(errs, s.Store.View(func(v *state.View) error {
			e, ok := state.Find[fleet.Endpoint](v, fleet.EndpointID(p.Owner.ID))
			balances = ok && e.Spec.Type == fleet.EndpointBalanced
			return nil
		}))
		if balances {
			servingEnvironment(env)
		}
	}
	if p.Owner.Kind == fleet.OwnerCluster {
		errs = append(errs, s.clusterEnvironment(env, p))
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
