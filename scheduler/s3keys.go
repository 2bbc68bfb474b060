package scheduler

import (
	"context"
	"fmt"

	"gantry/fleet"
)

// purposeS3Key is the kind of sealed secrets of S3 key pairs; see sealPurpose.
const purposeS3Key = "s3 key"

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
	sealed, err := s.Sealer.Seal(sealPurpose(purposeS3Key, who.Account, id), []byte(secret.Reveal()))
	if err != nil {
		return fleet.S3Key{}, "", err
	}
	key, _, err := writeRecord(ctx, s, who, id, fleet.S3Key{
		ID: id, Account: who.Account, Name: req.Name, Sealed: sealed, ReadOnly: req.ReadOnly, CreatedAt: now, ExpiresAt: req.ExpiresAt,
	}, nil)
	if err != nil {
		return fleet.S3Key{}, "", err
	}
	key.Sealed = nil
	return key, secret, nil
}

// S3Keys lists the key pairs of the S3 interface of the caller's account, oldest first.
func (s *Service) S3Keys(ctx context.Context, who fleet.Principal) ([]fleet.S3Key, error) {
	out, err := recordsOf[fleet.S3Key](ctx, s, who)
	for i := range out {
		out[i].Sealed = nil
	}
	return out, err
}

// DeleteS3Key revokes a key pair of the caller's account. Errors: not_found.
func (s *Service) DeleteS3Key(ctx context.Context, who fleet.Principal, id string) error {
	return deleteRecord[fleet.S3Key](ctx, s, who, id)
}

// S3Secret opens the secret of a key pair, for what checks signatures with it.
func (s *Service) S3Secret(key *fleet.S3Key) (fleet.Secret, error) {
	plain, err := s.Sealer.Open(sealPurpose(purposeS3Key, key.Account, key.ID), key.Sealed)
	if err != nil {
		return "", fmt.Errorf("open S3 key %s: %w", key.ID, err)
	}
	return fleet.Secret(plain), nil
}
