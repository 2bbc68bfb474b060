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
	"gantry/fleet"
)

// Registry is a credential for private images. Its user name and password are never shown.
type Registry struct {
	ID   string `json:"id" doc:"Registry credential identifier." example:"r3g8k2m7q1w4z9"`
	Name string `json:"name" doc:"Name of the credential."`
}

// RegistryList is the answer to listing registry credentials.
type RegistryList struct {
	Page
	Registries []Registry `json:"registries" doc:"The account's registry credentials, oldest first."`
}

// CreateRegistryRequest is the body that makes a registry credential.
type CreateRegistryRequest struct {
	Name     string `json:"name" doc:"Name of the credential; need not be unique. No control characters." minLength:"1" maxLength:"191" pattern:"^[^\\x00-\\x1f\\x7f-\\x9f]*$" patternDescription:"printable text" example:"team images"`
	Username string `json:"username" doc:"User name at the registry. No control characters and no colon." minLength:"1" maxLength:"256" pattern:"^[^\\x00-\\x1f\\x7f:]*$" patternDescription:"text without control characters and colons" example:"robot"`
	Password string `json:"password" doc:"Password or token at the registry. No NUL." minLength:"1" maxLength:"16384" pattern:"^[^\\x00]*$" patternDescription:"text without NUL" example:"placeholder"`
}

// Delegation is a repository of a cloud provider that was delegated to the service's own identity.
type Delegation struct {
	ID                string  `json:"id" doc:"Delegation identifier." example:"d4n8w0zq5r7d2a"`
	Name              *string `json:"name" doc:"Name, or null."`
	DelegatorUserID   string  `json:"delegatorUserId" doc:"Account that delegates."`
	AWSUser           string  `json:"awsUser" doc:"AWS account of the repository."`
	Repository        string  `json:"repository" doc:"Repository."`
	Tag               string  `json:"tag" doc:"Tag."`
	AWSRegion         string  `json:"awsRegion" doc:"AWS region of the repository."`
	DockerRegistryURI string  `json:"dockerRegistryUri" doc:"Address of the registry."`
	CreatedAt         Time    `json:"createdAt" doc:"When it was made."`
}

// DelegationList is the answer to listing delegations.
type DelegationList struct {
	Page
	Delegations []Delegation `json:"delegations" doc:"The account's delegations."`
}

// CreateDelegationRequest is the body that delegates a repository.
type CreateDelegationRequest struct {
	Resource string `json:"resource" doc:"ARN of the ECR repository." minLength:"1" maxLength:"512" pattern:"^arn:aws[a-z-]*:ecr:[a-z0-9-]+:[0-9]{12}:repository/[a-z0-9][a-z0-9._/-]*$" patternDescription:"the ARN of an ECR repository" example:"arn:aws:ecr:eu-west-1:000000000000:repository/team/app"`
	Name     string `json:"name,omitempty" doc:"Name of the delegation. No control characters." maxLength:"191" pattern:"^[^\\x00-\\x1f\\x7f-\\x9f]*$" patternDescription:"printable text"`
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
		scope: read, limit: limit.PerAccount, status: http.StatusOK, out: RegistryList{Registries: []Registry{exampleRegistry()}},
	}, a.listRegistries)
	handle(a, route{
		method: http.MethodPost, path: "/v2/registries", id: "createRegistry", tag: "Registries", summary: "Make a registry credential",
		text: "Stores a user name and a password for private images, encrypted. They go to the hosts of the pods that use them and " +
			"are never shown again. The registry's address is that of the image, so one credential serves any registry.\n\n" + onceText,
		scope: write, limit: limit.PerAccount, status: http.StatusCreated, params: []*huma.Param{onceParam()},
		in: CreateRegistryRequest{Name: "team images", Username: "robot", Password: "placeholder"}, out: exampleRegistry(),
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
		scope: read, limit: limit.PerAccount, status: http.StatusOK, out: DelegationList{Delegations: []Delegation{}},
	}, func(context.Context, *call, *none) (*DelegationList, error) {
		return &DelegationList{Delegations: []Delegation{}}, nil
	})
	handle(a, route{
		method: http.MethodPost, path: "/v2/registries/delegations", id: "createDelegation", tag: "Registries", summary: "Delegate a repository",
		text: "Would let the service's own AWS identity pull from an ECR repository. 400: this service has no AWS identity that a repository could be " +
			"delegated to; make a registry credential with an ECR token instead. 422: resource is not the ARN of an ECR repository.",
		scope: write, limit: limit.PerAccount, status: http.StatusCreated,
		in: CreateDelegationRequest{Resource: "arn:aws:ecr:eu-west-1:000000000000:repository/team/app"}, out: exampleDelegation(),
	}, func(context.Context, *call, *CreateDelegationRequest) (*Delegation, error) {
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

func (a *API) listRegistries(ctx context.Context, c *call, _ *none) (*RegistryList, error) {
	all, err := showAll(registryRecord)(a.svc.Registries(ctx, c.who))
	return &RegistryList{Registries: all}, err
}

func (a *API) createRegistry(ctx context.Context, c *call, in *CreateRegistryRequest) (*Registry, error) {
	once, err := c.onceCredential(*in)
	if err != nil {
		return nil, err
	}
	cred := fleet.Credential{Username: in.Username, Password: fleet.Secret(in.Password)}
	made, replayed, err := a.svc.CreateRegistry(ctx, c.who, in.Name, cred, once)
	c.replayed(replayed)
	return show(registryRecord)(made, err)
}

// onceCredential is once for a body whose password must not be found by trying passwords on its fingerprint.
func (c *call) onceCredential(in CreateRegistryRequest) (*fleet.Once, error) {
	key := c.args.text(onceHeader)
	if key != "" {
		slow, err := pbkdf2.Key(sha256.New, in.Password, []byte(string(c.who.Account)+" "+key), passwordRounds, sha256.Size)
		if err != nil {
			return nil, fmt.Errorf("derive fingerprint: %w", err)
		}
		in.Password = hex.EncodeToString(slow)
	}
	return c.once(in)
}

func (a *API) getRegistry(ctx context.Context, c *call, _ *none) (*Registry, error) {
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

func registryRecord(r fleet.Registry) Registry { return Registry{ID: string(r.ID), Name: r.Name} }

func exampleRegistry() Registry { return Registry{ID: "r3g8k2m7q1w4z9", Name: "team images"} }

func exampleDelegation() Delegation {
	return Delegation{
		ID: "d4n8w0zq5r7d2a", DelegatorUserID: "a5f8k2m7q1w4z9", AWSUser: "000000000000", Repository: "team/app", Tag: "latest",
		AWSRegion: "eu-west-1", DockerRegistryURI: "000000000000.dkr.ecr.eu-west-1.amazonaws.com", CreatedAt: exampleTime(0),
	}
}
