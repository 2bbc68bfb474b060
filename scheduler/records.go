package scheduler

import (
	"context"
	"fmt"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// recordsOf lists the plain records of the caller's account; see state.List.
func recordsOf[T state.Noun](ctx context.Context, s *Service, who fleet.Principal) (out []T, err error) {
	err = s.read(ctx, func(v *state.View) error { out = state.List[T](v, who.Account); return nil })
	return out, err
}

// record returns a plain record of the caller's account. Errors: not_found.
func record[T state.Noun, ID ~string](ctx context.Context, s *Service, who fleet.Principal, id ID) (out T, err error) {
	err = s.read(ctx, func(v *state.View) (err error) { out, err = state.Get[T](v, who.Account, id); return err })
	return out, err
}

// writeRecord creates a plain record, or replaces one; replayed tells that once was seen before.
func writeRecord[T state.Noun, ID ~string](
	ctx context.Context, s *Service, who fleet.Principal, id ID, in T, once *fleet.Once,
) (made T, replayed bool, err error) {
	made, replayed, err = proposeOnce[T](ctx, s, state.Put[T]{Record: in, Once: once})
	if err == nil && !replayed {
		s.Log.Info("record written", "kind", state.Title[T](), "id", string(id), "account", who.Account)
	}
	return made, replayed, err
}

// deleteRecord deletes a plain record of the caller's account. Errors: not_found, in_use.
func deleteRecord[T state.Noun, ID ~string](ctx context.Context, s *Service, who fleet.Principal, id ID) error {
	_, err := propose[any](ctx, s, state.Delete[T]{Account: who.Account, ID: string(id), At: s.Now()})
	if err == nil {
		s.Log.Info("record deleted", "kind", state.Title[T](), "id", string(id), "account", who.Account)
	}
	return err
}

// sealPurpose is under what a record's value is sealed, so that it opens in its own record only.
func sealPurpose(kind string, account fleet.AccountID, id string) string {
	return kind + "\x00" + string(account) + "\x00" + id
}

// openRecord returns the plain text that is sealed in a record of an account; nil: it has none. Errors: not_found; it cannot be opened.
func openRecord[T state.Noun, ID ~string](
	s *Service, account fleet.AccountID, id ID, kind string, sealed func(T) []byte,
) (plain []byte, err error) {
	var r T
	err = s.Store.View(func(v *state.View) (err error) { r, err = state.Get[T](v, account, id); return err })
	if err != nil || len(sealed(r)) == 0 {
		return nil, err
	}
	if plain, err = s.Sealer.Open(sealPurpose(kind, account, string(id)), sealed(r)); err != nil {
		return nil, fmt.Errorf("open %s %s: %w", state.Title[T](), id, err)
	}
	return plain, nil
}
