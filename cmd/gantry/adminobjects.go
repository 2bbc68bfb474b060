package main

import (
	"context"
	"fmt"
	"strings"

	"gantry/api/admin"
	"gantry/api/v2"
	"gantry/client"
)

type adminObjectsCmd struct {
	Get    viewCmd               `cmd:"" help:"Show where files of results are, and how much is there."`
	Set    adminObjectsSetCmd    `cmd:"" help:"Set the bucket, or change how it is reached and how much may be in it."`
	Delete adminObjectsDeleteCmd `cmd:"" help:"Keep no files of results; they stay in results, as workers sent them."`
}

type adminObjectsSetCmd struct {
	Endpoint   string  `placeholder:"URL" help:"URL of the S3 server, such as https://s3.example.com."`
	Region     string  `placeholder:"NAME" help:"Region under which requests are signed; with gantry-s3 its data center."`
	Bucket     string  `placeholder:"NAME" help:"Bucket, which must exist; with gantry-s3 the id of a network volume."`
	Prefix     *string `placeholder:"TEXT" help:"What the names of objects begin with."`
	AccessKey  string  `placeholder:"KEY" help:"Access key."`
	SecretFile string  `placeholder:"FILE" help:"File with the secret of the access key; - is standard input. A secret is never an argument."`
	AccountGB  int64   `name:"account-gb" placeholder:"GB" help:"What the files of one account may have together; 50 for a new storage."`
	AllGB      int64   `name:"all-gb" placeholder:"GB" help:"What all files may have together; 1000 for a new storage."`
}

const (
	newAccountGB  = 50
	newAllGB      = 1000
	maxObjectsKey = 512 // bytes
)

// Run sets the bucket.
func (cmd adminObjectsSetCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	if cmd == (adminObjectsSetCmd{}) {
		return usage("say what to change")
	}
	now, err := c.ObjectStore(ctx)
	if err != nil {
		return err
	}
	body := admin.PutObjectStoreRequest{ObjectStoreSettings: admin.ObjectStoreSettings(now.Value.ObjectStoreShown)}
	if body.Endpoint == "" {
		if cmd.Endpoint == "" || cmd.Region == "" || cmd.Bucket == "" || cmd.AccessKey == "" || cmd.SecretFile == "" {
			return usage("there is no object storage yet: a new one needs --endpoint, --region, --bucket, --access-key and --secret-file")
		}
		body.AccountGB, body.AllGB = newAccountGB, newAllGB
	}
	body.Endpoint, body.Region = first(cmd.Endpoint, body.Endpoint), first(cmd.Region, body.Region)
	body.Bucket, body.AccessKey = first(cmd.Bucket, body.Bucket), first(cmd.AccessKey, body.AccessKey)
	set(&body.Prefix, cmd.Prefix)
	for into, given := range map[*int64]int64{&body.AccountGB: cmd.AccountGB, &body.AllGB: cmd.AllGB} {
		if given != 0 {
			*into = given
		}
	}
	if cmd.SecretFile != "" {
		text, err := a.readFile("--secret-file", cmd.SecretFile, maxObjectsKey)
		if err != nil {
			return err
		}
		body.Secret = v2.Hidden(strings.TrimSpace(text))
	}
	answer, err := c.PutObjectStore(ctx, body)
	return reply(a, answer, err, objectsSheet)
}

func objectsSheet(o admin.ObjectStore) string {
	if o.Endpoint == "" {
		return "There is no object storage: files stay in results.\n"
	}
	return sheet([][2]string{
		{"Endpoint", o.Endpoint},
		{"Region", o.Region},
		{"Bucket", o.Bucket},
		{"Prefix", orDash(o.Prefix)},
		{"Access key", o.AccessKey},
		{"Files", fmt.Sprintf("%d with %d bytes", o.Files, o.Bytes)},
		{"Of one account at most", fmt.Sprintf("%d GB", o.AccountGB)},
		{"In all at most", fmt.Sprintf("%d GB", o.AllGB)},
	})
}

type adminObjectsDeleteCmd struct{}

// Run takes the bucket away.
func (adminObjectsDeleteCmd) Run(ctx context.Context, c *client.Client) error {
	return c.DeleteObjectStore(ctx)
}
