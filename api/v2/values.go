package v2

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"gantry/fleet"
)

// Maybe is a member of a change that tells "left out" from null and from a value.
type Maybe[T any] struct {
	Set   bool
	Value *T // nil: null
}

// Value returns a member that is set to v.
func Value[T any](v T) Maybe[T] { return Maybe[T]{Set: true, Value: &v} }

// Null returns a member that is null.
func Null[T any]() Maybe[T] { return Maybe[T]{Set: true} }

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

// Nullable tells a describer of records that null is a value of the member.
func (Maybe[T]) Nullable() {}

// Text is a text that may be null, which stands for the empty one.
type Text string

// MarshalJSON writes null for the empty text.
func (t Text) MarshalJSON() ([]byte, error) {
	if t == "" {
		return []byte("null"), nil
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false) // whoever encodes the record may ask for that
	err := enc.Encode(string(t))
	return bytes.TrimSpace(out.Bytes()), err
}

// Nullable tells a describer of records that null is a value of the member.
func (Text) Nullable() {}

// Hidden is a secret text that JSON carries, and that nothing else shows.
type Hidden string

// String returns "***".
func (Hidden) String() string { return "***" }

// GoString returns "***".
func (Hidden) GoString() string { return "***" }

// LogValue returns "***".
func (Hidden) LogValue() slog.Value { return slog.StringValue("***") }

// Reveal returns the text.
func (h Hidden) Reveal() string { return string(h) }

// Secret returns the text as one that nothing shows at all.
func (h Hidden) Secret() fleet.Secret { return fleet.Secret(h) }

// Time is a moment as the API writes it: RFC 3339, UTC, milliseconds.
type Time struct{ time.Time }

// At returns the moment t.
func At(t time.Time) Time { return Time{t} }

// AtOrNull returns the moment t, and nil for the zero time.
func AtOrNull(t time.Time) *Time {
	if t.IsZero() {
		return nil
	}
	return &Time{t}
}

const timeForm = "2006-01-02T15:04:05.000Z"

// MarshalJSON writes the moment.
func (t Time) MarshalJSON() ([]byte, error) {
	return []byte(`"` + t.UTC().Format(timeForm) + `"`), nil
}

// UnmarshalJSON reads any RFC 3339 moment.
func (t *Time) UnmarshalJSON(data []byte) error {
	var s string
	if err := json.Unmarshal(data, &s); err != nil {
		return fmt.Errorf("read time: %w", err)
	}
	parsed, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return fmt.Errorf("read time: %w", err)
	}
	t.Time = parsed
	return nil
}

// Page is embedded in the answers of lists.
type Page struct {
	Next string `json:"next,omitempty" doc:"The cursor of what follows."`
}
