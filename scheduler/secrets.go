package scheduler

import (
	"context"
	"strings"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// purposeSecret is the kind of sealed secrets; see sealPurpose.
const purposeSecret = "account secret"

// PutSecret creates a secret of the caller's account, or gives it another value: pods have it from their next start on.
// Errors: invalid, rule (the account has too many, or a pod could not be started with it).
func (s *Service) PutSecret(ctx context.Context, who fleet.Principal, name string, value fleet.Secret) (fleet.AccountSecret, error) {
	switch {
	case len(value) > fleet.MaxSecretBytes:
		return fleet.AccountSecret{}, fleet.Invalid("$.value", "must have at most 32768 bytes")
	case strings.ContainsRune(value.Reveal(), 0):
		return fleet.AccountSecret{}, fleet.Invalid("$.value", "must not contain NUL")
	}
	if err := s.read(ctx, func(v *state.View) error { return stillFits(v, who.Account, name, len(value)) }); err != nil {
		return fleet.AccountSecret{}, err
	}
	sealed, err := s.Sealer.Seal(sealPurpose(purposeSecret, who.Account, name), []byte(value.Reveal()))
	if err != nil {
		return fleet.AccountSecret{}, err
	}
	now := s.Now()
	made, _, err := writeRecord(ctx, s, who, name, fleet.AccountSecret{
		Account: who.Account, Name: name, Sealed: sealed, CreatedAt: now, UpdatedAt: now,
	}, nil)
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
