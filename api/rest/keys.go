package rest

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/fleet"
)

// Key is an API key without its secret text.
type Key struct {
	ID          string            `json:"id" doc:"Key identifier; not the key itself." example:"m2c9v4x7b1n5q8"`
	Name        string            `json:"name" doc:"Name of the key."`
	Hint        string            `json:"hint" doc:"First characters of the key." example:"gk_a1B2c3"`
	Permissions map[string]string `json:"permissions" doc:"Access for each group of routes: read or write."`
	CreatedAt   Time              `json:"createdAt" doc:"When the key was made."`
	ExpiresAt   *Time             `json:"expiresAt" doc:"When the key ends to work; null: never."`
}

// NewKey is an API key with its secret text, which is shown this once.
type NewKey struct {
	Key  Key    `json:"key" doc:"The key's record."`
	Text string `json:"apiKey" doc:"The key. It is not stored and cannot be shown again." example:"gk_0000000000000000000000000000000000000000000"`
}

// KeyList is the answer to listing keys.
type KeyList struct {
	Keys []Key `json:"keys" doc:"The account's keys."`
}

// CreateKeyRequest is the body that makes a key.
type CreateKeyRequest struct {
	Name      string `json:"name" doc:"Name of the key." minLength:"1" maxLength:"191" pattern:"^[^\\x00-\\x1f\\x7f]*$" patternDescription:"text without control characters" example:"ci"`
	Preset    string `json:"preset" doc:"all: write everywhere; readOnly: read everywhere." enum:"all,readOnly" example:"readOnly"`
	ExpiresAt *Time  `json:"expiresAt,omitempty" doc:"When the key ends to work, in the future. Omitted: never."`
}

// TransformSchema says which members may be null.
func (Key) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return nullable(s, "expiresAt")
}

func (a *API) registerKeys() {
	handle(a, route{
		method: http.MethodGet, path: "/v2/account/keys", id: "listKeys", tag: "Account", summary: "List API keys",
		text:  "Lists the account's API keys, without their secret texts.",
		scope: auth.Read(fleet.GroupAccount), limit: limit.PerAccount, status: http.StatusOK, out: KeyList{Keys: []Key{exampleKey()}},
	}, a.listKeys)
	handle(a, route{
		method: http.MethodPost, path: "/v2/account/keys", id: "createKey", tag: "Account", summary: "Make an API key",
		text: "Makes an API key and answers its text once. 403: the preset holds more than the key that makes the request. " +
			"422: expiresAt is not in the future.",
		scope: auth.Write(fleet.GroupAccount), limit: limit.PerAccount, status: http.StatusCreated,
		in: CreateKeyRequest{Name: "ci", Preset: "readOnly"}, out: exampleNewKey(),
	}, a.createKey)
	handle(a, route{
		method: http.MethodDelete, path: "/v2/account/keys/{id}", id: "deleteKey", tag: "Account", summary: "Delete an API key",
		text:  "Deletes an API key; requests with it get 401 from then on. 404: the account has no such key.",
		scope: auth.Write(fleet.GroupAccount), limit: limit.PerAccount, status: http.StatusNoContent,
		params: []*huma.Param{pathParam("Key identifier.", "m2c9v4x7b1n5q8")},
	}, a.deleteKey)
}

func (a *API) listKeys(ctx context.Context, c *call, _ *none) (*KeyList, error) {
	keys, err := a.svc.Keys(ctx, c.who)
	if err != nil {
		return nil, err
	}
	out := &KeyList{Keys: []Key{}}
	for _, k := range keys {
		out.Keys = append(out.Keys, keyRecord(k))
	}
	return out, nil
}

func (a *API) createKey(ctx context.Context, c *call, in *CreateKeyRequest) (*NewKey, error) {
	can, _ := fleet.Preset(in.Preset) // the schema lets pass known presets only
	for group, access := range can {
		if err := auth.Require(c.who, auth.Scope{Group: group, Access: access}); err != nil {
			return nil, err
		}
	}
	var expires time.Time
	if in.ExpiresAt != nil {
		if expires = in.ExpiresAt.Time; !expires.After(a.now()) {
			return nil, fleet.Invalid("$.expiresAt", "must be in the future")
		}
	}
	key, text, err := a.svc.CreateKey(ctx, c.who, fleet.KeyRequest{Name: in.Name, Preset: in.Preset, ExpiresAt: expires})
	if err != nil {
		return nil, err
	}
	return &NewKey{Key: keyRecord(key), Text: text.Reveal()}, nil
}

func (a *API) deleteKey(ctx context.Context, c *call, _ *none) (*none, error) {
	id := c.args.text("id")
	if !fleet.ValidID(id) {
		return nil, fleet.NotFound("key")
	}
	return nil, a.svc.DeleteKey(ctx, c.who, fleet.KeyID(id))
}

func keyRecord(k fleet.Key) Key {
	out := Key{
		ID: string(k.ID), Name: k.Name, Hint: k.Hint, Permissions: map[string]string{},
		CreatedAt: Time{k.CreatedAt}, ExpiresAt: timeOrNull(k.ExpiresAt),
	}
	for group, access := range k.Can {
		out.Permissions[string(group)] = string(access)
	}
	return out
}
