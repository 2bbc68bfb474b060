package graphql

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// input is an object given as an argument; the engine has checked it against the schema. It is nil where none was given.
type input map[string]any

// ImplementsGraphQLType implements decode.Unmarshaler.
func (*input) ImplementsGraphQLType(string) bool { return true }

// Nullable has the engine hand over null, too.
func (*input) Nullable() {}

// UnmarshalGraphQL implements decode.Unmarshaler.
func (in *input) UnmarshalGraphQL(v any) error {
	*in, _ = v.(map[string]any)
	return nil
}

// with is the argument "input" of a field.
type with struct{ Input input }

// byID is the argument "id" of a field.
type byID struct{ ID *string }

// text returns a member that is a text; "" where it was left out.
func (in input) text(name string) string {
	s, _ := in[name].(string)
	return s
}

// number returns a member that is a number, and whether it was given.
func (in input) number(name string) (float64, bool) {
	switch n := in[name].(type) {
	case int32:
		return float64(n), true
	case int64:
		return float64(n), true
	case float64:
		return n, true
	case json.Number:
		f, err := n.Float64()
		return f, err == nil
	}
	return 0, false
}

// given reports whether a member says anything: is not null, empty, zero or false.
func (in input) given(name string) bool {
	switch v := in[name].(type) {
	case nil:
		return false
	case string:
		return v != ""
	case bool:
		return v
	case []any:
		return slices.ContainsFunc(v, func(item any) bool { return item != nil })
	}
	n, ok := in.number(name)
	return !ok || n != 0
}

// texts returns a member that is a list of texts, without those that are empty.
func (in input) texts(name string) (out []string) {
	list, _ := in[name].([]any)
	for _, v := range list {
		if s, _ := v.(string); s != "" {
			out = append(out, s)
		}
	}
	return out
}

// member renames a member of an input for a body of REST v2.
type member struct {
	from string        // in the input
	to   string        // in the body; a dot leads into an object
	as   func(any) any // nil: as it is. What returns nil leaves the member out.
}

// body makes a body of the members that were given.
func (in input) body(members []member) body {
	out := body{}
	for _, m := range members {
		v := in[m.from]
		if v != nil && m.as != nil {
			v = m.as(v)
		}
		if v != nil {
			out.set(m.to, v)
		}
	}
	return out
}

// body is the body of a call.
type body map[string]any

// set sets a member; a dot in its path leads into an object.
func (b body) set(path string, v any) {
	for {
		name, rest, deeper := strings.Cut(path, ".")
		if !deeper {
			b[name] = v
			return
		}
		next, ok := b[name].(body)
		if !ok {
			next = body{}
			b[name] = next
		}
		b, path = next, rest
	}
}

// notZero leaves out a zero.
func notZero(v any) any {
	if n, ok := (input{"": v}).number(""); ok && n == 0 {
		return nil
	}
	return v
}

// word leaves out an empty text.
func word(v any) any {
	if v == "" {
		return nil
	}
	return v
}

// orNull makes null of an empty text.
func orNull(v any) any {
	if v == "" {
		return json.RawMessage("null")
	}
	return v
}

// split makes a list of a text with commas, in which there may be spaces.
func split(v any) any {
	out := []string{}
	s, _ := v.(string)
	for item := range strings.SplitSeq(s, ",") {
		if item = strings.TrimSpace(item); item != "" {
			out = append(out, item)
		}
	}
	return out
}

// splitWord leaves out an empty list.
func splitWord(v any) any {
	if out, _ := split(v).([]string); len(out) > 0 {
		return out
	}
	return nil
}

// one makes a list of a text, and nothing of an empty one.
func one(v any) any {
	return items([]any{v})
}

// items leaves out an empty list, and the nulls of others.
func items(v any) any {
	if list := (input{"": v}).texts(""); len(list) > 0 {
		return list
	}
	return nil
}

// pairs makes an object of a list of keys and values.
func pairs(v any) any {
	out := map[string]string{}
	list, _ := v.([]any)
	for _, item := range list {
		if pair, _ := item.(map[string]any); pair != nil {
			out[input(pair).text("key")] = input(pair).text("value")
		}
	}
	return out
}

// pairsIfAny leaves out an empty list.
func pairsIfAny(v any) any {
	if out, _ := pairs(v).(map[string]string); len(out) > 0 {
		return out
	}
	return nil
}

// unsupported returns what is wrong with an input that asks for what there is not; reasons are by member.
func unsupported(in input, reasons map[string]string) error {
	for _, name := range sortedKeys(reasons) {
		if in.given(name) {
			return refused("input.%s: %s", name, reasons[name])
		}
	}
	return nil
}

func sortedKeys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for name := range m {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// join makes a text with commas of a list.
func join[T any](list []T) string {
	out := make([]string, len(list))
	for i, v := range list {
		out[i] = fmt.Sprint(v)
	}
	return strings.Join(out, ",")
}
