package rest

import (
	"cmp"
	"context"
	"net/http"

	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/fleet"
)

// Account is an account's record with its money.
type Account struct {
	ID         string  `json:"id" doc:"Account identifier." example:"a5f8k2m7q1w4z9"`
	Name       string  `json:"name" doc:"Name."`
	Balance    float64 `json:"balance" doc:"What is left of its credit now, in USD, to 10^-9; negative when it was metered without credit."`
	HourlyRate float64 `json:"hourlyRate" doc:"What it spends now, in USD per hour, storage included." minimum:"0"`
	Prepaid    bool    `json:"prepaid" doc:"Whether it spends credit: without one hour of a pod's cost the pod is refused (402), and without any credit pods are ended. Others are metered all the same and never stopped."`
	Egress     string  `json:"egress" doc:"What its pods reach outside of their private networks. open: everything but hosts; none: nothing; answers to who reaches them, and names, still work." enum:"open,none"`
	CreatedAt  Time    `json:"createdAt" doc:"When it was made."`

	Limits AccountLimits `json:"limits" doc:"How much it may have, and has. What would be more is refused: 403, quota_exceeded."`
}

// wordOpen is fleet.EgressOpen in words.
const wordOpen = "open"

func (a *API) registerAccount() {
	handle(a, route{
		method: http.MethodGet, path: "/v2/account", id: "getAccount", tag: "Account", summary: "Get the account",
		text: "Returns the account of the key with its balance in USD and what it spends per hour now, exact to the second. " +
			"At a balance of 0 or less, pods of a prepaid account that have a network volume or a persistent mount are stopped, others terminated.",
		scope: auth.Read(fleet.GroupAccount), limit: limit.PerAccount, status: http.StatusOK, out: exampleAccount(),
	}, a.getAccount)
	a.registerSSHKeys()
}

func (a *API) getAccount(ctx context.Context, c *call, _ *none) (*Account, error) {
	return show(accountRecord)(a.svc.Account(ctx, c.who))
}

func accountRecord(v fleet.AccountView) Account {
	return Account{
		ID: string(v.Account.ID), Name: v.Account.Name, Balance: v.Balance.USD(), HourlyRate: v.HourlyRate.USD(),
		Prepaid: v.Account.Prepaid, Egress: cmp.Or(string(v.Account.Egress), wordOpen), CreatedAt: Time{v.Account.CreatedAt},
		Limits: accountLimits(&v),
	}
}
