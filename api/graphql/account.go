package graphql

import (
	"context"
	"math"
	"strings"

	"gantry/api/v2"
)

// user shows an account.
type user struct {
	s                                                    *session
	ID, Email, AuthID                                    string
	ClientBalance, CurrentSpendPerHr                     float64
	SpendLimit                                           *float64
	NotifyPodsStale, NotifyPodsGeneral, NotifyLowBalance bool
}

// Myself is the account of the key.
func (root) Myself(ctx context.Context) (*user, error) {
	s := sessionOf(ctx)
	a, err := read[v2.Account](s, "getAccount", nil)
	if err != nil {
		return nil, err
	}
	return &user{
		s: s, ID: a.ID, Email: a.Name, AuthID: a.ID, ClientBalance: a.Balance, CurrentSpendPerHr: a.HourlyRate,
		SpendLimit: new(min(float64(a.Limits.SpendPerHour.Limit), ownLimit(a.SpendLimit))), NotifyLowBalance: a.Prepaid && (a.LowBalance == nil || *a.LowBalance > 0),
	}, nil
}

// ownLimit returns an account's own limit; that of others is far below where it has none.
func ownLimit(usd *float64) float64 {
	if usd == nil {
		return math.Inf(1)
	}
	return *usd
}

func (u *user) PubKey() (*string, error) {
	keys, err := read[v2.SSHKeys](u.s, "getSshKeys", nil)
	if err != nil {
		return nil, err
	}
	return new(strings.Join(keys.Keys, "\n")), nil
}

// all shows the records of a list, which of takes out of its answer.
func all[L, R, V any](s *session, operation string, of func(*L) []R, view func(*session, *R) *V) (*[]*V, error) {
	answer, err := read[L](s, operation, nil)
	if err != nil {
		return nil, err
	}
	out, err := list(s, of(answer), view)
	return &out, err
}

func (u *user) Pods() (*[]*pod, error) {
	return all(u.s, "listPods", func(l *v2.PodList) []v2.Pod { return l.Pods }, newPod)
}

func (u *user) Endpoints() (*[]*endpoint, error) {
	return all(u.s, "listEndpoints", func(l *v2.EndpointList) []v2.Endpoint { return l.Endpoints }, newEndpoint)
}

func (u *user) NetworkVolumes() (*[]*volume, error) {
	return all(u.s, "listNetworkVolumes", func(l *v2.NetworkVolumeList) []v2.NetworkVolume { return l.NetworkVolumes }, newVolume)
}

func (u *user) ContainerRegistryCreds() (*[]*v2.Registry, error) {
	return all(u.s, "listRegistries", func(l *v2.RegistryList) []v2.Registry { return l.Registries }, itself)
}

func (u *user) PodTemplates() (*[]*template, error) {
	return all(u.s, "listTemplates", func(l *v2.TemplateList) []v2.Template { return l.Templates }, newTemplate)
}

func (u *user) Secrets() (*[]*secret, error) {
	return all(u.s, "listSecrets", func(l *v2.SecretList) []v2.Secret { return l.Secrets }, newSecret)
}

func (u *user) Endpoint(ctx context.Context, args byID) (*endpoint, error) {
	return maybe(ctx, "getEndpoint", text(args.ID), newEndpoint)
}

// itself shows a record that has the fields of the schema.
func itself[R any](_ *session, r *R) *R { return r }

// UpdateUserSettings replaces the account's SSH keys.
func (root) UpdateUserSettings(ctx context.Context, args with) (*user, error) {
	if keys, ok := args.Input["pubKey"].(string); ok {
		lines := []any{}
		for line := range strings.Lines(keys) {
			if line = strings.TrimSpace(line); line != "" {
				lines = append(lines, line)
			}
		}
		if _, err := save(ctx, "putSshKeys", "", input{"pubKey": lines}, []member{{from: "pubKey", to: "keys"}}, itself[v2.SSHKeys]); err != nil {
			return nil, err
		}
	}
	return root{}.Myself(ctx)
}

// secret shows a secret, whose id is its name.
type secret struct {
	ID, Name  string
	CreatedAt scalar
}

func newSecret(_ *session, r *v2.Secret) *secret { return &secret{r.Name, r.Name, scalar{r.CreatedAt}} }

// SecretCreate makes a secret or changes its value.
func (root) SecretCreate(ctx context.Context, args with) (*secret, error) {
	name := args.Input.text("name")
	delete(args.Input, "name") // it is in the path
	return save(ctx, "putSecret", name, args.Input, []member{{from: "value", to: "value"}, {from: "name", to: "path.id"}}, newSecret)
}

// SecretDelete deletes a secret.
func (root) SecretDelete(ctx context.Context, args byID) (*scalar, error) {
	return remove(ctx, "deleteSecret", text(args.ID))
}

var registryMembers = []member{{from: "name", to: "name"}, {from: "username", to: "username"}, {from: "password", to: "password"}}

// SaveRegistryAuth makes a registry credential.
func (root) SaveRegistryAuth(ctx context.Context, args with) (*v2.Registry, error) {
	return save(ctx, "createRegistry", "", args.Input, registryMembers, itself[v2.Registry])
}

// UpdateRegistryAuth replaces the user name and the password of a registry credential.
func (root) UpdateRegistryAuth(ctx context.Context, args with) (*v2.Registry, error) {
	return save(ctx, "updateRegistry", args.Input.text("id"), args.Input, registryMembers[1:], itself[v2.Registry])
}

// DeleteRegistryAuth deletes a registry credential.
func (root) DeleteRegistryAuth(ctx context.Context, args struct{ RegistryAuthID *string }) (*scalar, error) {
	return remove(ctx, "deleteRegistry", text(args.RegistryAuthID))
}
