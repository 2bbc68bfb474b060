package rest

import (
	"context"

	"gantry/api/v2"
	"gantry/fleet"
)

// RegistryService keeps registry credentials.
type RegistryService interface {
	CreateRegistry(ctx context.Context, who fleet.Principal, name string, cred fleet.Credential, once *fleet.Once) (made fleet.Registry, replayed bool, err error)
	Registries(ctx context.Context, who fleet.Principal) ([]fleet.Registry, error)
	Registry(ctx context.Context, who fleet.Principal, id fleet.RegistryID) (fleet.Registry, error)
	UpdateRegistry(ctx context.Context, who fleet.Principal, id fleet.RegistryID, cred fleet.Credential) (fleet.Registry, error)
	DeleteRegistry(ctx context.Context, who fleet.Principal, id fleet.RegistryID) error
}

func (a *API) registerRegistries() {
	robot := v2.UpdateRegistryRequest{Username: "robot", Password: "placeholder"}
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
		v2.CreateRegistryRequest{Name: "team images", UpdateRegistryRequest: robot}).once(),
		func(ctx context.Context, svc RegistryService, c *call, in *v2.CreateRegistryRequest) (*v2.Registry, error) {
			known := *in
			if err := c.slow(&known.Password); err != nil {
				return nil, err
			}
			return show(n.record)(atMostOnce(c, known, func(once *fleet.Once) (fleet.Registry, bool, error) {
				return svc.CreateRegistry(ctx, c.who, in.Name, credential(&in.UpdateRegistryRequest), once)
			}))
		})
	n.get(a, "Returns a registry credential without its user name and password. 404: the account has no such credential.", RegistryService.Registry)
	on(a, n.update(
		"Replaces the user name and the password. Pods and endpoints that use the credential have them from their next pull on. "+
			"404: the account has no such credential.", robot), byID("registry credential",
		func(ctx context.Context, svc RegistryService, id fleet.RegistryID, c *call, in *v2.UpdateRegistryRequest) (*v2.Registry, error) {
			return show(n.record)(svc.UpdateRegistry(ctx, c.who, id, credential(in)))
		}))
	n.delete(a, "Deletes a registry credential. 400: a template of the account, or a pod that is not terminated, uses it. "+
		"404: the account has no such credential.", RegistryService.DeleteRegistry)
}

func credential(in *v2.UpdateRegistryRequest) fleet.Credential {
	return fleet.Credential{Username: in.Username, Password: in.Password.Secret()}
}
