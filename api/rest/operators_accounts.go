package rest

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/fleet"
)

// OperatorAccount is an account's record as operators see it.
type OperatorAccount struct {
	Account
	Quotas *AccountQuotas `json:"quotas" doc:"Rate limits of its own; null: the daemon's."`

	Suspended *Suspended `json:"suspended" doc:"Why and since when its keys are refused; null: they are not."`
}

// Suspended tells of an account that is suspended.
type Suspended struct {
	Reason string `json:"reason" doc:"Why. Holders of the account's keys are told." example:"unpaid since May"`
	At     Time   `json:"at" doc:"Since when."`
}

// SuspendAccountRequest is the body that suspends an account.
type SuspendAccountRequest struct {
	Reason   string `json:"reason" doc:"Why. Holders of the account's keys are told." minLength:"1" maxLength:"1024" example:"unpaid since May"`
	StopPods bool   `json:"stopPods,omitempty" doc:"Stop its pods, too. Default: they run on, and are charged."`
}

// AccountQuotas are how many API requests an account may make in each window.
type AccountQuotas struct {
	Minute int `json:"minute" doc:"Requests in a minute; 0: any number." minimum:"0" maximum:"1000000000" example:"600"`
	Hour   int `json:"hour" doc:"Requests in an hour; 0: any number." minimum:"0" maximum:"1000000000" example:"20000"`
	Day    int `json:"day" doc:"Requests in a day; 0: any number." minimum:"0" maximum:"1000000000" example:"200000"`
}

// OperatorAccountList is the answer to listing accounts.
type OperatorAccountList struct {
	Page
	Accounts []OperatorAccount `json:"accounts" doc:"All accounts."`
}

// CreateAccountRequest is the body that makes an account.
type CreateAccountRequest struct {
	Name string `json:"name" doc:"Name of the account." minLength:"1" maxLength:"191" pattern:"^[^\\x00-\\x1f\\x7f-\\x9f]*$" patternDescription:"printable text" example:"research"`
}

// UpdateAccountRequest is the body that changes an account.
type UpdateAccountRequest struct {
	Name    *string              `json:"name,omitempty" doc:"Name of the account." minLength:"1" maxLength:"191" pattern:"^[^\\x00-\\x1f\\x7f-\\x9f]*$" patternDescription:"printable text" example:"research"`
	Prepaid *bool                `json:"prepaid,omitempty" doc:"Whether the account spends credit and may spend no more than it has." example:"true"`
	Quotas  Maybe[AccountQuotas] `json:"quotas,omitzero" doc:"Rate limits of its own; null: the daemon's again."`
	Egress  string               `json:"egress,omitempty" doc:"What its pods reach outside of their private networks, from now on, those that run included. open: everything but hosts; none: nothing; answers to who reaches them, and names, still work." enum:"open,none" example:"none"`

	Limits *LimitChanges `json:"limits,omitempty" doc:"How much it may have; null in one: as much as all accounts."`
}

// CreateAccountKeyRequest is the body that makes a key for an account.
type CreateAccountKeyRequest struct {
	KeyFields
	Permissions OperatorPermissions `json:"permissions,omitempty" doc:"Access to single groups of routes, in place of the preset's; admin is the operators' routes."`
	Preset      string              `json:"preset,omitempty" doc:"all: write everywhere; readOnly: read everywhere; restricted: nothing but what permissions adds; admin: all, and the operators' routes; adminReadOnly: read everywhere, the operators' routes too. Default: restricted with permissions, else all." enum:"all,readOnly,restricted,admin,adminReadOnly" example:"all"`
}

// AddCreditRequest is the body that adds to a balance.
type AddCreditRequest struct {
	Amount float64 `json:"amount" doc:"USD, to 10^-9; negative takes credit away." minimum:"-1000000" maximum:"1000000" example:"25"`
}

// Balance is what is left of an account's credit.
type Balance struct {
	Balance float64 `json:"balance" doc:"USD."`
}

// TransformSchema says which members may be null.
func (OperatorAccount) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return nullable(s, "quotas", "suspended")
}

func accountIDParam() *huma.Param { return pathParam("Account identifier.", "a5f8k2m7q1w4z9") }

func (a *API) registerAccounts() {
	read, write := auth.Read(fleet.GroupAdmin), auth.Write(fleet.GroupAdmin)
	one := []*huma.Param{accountIDParam()}
	handle(a, route{
		method: http.MethodGet, path: "/admin/v1/accounts", id: "listAccounts", tag: "Operators", summary: "List accounts",
		text:  "Lists all accounts with their balances (USD) and what they spend per hour now.",
		scope: read, limit: limit.PerAccount, status: http.StatusOK, out: OperatorAccountList{Accounts: []OperatorAccount{exampleOperatorAccount()}},
	}, a.listAccounts)
	handle(a, route{
		method: http.MethodPost, path: "/admin/v1/accounts", id: "createAccount", tag: "Operators", summary: "Make an account",
		text:  "Makes an account; it has no key yet, is not prepaid and has the daemon's rate limits.",
		scope: write, limit: limit.PerAccount, status: http.StatusCreated, in: CreateAccountRequest{Name: "research"}, out: exampleOperatorAccount(),
	}, a.createAccount)
	handle(a, route{
		method: http.MethodGet, path: "/admin/v1/accounts/{id}", id: "getAccountById", tag: "Operators", summary: "Get an account",
		text:  "Returns an account. 404: there is no such account.",
		scope: read, limit: limit.PerAccount, status: http.StatusOK, params: one, out: exampleOperatorAccount(),
	}, a.getAccountByID)
	handle(a, route{
		method: http.MethodPatch, path: "/admin/v1/accounts/{id}", id: "updateAccount", tag: "Operators", summary: "Change an account",
		text: "Changes an account; what is left out stays. A prepaid account is refused pods that its credit does not pay an hour of, and its pods are " +
			"ended when it has no credit. 404: there is no such account.",
		scope: write, limit: limit.PerAccount, status: http.StatusOK, params: one,
		in: UpdateAccountRequest{Prepaid: new(true)}, out: exampleOperatorAccount(),
	}, a.updateAccount)
	handle(a, route{
		method: http.MethodPost, path: "/admin/v1/accounts/{id}/keys", id: "createAccountKey", tag: "Operators", summary: "Make a key for an account",
		text:  "Makes an API key for an account and answers its text once. 404: there is no such account. 422: expiresAt is not in the future.",
		scope: write, limit: limit.PerAccount, status: http.StatusCreated, params: one,
		in: CreateAccountKeyRequest{KeyFields: KeyFields{Name: "first"}, Preset: "all"}, out: exampleNewKey(),
	}, a.createAccountKey)
	handle(a, route{
		method: http.MethodPost, path: "/admin/v1/accounts/{id}/credits", id: "addCredit", tag: "Operators", summary: "Add to an account's balance",
		text: "Adds USD to the balance of an account, or takes them away, and answers what it is then. 404: there is no such account. 422: the amount is 0 " +
			"or beyond a million.\n\n" + onceText,
		scope: write, limit: limit.PerAccount, status: http.StatusCreated, params: []*huma.Param{accountIDParam(), onceParam()},
		in: AddCreditRequest{Amount: 25}, out: Balance{Balance: 25},
	}, a.addCredit)
	a.registerSuspension(one)
	a.registerLimits()
}

func (a *API) registerSuspension(one []*huma.Param) {
	at := func(word, id, summary, text string) route {
		return route{
			method: http.MethodPost, path: "/admin/v1/accounts/{id}/" + word, id: id, tag: "Operators", summary: summary, text: text + " 404: there is no such account.",
			scope: auth.Write(fleet.GroupAdmin), limit: limit.PerAccount, status: http.StatusOK, params: one, out: exampleOperatorAccount(),
		}
	}
	suspend := at("suspend", "suspendAccount", "Suspend an account",
		"Has all keys of an account, of its pods and for S3 refused: 403, account_suspended, with the reason. Nothing is deleted. 409: one of its keys is an operator's.")
	suspend.in, suspend.errors = SuspendAccountRequest{Reason: "unpaid since May"}, []int{http.StatusConflict}
	handle(a, suspend, a.suspendAccount)
	handle(a, at("resume", "resumeAccount", "Resume an account", "Ends a suspension. It starts no pod."), a.resumeAccount)
}

func (a *API) suspendAccount(ctx context.Context, c *call, in *SuspendAccountRequest) (*OperatorAccount, error) {
	id, err := pathID[fleet.AccountID](c, "account")
	if err != nil {
		return nil, err
	}
	return show(operatorAccount)(a.svc.SuspendAccount(ctx, id, in.Reason, in.StopPods))
}

func (a *API) resumeAccount(ctx context.Context, c *call, _ *none) (*OperatorAccount, error) {
	id, err := pathID[fleet.AccountID](c, "account")
	if err != nil {
		return nil, err
	}
	return show(operatorAccount)(a.svc.ResumeAccount(ctx, id))
}

func (a *API) listAccounts(ctx context.Context, _ *call, _ *none) (*OperatorAccountList, error) {
	all, err := showAll(operatorAccount)(a.svc.Accounts(ctx))
	return &OperatorAccountList{Accounts: all}, err
}

func (a *API) createAccount(ctx context.Context, _ *call, in *CreateAccountRequest) (*OperatorAccount, error) {
	made, err := a.svc.CreateAccount(ctx, in.Name)
	return show(operatorAccount)(fleet.AccountView{Account: made}, err)
}

func (a *API) getAccountByID(ctx context.Context, c *call, _ *none) (*OperatorAccount, error) {
	id, err := pathID[fleet.AccountID](c, "account")
	if err != nil {
		return nil, err
	}
	return show(operatorAccount)(a.svc.AccountByID(ctx, id))
}

func (a *API) updateAccount(ctx context.Context, c *call, in *UpdateAccountRequest) (*OperatorAccount, error) {
	id, err := pathID[fleet.AccountID](c, "account")
	if err != nil {
		return nil, err
	}
	change := fleet.AccountUpdate{Name: in.Name, Prepaid: in.Prepaid}
	if in.Quotas.Set {
		change.Quotas = &fleet.Quotas{}
		if q := in.Quotas.Value; q != nil {
			*change.Quotas = fleet.Quotas(*q)
		}
	}
	if in.Limits != nil {
		change.Limits = in.Limits.change()
	}
	switch in.Egress {
	case wordOpen:
		change.Egress = new(fleet.EgressOpen)
	case wordNone:
		change.Egress = new(fleet.EgressNone)
	}
	return show(operatorAccount)(a.svc.UpdateAccount(ctx, id, change))
}

func (a *API) createAccountKey(ctx context.Context, c *call, in *CreateAccountKeyRequest) (*NewKey, error) {
	id, err := pathID[fleet.AccountID](c, "account")
	if err != nil {
		return nil, err
	}
	req, err := in.request(in.Preset, WantedPermissions(in.Permissions), a.now())
	if err != nil {
		return nil, err
	}
	return newKey(a.svc.CreateAccountKey(ctx, id, req))
}

func (a *API) addCredit(ctx context.Context, c *call, in *AddCreditRequest) (*Balance, error) {
	id, err := pathID[fleet.AccountID](c, "account")
	if err != nil {
		return nil, err
	}
	once, err := c.once(in)
	if err != nil {
		return nil, err
	}
	left, replayed, err := a.svc.AddCredit(ctx, id, fleet.MoneyUSD(in.Amount), once)
	if err != nil {
		return nil, err
	}
	c.replayed(replayed)
	return &Balance{Balance: left.USD()}, nil
}

func (in *AddCreditRequest) check() []string {
	if fleet.MoneyUSD(in.Amount) == 0 {
		return []string{"$.amount: must not be 0"}
	}
	return nil
}

func operatorAccount(v fleet.AccountView) OperatorAccount {
	out := OperatorAccount{Account: accountRecord(v)}
	if q := v.Account.Quotas; q != nil {
		own := AccountQuotas(*q)
		out.Quotas = &own
	}
	if s := v.Account.Suspended; s != nil {
		out.Suspended = &Suspended{Reason: s.Reason, At: Time{s.At}}
	}
	return out
}

func exampleOperatorAccount() OperatorAccount {
	return OperatorAccount{Account: exampleAccount(), Quotas: &AccountQuotas{Minute: 600, Hour: 20_000, Day: 200_000}}
}
