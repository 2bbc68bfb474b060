package rest

import (
	"encoding/json"
	"fmt"
	"reflect"

	"github.com/danielgtaylor/huma/v2"
)

// Maybe is a member of a change that tells "left out" from null and from a value.
type Maybe[T any] struct {
	Set   bool
	Value *T // nil: null
}

// UnmarshalJSON reads null or a value; a member that is left out is not read at all.
func (m *Maybe[T]) UnmarshalJSON(data []byte) error {
	m.Set, m.Value = true, nil
	if err := json.Unmarshal(data, &m.Value); err != nil {
		return fmt.Errorf("read member: %w", err)
	}
	return nil
}

// MarshalJSON writes null or the value.
func (m Maybe[T]) MarshalJSON() ([]byte, error) { return json.Marshal(m.Value) }

// IsZero reports whether the member is left out.
func (m Maybe[T]) IsZero() bool { return !m.Set }

// Schema is that of the value, which may be null.
func (Maybe[T]) Schema(r huma.Registry) *huma.Schema {
	s := *r.Schema(reflect.TypeFor[T](), false, "")
	s.Nullable = true
	return &s
}
