package scheduler

import (
	"context"
	"fmt"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// purposeS3Key begins the purpose under which the secret of an S3 key pair is sealed; its account and id follow.
const purposeS3Key = "s3 key"

func s3KeyPurpose(account fleet.AccountID, id string) string {
	return purposeS3Key + "\x00" + string(account) + "\x00" + id
}

// CreateS3Key makes a key pair of the S3 interface for the caller's account, and returns its secret, which is shown
// nowhere else. Errors: invalid, rule (the account has too many).
func (s *Service) CreateS3Key(ctx context.Context, who fleet.Principal, req fleet.S3KeyRequest) (fleet.S3Key, fleet.Secret, error) {
	if err := checkName(req.Name); err != nil {
		return fleet.S3Key{}, "", err
	}
	now := s.Now()
	if !req.ExpiresAt.IsZero() && !req.ExpiresAt.After(now) {
		return fleet.S3Key{}, "", fleet.Invalid("$.expiresAt", "must be in the future")
	}
	id, secret := fleet.NewS3Key()
	sealed, err := s.Sealer.Seal(s3KeyPurpose(who.Account, id), []byte(secret.Reveal()))
	if err != nil {
		return fleet.S3Key{}, "", err
	}
	key, err := propose[fleet.S3Key](ctx, s, state.PutS3Key{Key: fleet.S3Key{
		ID: id, Account: who.Account, Name: req.Name, Sealed: sealed, ReadOnly: req.ReadOnly, CreatedAt: now, ExpiresAt: req.ExpiresAt,
	}})
	if err != nil {
		return fleet.S3Key{}, "", err
	}
	s.Log.Info("S3 key created", "key", key.ID, "account", who.Account, "readOnly", key.ReadOnly)
	key.Sealed = nil
	return key, secret, nil
}

// S3Keys lists the key pairs of the S3 interface of the caller's account, oldest first.
func (s *Service) S3Keys(ctx context.Context, who fleet.Principal) ([]fleet.S3Key, error) {
	out := []fleet.S3Key{}
	err := s.read(ctx, func(v *state.View) error {
		for _, key := range v.S3KeysOf(who.Account) {
			key.Sealed = nil
			out = append(out, key)
		}
		return nil
	})
	return out, err
}

// DeleteS3Key revokes a key pair of the caller's account. Errors: not_found.
func (s *Service) DeleteS3Key(ctx context.Context, who fleet.Principal, id string) error {
	_, err := propose[any](ctx, s, state.DeleteS3Key{Account: who.Account, ID: id})
	if err == nil {
		s.Log.Info("S3 key deleted", "key", id, "account", who.Account)
	}
	return err
}

// S3Secret opens the secret of a key pair, for what checks signatures with it.
func (s *Service) S3Secret(key *fleet.S3Key) (fleet.Secret, error) {
	plain, err := s.Sealer.Open(s3KeyPurpose(key.Account, key.ID), key.Sealed)
	if err != nil {
		return "", fmt.Errorf("open S3 key %s: %w", key.ID, err)
	}
	return fleet.Secret(plain), nil
}
