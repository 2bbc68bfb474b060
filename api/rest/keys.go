package rest

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/fleet"
)

// Key is an API key without its secret text.
type Key struct {
	ID          string      `json:"id" doc:"Key identifier; not the key itself." example:"m2c9v4x7b1n5q8"`
	Name        string      `json:"name" doc:"Name of the key."`
	Hint        string      `json:"hint" doc:"First characters of the key." example:"gk_a1B2c3"`
	Permissions Permissions `json:"permissions" doc:"Access to each group of routes: none, read or write."`
	Invoke      Invoke      `json:"invoke" doc:"Endpoints whose jobs the key may submit: all, or a list of ids."`
	Disabled    bool        `json:"disabled" doc:"When true, the key is refused until it is enabled again."`
	CreatedAt   Time        `json:"createdAt" doc:"When the key was made."`
	ExpiresAt   *Time       `json:"expiresAt" doc:"When the key ends to work; null: never."`
	LastUsedAt  *Time       `json:"lastUsedAt" doc:"When the key was last used, to about a minute; null: never."`
}

// NewKey is an API key with its secret text, which is shown this once.
type NewKey struct {
	Key  Key    `json:"key" doc:"The key's record."`
	Text string `json:"apiKey" doc:"The key. It is not stored and cannot be shown again." example:"gk_0000000000000000000000000000000000000000000"`
}

// KeyList is the answer to listing keys.
type KeyList struct {
	Page
	Keys []Key `json:"keys" doc:"The account's keys."`
}

// CreateKeyRequest is the body that makes a key.
type CreateKeyRequest struct {
	KeyFields
	Permissions WantedPermissions `json:"permissions,omitempty" doc:"Access to single groups of routes, in place of the preset's."`
	Preset      string            `json:"preset,omitempty" doc:"all: write everywhere; readOnly: read everywhere; restricted: nothing but what permissions adds. Default: restricted with permissions, else all." enum:"all,readOnly,restricted" example:"readOnly"`
}

// KeyFields are what every request for a key has.
type KeyFields struct {
	Name      string `json:"name" doc:"Name of the key." minLength:"1" maxLength:"191" pattern:"^[^\\x00-\\x1f\\x7f-\\x9f]*$" patternDescription:"printable text" example:"ci"`
	Invoke    Invoke `json:"invoke,omitzero" doc:"Endpoints whose jobs the key may submit: all, or a list of at most 100 ids. Default: all with the preset all, else none."`
	ExpiresAt *Time  `json:"expiresAt,omitempty" doc:"When the key ends to work, in the future. Omitted: never."`
}

// UpdateKeyRequest is the body that changes a key.
type UpdateKeyRequest struct {
	Name     *string `json:"name,omitempty" doc:"Name of the key." minLength:"1" maxLength:"191" pattern:"^[^\\x00-\\x1f\\x7f-\\x9f]*$" patternDescription:"printable text" example:"ci"`
	Disabled *bool   `json:"disabled,omitempty" doc:"true refuses the key until it is enabled again." example:"true"`
}

// TransformSchema says which members may be null.
func (Key) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return nullable(s, "expiresAt", "lastUsedAt")
}

func keyIDParam() *huma.Param { return pathParam("Key identifier.", "m2c9v4x7b1n5q8") }

func (a *API) registerKeys() {
	read, write := auth.Read(fleet.GroupAccount), auth.Write(fleet.GroupAccount)
	handle(a, route{
		method: http.MethodGet, path: "/v2/account/keys", id: "listKeys", tag: "Account", summary: "List API keys",
		text:  "Lists the account's API keys, without their secret texts.",
		scope: read, limit: limit.PerAccount, status: http.StatusOK, out: KeyList{Keys: []Key{exampleKey()}},
	}, a.listKeys)
	handle(a, route{
		method: http.MethodPost, path: "/v2/account/keys", id: "createKey", tag: "Account", summary: "Make an API key",
		text: "Makes an API key and answers its text once. 403: the key would hold more than the key that makes the request, or outlive it. " +
			"422: expiresAt is not in the future.",
		scope: write, limit: limit.PerAccount, status: http.StatusCreated,
		in: CreateKeyRequest{KeyFields: KeyFields{Name: "ci"}, Preset: "readOnly"}, out: exampleNewKey(),
	}, a.createKey)
	handle(a, route{
		method: http.MethodGet, path: "/v2/account/keys/{id}", id: "getKey", tag: "Account", summary: "Get an API key",
		text:  "Returns an API key without its secret text. 404: the account has no such key.",
		scope: read, limit: limit.PerAccount, status: http.StatusOK, params: []*huma.Param{keyIDParam()}, out: exampleKey(),
	}, a.getKey)
	handle(a, route{
		method: http.MethodPatch, path: "/v2/account/keys/{id}", id: "updateKey", tag: "Account", summary: "Rename, disable or enable an API key",
		text: "Changes an API key. A disabled one is refused as an unknown one (401) until it is enabled again; its permissions are fixed. " +
			"404: the account has no such key.",
		scope: write, limit: limit.PerAccount, status: http.StatusOK, params: []*huma.Param{keyIDParam()},
		in: UpdateKeyRequest{Disabled: new(true)}, out: exampleKey(),
	}, a.updateKey)
	handle(a, route{
		method: http.MethodDelete, path: "/v2/account/keys/{id}", id: "deleteKey", tag: "Account", summary: "Delete an API key",
		text:  "Deletes an API key; requests with it get 401 from then on. 404: the account has no such key.",
		scope: write, limit: limit.PerAccount, status: http.StatusNoContent,
		params: []*huma.Param{keyIDParam()},
	}, a.deleteKey)
}

func (a *API) listKeys(ctx context.Context, c *call, _ *none) (*KeyList, error) {
	keys, err := showAll(keyRecord)(a.svc.Keys(ctx, c.who))
	return &KeyList{Keys: keys}, err
}

func (a *API) createKey(ctx context.Context, c *call, in *CreateKeyRequest) (*NewKey, error) {
	req, err := in.request(in.Preset, in.Permissions, a.now())
	if err != nil {
		return nil, err
	}
	can, _ := fleet.Preset(req.Preset) // the schema lets pass known presets only
	for group, access := range req.Can {
		can[group] = access
	}
	for _, group := range slices.Sorted(maps.Keys(can)) { // in the same order always: the first that lacks is named
		access := can[group]
		if access == fleet.AccessNone {
			continue
		}
		if err := auth.Require(c.who, auth.Scope{Group: group, Access: access}); err != nil {
			return nil, err
		}
	}
	return newKey(a.svc.CreateKey(ctx, c.who, req))
}

func (a *API) getKey(ctx context.Context, c *call, _ *none) (*Key, error) {
	id, err := pathID[fleet.KeyID](c, "key")
	if err != nil {
		return nil, err
	}
	return show(keyRecord)(a.svc.Key(ctx, c.who, id))
}

func (a *API) updateKey(ctx context.Context, c *call, in *UpdateKeyRequest) (*Key, error) {
	id, err := pathID[fleet.KeyID](c, "key")
	if err != nil {
		return nil, err
	}
	return show(keyRecord)(a.svc.UpdateKey(ctx, c.who, id, fleet.KeyUpdate{Name: in.Name, Disabled: in.Disabled}))
}

func (a *API) deleteKey(ctx context.Context, c *call, _ *none) (*none, error) {
	id, err := pathID[fleet.KeyID](c, "key")
	if err != nil {
		return nil, err
	}
	return nil, a.svc.DeleteKey(ctx, c.who, id)
}

func (in *KeyFields) check() []string { return in.Invoke.check("$.invoke") }

// request is the wish with its defaults filled in. Errors: CodeInvalid when it expires before now.
func (in *KeyFields) request(preset string, wanted WantedPermissions, now time.Time) (fleet.KeyRequest, error) {
	if preset == "" {
		preset = "all"
		if wanted != nil {
			preset = "restricted"
		}
	}
	out := fleet.KeyRequest{Name: in.Name, Preset: preset, Can: wanted.accesses(), Invoke: in.Invoke.endpoints()}
	if in.ExpiresAt != nil {
		if out.ExpiresAt = in.ExpiresAt.Time; !out.ExpiresAt.After(now) {
			return out, fleet.Invalid("$.expiresAt", "must be in the future")
		}
	}
	return out, nil
}

func newKey(k fleet.Key, text fleet.Secret, err error) (*NewKey, error) {
	if err != nil {
		return nil, err
	}
	return &NewKey{Key: keyRecord(k), Text: text.Reveal()}, nil
}

func keyRecord(k fleet.Key) Key {
	return Key{
		ID: string(k.ID), Name: k.Name, Hint: k.Hint, Permissions: permissionsOf(k.Can), Invoke: invokeOf(k.Invoke), Disabled: k.Disabled,
		CreatedAt: Time{k.CreatedAt}, ExpiresAt: timeOrNull(k.ExpiresAt), LastUsedAt: timeOrNull(k.LastUsedAt),
	}
}

func exampleKey() Key {
	return Key{
		ID: "m2c9v4x7b1n5q8", Name: "ci", Hint: "gk_000000", CreatedAt: exampleTime(0),
		Permissions: permissionsOf(map[fleet.Group]fleet.Access{fleet.GroupPods: fleet.AccessRead, fleet.GroupCatalog: fleet.AccessRead}),
	}
}

func exampleNewKey() NewKey {
	return NewKey{Key: exampleKey(), Text: "gk_0000000000000000000000000000000000000000000"}
}
