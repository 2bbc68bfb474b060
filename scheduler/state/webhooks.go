package state

import (
	"slices"
	"strings"

	"gantry/fleet"
)

const numNoteWebhooks uint64 = 102

const (
	maxWebhooks     = 10_000 // of all accounts
	maxWebhookURL   = 2048   // bytes
	maxWebhookError = 256    // bytes
)

// NoteWebhooks records how far the calls of accounts' webhooks are: events up to Done were sent to all of them, or given up, but for
// those of Accounts. An account without a webhook is ignored, and nothing goes back.
type NoteWebhooks struct {
	Done     fleet.EventPlace                       `cbor:"1,keyasint"`
	Accounts map[fleet.AccountID]fleet.WebhookState `cbor:"2,keyasint,omitempty"`
}

func (NoteWebhooks) number() uint64 { return numNoteWebhooks }

func (c NoteWebhooks) apply(t *txn) (any, error) {
	if done := t.base.webhookDone.Get(t.Txn, onlyKey); done == nil || done.Before(c.Done) {
		t.base.webhookDone.Put(t.Txn, onlyKey, &c.Done)
	}
	for _, id := range sortedKeys(c.Accounts) {
		state := c.Accounts[id]
		if had := t.base.webhooks.Get(t.Txn, id); had != nil && had.Place.Before(state.Place) {
			state.Error = strings.ToValidUTF8(state.Error[:min(len(state.Error), maxWebhookError)], "")
			t.base.webhooks.Put(t.Txn, id, &state)
		}
	}
	return nil, nil
}

// changedWebhook returns the webhook of an account with a change; nil: it has none.
func (t *txn) changedWebhook(account *fleet.Account, change *fleet.AccountWebhook) (*fleet.AccountWebhook, error) {
	switch {
	case change == nil:
		return account.Webhook, nil
	case change.URL == "":
		t.base.webhooks.Drop(t.Txn, account.ID)
		return nil, nil
	case len(change.URL) > maxWebhookURL || len(change.Key) > maxWebhookSealed || len(change.Kinds) == 0:
		return nil, fleet.Invalid("$.webhook", "must have a URL of at most 2048 bytes, a key of at most 1024, and a kind")
	case account.Webhook == nil && t.base.webhooks.Count(t.Txn, func(*fleet.WebhookState) bool { return true }) >= maxWebhooks:
		return nil, fleet.BreaksRule("10000 accounts have webhooks, which is the most there may be")
	}
	kinds := slices.Compact(slices.Sorted(slices.Values(change.Kinds)))
	for _, kind := range kinds {
		if fleet.EventKinds()[kind] == "" {
			return nil, fleet.Invalid("$.webhook.kinds", "names no kind of event")
		}
	}
	if account.Webhook == nil {
		t.base.webhooks.Put(t.Txn, account.ID, &fleet.WebhookState{Place: fleet.EventPlace{Lineage: t.lineage(), Index: t.Index()}})
	}
	return &fleet.AccountWebhook{URL: change.URL, Kinds: kinds, Key: slices.Clone(change.Key)}, nil
}

func cloneWebhook(h *fleet.AccountWebhook) *fleet.AccountWebhook {
	if h == nil {
		return nil
	}
	return &fleet.AccountWebhook{URL: h.URL, Kinds: slices.Clone(h.Kinds), Key: slices.Clone(h.Key)}
}

// WebhookState returns how far the calls of an account's webhook are; zero: it was not called.
func (v *View) WebhookState(account fleet.AccountID) fleet.WebhookState {
	if state := v.tb.webhooks.Rows[account]; state != nil {
		return *state
	}
	return fleet.WebhookState{}
}

// Webhooks returns the accounts that have a webhook, in no order, each with the place behind which its events are to be sent, and the
// place of NoteWebhooks; false: there was none.
func (v *View) Webhooks() (places map[fleet.AccountID]fleet.EventPlace, done fleet.EventPlace, noted bool) {
	if row := v.tb.webhookDone.Rows[onlyKey]; row != nil {
		done, noted = *row, true
	}
	places = make(map[fleet.AccountID]fleet.EventPlace, len(v.tb.webhooks.Rows))
	for id, state := range v.tb.webhooks.Rows {
		if places[id] = state.Place; state.Place.Lineage != done.Lineage || state.Place.Before(done) {
			places[id] = done
		}
	}
	return places, done, noted
}
