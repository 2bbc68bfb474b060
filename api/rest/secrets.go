package rest

import (
	"context"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/auth"
	"gantry/api/limit"
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

const (
	secretNamePattern = "^[A-Za-z_][A-Za-z0-9_-]{0,63}$"
	secretNameRule    = "1 to 64 letters, digits, '_' and '-', not beginning with a digit or '-'"
)

func (a *API) registerSecrets() {
	read, write, id := auth.Read(fleet.GroupAccount), auth.Write(fleet.GroupAccount), pathParam("Name of the secret.", "HF_TOKEN")
	handle(a, route{
		method: http.MethodGet, path: "/v2/secrets", id: "listSecrets", tag: "Account", summary: "List secrets",
		text:  "Lists the names of the account's secrets.",
		scope: read, limit: limit.PerAccount, status: http.StatusOK, out: v2.SecretList{Secrets: []v2.Secret{exampleSecret()}},
	}, a.listSecrets)
	handle(a, route{
		method: http.MethodPut, path: "/v2/secrets/{id}", id: "putSecret", tag: "Account", summary: "Set a secret",
		text: "Makes a secret, or gives the one of this name another value. A value in the environment of a pod that has {{ RUNPOD_SECRET_name }} or " +
			"{{ GANTRY_SECRET_name }} in it gets the value in its place on the pod's host, and nowhere else; pods that run keep what they have until " +
			"their next start. 400: the account has 100 secrets, or a pod's environment would become too large to start it.",
		scope: write, limit: limit.PerAccount, status: http.StatusOK,
		params: []*huma.Param{entryParam("Name of the secret.", "HF_TOKEN", secretNamePattern, secretNameRule)},
		in:     v2.PutSecretRequest{Value: "hf_0000000000"}, out: exampleSecret(),
	}, a.putSecret)
	handle(a, route{
		method: http.MethodDelete, path: "/v2/secrets/{id}", id: "deleteSecret", tag: "Account", summary: "Delete a secret",
		text:  "Deletes a secret. 400: the environment of a pod that is not terminated refers to it. 404: the account has none of this name.",
		scope: write, limit: limit.PerAccount, status: http.StatusNoContent, params: []*huma.Param{id},
	}, a.deleteSecret)
}

func (a *API) listSecrets(ctx context.Context, c *call, _ *none) (*v2.SecretList, error) {
	secrets, err := showAll(secretRecord)(a.svc.Secrets(ctx, c.who))
	return &v2.SecretList{Secrets: secrets}, err
}

func (a *API) putSecret(ctx context.Context, c *call, in *v2.PutSecretRequest) (*v2.Secret, error) {
	return show(secretRecord)(a.svc.PutSecret(ctx, c.who, c.args.text("id"), in.Value.Secret()))
}

func (a *API) deleteSecret(ctx context.Context, c *call, _ *none) (*none, error) {
	return nil, a.svc.DeleteSecret(ctx, c.who, c.args.text("id"))
}

func checkPutSecret(in *v2.PutSecretRequest) []string {
	var out []string
	if len(in.Value) > fleet.MaxSecretBytes {
		out = append(out, "$.value: must have at most 32768 bytes")
	}
	if strings.ContainsRune(string(in.Value), 0) {
		out = append(out, "$.value: must not contain NUL")
	}
	return out
}

func secretRecord(s fleet.AccountSecret) v2.Secret {
	return v2.Secret{Name: s.Name, CreatedAt: v2.At(s.CreatedAt), UpdatedAt: v2.At(s.UpdatedAt)}
}

func exampleSecret() v2.Secret {
	return v2.Secret{Name: "HF_TOKEN", CreatedAt: exampleTime(0), UpdatedAt: exampleTime(0)}
}
