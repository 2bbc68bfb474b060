package state

import (
	"regexp"

	"gantry/fleet"
)

// The bounds of key pairs of the S3 interface.
const (
	maxS3Keys   = 50 // of an account
	maxS3Sealed = 512
)

// accessKey is the form of an access key.
var accessKey = regexp.MustCompile(`^user_[0-9A-Za-z]{27}$`)

func (c PutS3Key) apply(t *txn) (any, error) {
	in := cloneS3Key(&c.Key)
	switch {
	case get(t, &t.base.accounts, in.Account) == nil:
		return nil, fleet.NotFound("account")
	case !accessKey.MatchString(in.ID):
		return nil, fleet.Invalid("$.id", "must be user_ and 27 letters and digits")
	case len(in.Name) > maxID:
		return nil, fleet.Invalid("$.name", "must have at most 256 bytes")
	case len(in.Sealed) == 0 || len(in.Sealed) > maxS3Sealed:
		return nil, fleet.Invalid("$.secret", "must have 1 to 512 bytes")
	case !in.ExpiresAt.IsZero() && !in.ExpiresAt.After(in.CreatedAt):
		return nil, fleet.Invalid("$.expiresAt", "must not be in the past")
	case get(t, &t.base.s3Keys, in.ID) != nil:
		return nil, exists("there is an S3 key with this id")
	case countOf(t, &t.base.s3Keys, in.Account, func(*fleet.S3Key) bool { return true }) >= maxS3Keys:
		return nil, tooMany(maxS3Keys, "S3 keys")
	}
	put(t, &t.base.s3Keys, in.ID, &in)
	t.note(KindAccount, string(in.Account))
	return cloneS3Key(&in), nil
}

func (c DeleteS3Key) apply(t *txn) (any, error) {
	if k := get(t, &t.base.s3Keys, c.ID); k == nil || k.Account != c.Account {
		return nil, fleet.NotFound("S3 key")
	}
	drop(t, &t.base.s3Keys, c.ID)
	t.note(KindAccount, string(c.Account))
	return nil, nil
}
