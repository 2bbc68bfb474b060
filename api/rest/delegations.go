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

// registerDelegations registers repositories of a cloud provider that an account lets the service pull from, of which there are none.
func (a *API) registerDelegations() {
	read, write := auth.Read(fleet.GroupRegistries), auth.Write(fleet.GroupRegistries)
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

func exampleDelegation() v2.Delegation {
	return v2.Delegation{
		ID: "d4n8w0zq5r7d2a", DelegatorUserID: "a5f8k2m7q1w4z9", AWSUser: "000000000000", Repository: "team/app", Tag: "latest",
		AWSRegion: "eu-west-1", DockerRegistryURI: "000000000000.dkr.ecr.eu-west-1.amazonaws.com", CreatedAt: exampleTime(0),
	}
}
