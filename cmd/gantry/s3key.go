package main

import (
	"context"
	"fmt"
	"time"

	"gantry/api/v2"
	"gantry/client"
)

type s3KeyCmd struct {
	List   listCmd        `cmd:"" help:"List your S3 keys."`
	Create s3KeyCreateCmd `cmd:"" help:"Create an S3 key."`
	Delete deleteCmd      `cmd:"" help:"Delete S3 keys."`
}

var s3Keys = noun[v2.S3Key, v2.S3KeyList]{
	kind: "S3 key", bare: true, all: (*client.Client).S3Keys, remove: (*client.Client).DeleteS3Key,
	items:   func(l v2.S3KeyList) []v2.S3Key { return l.S3Keys },
	thing:   func(k v2.S3Key) thing { return thing{id: k.ID} },
	columns: []string{"ACCESS KEY", "NAME", "READ ONLY", "CREATED", "ENDS"},
	row: func(k v2.S3Key, _ time.Time) []string {
		return []string{k.ID, k.Name, yes(k.ReadOnly), when(&k.CreatedAt), orDash(when(k.ExpiresAt))}
	},
}

type s3KeyCreateCmd struct {
	Name      string        `arg:"" placeholder:"NAME" help:"Name of the key, for people."`
	ReadOnly  bool          `help:"The key can only read."`
	ExpiresIn time.Duration `placeholder:"720h" help:"The key expires after this time; never when not given."`
}

// Run makes an S3 key.
func (cmd s3KeyCreateCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	body := v2.CreateS3KeyRequest{Name: cmd.Name, ReadOnly: cmd.ReadOnly}
	if cmd.ExpiresIn < 0 {
		return usage("--expires-in must be positive")
	}
	if cmd.ExpiresIn > 0 {
		ends := a.now().Add(cmd.ExpiresIn)
		body.ExpiresAt = v2.AtOrNull(ends)
	}
	key, err := c.CreateS3Key(ctx, body)
	if err != nil {
		return err
	}
	return a.showSecret(key.Raw, key.Value.Secret.Reveal(),
		fmt.Sprintf("Access key %s (%s) was made. Keep its secret key: it is not shown again.", key.Value.Key.ID, printable(key.Value.Key.Name)))
}
