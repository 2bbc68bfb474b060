package rest

import (
	"context"
	"crypto/pbkdf2"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/auth"
	"gantry/api/limit"
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

// passwordRounds cost some tens of milliseconds.
const passwordRounds = 200_000

func registryIDParam() *huma.Param {
	return pathParam("Registry credential identifier.", "r3g8k2m7q1w4z9")
}

func (a *API) registerRegistries() {
	read, write := auth.Read(fleet.GroupRegistries), auth.Write(fleet.GroupRegistries)
	handle(a, route{
		method: http.MethodGet, path: "/v2/registries", id: "listRegistries", tag: "Registries", summary: "List registry credentials",
		text:  "Lists the account's registry credentials, oldest first. User names and passwords are not shown.",
		scope: read, limit: limit.PerAccount, status: http.StatusOK, out: v2.RegistryList{Registries: []v2.Registry{exampleRegistry()}},
	}, a.listRegistries)
	handle(a, route{
		method: http.MethodPost, path: "/v2/registries", id: "createRegistry", tag: "Registries", summary: "Make a registry credential",
		text: "Stores a user name and a password for private images, encrypted. They go to the hosts of the pods that use them and " +
			"are never shown again. The registry's address is that of the image, so one credential serves any registry.\n\n" + onceText,
		scope: write, limit: limit.PerAccount, status: http.StatusCreated, params: []*huma.Param{onceParam()},
		in: v2.CreateRegistryRequest{Name: "team images", Username: "robot", Password: "placeholder"}, out: exampleRegistry(),
	}, a.createRegistry)
	handle(a, route{
		method: http.MethodGet, path: "/v2/registries/{id}", id: "getRegistry", tag: "Registries", summary: "Get a registry credential",
		text:  "Returns a registry credential without its user name and password. 404: the account has no such credential.",
		scope: read, limit: limit.PerAccount, status: http.StatusOK, params: []*huma.Param{registryIDParam()}, out: exampleRegistry(),
	}, a.getRegistry)
	handle(a, route{
		method: http.MethodDelete, path: "/v2/registries/{id}", id: "deleteRegistry", tag: "Registries", summary: "Delete a registry credential",
		text: "Deletes a registry credential. 400: a template of the account, or a pod that is not terminated, uses it. " +
			"404: the account has no such credential.",
		scope: write, limit: limit.PerAccount, status: http.StatusNoContent, params: []*huma.Param{registryIDParam()},
	}, a.deleteRegistry)
	a.registerDelegations(read, write)
}

func (a *API) registerDelegations(read, write auth.Scope) {
	handle(a, route{
		method: http.MethodGet, path: "/v2/registries/delegations", id: "listDelegations", tag: "Registries", summary: "List delegated repositories",
		text:  "Lists the account's delegations; there are none, for this service has no AWS identity.",
		scope: read, limit: limit.PerAccount, status: http.StatusOK, out: v2.DelegationList{Delegations: []v2.Delegation{}},
	}, func(context.Context, *call, *none) (*v2.DelegationList, error) {
		return &v2.DelegationList{Delegations: []v2.Delegation{}}, nil
	})
	handle(a, route{
		method: http.MethodPost, path: "/v2/registries/delegations", id: "createDelegation", tag: "Registries", summary: "Delegate a repository",
		text: "Would let the service's own AWS identity pull from an ECR repository. 400: this service has no AWS identity that a repository could be " +
			"delegated to; make a registry credential with an ECR token instead. 422: resource is not the ARN of an ECR repository.",
		scope: write, limit: limit.PerAccount, status: http.StatusCreated,
		in: v2.CreateDelegationRequest{Resource: "arn:aws:ecr:eu-west-1:000000000000:repository/team/app"}, out: exampleDelegation(),
	}, func(context.Context, *call, *v2.CreateDelegationRequest) (*v2.Delegation, error) {
		return nil, fleet.BreaksRule("this service has no AWS identity that a repository could be delegated to")
	})
	handle(a, route{
		method: http.MethodDelete, path: "/v2/registries/delegations/{id}", id: "deleteDelegation", tag: "Registries", summary: "End a delegation",
		text:  "Ends a delegation. 404: there is no such delegation, for there are none.",
		scope: write, limit: limit.PerAccount, status: http.StatusNoContent, params: []*huma.Param{pathParam("Delegation identifier.", "d4n8w0zq5r7d2a")},
	}, func(context.Context, *call, *none) (*none, error) {
		return nil, fleet.NotFound("delegation")
	})
}

func (a *API) listRegistries(ctx context.Context, c *call, _ *none) (*v2.RegistryList, error) {
	all, err := showAll(registryRecord)(a.svc.Registries(ctx, c.who))
	return &v2.RegistryList{Registries: all}, err
}

func (a *API) createRegistry(ctx context.Context, c *call, in *v2.CreateRegistryRequest) (*v2.Registry, error) {
	once, err := c.onceCredential(*in)
	if err != nil {
		return nil, err
	}
	cred := fleet.Credential{Username: in.Username, Password: in.Password.Secret()}
	made, replayed, err := a.svc.CreateRegistry(ctx, c.who, in.Name, cred, once)
	c.replayed(replayed)
	return show(registryRecord)(made, err)
}

// onceCredential is once for a body whose password must not be found by trying passwords on its fingerprint.
func (c *call) onceCredential(in v2.CreateRegistryRequest) (*fleet.Once, error) {
	key := c.args.text(onceHeader)
	if key != "" {
		slow, err := pbkdf2.Key(sha256.New, string(in.Password), []byte(string(c.who.Account)+" "+key), passwordRounds, sha256.Size)
		if err != nil {
			return nil, fmt.Errorf("derive fingerprint: %w", err)
		}
		in.Password = v2.Hidden(hex.EncodeToString(slow))
	}
	return c.once(in)
}

func (a *API) getRegistry(ctx context.Context, c *call, _ *none) (*v2.Registry, error) {
	id, err := pathID[fleet.RegistryID](c, "registry credential")
	if err != nil {
		return nil, err
	}
	return show(registryRecord)(a.svc.Registry(ctx, c.who, id))
}

func (a *API) deleteRegistry(ctx context.Context, c *call, _ *none) (*none, error) {
	id, err := pathID[fleet.RegistryID](c, "registry credential")
	if err != nil {
		return nil, err
	}
	return nil, a.svc.DeleteRegistry(ctx, c.who, id)
}

func registryRecord(r fleet.Registry) v2.Registry { return v2.Registry{ID: string(r.ID), Name: r.Name} }

func exampleRegistry() v2.Registry { return v2.Registry{ID: "r3g8k2m7q1w4z9", Name: "team images"} }

func exampleDelegation() v2.Delegation {
	return v2.Delegation{
		ID: "d4n8w0zq5r7d2a", DelegatorUserID: "a5f8k2m7q1w4z9", AWSUser: "000000000000", Repository: "team/app", Tag: "latest",
		AWSRegion: "eu-west-1", DockerRegistryURI: "000000000000.dkr.ecr.eu-west-1.amazonaws.com", CreatedAt: exampleTime(0),
	}
}
