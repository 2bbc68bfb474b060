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
}

// Run changes what the account says of its own money.
func (cmd accountSetCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	spend, err := ownMoney("--spend-limit", cmd.SpendLimit, "none")
	if err != nil {
		return err
	}
	low, err := ownMoney("--low-balance", cmd.LowBalance, "default")
	if err != nil {
		return err
	}
	if !spend.Set && !low.Set {
		return usage("say what to change")
	}
	account, err := c.SetAccount(ctx, v2.UpdateAccountSettingsRequest{SpendLimit: spend, LowBalance: low})
	if err != nil {
		return err
	}
	return a.show(account.Raw, func() string { return ownAccountSheet(account.Value) })
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
