package graphql

import (
	"context"
	"encoding/json"
	"net/url"

	"gantry/api/v2"
	"gantry/fleet"
)

// scalar is a value of one of the schema's own scalars.
type scalar struct{ v any }

// ImplementsGraphQLType implements decode.Unmarshaler.
func (*scalar) ImplementsGraphQLType(name string) bool {
	return name == "DateTime" || name == "Port" || name == "Amount" || name == "Void"
}

// UnmarshalGraphQL implements decode.Unmarshaler.
func (s *scalar) UnmarshalGraphQL(v any) error {
	s.v = v
	return nil
}

// MarshalJSON implements json.Marshaler.
func (s scalar) MarshalJSON() ([]byte, error) { return json.Marshal(s.v) }

// moment is null for no moment.
func moment(t *v2.Time) *scalar {
	if t == nil || t.IsZero() {
		return nil
	}
	return &scalar{*t}
}

// null is null for an empty text.
func null[T ~string](text T) *string {
	if text == "" {
		return nil
	}
	return new(string(text))
}

// text is the text that an argument gives; "" where it was left out.
func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// price is null for none.
func price(usd float64) *float64 {
	if usd == 0 {
		return nil
	}
	return &usd
}

// pair is a key with its value.
type pair struct{ Key, Value string }

func pairsOf(env map[string]string) []pair {
	out := []pair{}
	for _, key := range sortedKeys(env) {
		out = append(out, pair{key, env[key]})
	}
	return out
}

// stock is a word for what is free; null: nothing.
func stock(availability string) *string {
	return null(map[string]string{
		string(fleet.AvailableLow): "Low", string(fleet.AvailableMedium): "Medium", string(fleet.AvailableHigh): "High",
	}[availability])
}

// idOf is the parameter by which operations about one record name it.
func idOf(id string) url.Values { return url.Values{"id": {id}} }

// maybe shows the record with an id, or null.
func maybe[R, V any](ctx context.Context, operation, id string, view func(*session, *R) *V) (*V, error) {
	s := sessionOf(ctx)
	rec, err := ask[R](s, operation, idOf(id))
	if codeOf(err) == fleet.CodeNotFound {
		return nil, nil
	}
	return shown(s, rec, err, view)
}

// save calls an operation with the members of an input, and shows the record that it answers with.
func save[R, V any](ctx context.Context, operation, id string, in input, members []member, view func(*session, *R) *V) (*V, error) {
	s := sessionOf(ctx)
	rec, err := act[R](s, operation, idOf(id), in.body(members))
	return shown(s, rec, renamed(err, members), view)
}

func shown[R, V any](s *session, rec *R, err error, view func(*session, *R) *V) (*V, error) {
	if err != nil {
		return nil, err
	}
	return view(s, rec), nil
}

// remove calls an operation that deletes a record.
func remove(ctx context.Context, operation, id string) (*scalar, error) {
	_, err := act[struct{}](sessionOf(ctx), operation, idOf(id), nil)
	return nil, err
}
