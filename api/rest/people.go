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

// MeService is for people who are signed in.
type MeService interface {
	Me(ctx context.Context, who fleet.Principal) (fleet.PersonView, error)
	ChooseAccount(ctx context.Context, who fleet.Principal, account fleet.AccountID) error
	ChangePassword(ctx context.Context, who fleet.Principal, password, chosen fleet.Secret) error
	// SetTOTP has the caller sign in with codes of a secret in base32, of which one is given, or with none of an empty one.
	SetTOTP(ctx context.Context, who fleet.Principal, password, secret fleet.Secret, code string) error
	EndOwnSessions(ctx context.Context, who fleet.Principal) error
	// SignOut ends the caller's session, or deletes the caller's key.
	SignOut(ctx context.Context, who fleet.Principal) error
	Device(ctx context.Context, who fleet.Principal, code string) (fleet.DeviceRequest, error)
	DecideDevice(ctx context.Context, who fleet.Principal, code string, allow bool, days int) error
}

const textPersonOnly = " 403: the caller has an API key."

func (a *API) registerMe() {
	at := func(method, path, id, summary, text string, status int) route {
		return route{
			method: method, path: "/v2/me" + path, id: id, tag: "Account", summary: summary, text: text,
			scope: auth.Self(), limit: limit.PerAccount, status: status, unlisted: true,
		}
	}
	me := at(http.MethodGet, "", "getMe", "Get who is signed in", "Returns the person of a session of the console."+textPersonOnly, http.StatusOK)
	me.out = exampleMe()
	on(a, me, func(ctx context.Context, svc MeService, c *call, _ *none) (*v2.Me, error) {
		return show(func(p fleet.PersonView) v2.Me { return meRecord(p, c.who) })(svc.Me(ctx, c.who))
	})
	choose := at(http.MethodPut, "/account", "chooseAccount", "Act in another account",
		"Has the session act in another of the person's accounts from the next request on. 404: the person is not in the account."+textPersonOnly, http.StatusNoContent)
	choose.in, choose.errors = v2.ChooseAccountRequest{AccountID: "a5f8k2m7q1w4z9"}, []int{http.StatusNotFound}
	on(a, choose, func(ctx context.Context, svc MeService, c *call, in *v2.ChooseAccountRequest) (*none, error) {
		return nil, svc.ChooseAccount(ctx, c.who, fleet.AccountID(in.AccountID))
	})
	password := at(http.MethodPut, "/password", "changePassword", "Change one's password",
		"Replaces the person's password and ends all other sessions. 403: the password so far is another, or the caller has an API key.", http.StatusNoContent)
	password.in = v2.ChangePasswordRequest{Password: "correct horse", NewPassword: "battery staple"}
	on(a, password, func(ctx context.Context, svc MeService, c *call, in *v2.ChangePasswordRequest) (*none, error) {
		return nil, svc.ChangePassword(ctx, c.who, in.Password.Secret(), in.NewPassword.Secret())
	})
	codes := at(http.MethodPut, "/totp", "setTotp", "Have codes needed to sign in, or no more",
		"Has signing in with the password take a code of RFC 6238 (SHA-1, 6 digits, 30 seconds), or no more, and ends all other sessions. "+
			"403: the password or the code is wrong, or the caller has an API key. 409: codes are needed already.", http.StatusNoContent)
	codes.in = v2.SetTOTPRequest{Password: "correct horse", Secret: "JBSWY3DPEHPK3PXPJBSWY3DPEHPK3PXP", Code: "123456"}
	codes.errors = []int{http.StatusConflict}
	on(a, codes, func(ctx context.Context, svc MeService, c *call, in *v2.SetTOTPRequest) (*none, error) {
		return nil, svc.SetTOTP(ctx, c.who, in.Password.Secret(), in.Secret.Secret(), in.Code.Reveal())
	})
	on(a, at(http.MethodDelete, "/sessions", "signOutEverywhere", "Sign out everywhere",
		"Ends all sessions of the person, this one, too."+textPersonOnly, http.StatusNoContent),
		func(ctx context.Context, svc MeService, c *call, _ *none) (*none, error) {
			return nil, svc.EndOwnSessions(ctx, c.who)
		})
	on(a, at(http.MethodDelete, "/session", "signOut", "Sign out",
		"Ends the session of the request, or deletes the API key with which it is made. 409: the key is not one of `gantry login`.", http.StatusNoContent).fails(http.StatusConflict),
		func(ctx context.Context, svc MeService, c *call, _ *none) (*none, error) {
			return nil, svc.SignOut(ctx, c.who)
		})
	a.registerDevices(at)
}

func (a *API) registerDevices(at func(method, path, id, summary, text string, status int) route) {
	code := []*huma.Param{pathParam("The code that the command line shows.", "BCDF-GHJK")}
	look := at(http.MethodGet, "/devices/{id}", "getDevice", "Get a command line that waits to be let in",
		"Returns what waits under a code of `gantry login`. 403: the caller's key lacks account:write. 404: nothing waits under the code.", http.StatusOK)
	look.params, look.out = code, v2.Device{Name: "laptop", Address: "192.0.2.7", ExpiresAt: exampleTime(10)}
	on(a, look, func(ctx context.Context, svc MeService, c *call, _ *none) (*v2.Device, error) {
		return show(func(d fleet.DeviceRequest) v2.Device {
			return v2.Device{Name: d.Name, Address: d.Address, ReadOnly: d.ReadOnly, ExpiresAt: v2.At(d.ExpiresAt)}
		})(svc.Device(ctx, c.who, c.args.text("id")))
	})
	decide := at(http.MethodPost, "/devices/{id}", "decideDevice", "Let a command line in, or turn it away",
		"Makes an API key of the account for the command line that waits under a code. The key may do no more than the caller; that of a person's "+
			"command line no more than the person may do in the account at any time. 403: the caller's key lacks account:write. 404: nothing waits under the code.",
		http.StatusNoContent)
	decide.params, decide.in = code, v2.DecideDeviceRequest{Allow: true, ExpiresInDays: 30}
	on(a, decide, func(ctx context.Context, svc MeService, c *call, in *v2.DecideDeviceRequest) (*none, error) {
		return nil, svc.DecideDevice(ctx, c.who, c.args.text("id"), in.Allow, in.ExpiresInDays)
	})
}

func meRecord(p fleet.PersonView, who fleet.Principal) v2.Me {
	return v2.Me{
		ID: string(p.ID), Login: p.Login, AccountID: string(who.Account), Memberships: memberships(p), Password: p.Password != "",
		TOTP: len(p.TOTP) > 0, Provider: p.Subject != "", Sessions: len(p.Sessions),
	}
}

func memberships(p fleet.PersonView) []v2.Membership {
	out := make([]v2.Membership, 0, len(p.Memberships))
	for _, m := range p.Memberships {
		out = append(out, v2.Membership{AccountID: string(m.Account), Name: p.Names[m.Account], Role: string(m.Role)})
	}
	return out
}

func examplePerson() fleet.PersonView {
	return fleet.PersonView{
		Person: fleet.Person{
			ID: "h4n7k2m9q5w1z8", Login: "ada@example.com", CreatedAt: exampleTime(0).Time, Password: "x", TOTP: []byte{1},
			Memberships: []fleet.Membership{{Account: "a5f8k2m7q1w4z9", Role: fleet.RoleDeveloper}},
		},
		Names: map[fleet.AccountID]string{"a5f8k2m7q1w4z9": "research"}, Sessions: make([]fleet.Session, 1),
	}
}

func exampleMe() v2.Me { return meRecord(examplePerson(), fleet.Principal{Account: "a5f8k2m7q1w4z9"}) }
