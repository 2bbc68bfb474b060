package rest

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/admin"
	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/api/v2"
	"gantry/fleet"
)

// PersonService keeps people.
type PersonService interface {
	People(ctx context.Context) ([]fleet.PersonView, error)
	Person(ctx context.Context, id fleet.PersonID) (fleet.PersonView, error)
	// CreatePerson returns a password that may be used once, unless none was asked for.
	CreatePerson(ctx context.Context, login string, memberships []fleet.Membership, password bool) (fleet.PersonView, fleet.Secret, error)
	UpdatePerson(ctx context.Context, id fleet.PersonID, change fleet.PersonUpdate) (fleet.PersonView, error)
	// ResetPerson returns a password that may be used once, if the password is reset.
	ResetPerson(ctx context.Context, id fleet.PersonID, what fleet.PersonReset) (fleet.Secret, error)
	DeletePerson(ctx context.Context, id fleet.PersonID) error
}

func (a *API) registerPeople() {
	one, example := []*huma.Param{pathParam("Person identifier.", "h4n7k2m9q5w1z8")}, personRecord(examplePerson())
	at := func(method, path, id, summary, text string, status int) route {
		rt := route{
			method: method, path: "/admin/v1/people" + path, id: id, tag: "Operators", summary: summary, text: text,
			scope: auth.Write(fleet.GroupAdmin), limit: limit.PerAccount, status: status,
		}
		if method == http.MethodGet {
			rt.scope = auth.Read(fleet.GroupAdmin)
		}
		if path != "" {
			rt.params = one
			rt.text += " 404: there is none."
		}
		return rt
	}
	fresh := admin.NewPerson{Person: example, Password: new(v2.Hidden("ABCDEFGHIJKLMNOPQRSTUVWX"))}
	list := at(http.MethodGet, "", "listPeople", "List people", "Lists who signs in without an API key.", http.StatusOK)
	list.out = admin.PersonList{People: []admin.Person{example}}
	on(a, list, func(ctx context.Context, svc PersonService, _ *call, _ *none) (*admin.PersonList, error) {
		all, err := showAll(personRecord)(svc.People(ctx))
		return &admin.PersonList{People: all}, err
	})
	create := at(http.MethodPost, "", "createPerson", "Make a person",
		"Answers a password for the first sign-in, once. 409: another has the login.", http.StatusCreated)
	create.in, create.out = admin.CreatePersonRequest{Login: "ada@example.com", Memberships: []admin.WantedMembership{{AccountID: "a5f8k2m7q1w4z9", Role: "developer"}}}, fresh
	on(a, create.fails(http.StatusNotFound, http.StatusConflict), createPerson)
	update := at(http.MethodPatch, "/{id}", "updatePerson", "Change a person",
		"Changes a person at once; what is left out stays. 409: another has the login.", http.StatusOK)
	update.in, update.out = admin.UpdatePersonRequest{Disabled: new(true)}, example
	on(a, update.fails(http.StatusConflict), byID("person", updatePerson))
	reset := at(http.MethodPost, "/{id}/reset", "resetPerson", "Take away what a person lost",
		"Ends all sessions of a person, and takes away what is asked for.", http.StatusOK)
	reset.in, reset.out = admin.ResetPersonRequest{Password: true}, fresh
	on(a, reset, byID("person", resetPerson))
	on(a, at(http.MethodDelete, "/{id}", "deletePerson", "Delete a person",
		"Deletes a person, with sessions and keys of command lines.", http.StatusNoContent),
		byID("person", func(ctx context.Context, svc PersonService, id fleet.PersonID, _ *call, _ *none) (*none, error) {
			return nil, svc.DeletePerson(ctx, id)
		}))
}

func createPerson(ctx context.Context, svc PersonService, _ *call, in *admin.CreatePersonRequest) (*admin.NewPerson, error) {
	p, once, err := svc.CreatePerson(ctx, in.Login, wantedMemberships(in.Memberships), !in.NoPassword)
	return newPerson(p, once, err)
}

func newPerson(p fleet.PersonView, once fleet.Secret, err error) (*admin.NewPerson, error) {
	if err != nil {
		return nil, err
	}
	out := &admin.NewPerson{Person: personRecord(p)}
	if once != "" {
		out.Password = new(v2.Hidden(once))
	}
	return out, nil
}

func updatePerson(ctx context.Context, svc PersonService, id fleet.PersonID, _ *call, in *admin.UpdatePersonRequest) (*admin.Person, error) {
	change := fleet.PersonUpdate{Login: in.Login, Disabled: in.Disabled}
	if in.Memberships != nil {
		change.Memberships = new(wantedMemberships(*in.Memberships))
	}
	return show(personRecord)(svc.UpdatePerson(ctx, id, change))
}

func resetPerson(ctx context.Context, svc PersonService, id fleet.PersonID, _ *call, in *admin.ResetPersonRequest) (*admin.NewPerson, error) {
	once, err := svc.ResetPerson(ctx, id, fleet.PersonReset{Password: in.Password, TOTP: in.TOTP, Subject: in.Provider})
	if err != nil {
		return nil, err
	}
	p, err := svc.Person(ctx, id)
	return newPerson(p, once, err)
}

func wantedMemberships(in []admin.WantedMembership) []fleet.Membership {
	out := make([]fleet.Membership, 0, len(in))
	for _, m := range in {
		out = append(out, fleet.Membership{Account: fleet.AccountID(m.AccountID), Role: fleet.Role(m.Role)})
	}
	return out
}

func personRecord(p fleet.PersonView) admin.Person {
	password := "own"
	switch {
	case p.Password == "":
		password = wordNone
	case !p.OnceUntil.IsZero():
		password = "once"
	}
	return admin.Person{
		ID: string(p.ID), Login: p.Login, Memberships: memberships(p), Disabled: p.Disabled, Password: password, TOTP: len(p.TOTP) > 0,
		Provider: p.Subject != "", Sessions: len(p.Sessions), CreatedAt: v2.At(p.CreatedAt),
	}
}
