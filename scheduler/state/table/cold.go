package table

import (
	"errors"
	"fmt"
	"slices"

	"go.etcd.io/bbolt"

	"gantry/scheduler/entry"
)

// Cold is a bucket of which no row is kept in memory: there are too many.
type Cold[T any] struct{ Bucket string }

func (c *Cold[T]) name() string    { return c.Bucket }
func (c *Cold[T]) inMemory() bool  { return false }
func (c *Cold[T]) set(string, any) {}
func (c *Cold[T]) row(string) any  { return nil }

func (c *Cold[T]) decode(enc entry.Encoding, value []byte) (any, error) {
	return decoded[T](enc, value)
}

// coldReader reads rows from the file while a batch is decided. It keeps what it read: those are the rows before the batch.
type coldReader struct {
	db   *bbolt.DB
	enc  entry.Encoding
	rows map[string]any // by bucket, a map[string]*T by key; nil: not there
}

// before returns the rows of the table that were read, by key; nil: not there.
func (c *Cold[T]) before(rows map[string]any) map[string]*T {
	of, _ := rows[c.Bucket].(map[string]*T)
	return of
}

// Get reads a row as the batch and the command at hand have it; nil when it is not there. An error of the file stops the
// replica.
func (c *Cold[T]) Get(t *Txn, key string) *T {
	at := Slot{c.Bucket, key}
	if i, ok := t.latest[at]; ok {
		row, _ := t.staged[i].row.(*T)
		return row
	}
	if row, ok := t.batch[at]; ok {
		row, _ := row.(*T)
		return row
	}
	had := c.before(t.cold.rows)
	if had == nil {
		had = map[string]*T{}
		t.cold.rows[c.Bucket] = had
	}
	if row, ok := had[key]; ok {
		return row
	}
	had[key] = nil
	err := t.cold.db.View(func(tx *bbolt.Tx) error {
		value := tx.Bucket([]byte(c.Bucket)).Get([]byte(key))
		if value == nil {
			return nil
		}
		row := new(T)
		had[key] = row
		return t.cold.enc.Dec.Unmarshal(value, row)
	})
	if err != nil {
		t.Halt(fmt.Errorf("read %s: %w", c.Bucket, err))
	}
	return had[key]
}

// Put writes a row; nil deletes it.
func (c *Cold[T]) Put(t *Txn, key string, row *T) {
	c.Get(t, key) // what it was; see undo
	if row == nil {
		t.stage(Slot{c.Bucket, key}, nil)
		return
	}
	t.stage(Slot{c.Bucket, key}, row)
}

// Keys returns the first keys that the batch has before the command at hand, sorted, at most limit. skip returns "" to take a key,
// or from which one beyond it on to go on. Its error stops the replica.
func (c *Cold[T]) Keys(t *Txn, limit int, skip func(key string) (to string, err error)) []string {
	var out []string
	for at, row := range t.batch {
		if at.Bucket == c.Bucket && row != nil {
			if to, err := skip(at.Key); to == "" && err == nil {
				out = append(out, at.Key)
			}
		}
	}
	err := t.cold.db.View(func(tx *bbolt.Tx) error {
		at := tx.Bucket([]byte(c.Bucket)).Cursor()
		key, _ := at.First()
		for left := limit; key != nil && left > 0; {
			to, err := skip(string(key))
			if err != nil {
				return err
			}
			if to != "" {
				key, _ = at.Seek([]byte(to))
				continue
			}
			if _, ok := t.batch[Slot{c.Bucket, string(key)}]; !ok {
				out = append(out, string(key))
				left--
			}
			key, _ = at.Next()
		}
		return nil
	})
	if err != nil {
		t.Halt(fmt.Errorf("read %s: %w", c.Bucket, err))
	}
	slices.Sort(out)
	return out[:min(len(out), limit)]
}

// undo is what the cold rows that a batch writes were before. The file has a batch a moment before
// the tables have it; a view of that moment reads the file through this.
type undo struct {
	index uint64 // of the batch
	rows  map[string]any
}

// shade makes ready for a batch's rows to appear in the file.
func (s *Store[S]) shade(t *Txn, index uint64) {
	if len(t.cold.rows) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.undo = &undo{index, t.cold.rows}
}

// ColdView is the cold rows at the index of a view, also after that has ended. Range ends it.
type ColdView struct {
	tx   *bbolt.Tx
	enc  entry.Encoding
	undo map[string]any
}

// Cold returns the cold rows. It is called in a view.
func (s *Store[S]) Cold() (*ColdView, error) {
	tx, err := s.db.Begin(false)
	if err != nil {
		return nil, err
	}
	v := &ColdView{tx: tx, enc: s.enc}
	// Without an undo, a batch of which the file is ahead has no cold rows in it.
	if index, u := readIndex(tx), s.undo; index != s.index && u != nil {
		if u.index != index {
			return nil, errors.Join(fmt.Errorf("the file is at index %d, the tables at %d", index, s.index), tx.Rollback())
		}
		v.undo = u.rows
	}
	return v, nil
}

// Close ends a view that Range does not end.
func (v *ColdView) Close() error { return v.tx.Rollback() }

// At returns a row; nil when it is not there. The view goes on.
func (c *Cold[T]) At(v *ColdView, key string) (*T, error) {
	if was, ok := c.before(v.undo)[key]; ok {
		return was, nil
	}
	value := v.tx.Bucket([]byte(c.Bucket)).Get([]byte(key))
	if value == nil {
		return nil, nil
	}
	row := new(T)
	return row, v.enc.Dec.Unmarshal(value, row)
}

// Range calls fn with the rows from one key up to, but without, another, in no order; key and row are fn's only until it returns.
// Then the view is over.
func (c *Cold[T]) Range(v *ColdView, from, to string, fn func(key []byte, row *T) error) (err error) {
	defer func() { err = errors.Join(err, v.tx.Rollback()) }()
	undone := c.before(v.undo)
	for key, was := range undone {
		if was != nil && key >= from && key < to {
			if err := fn([]byte(key), was); err != nil {
				return err
			}
		}
	}
	at := v.tx.Bucket([]byte(c.Bucket)).Cursor()
	row, zero := new(T), *new(T)
	for key, value := at.Seek([]byte(from)); key != nil && string(key) < to; key, value = at.Next() {
		if _, ok := undone[string(key)]; ok {
			continue
		}
		*row = zero
		if err := v.enc.Dec.Unmarshal(value, row); err != nil {
			return err
		}
		if err := fn(key, row); err != nil {
			return err
		}
	}
	return nil
}
