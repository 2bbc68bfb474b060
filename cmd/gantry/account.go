package main

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"gantry/api/admin"
	"gantry/api/v2"
	"gantry/client"
)

type accountCmd struct {
	Show    viewCmd           `cmd:"" default:"1" help:"Show your account: what is left of its credit, and what it spends."`
	Set     accountSetCmd     `cmd:"" help:"Set your account's own spend limit, and which balance is low."`
	List    listCmd           `cmd:"" operator:"" help:"List the accounts (for operators)."`
	Create  accountCreateCmd  `cmd:"" operator:"" help:"Create an account (for operators)."`
	Get     getCmd            `cmd:"" operator:"" help:"Show an account (for operators)."`
	Update  accountUpdateCmd  `cmd:"" operator:"" help:"Change an account: its name, whether it is prepaid, its rate limits, its egress (for operators)."`
	Suspend accountSuspendCmd `cmd:"" operator:"" help:"Refuse all keys of an account; its pods run on (for operators)."`
	Resume  actCmd            `cmd:"" operator:"" help:"Accept the keys of a suspended account again (for operators)."`
	Credit  accountCreditCmd  `cmd:"" operator:"" help:"Add to an account's balance (for operators)."`
	Limits  accountLimitsCmd  `cmd:"" operator:"" help:"Show or change the limits of accounts without limits of their own (for operators)."`
	Key     accountKeyCmd     `cmd:"" operator:"" help:"Create a key of an account, for example its first (for operators)."`
}

var accounts = noun[admin.OperatorAccount, admin.OperatorAccountList]{
	kind: "account", all: (*client.Client).Accounts, one: (*client.Client).Account,
	items:   func(l admin.OperatorAccountList) []admin.OperatorAccount { return l.Accounts },
	thing:   func(acc admin.OperatorAccount) thing { return thing{acc.ID, acc.Name} },
	columns: []string{"ID", "NAME", "BALANCE", "SPENDS/H", "PREPAID", "SUSPENDED", "CREATED"},
	row: func(acc admin.OperatorAccount, _ time.Time) []string {
		return []string{
			acc.ID, acc.Name, dollars(acc.Balance), dollars(acc.HourlyRate), yes(acc.Prepaid), yes(acc.Suspended != nil), when(&acc.CreatedAt),
		}
	},
	sheet: accountSheet,
}

func ownAccountSheet(acc v2.Account) string {
	return accountSheet(admin.OperatorAccount{Account: acc}, time.Time{})
}

func accountSheet(acc admin.OperatorAccount, _ time.Time) string {
	fields := [][2]string{
		{"Id", acc.ID},
		{"Name", acc.Name},
		{"Balance", dollars(acc.Balance)},
		{"Spends", dollars(acc.HourlyRate) + " per hour"},
		{"Prepaid", yes(acc.Prepaid)},
	}
	if acc.Prepaid && acc.HourlyRate > 0 && acc.Balance > 0 {
		fields = append(fields, [2]string{"Lasts", fmt.Sprintf("%.1f hours", acc.Balance/acc.HourlyRate)})
	}
	return sheet(append(fields, [][2]string{
		{"Requests", quotasText(acc.Quotas)},
		{"Spend limit", spendLimitText(acc.SpendLimit)},
		{"Low balance", lowBalanceText(&acc.Account)},
		{"Webhook", webhookText(acc.Webhook)},
		{"Egress", egressText(acc.Egress)},
		{"Suspended", suspendedText(acc.Suspended)},
		{"Created", when(&acc.CreatedAt)},
	}...)) + limitsText(acc.Limits)
}

// quotasText shows rate limits of an account's own; empty when it has none.
func quotasText(q *admin.AccountQuotas) string {
	if q == nil {
		return ""
	}
	part := func(n int, window string) string {
		if n == 0 {
			return "any number " + window
		}
		return fmt.Sprintf("%d %s", n, window)
	}
	return strings.Join([]string{part(q.Minute, "a minute"), part(q.Hour, "an hour"), part(q.Day, "a day")}, ", ")
}

// egressText shows what pods of an account may not reach; empty when that is nothing.
func egressText(egress string) string {
	if egress == "none" {
		return "none: its pods reach nothing outside of their private networks"
	}
	return ""
}

type accountCreateCmd struct {
	Name string `arg:"" placeholder:"NAME" help:"Name of the account."`
}

// Run makes an account.
func (cmd accountCreateCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	account, err := c.CreateAccount(ctx, cmd.Name)
	return accounts.show(a, account, err)
}

// accountRef names an account.
type accountRef struct {
	Account string `arg:"" placeholder:"ACCOUNT" help:"Id of the account, or its name where only one has it."`
}

type accountUpdateCmd struct {
	accountRef
	Name        *string `placeholder:"NAME" help:"New name."`
	Prepaid     *bool   `negatable:"" help:"Refuse and end its pods when its credit is used up, or never."`
	RateMinute  *int    `placeholder:"N" help:"Requests that it may make in a minute; 0 is any number."`
	RateHour    *int    `placeholder:"N" help:"Requests that it may make in an hour; 0 is any number."`
	RateDay     *int    `placeholder:"N" help:"Requests that it may make in a day; 0 is any number."`
	RateDefault bool    `help:"The daemon's rate limits again."`
	Egress      *string `enum:"open,none" placeholder:"KIND" help:"What its pods reach outside of their private networks: open, or none."`

	Limit map[string]string `placeholder:"NAME=N" help:"How much it may have, such as pods=2000; NAME=default: as much as all accounts. May be repeated."`
}

// Run changes an account.
func (cmd accountUpdateCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	rates := cmd.RateMinute != nil || cmd.RateHour != nil || cmd.RateDay != nil
	body := admin.UpdateAccountRequest{Name: cmd.Name, Prepaid: cmd.Prepaid}
	if cmd.Egress != nil {
		body.Egress = *cmd.Egress
	}
	switch {
	case rates && cmd.RateDefault:
		return usage("--rate-default excludes the other rates")
	case cmd.RateDefault:
		body.Quotas = v2.Null[admin.AccountQuotas]()
	case !rates && len(cmd.Limit) == 0 && body.Name == nil && body.Prepaid == nil && body.Egress == "":
		return usage("say what to change")
	}
	var err error
	if body.Limits, err = limitsOf(cmd.Limit); err != nil {
		return err
	}
	return accounts.on(ctx, c, cmd.Account, func(id string) (err error) {
		if rates {
			if body.Quotas, err = cmd.quotas(ctx, c, id); err != nil {
				return err
			}
		}
		account, err := c.UpdateAccount(ctx, id, body)
		return accounts.showOne(a, account, err)
	})
}

// quotas puts what is given over what the account has.
func (cmd accountUpdateCmd) quotas(ctx context.Context, c *client.Client, id string) (v2.Maybe[admin.AccountQuotas], error) {
	account, err := c.Account(ctx, id)
	if err != nil {
		return v2.Maybe[admin.AccountQuotas]{}, err
	}
	q := admin.AccountQuotas{}
	if account.Value.Quotas != nil {
		q = *account.Value.Quotas
	}
	for into, given := range map[*int]*int{&q.Minute: cmd.RateMinute, &q.Hour: cmd.RateHour, &q.Day: cmd.RateDay} {
		if given != nil {
			*into = *given
		}
	}
	return v2.Value(q), nil
}

type accountCreditCmd struct {
	accountRef
	Amount         string `arg:"" placeholder:"USD" help:"USD to add, such as 25 or 12.50."`
	Take           bool   `help:"Take the amount off instead."`
	IdempotencyKey string `placeholder:"TEXT" help:"Idempotency key: run again with it within a day, the command adds nothing more."`
}

// Run adds credit.
func (cmd accountCreditCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	amount, err := strconv.ParseFloat(cmd.Amount, 64)
	if err != nil || !(amount > 0) || math.IsInf(amount, 0) {
		return usage("the amount must be USD, such as 25 or 12.50")
	}
	if cmd.Take {
		amount = -amount
	}
	return accounts.on(ctx, c, cmd.Account, func(id string) error {
		key := onceKey(cmd.IdempotencyKey)
		balance, err := c.Keyed(key).AddCredit(ctx, id, amount)
		if err != nil {
			return a.uncertain(err, key)
		}
		if balance.Replayed {
			_, _ = fmt.Fprintln(a.err, "The amount had been added before under this idempotency key.")
		}
		return a.show(balance.Raw, func() string { return "Balance: " + dollars(balance.Value.Balance) + "\n" })
	})
}

type accountKeyCmd struct {
	accountRef
	Name   string `default:"first" help:"Name of the key, for people."`
	Preset string `enum:"all,readOnly,restricted,admin,adminReadOnly" default:"all" help:"What it may do: all, readOnly, restricted; or for operators: admin, or adminReadOnly, which sees all and changes nothing."`
	keyFlags
}

// Run makes a key of an account.
func (cmd accountKeyCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	body, err := cmd.body(cmd.Name, cmd.Preset, a.now())
	if err != nil {
		return err
	}
	return accounts.on(ctx, c, cmd.Account, func(id string) error {
		key, err := c.CreateAccountKey(ctx, id, admin.CreateAccountKeyRequest{
			KeyFields: body.KeyFields, Permissions: admin.OperatorPermissions(body.Permissions), Preset: body.Preset,
		})
		if err != nil {
			return err
		}
		return a.showKey(key)
	})
}
