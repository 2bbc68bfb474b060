package scheduler

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"gantry/fleet"
	"gantry/scheduler/state"
	"gantry/serverless/webhook"
)

const (
	maxCredit = 100_000_000 * fleet.Dollar // of one entry, either way
	maxQuota  = 1_000_000_000
)

// Account returns the caller's account with its money.
func (s *Service) Account(ctx context.Context, who fleet.Principal) (fleet.AccountView, error) {
	return s.AccountByID(ctx, who.Account)
}

// SSHKeys lists the SSH public keys of the caller's account.
func (s *Service) SSHKeys(ctx context.Context, who fleet.Principal) ([]string, error) {
	out := []string{}
	err := s.read(ctx, func(v *state.View) error { out = append(out, v.SSHKeys(who.Account)...); return nil })
	return out, err
}

// SetSSHKeys replaces the SSH public keys of the caller's account; one that is given twice is kept once.
// Errors: invalid (more than 32768 bytes together).
func (s *Service) SetSSHKeys(ctx context.Context, who fleet.Principal, keys []string) error {
	unique := []string{}
	for _, key := range keys {
		if key = strings.TrimSpace(key); key != "" && !slices.Contains(unique, key) {
			unique = append(unique, key)
		}
	}
	if sizeOf(unique) > maxSSHKeyBytes {
		return fleet.Invalid("$.keys", "must have at most "+strconv.Itoa(maxSSHKeyBytes)+" bytes together")
	}
	_, err := propose[any](ctx, s, state.SetSSHKeys{Account: who.Account, Keys: unique})
	return err
}

// CreateAccount makes an account, which is not prepaid.
func (s *Service) CreateAccount(ctx context.Context, name string) (fleet.Account, error) {
	account := fleet.Account{ID: fleet.AccountID(fleet.NewID()), Name: name, CreatedAt: s.Now()}
	if _, err := propose[any](ctx, s, state.PutAccount{Account: account}); err != nil {
		return fleet.Account{}, err
	}
	return account, nil
}

// Accounts lists every account.
func (s *Service) Accounts(ctx context.Context) ([]fleet.AccountView, error) {
	var ids []fleet.AccountID
	if err := s.read(ctx, func(v *state.View) error { ids = v.AccountIDs(); return nil }); err != nil {
		return nil, err
	}
	slices.Sort(ids)
	now, out := s.Now(), make([]fleet.AccountView, 0, len(ids))
	err := inPieces(s, ids, func(v *state.View, id fleet.AccountID) {
		if a, ok := v.Account(id); ok {
			out = append(out, accountView(v, a, now))
		}
	})
	return out, err
}

// AccountByID returns any account with its money.
func (s *Service) AccountByID(ctx context.Context, id fleet.AccountID) (fleet.AccountView, error) {
	var out fleet.AccountView
	err := s.read(ctx, func(v *state.View) error {
		a, ok := v.Account(id)
		if !ok {
			return fleet.NotFound("account")
		}
		out = accountView(v, a, s.Now())
		return nil
	})
	return out, err
}

func accountView(v *state.View, a fleet.Account, now time.Time) fleet.AccountView {
	return fleet.AccountView{
		Account: a, Balance: v.Balance(a.ID, now), HourlyRate: v.HourlyRate(a.ID), Used: v.Used(a.ID), Defaults: v.Limits(),
		LowSince: v.LowSince(a.ID), Webhook: v.WebhookState(a.ID),
	}
}

// Limits returns the limits that an operator set for all accounts that have none of their own.
func (s *Service) Limits(ctx context.Context) (fleet.Limits, error) {
	var out fleet.Limits
	err := s.read(ctx, func(v *state.View) error { out = v.Limits(); return nil })
	return out, err
}

// SetLimits sets limits, by their names, of all accounts that have none of their own; nil: as where nobody set another. It returns
// all that are set then. Errors: invalid.
func (s *Service) SetLimits(ctx context.Context, change map[string]*int64) (fleet.Limits, error) {
	out, err := propose[fleet.Limits](ctx, s, state.SetLimits{Limits: change})
	if err == nil {
		s.Log.Info("limits of all accounts changed", "limits", len(change))
	}
	return out, err
}

// UpdateAccount changes an account. Errors: not_found, invalid (quotas, egress, limits).
func (s *Service) UpdateAccount(
	ctx context.Context, id fleet.AccountID, change fleet.AccountUpdate,
) (fleet.AccountView, error) {
	if err := checkQuotas(change.Quotas); err != nil {
		return fleet.AccountView{}, err
	}
	hook, err := s.newWebhook(ctx, id, change.Webhook)
	if err == nil {
		_, err = propose[fleet.Account](ctx, s, state.UpdateAccount{
			Account: id, Name: change.Name, Prepaid: change.Prepaid, Quotas: change.Quotas, Egress: change.Egress, Limits: change.Limits,
			SpendLimit: change.SpendLimit, LowBalance: change.LowBalance, Webhook: hook,
		})
	}
	if err != nil {
		return fleet.AccountView{}, err
	}
	s.Log.Info("account changed", "account", id)
	return s.AccountByID(ctx, id)
}

// purposeEvents is the kind of sealed secrets of accounts' webhooks; see sealPurpose.
const purposeEvents = "account webhook secret"

// newWebhook returns what a change makes of an account's webhook, with its secret sealed; nil: it stays. Errors: not_found, invalid.
func (s *Service) newWebhook(ctx context.Context, id fleet.AccountID, in *fleet.WebhookRequest) (*fleet.AccountWebhook, error) {
	switch {
	case in == nil:
		return nil, nil
	case in.URL == "":
		return &fleet.AccountWebhook{}, nil
	}
	out := &fleet.AccountWebhook{URL: in.URL, Kinds: in.Kinds}
	err := webhook.CheckURL("$.webhook.url", in.URL)
	switch {
	case err != nil:
	case in.Secret == nil:
		err = s.read(ctx, func(v *state.View) error {
			if a, ok := v.Account(id); ok && a.Webhook != nil {
				out.Key = a.Webhook.Key
			}
			return nil
		})
	case *in.Secret != "":
		out.Key, err = s.Sealer.Seal(sealPurpose(purposeEvents, id, ""), []byte(in.Secret.Reveal()))
	}
	return out, err
}

// WebhookSecret opens the secret under which the calls of an account's webhook are signed; empty: they are not.
func (s *Service) WebhookSecret(hook fleet.AccountWebhook, id fleet.AccountID) (fleet.Secret, error) {
	if len(hook.Key) == 0 {
		return "", nil
	}
	plain, err := s.Sealer.Open(sealPurpose(purposeEvents, id, ""), hook.Key)
	if err != nil {
		return "", fmt.Errorf("open the secret of the webhook of account %s: %w", id, err)
	}
	return fleet.Secret(plain), nil
}

// SetAccount changes the settings of the caller's account. Errors: invalid, rule (more webhooks than all accounts may have).
func (s *Service) SetAccount(ctx context.Context, who fleet.Principal, change fleet.AccountSettings) (fleet.AccountView, error) {
	return s.UpdateAccount(ctx, who.Account, fleet.AccountUpdate{AccountSettings: change})
}

// checkQuotas refuses quotas of which the shorter window allows more than the longer one.
func checkQuotas(q *fleet.Quotas) error {
	if q == nil {
		return nil
	}
	least := 0
	for _, window := range []struct {
		name  string
		quota int
	}{{"minute", q.Minute}, {"hour", q.Hour}, {"day", q.Day}} {
		switch {
		case window.quota < 0 || window.quota > maxQuota:
			return fleet.Invalid("$.quotas."+window.name, "must be 0 to 1000000000")
		case window.quota != 0 && window.quota < least:
			return fleet.Invalid("$.quotas."+window.name, "must be 0, or at least that of the shorter windows")
		}
		least = max(least, window.quota)
	}
	return nil
}

// AddCredit adds to an account's balance, or takes from it, and returns what it is then; replayed tells that
// once was seen before. Errors: not_found, invalid.
func (s *Service) AddCredit(
	ctx context.Context, id fleet.AccountID, amount fleet.Money, once *fleet.Once,
) (balance fleet.Money, replayed bool, err error) {
	if amount == 0 || amount < -maxCredit || amount > maxCredit {
		return 0, false, fleet.Invalid("$.amount", "must be -100000000 to 100000000 and not 0")
	}
	balance, replayed, err = proposeOnce[fleet.Money](ctx, s, state.AddCredit{
		Account: id, Amount: amount, At: s.Now(), Once: once,
	})
	if err == nil && !replayed {
		s.Log.Info("credit added", "account", id, "nanoUSD", int64(amount))
	}
	return balance, replayed, err
}
