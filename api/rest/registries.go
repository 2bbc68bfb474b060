package rest

import (
	"context"
	"crypto/pbkdf2"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"gantry/api/v2"
	"gantry/fleet"
)

// RegistryService keeps registry credentials.
type RegistryService interface {
	CreateRegistry(ctx context.Context, who fleet.Principal, name string, cred fleet.Credential, once *fleet.Once) (made fleet.Registry, replayed bool, err error)
	Registries(ctx context.Context, who fleet.Principal) ([]fleet.Registry, error)
	Registry(ctx context.Context, who fleet.Principal, id fleet.RegistryID) (fleet.Registry, error)
	DeleteRegistry(ctx context.Context, who fleet.Principal, id fleet.RegistryID) error
}

func (a *API) registerRegistries() {
	n := noun[RegistryService, fleet.RegistryID, fleet.Registry, v2.Registry, v2.RegistryList]{
		path: "/v2/registries", tag: "Registries", one: "a registry credential", name: "Registry", names: "Registries", group: fleet.GroupRegistries,
		id:      pathParam("Registry credential identifier.", "r3g8k2m7q1w4z9"),
		example: v2.Registry{ID: "r3g8k2m7q1w4z9", Name: "team images"},
		record:  func(r fleet.Registry) v2.Registry { return v2.Registry{ID: string(r.ID), Name: r.Name} },
		records: func(all []v2.Registry) v2.RegistryList { return v2.RegistryList{Registries: all} },
	}
	n.list(a, "Lists the account's registry credentials, oldest first. User names and passwords are not shown.", RegistryService.Registries)
	on(a, n.create(
		"Stores a user name and a password for private images, encrypted. They go to the hosts of the pods that use them and "+
			"are never shown again. The registry's address is that of the image, so one credential serves any registry.",
		v2.CreateRegistryRequest{Name: "team images", Username: "robot", Password: "placeholder"}).once(),
		func(ctx context.Context, svc RegistryService, c *call, in *v2.CreateRegistryRequest) (*v2.Registry, error) {
			known := *in
			if err := c.slow(&known.Password); err != nil {
				return nil, err
			}
			return show(n.record)(atMostOnce(c, known, func(once *fleet.Once) (fleet.Registry, bool, error) {
				return svc.CreateRegistry(ctx, c.who, in.Name, fleet.Credential{Username: in.Username, Password: in.Password.Secret()}, once)
			}))
		})
	n.get(a, "Returns a registry credential without its user name and password. 404: the account has no such credential.", RegistryService.Registry)
	n.delete(a, "Deletes a registry credential. 400: a template of the account, or a pod that is not terminated, uses it. "+
		"404: the account has no such credential.", RegistryService.DeleteRegistry)
}

// passwordRounds cost some tens of milliseconds.
const passwordRounds = 200_000

// slow replaces a password in the body by which a request with an idempotency key is known: it must not be found by trying passwords
// on the body's fingerprint.
func (c *call) slow(password *v2.Hidden) error {
	if key := c.args.text(onceHeader); key != "" && *password != "" {
		slow, err := pbkdf2.Key(sha256.New, string(*password), []byte(string(c.who.Account)+" "+key), passwordRounds, sha256.Size)
		if err != nil {
			return fmt.Errorf("derive fingerprint: %w", err)
		}
		*password = v2.Hidden(hex.EncodeToString(slow))
	}
	return nil
}
