package main

import (
	"context"
	"fmt"
	"time"

	"gantry/api/v2"
	"gantry/client"
)

type s3KeyCmd struct {
	List   s3KeyListCmd   `cmd:"" help:"List your S3 keys."`
	Create s3KeyCreateCmd `cmd:"" help:"Make an S3 key."`
	Delete s3KeyDeleteCmd `cmd:"" help:"Delete S3 keys."`
}

type s3KeyListCmd struct{}

// Run lists S3 keys.
func (s3KeyListCmd) Run(ctx context.Context, a *app) error {
	c, _, err := a.connect(false)
	if err != nil {
		return err
	}
	defer c.Close()
	list, err := c.S3Keys(ctx)
	if err != nil {
		return err
	}
	return a.show(list.Raw, func() string {
		var rows [][]string
		for _, k := range list.Value.S3Keys {
			rows = append(rows, []string{k.ID, k.Name, yes(k.ReadOnly), when(&k.CreatedAt), orDash(when(k.ExpiresAt))})
		}
		return table([]string{"ACCESS KEY", "NAME", "READ ONLY", "CREATED", "ENDS"}, rows)
	})
}

type s3KeyCreateCmd struct {
	Name      string        `arg:"" placeholder:"NAME" help:"Name of the key, for people."`
	ReadOnly  bool          `help:"It only reads."`
	ExpiresIn time.Duration `placeholder:"720h" help:"It ends to work after this time; never when not given."`
}

// Run makes an S3 key.
func (cmd s3KeyCreateCmd) Run(ctx context.Context, a *app) error {
	body := v2.CreateS3KeyRequest{Name: cmd.Name, ReadOnly: cmd.ReadOnly}
	if cmd.ExpiresIn < 0 {
		return usage("--expires-in must be positive")
	}
	if cmd.ExpiresIn > 0 {
		ends := a.now().Add(cmd.ExpiresIn)
		body.ExpiresAt = v2.AtOrNull(ends)
	}
	c, _, err := a.connect(false)
	if err != nil {
		return err
	}
	defer c.Close()
	key, err := c.CreateS3Key(ctx, body)
	if err != nil {
		return err
	}
	return a.showSecret(key.Raw, key.Value.Secret.Reveal(),
		fmt.Sprintf("Access key %s (%s) was made. Keep its secret key: it is not shown again.", key.Value.Key.ID, printable(key.Value.Key.Name)))
}

type s3KeyDeleteCmd struct {
	Keys []string `arg:"" name:"key" placeholder:"ACCESS_KEY" help:"Access keys."`
}

// Run deletes S3 keys.
func (cmd s3KeyDeleteCmd) Run(ctx context.Context, a *app) error {
	return a.deleteAll(ctx, false, "S3 key", cmd.Keys, unnamed, (*client.Client).DeleteS3Key)
}
