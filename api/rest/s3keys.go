package rest

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/auth"
	"gantry/api/limit"
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
	read, write := auth.Read(fleet.GroupS3), auth.Write(fleet.GroupS3)
	const tag = "Network Volumes"
	handle(a, route{
		method: http.MethodGet, path: "/v2/s3-keys", id: "listS3Keys", tag: tag, summary: "List S3 keys",
		text:  "Lists the account's keys of the S3 interface, without their secrets.",
		scope: read, limit: limit.PerAccount, status: http.StatusOK, out: v2.S3KeyList{S3Keys: []v2.S3Key{exampleS3Key()}},
	}, a.listS3Keys)
	handle(a, route{
		method: http.MethodPost, path: "/v2/s3-keys", id: "createS3Key", tag: tag, summary: "Make an S3 key",
		text: "Makes a key pair with which S3 clients reach the files of all network volumes of the account, without a pod. The secret is shown in this " +
			"answer and never again. 400: the account has 50 keys. 422: expiresAt is not in the future.",
		scope: write, limit: limit.PerAccount, status: http.StatusCreated,
		in: v2.CreateS3KeyRequest{Name: "laptop"}, out: v2.NewS3Key{Key: exampleS3Key(), Secret: "rps_0000000000000000000000000000000000000000000"},
	}, a.createS3Key)
	handle(a, route{
		method: http.MethodDelete, path: "/v2/s3-keys/{id}", id: "deleteS3Key", tag: tag, summary: "Delete an S3 key",
		text:  "Deletes a key pair. Requests that are signed with it are refused within a minute. 404: the account has no such key.",
		scope: write, limit: limit.PerAccount, status: http.StatusNoContent, params: []*huma.Param{pathParam("Access key.", "user_000000000000000000000000000")},
	}, a.deleteS3Key)
}

func (a *API) listS3Keys(ctx context.Context, c *call, _ *none) (*v2.S3KeyList, error) {
	all, err := showAll(s3KeyRecord)(a.svc.S3Keys(ctx, c.who))
	return &v2.S3KeyList{S3Keys: all}, err
}

func (a *API) createS3Key(ctx context.Context, c *call, in *v2.CreateS3KeyRequest) (*v2.NewS3Key, error) {
	req := fleet.S3KeyRequest{Name: in.Name, ReadOnly: in.ReadOnly}
	if in.ExpiresAt != nil {
		if req.ExpiresAt = in.ExpiresAt.Time; !req.ExpiresAt.After(a.now()) {
			return nil, fleet.Invalid("$.expiresAt", "must be in the future")
		}
	}
	key, secret, err := a.svc.CreateS3Key(ctx, c.who, req)
	if err != nil {
		return nil, err
	}
	return &v2.NewS3Key{Key: s3KeyRecord(key), Secret: v2.Hidden(secret)}, nil
}

func (a *API) deleteS3Key(ctx context.Context, c *call, _ *none) (*none, error) {
	return nil, a.svc.DeleteS3Key(ctx, c.who, c.args.text("id"))
}

func s3KeyRecord(k fleet.S3Key) v2.S3Key {
	return v2.S3Key{ID: k.ID, Name: k.Name, ReadOnly: k.ReadOnly, CreatedAt: v2.At(k.CreatedAt), ExpiresAt: v2.AtOrNull(k.ExpiresAt)}
}

func exampleS3Key() v2.S3Key {
	return v2.S3Key{ID: "user_000000000000000000000000000", Name: "laptop", CreatedAt: exampleTime(0)}
}
