package rest

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/fleet"
)

// S3Key is a key pair of the S3 interface without its secret.
type S3Key struct {
	ID        string `json:"id" doc:"Access key." example:"user_000000000000000000000000000"`
	Name      string `json:"name" doc:"Name of the key."`
	ReadOnly  bool   `json:"readOnly" doc:"Whether it only reads."`
	CreatedAt Time   `json:"createdAt" doc:"When it was made."`
	ExpiresAt *Time  `json:"expiresAt" doc:"When it ends to work; null: never."`
}

// NewS3Key is a key pair with its secret, which is shown this once.
type NewS3Key struct {
	Key    S3Key  `json:"key" doc:"The key's record; its id is the access key."`
	Secret string `json:"secretAccessKey" doc:"The secret key. It cannot be shown again." example:"rps_0000000000000000000000000000000000000000000"`
}

// S3KeyList is the answer to listing key pairs.
type S3KeyList struct {
	S3Keys []S3Key `json:"s3Keys" doc:"The account's S3 keys, oldest first."`
}

// CreateS3KeyRequest is the body that makes a key pair.
type CreateS3KeyRequest struct {
	Name      string `json:"name" doc:"Name of the key. No control characters." minLength:"1" maxLength:"191" pattern:"^[^\\x00-\\x1f\\x7f-\\x9f]*$" patternDescription:"printable text" example:"laptop"`
	ReadOnly  bool   `json:"readOnly,omitempty" doc:"Whether it only reads." default:"false"`
	ExpiresAt *Time  `json:"expiresAt,omitempty" doc:"When it ends to work, in the future. Omitted: never."`
}

// TransformSchema says which members may be null.
func (S3Key) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return nullable(s, "expiresAt")
}

func (a *API) registerS3Keys() {
	read, write := auth.Read(fleet.GroupS3), auth.Write(fleet.GroupS3)
	const tag = "Network Volumes"
	handle(a, route{
		method: http.MethodGet, path: "/v2/s3-keys", id: "listS3Keys", tag: tag, summary: "List S3 keys",
		text:  "Lists the account's keys of the S3 interface, without their secrets.",
		scope: read, limit: limit.PerAccount, status: http.StatusOK, out: S3KeyList{S3Keys: []S3Key{exampleS3Key()}},
	}, a.listS3Keys)
	handle(a, route{
		method: http.MethodPost, path: "/v2/s3-keys", id: "createS3Key", tag: tag, summary: "Make an S3 key",
		text: "Makes a key pair with which S3 clients reach the files of all network volumes of the account, without a pod. The secret is shown in this " +
			"answer and never again. 400: the account has 50 keys. 422: expiresAt is not in the future.",
		scope: write, limit: limit.PerAccount, status: http.StatusCreated,
		in: CreateS3KeyRequest{Name: "laptop"}, out: NewS3Key{Key: exampleS3Key(), Secret: "rps_0000000000000000000000000000000000000000000"},
	}, a.createS3Key)
	handle(a, route{
		method: http.MethodDelete, path: "/v2/s3-keys/{id}", id: "deleteS3Key", tag: tag, summary: "Delete an S3 key",
		text:  "Deletes a key pair. Requests that are signed with it are refused within a minute. 404: the account has no such key.",
		scope: write, limit: limit.PerAccount, status: http.StatusNoContent, params: []*huma.Param{pathParam("Access key.", "user_000000000000000000000000000")},
	}, a.deleteS3Key)
}

func (a *API) listS3Keys(ctx context.Context, c *call, _ *none) (*S3KeyList, error) {
	all, err := showAll(s3KeyRecord)(a.svc.S3Keys(ctx, c.who))
	return &S3KeyList{S3Keys: all}, err
}

func (a *API) createS3Key(ctx context.Context, c *call, in *CreateS3KeyRequest) (*NewS3Key, error) {
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
	return &NewS3Key{Key: s3KeyRecord(key), Secret: secret.Reveal()}, nil
}

func (a *API) deleteS3Key(ctx context.Context, c *call, _ *none) (*none, error) {
	return nil, a.svc.DeleteS3Key(ctx, c.who, c.args.text("id"))
}

func s3KeyRecord(k fleet.S3Key) S3Key {
	out := S3Key{ID: k.ID, Name: k.Name, ReadOnly: k.ReadOnly, CreatedAt: Time{k.CreatedAt}}
	if !k.ExpiresAt.IsZero() {
		out.ExpiresAt = &Time{k.ExpiresAt}
	}
	return out
}

func exampleS3Key() S3Key {
	return S3Key{ID: "user_000000000000000000000000000", Name: "laptop", CreatedAt: exampleTime(0)}
}
