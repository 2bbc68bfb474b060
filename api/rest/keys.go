package rest

import (
	"context"
	"maps"
	"slices"

	"gantry/api/auth"
	"gantry/api/v2"
	"gantry/fleet"
)

// KeyService keeps API keys.
type KeyService interface {
	CreateKey(ctx context.Context, who fleet.Principal, req fleet.KeyRequest) (fleet.Key, fleet.Secret, error)
	Keys(ctx context.Context, who fleet.Principal) ([]fleet.Key, error)
	Key(ctx context.Context, who fleet.Principal, id fleet.KeyID) (fleet.Key, error)
	UpdateKey(ctx context.Context, who fleet.Principal, id fleet.KeyID, change fleet.KeyUpdate) (fleet.Key, error)
	DeleteKey(ctx context.Context, who fleet.Principal, id fleet.KeyID) error
}

func (a *API) registerKeys() {
	n := noun[KeyService, fleet.KeyID, fleet.Key, v2.Key, v2.KeyList]{
		path: "/v2/account/keys", tag: "Account", one: "an API key", name: "Key", names: "Keys", group: fleet.GroupAccount,
		id: pathParam("Key identifier.", "m2c9v4x7b1n5q8"), example: exampleKey(), record: keyRecord,
		records: func(all []v2.Key) v2.KeyList { return v2.KeyList{Keys: all} },
	}
	n.list(a, "Lists the account's API keys, without their secret texts.", KeyService.Keys)
	create := n.create("Makes an API key and answers its text once. 403: the key would hold more than the key that makes the request, or outlive it. "+
		"422: expiresAt is not in the future.", v2.CreateKeyRequest{KeyFields: v2.KeyFields{Name: "ci"}, Preset: "readOnly"})
	create.out = exampleNewKey()
	on(a, create, createKey)
	n.get(a, "Returns an API key without its secret text. 404: the account has no such key.", KeyService.Key)
	update := n.update("Changes an API key. A disabled one is refused as an unknown one (401) until it is enabled again; its permissions are fixed. "+
		"404: the account has no such key.", v2.UpdateKeyRequest{Disabled: new(true)})
	update.summary = "Rename, disable or enable an API key"
	on(a, update, byID("API key", func(ctx context.Context, svc KeyService, id fleet.KeyID, c *call, in *v2.UpdateKeyRequest) (*v2.Key, error) {
		return show(keyRecord)(svc.UpdateKey(ctx, c.who, id, fleet.KeyUpdate{Name: in.Name, Disabled: in.Disabled}))
	}))
	n.delete(a, "Deletes an API key; requests with it get 401 from then on. 404: the account has no such key.", KeyService.DeleteKey)
}

func createKey(ctx context.Context, svc KeyService, c *call, in *v2.CreateKeyRequest) (*v2.NewKey, error) {
	req := keyRequest(&in.KeyFields, in.Preset, in.Permissions)
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
	return newKey(svc.CreateKey(ctx, c.who, req))
}

// keyRequest is the wish with its defaults filled in.
func keyRequest(in *v2.KeyFields, preset string, wanted v2.WantedPermissions) fleet.KeyRequest {
	if preset == "" {
		preset = "all"
		if wanted != nil {
			preset = "restricted"
		}
	}
	return fleet.KeyRequest{
		Name: in.Name, Preset: preset, Can: accesses(wanted), Invoke: endpoints(&in.Invoke), ExpiresAt: given(in.ExpiresAt).Time,
	}
}

func newKey(k fleet.Key, text fleet.Secret, err error) (*v2.NewKey, error) {
	if err != nil {
		return nil, err
	}
	return &v2.NewKey{Key: keyRecord(k), Text: v2.Hidden(text)}, nil
}

func keyRecord(k fleet.Key) v2.Key {
	return v2.Key{
		ID: string(k.ID), Name: k.Name, Hint: k.Hint, Permissions: permissionsOf(k.Can), Invoke: invokeOf(k.Invoke), Disabled: k.Disabled,
		CreatedAt: v2.At(k.CreatedAt), ExpiresAt: v2.AtOrNull(k.ExpiresAt), LastUsedAt: v2.AtOrNull(k.LastUsedAt),
	}
}

func exampleKey() v2.Key {
	return v2.Key{
		ID: "m2c9v4x7b1n5q8", Name: "ci", Hint: "gk_000000", CreatedAt: exampleTime(0),
		Permissions: permissionsOf(map[fleet.Group]fleet.Access{fleet.GroupPods: fleet.AccessRead, fleet.GroupCatalog: fleet.AccessRead}),
	}
}

func exampleNewKey() v2.NewKey {
	return v2.NewKey{Key: exampleKey(), Text: "gk_0000000000000000000000000000000000000000000"}
}
