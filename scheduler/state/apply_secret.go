package state

import (
	"slices"

	"gantry/fleet"
)

// The bounds of secrets.
const (
	maxSecrets = 100 // of an account
	maxSealed  = fleet.MaxSecretBytes + 64
)

// secretKey is the key of a secret's row; no account's id has a slash.
func secretKey(account fleet.AccountID, name string) string { return string(account) + "/" + name }

func (c PutSecret) apply(t *txn) (any, error) {
	in := c.Secret
	key := secretKey(in.Account, in.Name)
	old := get(t, &t.base.secrets, key)
	switch {
	case get(t, &t.base.accounts, in.Account) == nil:
		return nil, fleet.NotFound("account")
	case !fleet.ValidSecretName(in.Name):
		return nil, fleet.Invalid("$.name", "must be 1 to 64 letters, digits, '_' and '-', not beginning with a digit or '-'")
	case len(in.Sealed) > maxSealed:
		return nil, fleet.Invalid("$.value", "must have at most 32768 bytes")
	case old == nil && countOf(t, &t.base.secrets, in.Account, func(*fleet.AccountSecret) bool { return true }) >= maxSecrets:
		return nil, tooMany(maxSecrets, "secrets")
	case old != nil:
		in.CreatedAt = old.CreatedAt
	}
	put(t, &t.base.secrets, key, &in)
	t.note(KindAccount, string(in.Account))
	return cloneSecret(&in), nil
}

func (c DeleteSecret) apply(t *txn) (any, error) {
	key := secretKey(c.Account, c.Name)
	if get(t, &t.base.secrets, key) == nil {
		return nil, fleet.NotFound("secret")
	}
	pods := t.livePods(c.Account, func(p *fleet.Pod) bool {
		names, _ := fleet.SecretsOf(p.Spec.Env)
		return slices.Contains(names, c.Name)
	})
	if err := inUse("the secret", pods); err != nil {
		return nil, err
	}
	drop(t, &t.base.secrets, key)
	t.note(KindAccount, string(c.Account))
	return nil, nil
}

// checkSecrets refuses an environment that names a secret which is not the account's, or not there any more.
func (t *txn) checkSecrets(account fleet.AccountID, env map[string]string) error {
	names, _ := fleet.SecretsOf(env)
	for _, name := range names {
		if get(t, &t.base.secrets, secretKey(account, name)) == nil {
			return fleet.Stale("a secret is gone")
		}
	}
	return nil
}
