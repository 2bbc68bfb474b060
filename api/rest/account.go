package rest

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"net/url"
	"slices"

	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/api/v2"
	"gantry/fleet"
)

// AccountService shows the caller's account and what it was charged, and keeps its SSH keys.
type AccountService interface {
	// Account returns the caller's account with its money.
	Account(ctx context.Context, who fleet.Principal) (fleet.AccountView, error)
	// SetAccount changes the settings of the caller's account.
	SetAccount(ctx context.Context, who fleet.Principal, change fleet.AccountSettings) (fleet.AccountView, error)
	SSHKeys(ctx context.Context, who fleet.Principal) ([]string, error)
	SetSSHKeys(ctx context.Context, who fleet.Principal, keys []string) error
	Billing(ctx context.Context, who fleet.Principal, q fleet.BillingQuery) (fleet.BillingView, error)
}

// wordOpen is fleet.EgressOpen in words.
const wordOpen = "open"

func (a *API) registerAccount() {
	on(a, route{
		method: http.MethodGet, path: "/v2/account", id: "getAccount", tag: "Account", summary: "Get the account",
		text: "Returns the account of the key with its balance in USD and what it spends per hour now, exact to the second. " +
			"At a balance of 0 or less, pods of a prepaid account that have a network volume or a persistent mount are stopped, others terminated.",
		scope: auth.Read(fleet.GroupAccount), limit: limit.PerAccount, status: http.StatusOK, out: exampleAccount(),
	}, getAccount)
	on(a, route{
		method: http.MethodPatch, path: "/v2/account", id: "updateAccountSettings", tag: "Account", summary: "Change the account",
		text:  "What there is already stays and is charged.",
		scope: auth.Write(fleet.GroupAccount), limit: limit.PerAccount, status: http.StatusOK, in: exampleAccountSettings(), out: exampleAccount(),
	}, updateAccountSettings)
	a.registerSSHKeys()
}

func exampleAccountSettings() v2.UpdateAccountSettingsRequest {
	return v2.UpdateAccountSettingsRequest{SpendLimit: v2.Value(20.0), LowBalance: v2.Value(50.0), Webhook: v2.Value(v2.WebhookRequest{
		URL: "https://ops.example.com/gantry", Kinds: []string{string(fleet.EventPod), string(fleet.EventLowBalance)},
	})}
}

func updateAccountSettings(ctx context.Context, svc AccountService, c *call, in *v2.UpdateAccountSettingsRequest) (*v2.Account, error) {
	hook, err := c.webhook(in.Webhook)
	if err != nil {
		return nil, err
	}
	return show(accountRecord)(svc.SetAccount(ctx, c.who, fleet.AccountSettings{
		SpendLimit: ownMoney(in.SpendLimit), LowBalance: ownMoney(in.LowBalance), Webhook: hook,
	}))
}

// webhook reads where an account's events are to be sent; nil where the body says nothing. A key gives away only what it may read.
// Errors: invalid, forbidden.
func (c *call) webhook(in v2.Maybe[v2.WebhookRequest]) (*fleet.WebhookRequest, error) {
	switch {
	case !in.Set:
		return nil, nil
	case in.Value == nil:
		return &fleet.WebhookRequest{}, nil
	}
	out := &fleet.WebhookRequest{URL: in.Value.URL}
	if in.Value.Secret != nil {
		out.Secret = new(in.Value.Secret.Secret())
	}
	for _, name := range in.Value.Kinds {
		if fleet.EventKinds()[fleet.EventKind(name)] == "" {
			return nil, fleet.Invalid("$.webhook.kinds", "names no kind of event")
		}
	}
	var err error
	out.Kinds, err = c.eventKinds(slices.Sorted(maps.Keys(fleet.EventKinds())), in.Value.Kinds, false)
	return out, err
}

func webhookRecord(h *fleet.AccountWebhook, s fleet.WebhookState) *v2.Webhook {
	if h == nil {
		return nil
	}
	out := &v2.Webhook{Signed: len(h.Key) > 0, At: v2.AtOrNull(s.At), Error: v2.Text(s.Error)}
	if u, err := url.Parse(h.URL); err == nil {
		out.Address = u.Scheme + "://" + u.Host
	}
	for _, kind := range h.Kinds {
		out.Kinds = append(out.Kinds, string(kind))
	}
	return out
}

// ownMoney is what an account says of its own money: nil where it says nothing, below 0 for null.
func ownMoney(m v2.Maybe[float64]) *fleet.Money {
	switch {
	case !m.Set:
		return nil
	case m.Value == nil:
		return new(fleet.Money(-1))
	}
	return new(fleet.MoneyUSD(*m.Value))
}

// usdOrNull shows money that may be missing.
func usdOrNull(m *fleet.Money) *float64 {
	if m == nil {
		return nil
	}
	return new(m.USD())
}

func getAccount(ctx context.Context, svc AccountService, c *call, _ *none) (*v2.Account, error) {
	return show(accountRecord)(svc.Account(ctx, c.who))
}

func accountRecord(v fleet.AccountView) v2.Account {
	return v2.Account{
		ID: string(v.Account.ID), Name: v.Account.Name, Balance: v.Balance.USD(), HourlyRate: v.HourlyRate.USD(),
		Prepaid: v.Account.Prepaid, Egress: cmp.Or(string(v.Account.Egress), wordOpen), CreatedAt: v2.At(v.Account.CreatedAt),
		SpendLimit: usdOrNull(v.Account.SpendLimit), LowBalance: usdOrNull(v.Account.LowBalance), LowBalanceSince: v2.AtOrNull(v.LowSince),
		Webhook: webhookRecord(v.Account.Webhook, v.Webhook), Limits: accountLimits(&v),
	}
}
