package rest

import (
	"context"

	"gantry/api/v2"
	"gantry/fleet"
)

// S3KeyService keeps key pairs of the S3 interface.
type S3KeyService interface {
	// CreateS3Key makes a key pair and returns its secret, which is shown nowhere else.
	CreateS3Key(ctx context.Context, who fleet.Principal, req fleet.S3KeyRequest) (fleet.S3Key, fleet.Secret, error)
	S3Keys(ctx context.Context, who fleet.Principal) ([]fleet.S3Key, error)
	DeleteS3Key(ctx context.Context, who fleet.Principal, id string) error
}

func (a *API) registerS3Keys() {
	n := noun[S3KeyService, string, fleet.S3Key, v2.S3Key, v2.S3KeyList]{
		path: "/v2/s3-keys", tag: "Network Volumes", one: "an S3 key", name: "S3Key", names: "S3Keys", group: fleet.GroupS3,
		id:      pathParam("Access key.", "user_000000000000000000000000000"),
		example: v2.S3Key{ID: "user_000000000000000000000000000", Name: "laptop", CreatedAt: exampleTime(0)}, record: s3KeyRecord,
		records: func(all []v2.S3Key) v2.S3KeyList { return v2.S3KeyList{S3Keys: all} },
	}
	n.list(a, "Lists the account's keys of the S3 interface, without their secrets.", S3KeyService.S3Keys)
	create := n.create(
		"Makes a key pair with which S3 clients reach the files of all network volumes of the account, without a pod. The secret is shown in this "+
			"answer and never again. 400: the account has 50 keys. 422: expiresAt is not in the future.", v2.CreateS3KeyRequest{Name: "laptop"})
	create.out = v2.NewS3Key{Key: n.example, Secret: "rps_0000000000000000000000000000000000000000000"}
	on(a, create, func(ctx context.Context, svc S3KeyService, c *call, in *v2.CreateS3KeyRequest) (*v2.NewS3Key, error) {
		req := fleet.S3KeyRequest{Name: in.Name, ReadOnly: in.ReadOnly, ExpiresAt: given(in.ExpiresAt).Time}
		key, secret, err := svc.CreateS3Key(ctx, c.who, req)
		if err != nil {
			return nil, err
		}
		return &v2.NewS3Key{Key: s3KeyRecord(key), Secret: v2.Hidden(secret)}, nil
	})
	n.delete(a, "Deletes a key pair. Requests that are signed with it are refused within a minute. 404: the account has no such key.",
		S3KeyService.DeleteS3Key)
}

func s3KeyRecord(k fleet.S3Key) v2.S3Key {
	return v2.S3Key{ID: k.ID, Name: k.Name, ReadOnly: k.ReadOnly, CreatedAt: v2.At(k.CreatedAt), ExpiresAt: v2.AtOrNull(k.ExpiresAt)}
}
