package rest

import (
	"context"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/fleet"
)

const (
	secretNamePattern = "^[A-Za-z_][A-Za-z0-9_-]{0,63}$"
	secretNameRule    = "1 to 64 letters, digits, '_' and '-', not beginning with a digit or '-'"
)

// Secret is a secret of an account without its value, which is never shown.
type Secret struct {
	Name      string `json:"name" doc:"Name, by which the environment of pods refers to it." example:"HF_TOKEN"`
	CreatedAt Time   `json:"createdAt" doc:"When it was made."`
	UpdatedAt Time   `json:"updatedAt" doc:"When its value was last set."`
}

// SecretList is the answer to listing secrets.
type SecretList struct {
	Page
	Secrets []Secret `json:"secrets" doc:"The account's secrets, by name."`
}

// PutSecretRequest is the body that sets a secret.
type PutSecretRequest struct {
	Value string `json:"value" doc:"Value: text of at most 32768 bytes, without NUL. It is never shown." minLength:"1" maxLength:"32768" example:"hf_0000000000"`
}

func (a *API) registerSecrets() {
	read, write, id := auth.Read(fleet.GroupAccount), auth.Write(fleet.GroupAccount), pathParam("Name of the secret.", "HF_TOKEN")
	handle(a, route{
		method: http.MethodGet, path: "/v2/secrets", id: "listSecrets", tag: "Account", summary: "List secrets",
		text:  "Lists the names of the account's secrets.",
		scope: read, limit: limit.PerAccount, status: http.StatusOK, out: SecretList{Secrets: []Secret{exampleSecret()}},
	}, a.listSecrets)
	handle(a, route{
		method: http.MethodPut, path: "/v2/secrets/{id}", id: "putSecret", tag: "Account", summary: "Set a secret",
		text: "Makes a secret, or gives the one of this name another value. A value in the environment of a pod that has {{ RUNPOD_SECRET_name }} or " +
			"{{ GANTRY_SECRET_name }} in it gets the value in its place on the pod's host, and nowhere else; pods that run keep what they have until " +
			"their next start. 400: the account has 100 secrets, or a pod's environment would become too large to start it.",
		scope: write, limit: limit.PerAccount, status: http.StatusOK,
		params: []*huma.Param{entryParam("Name of the secret.", "HF_TOKEN", secretNamePattern, secretNameRule)},
		in:     PutSecretRequest{Value: "hf_0000000000"}, out: exampleSecret(),
	}, a.putSecret)
	handle(a, route{
		method: http.MethodDelete, path: "/v2/secrets/{id}", id: "deleteSecret", tag: "Account", summary: "Delete a secret",
		text:  "Deletes a secret. 400: the environment of a pod that is not terminated refers to it. 404: the account has none of this name.",
		scope: write, limit: limit.PerAccount, status: http.StatusNoContent, params: []*huma.Param{id},
	}, a.deleteSecret)
}

func (a *API) listSecrets(ctx context.Context, c *call, _ *none) (*SecretList, error) {
	secrets, err := showAll(secretRecord)(a.svc.Secrets(ctx, c.who))
	return &SecretList{Secrets: secrets}, err
}

func (a *API) putSecret(ctx context.Context, c *call, in *PutSecretRequest) (*Secret, error) {
	return show(secretRecord)(a.svc.PutSecret(ctx, c.who, c.args.text("id"), fleet.Secret(in.Value)))
}

func (a *API) deleteSecret(ctx context.Context, c *call, _ *none) (*none, error) {
	return nil, a.svc.DeleteSecret(ctx, c.who, c.args.text("id"))
}

func (in *PutSecretRequest) check() []string {
	var out []string
	if len(in.Value) > fleet.MaxSecretBytes {
		out = append(out, "$.value: must have at most 32768 bytes")
	}
	if strings.ContainsRune(in.Value, 0) {
		out = append(out, "$.value: must not contain NUL")
	}
	return out
}

func secretRecord(s fleet.AccountSecret) Secret {
	return Secret{Name: s.Name, CreatedAt: Time{s.CreatedAt}, UpdatedAt: Time{s.UpdatedAt}}
}

func exampleSecret() Secret {
	return Secret{Name: "HF_TOKEN", CreatedAt: exampleTime(0), UpdatedAt: exampleTime(0)}
}
