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

// OperatorAccountService keeps accounts.
type OperatorAccountService interface {
	CreateAccount(ctx context.Context, name string) (fleet.Account, error)
	Accounts(ctx context.Context) ([]fleet.AccountView, error)
	AccountByID(ctx context.Context, id fleet.AccountID) (fleet.AccountView, error)
	SuspendAccount(ctx context.Context, id fleet.AccountID, reason string, stopPods bool) (fleet.AccountView, error)
	ResumeAccount(ctx context.Context, id fleet.AccountID) (fleet.AccountView, error)
	UpdateAccount(ctx context.Context, id fleet.AccountID, change fleet.AccountUpdate) (fleet.AccountView, error)
	// AddCredit adds to an account's balance and returns what it is then; replayed tells that once was seen
	// before.
	AddCredit(ctx context.Context, id fleet.AccountID, amount fleet.Money, once *fleet.Once) (balance fleet.Money, replayed bool, err error)
	// CreateAccountKey makes a key of an account; the preset admin is allowed.
	CreateAccountKey(ctx context.Context, account fleet.AccountID, req fleet.KeyRequest) (fleet.Key, fleet.Secret, error)
}

func accountIDParam() *huma.Param { return pathParam("Account identifier.", "a5f8k2m7q1w4z9") }

func (a *API) registerAccounts() {
	read, write := auth.Read(fleet.GroupAdmin), auth.Write(fleet.GroupAdmin)
	one := []*huma.Param{accountIDParam()}
	on(a, route{
		method: http.MethodGet, path: "/admin/v1/accounts", id: "listAccounts", tag: "Operators", summary: "List accounts",
		text:  "Lists all accounts with their balances (USD) and what they spend per hour now.",
		scope: read, limit: limit.PerAccount, status: http.StatusOK, out: admin.OperatorAccountList{Accounts: []admin.OperatorAccount{exampleOperatorAccount()}},
	}, listAccounts)
	on(a, route{
		method: http.MethodPost, path: "/admin/v1/accounts", id: "createAccount", tag: "Operators", summary: "Make an account",
		text:  "Makes an account; it has no key yet, is not prepaid and has the daemon's rate limits.",
		scope: write, limit: limit.PerAccount, status: http.StatusCreated, in: admin.CreateAccountRequest{Name: "research"}, out: exampleOperatorAccount(),
	}, createAccount)
	on(a, route{
		method: http.MethodGet, path: "/admin/v1/accounts/{id}", id: "getAccountById", tag: "Operators", summary: "Get an account",
		text:  "Returns an account. 404: there is no such account.",
		scope: read, limit: limit.PerAccount, status: http.StatusOK, params: one, out: exampleOperatorAccount(),
	}, byID("account", getAccountByID))
	on(a, route{
		method: http.MethodPatch, path: "/admin/v1/accounts/{id}", id: "updateAccount", tag: "Operators", summary: "Change an account",
		text: "Changes an account; what is left out stays. A prepaid account is refused pods that its credit does not pay an hour of, and its pods are " +
			"ended when it has no credit. 404: there is no such account.",
		scope: write, limit: limit.PerAccount, status: http.StatusOK, params: one,
		in: admin.UpdateAccountRequest{Prepaid: new(true)}, out: exampleOperatorAccount(),
	}, byID("account", updateAccount))
	on(a, route{
		method: http.MethodPost, path: "/admin/v1/accounts/{id}/keys", id: "createAccountKey", tag: "Operators", summary: "Make a key for an account",
		text:  "Makes an API key for an account and answers its text once. 404: there is no such account. 422: expiresAt is not in the future.",
		scope: write, limit: limit.PerAccount, status: http.StatusCreated, params: one,
		in: admin.CreateAccountKeyRequest{KeyFields: v2.KeyFields{Name: "first"}, Preset: "all"}, out: exampleNewKey(),
	}, byID("account", createAccountKey))
	on(a, route{
		method: http.MethodPost, path: "/admin/v1/accounts/{id}/credits", id: "addCredit", tag: "Operators", summary: "Add to an account's balance",
		text: "Adds USD to the balance of an account, or takes them away, and answers what it is then. 404: there is no such account. 422: the amount is 0 " +
			"or beyond a million.\n\n" + onceText,
		scope: write, limit: limit.PerAccount, status: http.StatusCreated, params: []*huma.Param{accountIDParam(), onceParam()},
		in: admin.AddCreditRequest{Amount: 25}, out: admin.Balance{Balance: 25},
	}, byID("account", addCredit))
	a.registerSuspension(one)
	a.registerLimits()
	a.registerPeople()
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
	suspend.in, suspend.errors = admin.SuspendAccountRequest{Reason: "unpaid since May"}, []int{http.StatusConflict}
	on(a, suspend, byID("account", suspendAccount))
	on(a, at("resume", "resumeAccount", "Resume an account", "Ends a suspension. It starts no pod."), byID("account", resumeAccount))
}

func suspendAccount(ctx context.Context, svc OperatorAccountService, id fleet.AccountID, _ *call, in *admin.SuspendAccountRequest) (*admin.OperatorAccount, error) {
	return show(operatorAccount)(svc.SuspendAccount(ctx, id, in.Reason, in.StopPods))
}

func resumeAccount(ctx context.Context, svc OperatorAccountService, id fleet.AccountID, _ *call, _ *none) (*admin.OperatorAccount, error) {
	return show(operatorAccount)(svc.ResumeAccount(ctx, id))
}

func listAccounts(ctx context.Context, svc OperatorAccountService, _ *call, _ *none) (*admin.OperatorAccountList, error) {
	all, err := showAll(operatorAccount)(svc.Accounts(ctx))
	return &admin.OperatorAccountList{Accounts: all}, err
}

func createAccount(ctx context.Context, svc OperatorAccountService, _ *call, in *admin.CreateAccountRequest) (*admin.OperatorAccount, error) {
	made, err := svc.CreateAccount(ctx, in.Name)
	return show(operatorAccount)(fleet.AccountView{Account: made}, err)
}

func getAccountByID(ctx context.Context, svc OperatorAccountService, id fleet.AccountID, _ *call, _ *none) (*admin.OperatorAccount, error) {
	return show(operatorAccount)(svc.AccountByID(ctx, id))
}

func updateAccount(ctx context.Context, svc OperatorAccountService, id fleet.AccountID, _ *call, in *admin.UpdateAccountRequest) (*admin.OperatorAccount, error) {
	change := fleet.AccountUpdate{Name: in.Name, Prepaid: in.Prepaid}
	if in.Quotas.Set {
		change.Quotas = &fleet.Quotas{}
		if q := in.Quotas.Value; q != nil {
			*change.Quotas = fleet.Quotas(*q)
		}
	}
	if in.Limits != nil {
		change.Limits = limitChange(in.Limits)
	}
	switch in.Egress {
	case wordOpen:
		change.Egress = new(fleet.EgressOpen)
	case wordNone:
		change.Egress = new(fleet.EgressNone)
	}
	return show(operatorAccount)(svc.UpdateAccount(ctx, id, change))
}

func createAccountKey(ctx context.Context, svc OperatorAccountService, id fleet.AccountID, _ *call, in *admin.CreateAccountKeyRequest) (*v2.NewKey, error) {
	return newKey(svc.CreateAccountKey(ctx, id, keyRequest(&in.KeyFields, in.Preset, v2.WantedPermissions(in.Permissions))))
}

func addCredit(ctx context.Context, svc OperatorAccountService, id fleet.AccountID, c *call, in *admin.AddCreditRequest) (*admin.Balance, error) {
	return show(func(left fleet.Money) admin.Balance { return admin.Balance{Balance: left.USD()} })(
		atMostOnce(c, in, func(once *fleet.Once) (fleet.Money, bool, error) {
			return svc.AddCredit(ctx, id, fleet.MoneyUSD(in.Amount), once)
		}))
}

func checkAddCredit(in *admin.AddCreditRequest) []string {
	if fleet.MoneyUSD(in.Amount) == 0 {
		return []string{"$.amount: must not be 0"}
	}
	return nil
}

func operatorAccount(v fleet.AccountView) admin.OperatorAccount {
	out := admin.OperatorAccount{Account: accountRecord(v)}
	if q := v.Account.Quotas; q != nil {
		own := admin.AccountQuotas(*q)
		out.Quotas = &own
	}
	if s := v.Account.Suspended; s != nil {
		out.Suspended = &admin.Suspended{Reason: s.Reason, At: v2.At(s.At)}
	}
	return out
}

func exampleOperatorAccount() admin.OperatorAccount {
	return admin.OperatorAccount{Account: exampleAccount(), Quotas: &admin.AccountQuotas{Minute: 600, Hour: 20_000, Day: 200_000}}
}
