package main

import (
	"context"
	"math"
	"strconv"
	"strings"

	"gantry/api/v2"
	"gantry/client"
)

// spendLimitText shows the spend limit of an account's own; empty when it has none.
func spendLimitText(usd *float64) string {
	if usd == nil {
		return ""
	}
	return dollars(*usd) + " per hour"
}

// lowBalanceText shows which balance of an account is low, where it said so itself, and since when it has been.
func lowBalanceText(acc *v2.Account) string {
	var parts []string
	switch {
	case !acc.Prepaid:
	case acc.LowBalance != nil && *acc.LowBalance == 0:
		parts = append(parts, "never told")
	case acc.LowBalance != nil:
		parts = append(parts, "below "+dollars(*acc.LowBalance))
	}
	if acc.LowBalanceSince != nil {
		parts = append(parts, "since "+when(acc.LowBalanceSince))
	}
	return strings.Join(parts, ", ")
}

type accountSetCmd struct {
	SpendLimit string `placeholder:"USD" help:"The most to spend per hour, storage included, such as 20; or none."`
	LowBalance string `placeholder:"USD" help:"The balance below which gantry events tells so, such as 50; 0 is never, default is what is spent in 24 hours."`

	Webhook     string   `placeholder:"URL" help:"Where events are sent, with POST; or none."`
	WebhookKind []string `placeholder:"KIND" help:"Send only events of this kind; may be repeated. Without, of all kinds that the key may read."`
	signingFlags
}

// Run changes the settings of the account.
func (cmd accountSetCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	spend, err := ownMoney("--spend-limit", cmd.SpendLimit, "none")
	if err != nil {
		return err
	}
	low, err := ownMoney("--low-balance", cmd.LowBalance, "default")
	if err != nil {
		return err
	}
	hook, err := cmd.webhook(ctx, a)
	if err != nil {
		return err
	}
	if !spend.Set && !low.Set && !hook.Set {
		return usage("say what to change")
	}
	account, err := c.SetAccount(ctx, v2.UpdateAccountSettingsRequest{SpendLimit: spend, LowBalance: low, Webhook: hook})
	if err != nil {
		return err
	}
	return a.show(account.Raw, func() string { return ownAccountSheet(account.Value) })
}

// webhook reads where events are to be sent.
func (cmd accountSetCmd) webhook(ctx context.Context, a *app) (out v2.Maybe[v2.WebhookRequest], err error) {
	detailed := len(cmd.WebhookKind) > 0 || cmd.WebhookSecretFile != "" || cmd.NoWebhookSecret
	switch {
	case detailed && (cmd.Webhook == "" || cmd.Webhook == "none"):
		return out, usage("--webhook-kind, --webhook-secret-file and --no-webhook-secret need --webhook URL")
	case cmd.Webhook == "":
		return out, nil
	case cmd.Webhook == "none":
		return v2.Null[v2.WebhookRequest](), nil
	}
	in := v2.WebhookRequest{URL: cmd.Webhook, Kinds: cmd.WebhookKind}
	if in.Secret, err = cmd.signedUnder(ctx, a); err != nil {
		return out, err
	}
	return v2.Value(in), nil
}

// signingFlags say under which secret calls of webhooks are signed.
type signingFlags struct {
	WebhookSecretFile string `placeholder:"FILE" help:"File with the secret under which calls of webhooks are signed, 16 characters or more; - is standard input."`
	NoWebhookSecret   bool   `help:"Calls of webhooks are not signed."`
}

// signedUnder reads it; nil: as it is, or was not given. Empty: calls are not signed.
func (f signingFlags) signedUnder(ctx context.Context, a *app) (*v2.Hidden, error) {
	switch {
	case f.WebhookSecretFile != "" && f.NoWebhookSecret:
		return nil, usage("--webhook-secret-file and --no-webhook-secret exclude each other")
	case f.NoWebhookSecret:
		return new(v2.Hidden("")), nil
	case f.WebhookSecretFile == "":
		return nil, nil
	}
	secret, err := a.hidden(ctx, "--webhook-secret-file", f.WebhookSecretFile, "secret", maxPassword)
	return &secret, err
}

// webhookText shows where an account's events are sent, and what became of the last call; empty: nowhere.
func webhookText(h *v2.Webhook) string {
	if h == nil {
		return ""
	}
	parts := []string{h.Address, strings.Join(h.Kinds, " ")}
	if h.Signed {
		parts = append(parts, "signed")
	}
	switch {
	case h.Error != "":
		parts = append(parts, "given up "+when(h.At)+": "+string(h.Error))
	case h.At != nil:
		parts = append(parts, "taken "+when(h.At))
	}
	return strings.Join(parts, ", ")
}

// ownMoney reads USD, or the word that takes them back.
func ownMoney(flag, text, none string) (v2.Maybe[float64], error) {
	switch text {
	case "":
		return v2.Maybe[float64]{}, nil
	case none:
		return v2.Null[float64](), nil
	}
	usd, err := strconv.ParseFloat(text, 64)
	if err != nil || !(usd >= 0) || math.IsInf(usd, 0) {
		return v2.Maybe[float64]{}, usage("%s must be USD, such as 20, or %s", flag, none)
	}
	return v2.Value(usd), nil
}
