package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"gantry/api/admin"
	"gantry/client"
)

type personCmd struct {
	List    listCmd          `cmd:"" help:"List the people who sign in to the console."`
	Create  personCreateCmd  `cmd:"" help:"Create a person; a password for the first sign-in is printed once."`
	Update  personUpdateCmd  `cmd:"" help:"Change a person: login, roles, whether it may sign in."`
	Reset   personResetCmd   `cmd:"" help:"Take away the password, the codes or the provider's account that a person lost."`
	SignOut personSignOutCmd `cmd:"" help:"End all sessions of people."`
	Delete  deleteCmd        `cmd:"" help:"Delete people, with their sessions and command lines."`
}

var persons = noun[admin.Person, admin.PersonList]{
	kind: "person", all: (*client.Client).People, remove: (*client.Client).DeletePerson,
	items:   func(l admin.PersonList) []admin.Person { return l.People },
	thing:   func(p admin.Person) thing { return thing{p.ID, p.Login} },
	columns: []string{"ID", "LOGIN", "ROLES", "PASSWORD", "CODES", "PROVIDER", "SESSIONS", "DISABLED", "CREATED"},
	row: func(p admin.Person, _ time.Time) []string {
		var roles []string
		for _, m := range p.Memberships {
			roles = append(roles, first(m.Name, m.AccountID)+"="+m.Role)
		}
		return []string{
			p.ID, p.Login, strings.Join(roles, " "), p.Password, yes(p.TOTP), yes(p.Provider), fmt.Sprint(p.Sessions), yes(p.Disabled), when(&p.CreatedAt),
		}
	},
}

// memberships reads ACCOUNT=ROLE; accounts are named by id or name.
func memberships(ctx context.Context, c *client.Client, texts []string) ([]admin.WantedMembership, error) {
	out := []admin.WantedMembership{}
	for _, text := range texts {
		account, role, ok := strings.Cut(text, "=")
		if !ok || account == "" {
			return nil, usage("--role must be ACCOUNT=ROLE, such as research=developer")
		}
		err := accounts.on(ctx, c, account, func(id string) error {
			out = append(out, admin.WantedMembership{AccountID: id, Role: role})
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

type personCreateCmd struct {
	Login      string   `arg:"" placeholder:"LOGIN" help:"E-mail address or name to sign in as."`
	Role       []string `sep:"none" required:"" placeholder:"ACCOUNT=ROLE" help:"What the person is in an account: owner, developer, viewer or billing. May be repeated."`
	NoPassword bool     `help:"Let the person sign in through the OpenID Connect provider alone."`
}

// Run creates a person.
func (cmd personCreateCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	in, err := memberships(ctx, c, cmd.Role)
	if err != nil {
		return err
	}
	made, err := c.CreatePerson(ctx, admin.CreatePersonRequest{Login: cmd.Login, Memberships: in, NoPassword: cmd.NoPassword})
	return sayNewPerson(a, made, err)
}

// sayNewPerson shows the password of a person, if there is one.
func sayNewPerson(a *app, p client.Answer[admin.NewPerson], err error) error {
	switch {
	case err != nil:
		return err
	case p.Value.Password == nil:
		return a.show(p.Raw, func() string { return persons.table(a, p.Value.Person) })
	}
	about := fmt.Sprintf("The password of %s (%s) for one sign-in within 7 days, at which another is chosen. It is shown once:",
		printable(p.Value.Person.Login), printable(p.Value.Person.ID))
	return a.showSecret(p.Raw, p.Value.Password.Reveal(), about)
}

// personRef names the person that a command is about.
type personRef struct {
	Person string `arg:"" placeholder:"PERSON" help:"Id of the person, or its login."`
}

type personUpdateCmd struct {
	personRef
	Login   *string  `placeholder:"LOGIN" help:"Another e-mail address or name to sign in as."`
	Role    []string `sep:"none" placeholder:"ACCOUNT=ROLE" help:"What the person is in an account; all that it is to be, as with create."`
	Disable bool     `xor:"disabled" help:"End all sessions and let none begin."`
	Enable  bool     `xor:"disabled" help:"Let sessions begin again."`
}

// Run changes a person.
func (cmd personUpdateCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	body := admin.UpdatePersonRequest{Login: cmd.Login}
	if cmd.Disable || cmd.Enable {
		body.Disabled = &cmd.Disable
	}
	if len(cmd.Role) > 0 {
		in, err := memberships(ctx, c, cmd.Role)
		if err != nil {
			return err
		}
		body.Memberships = &in
	}
	if body == (admin.UpdatePersonRequest{}) {
		return usage("nothing to change: give --login, --role, --disable or --enable")
	}
	return persons.on(ctx, c, cmd.Person, func(id string) error {
		p, err := c.UpdatePerson(ctx, id, body)
		return persons.show(a, p, err)
	})
}

type personResetCmd struct {
	personRef
	Password bool `help:"Replace the password by one for the next sign-in, which is printed once."`
	Codes    bool `help:"Have no codes needed to sign in."`
	Provider bool `help:"Forget the account of the OpenID Connect provider."`
}

// Run resets a person.
func (cmd personResetCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	if !cmd.Password && !cmd.Codes && !cmd.Provider {
		return usage("nothing to reset: give --password, --codes or --provider")
	}
	return persons.on(ctx, c, cmd.Person, func(id string) error {
		p, err := c.ResetPerson(ctx, id, admin.ResetPersonRequest{Password: cmd.Password, TOTP: cmd.Codes, Provider: cmd.Provider})
		return sayNewPerson(a, p, err)
	})
}

type personSignOutCmd struct {
	People []string `arg:"" name:"person" placeholder:"PERSON" help:"Ids of people, or their logins."`
}

// Run ends sessions.
func (cmd personSignOutCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	return persons.each(ctx, a, c, cmd.People, func(id string) error {
		if _, err := c.ResetPerson(ctx, id, admin.ResetPersonRequest{}); err != nil {
			return err
		}
		return a.done("signed out", id)
	})
}
