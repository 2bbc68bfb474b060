package client

import (
	"context"
	"net/http"

	"gantry/api/admin"
)

const people = "/admin/v1/people"

// People lists the people who sign in to the console; for operators.
func (c *Client) People(ctx context.Context) (Answer[admin.PersonList], error) {
	return list[admin.PersonList](ctx, c, people, nil)
}

// CreatePerson makes a person, with a password for the first sign-in; for operators.
func (c *Client) CreatePerson(ctx context.Context, body admin.CreatePersonRequest) (Answer[admin.NewPerson], error) {
	return call[admin.NewPerson](ctx, c, http.MethodPost, people, nil, body)
}

// UpdatePerson changes a person; for operators.
func (c *Client) UpdatePerson(ctx context.Context, id string, body admin.UpdatePersonRequest) (Answer[admin.Person], error) {
	return call[admin.Person](ctx, c, http.MethodPatch, people+"/"+word(id), nil, body)
}

// ResetPerson takes away what a person lost; for operators.
func (c *Client) ResetPerson(ctx context.Context, id string, body admin.ResetPersonRequest) (Answer[admin.NewPerson], error) {
	return call[admin.NewPerson](ctx, c, http.MethodPost, people+"/"+word(id)+"/reset", nil, body)
}

// DeletePerson deletes a person; for operators.
func (c *Client) DeletePerson(ctx context.Context, id string) error {
	return c.remove(ctx, people+"/"+word(id))
}

// SignOut deletes the API key that the client has.
func (c *Client) SignOut(ctx context.Context) error { return c.remove(ctx, "/v2/me/session") }
