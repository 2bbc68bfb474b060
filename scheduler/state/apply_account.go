package state

import (
	"cmp"
	"maps"
	"time"

	"gantry/fleet"
)

// maxID is the most bytes of an identifier that is a key of a table.
const maxID = 256

// checkID refuses an identifier that cannot be a key.
func checkID(path, id string) error {
	if id == "" || len(id) > maxID {
		return fleet.Invalid(path, "must have 1 to 256 bytes")
	}
	return nil
}

func exists(msg string) error { return &fleet.Error{Code: fleet.CodeExists, Msg: msg} }

func (c Bootstrap) apply(t *txn) (any, error) {
	if t.base.cluster.Get(t.Txn, onlyKey) != nil {
		return nil, exists("the cluster was made before")
	}
	t.understand(c.Level)
	t.base.cluster.Put(t.Txn, onlyKey, &Cluster{ID: c.ClusterID, CA: c.CA, SealedCAKey: c.SealedCAKey, Level: c.Level})
	t.Note(KindMember, "")
	t.base.catalog.Put(t.Txn, onlyKey, &c.Catalog)
	t.Note(KindCatalog, "")
	return nil, nil
}

func (c PutDataCenter) apply(t *txn) (any, error) {
	if err := checkID("$.id", string(c.DataCenter.ID)); err != nil {
		return nil, err
	}
	if err := checkUnderlay(c.DataCenter.Underlay); err != nil {
		return nil, err
	}
	t.base.centers.Put(t.Txn, c.DataCenter.ID, &c.DataCenter)
	t.Note(KindCatalog, string(c.DataCenter.ID))
	return nil, nil
}

func (c PutCatalog) apply(t *txn) (any, error) {
	t.base.catalog.Put(t.Txn, onlyKey, &c.Catalog)
	t.Note(KindCatalog, "")
	return nil, nil
}

func (c PutAccount) apply(t *txn) (any, error) {
	if err := cmp.Or(checkID("$.id", string(c.Account.ID)), checkEgress(c.Account.Egress)); err != nil {
		return nil, err
	}
	t.base.accounts.Put(t.Txn, c.Account.ID, &c.Account)
	t.Note(KindAccount, string(c.Account.ID))
	return nil, nil
}

func (c UpdateAccount) apply(t *txn) (any, error) {
	old := t.base.accounts.Get(t.Txn, c.Account)
	if old == nil {
		return nil, fleet.NotFound("account")
	}
	account := *old
	if c.Name != nil {
		account.Name = *c.Name
	}
	if c.Prepaid != nil {
		account.Prepaid = *c.Prepaid
	}
	if q := c.Quotas; q != nil {
		if q.Minute < 0 || q.Hour < 0 || q.Day < 0 {
			return nil, fleet.Invalid("$.quotas", "must not be negative")
		}
		account.Quotas = c.Quotas
		if *q == (fleet.Quotas{}) {
			account.Quotas = nil
		}
	}
	if c.Egress != nil {
		if err := checkEgress(*c.Egress); err != nil {
			return nil, err
		}
		account.Egress = *c.Egress
	}
	limits, err := changedLimits(account.Limits, c.Limits)
	if err != nil {
		return nil, err
	}
	account.Limits = limits
	if account.SpendLimit, err = ownMoney("$.spendLimit", account.SpendLimit, c.SpendLimit); err != nil {
		return nil, err
	}
	if account.LowBalance, err = ownMoney("$.lowBalance", account.LowBalance, c.LowBalance); err != nil {
		return nil, err
	}
	if account.Webhook, err = t.changedWebhook(old, c.Webhook); err != nil {
		return nil, err
	}
	t.base.accounts.Put(t.Txn, account.ID, &account)
	t.Note(KindAccount, string(account.ID))
	return cloneAccount(&account), nil
}

// ownMoney returns an amount that an account set for itself, with a change; nil: it set none.
func ownMoney(path string, had, change *fleet.Money) (*fleet.Money, error) {
	switch {
	case change == nil:
		return had, nil
	case *change < 0:
		return nil, nil
	case *change > maxCredit:
		return nil, fleet.Invalid(path, "must be at most 1000000000")
	}
	return clonePtr(change), nil
}

// changedLimits returns limits with a change.
func changedLimits(had fleet.Limits, change map[string]*int64) (fleet.Limits, error) {
	out := maps.Clone(had)
	for _, name := range sortedKeys(change) {
		if _, ok := fleet.LimitNamed(name); !ok {
			return nil, fleet.Invalid("$.limits", "names no limit")
		}
		switch value := change[name]; {
		case value == nil:
			delete(out, name)
		case *value < 0 || *value > fleet.MaxLimit:
			return nil, fleet.Invalid("$.limits."+name, "must be 0 to 1000000000000")
		default:
			if out == nil {
				out = fleet.Limits{}
			}
			out[name] = *value
		}
	}
	if len(out) == 0 {
		return nil, nil
	}
	return out, nil
}

func (c SetLimits) apply(t *txn) (any, error) {
	var had fleet.Limits
	if row := t.base.limits.Get(t.Txn, onlyKey); row != nil {
		had = *row
	}
	limits, err := changedLimits(had, c.Limits)
	if err != nil {
		return nil, err
	}
	t.base.limits.Put(t.Txn, onlyKey, &limits)
	return maps.Clone(limits), nil
}

func (c PutKey) apply(t *txn) (any, error) {
	key := c.Key
	if err := cmp.Or(checkID("$.id", string(key.ID)), checkID("$.hash", string(key.Hash))); err != nil {
		return nil, err
	}
	if t.base.accounts.Get(t.Txn, key.Account) == nil {
		return nil, fleet.NotFound("account")
	}
	old := t.base.keys.Get(t.Txn, key.ID)
	switch {
	case old != nil && old.Account != key.Account:
		return nil, exists("there is a key with this id")
	case old == nil && t.base.keysOf.Count(t.Txn, key.Account) >= maxKeys:
		return nil, tooMany(maxKeys, "API keys")
	}
	for _, other := range t.base.keysByHash.Keys(t.Txn, string(key.Hash)) {
		if other != key.ID {
			return nil, exists("there is such a key")
		}
	}
	t.base.keys.Put(t.Txn, key.ID, &key)
	t.Note(KindKey, string(key.ID))
	return nil, nil
}

func (c DeleteKey) apply(t *txn) (any, error) {
	key := t.base.keys.Get(t.Txn, c.Key)
	if key == nil || key.Account != c.Account {
		return nil, fleet.NotFound("key")
	}
	t.dropKey(c.Key)
	return nil, nil
}

func (t *txn) dropKey(id fleet.KeyID) {
	t.base.keys.Drop(t.Txn, id)
	if t.base.keyUse.Get(t.Txn, id) != nil {
		t.base.keyUse.Drop(t.Txn, id)
	}
	t.Note(KindKey, string(id))
}

func (c UpdateKey) apply(t *txn) (any, error) {
	old := t.base.keys.Get(t.Txn, c.Key)
	if old == nil || old.Account != c.Account {
		return nil, fleet.NotFound("key")
	}
	key := *old
	if c.Name != nil {
		key.Name = *c.Name
	}
	if c.Disabled != nil {
		key.Disabled = *c.Disabled
	}
	t.base.keys.Put(t.Txn, key.ID, &key)
	t.Note(KindKey, string(key.ID))
	out := cloneKey(&key)
	if used := t.base.keyUse.Get(t.Txn, key.ID); used != nil {
		out.LastUsedAt = *used
	}
	return out, nil
}

func (c TouchKeys) apply(t *txn) (any, error) {
	for _, id := range sortedKeys(c.Used) {
		at, last := c.Used[id], t.base.keyUse.Get(t.Txn, id)
		if clock := t.base.clock.Get(t.Txn, onlyKey); clock != nil {
			at = earliest(at, clock.At.Add(clock.Leap))
		}
		if t.base.keys.Get(t.Txn, id) != nil && (last == nil || at.After(*last)) {
			t.base.keyUse.Put(t.Txn, id, &at)
		}
	}
	return nil, nil
}

func (c SetSSHKeys) apply(t *txn) (any, error) {
	switch {
	case t.base.accounts.Get(t.Txn, c.Account) == nil:
		return nil, fleet.NotFound("account")
	case len(c.Keys) > maxSSHKeys:
		return nil, tooMany(maxSSHKeys, "SSH keys")
	case len(c.Keys) > 0:
		t.base.sshKeys.Put(t.Txn, c.Account, &c.Keys)
	case t.base.sshKeys.Get(t.Txn, c.Account) != nil:
		t.base.sshKeys.Drop(t.Txn, c.Account)
	}
	t.Note(KindAccount, string(c.Account))
	return nil, nil
}

// maxExpired bounds how many tokens a new one sweeps out.
const maxExpired = 16

func (c PutToken) apply(t *txn) (any, error) {
	token := c.Token
	err := cmp.Or(checkID("$.id", string(token.ID)), checkID("$.hash", string(token.Hash)), t.checkRole(&token))
	switch {
	case err != nil:
		return nil, err
	case expired(&token, c.At):
		return nil, fleet.Invalid("$.expiresAt", "must be later than now")
	case t.base.tokens.Get(t.Txn, token.ID) != nil:
		return nil, exists("there is a join token with this id")
	}
	if t.final(c.At) == nil {
		for _, old := range t.base.expiring[:min(len(t.base.expiring), maxExpired)] {
			if expired(old, c.At) {
				t.base.tokens.Drop(t.Txn, old.ID)
			}
		}
	}
	t.base.tokens.Put(t.Txn, token.ID, &token)
	return nil, nil
}

// expired reports whether a token is of no use at a time.
func expired(token *fleet.JoinToken, at time.Time) bool { return !at.Before(token.ExpiresAt) }
