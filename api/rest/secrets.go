package rest

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/v2"
	"gantry/fleet"
)

// SecretService keeps secrets.
type SecretService interface {
	Secrets(ctx context.Context, who fleet.Principal) ([]fleet.AccountSecret, error)
	// PutSecret makes a secret of the account or gives it another value.
	PutSecret(ctx context.Context, who fleet.Principal, name string, value fleet.Secret) (fleet.AccountSecret, error)
	DeleteSecret(ctx context.Context, who fleet.Principal, name string) error
}

func (a *API) registerSecrets() {
	n := noun[SecretService, string, fleet.AccountSecret, v2.Secret, v2.SecretList]{
		path: "/v2/secrets", tag: "Account", one: "a secret", name: "Secret", names: "Secrets", group: fleet.GroupAccount,
		id:      pathParam("Name of the secret.", "HF_TOKEN"),
		example: v2.Secret{Name: "HF_TOKEN", CreatedAt: exampleTime(0), UpdatedAt: exampleTime(0)},
		record: func(s fleet.AccountSecret) v2.Secret {
			return v2.Secret{Name: s.Name, CreatedAt: v2.At(s.CreatedAt), UpdatedAt: v2.At(s.UpdatedAt)}
		},
		records: func(all []v2.Secret) v2.SecretList { return v2.SecretList{Secrets: all} },
	}
	n.list(a, "Lists the names of the account's secrets.", SecretService.Secrets)
	set := n.operation(http.MethodPut, "/{id}", "put", "Set",
		"Makes a secret, or gives the one of this name another value. A value in the environment of a pod that has {{ RUNPOD_SECRET_name }} or "+
			"{{ GANTRY_SECRET_name }} in it gets the value in its place on the pod's host, and nowhere else; pods that run keep what they have until "+
			"their next start. 400: the account has 100 secrets, or a pod's environment would become too large to start it.",
		v2.PutSecretRequest{Value: "hf_0000000000"})
	set.params = []*huma.Param{entryParam("Name of the secret.", "HF_TOKEN", fleet.SecretName, fleet.SecretNameRule)}
	on(a, set, func(ctx context.Context, svc SecretService, c *call, in *v2.PutSecretRequest) (*v2.Secret, error) {
		return show(n.record)(svc.PutSecret(ctx, c.who, c.args.text("id"), in.Value.Secret()))
	})
	n.delete(a, "Deletes a secret. 400: the environment of a pod that is not terminated refers to it. 404: the account has none of this name.",
		SecretService.DeleteSecret)
}
