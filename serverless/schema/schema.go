// Package schema checks the inputs of jobs against a JSON Schema (draft 2020-12, unless it names another). Errors name the field and
// the rule, and never a value: it may be secret.
package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
)

// MaxValues is how many values a checked input may have, with those in lists and objects: the checker collects every failure before
// it returns, so that millions of wrong values would cost much time and memory.
const MaxValues = 4096

// MaxFailures is how many failures an error names.
const MaxFailures = 8

// Schema is a compiled schema. It is safe for concurrent use.
type Schema struct{ compiled *jsonschema.Schema }

// nowhere loads no document: a schema refers to itself only.
type nowhere struct{}

// Load implements jsonschema.URLLoader.
func (nowhere) Load(string) (any, error) {
	return nil, errors.New("a schema refers to its own parts only")
}

// Compile reads a schema. Errors say what is wrong with it, without its text.
func Compile(text []byte) (*Schema, error) {
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return nil, errors.New("must be JSON")
	}
	if _, ok := document.(map[string]any); !ok {
		return nil, errors.New("must be an object")
	}
	c := jsonschema.NewCompiler()
	c.UseLoader(nowhere{})
	const here = "mem:///schema"
	if err := c.AddResource(here, document); err != nil {
		return nil, errors.New("must be a JSON Schema that refers to its own parts only")
	}
	compiled, err := c.Compile(here)
	var wrong *jsonschema.SchemaValidationError
	var loading *jsonschema.LoadURLError
	switch {
	case errors.As(err, &wrong):
		var invalid *jsonschema.ValidationError
		if errors.As(wrong.Err, &invalid) {
			return nil, errors.New("must be a JSON Schema: " + strings.Join(failures(invalid), "; "))
		}
		return nil, errors.New("must be a JSON Schema")
	case errors.As(err, &loading):
		return nil, errors.New("must be a JSON Schema that refers to its own parts only")
	case err != nil:
		return nil, errors.New("must be a JSON Schema that can be compiled: a reference or a pattern is wrong")
	}
	return &Schema{compiled}, nil
}

// Check returns what is wrong with an input, each as the path of a field and the rule; none: it is as the schema says.
func (s *Schema) Check(input []byte) []string {
	if values(input) > MaxValues {
		return []string{fmt.Sprintf("$.input: must have at most %d values", MaxValues)}
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(input))
	if err != nil {
		return []string{"$.input: must be JSON"}
	}
	err = s.compiled.Validate(value)
	var invalid *jsonschema.ValidationError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &invalid):
		return failures(invalid)
	}
	return []string{"$.input: cannot be checked"}
}

// values counts the values of a JSON text, up to one more than MaxValues.
func values(text []byte) (n int) {
	tokens := json.NewDecoder(bytes.NewReader(text))
	for n <= MaxValues {
		_, err := tokens.Token()
		if errors.Is(err, io.EOF) || err != nil {
			return n
		}
		n++
	}
	return n
}

// failures lists the innermost failures, the first of them by path.
func failures(e *jsonschema.ValidationError) []string {
	var out []string
	var walk func(e *jsonschema.ValidationError)
	walk = func(e *jsonschema.ValidationError) {
		for _, cause := range e.Causes {
			walk(cause)
		}
		if len(e.Causes) == 0 {
			out = append(out, path(e.InstanceLocation)+": "+rule(e.ErrorKind))
		}
	}
	walk(e)
	slices.Sort(out)
	out = slices.Compact(out)
	return out[:min(len(out), MaxFailures)]
}

// path writes where a value is; names that are no plain words are quoted.
func path(location []string) string {
	out := "$.input"
	for _, name := range location {
		if _, err := strconv.Atoi(name); err == nil {
			out += "[" + name + "]"
			continue
		}
		plain := len(name) <= 64 && strings.IndexFunc(name, func(r rune) bool {
			return r != '_' && r != '-' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
		}) < 0
		if plain && name != "" {
			out += "." + name
		} else {
			out += "[a name]"
		}
	}
	return out
}

// rule says what a value breaks, without the value.
func rule(k jsonschema.ErrorKind) string {
	switch k := k.(type) {
	case *kind.Type:
		return "must be of the type " + strings.Join(k.Want, " or ")
	case *kind.Required:
		return "lacks " + strings.Join(k.Missing, ", ")
	case *kind.AdditionalProperties:
		return "has a property that is not known"
	case *kind.Enum:
		return "must be one of the values that the schema names"
	case *kind.Const:
		return "must be the value that the schema names"
	case *kind.Minimum:
		return "must be at least " + k.Want.RatString()
	case *kind.Maximum:
		return "must be at most " + k.Want.RatString()
	case *kind.ExclusiveMinimum:
		return "must be above " + k.Want.RatString()
	case *kind.ExclusiveMaximum:
		return "must be below " + k.Want.RatString()
	case *kind.MultipleOf:
		return "must be a multiple of " + k.Want.RatString()
	case *kind.MinLength:
		return fmt.Sprintf("must have at least %d characters", k.Want)
	case *kind.MaxLength:
		return fmt.Sprintf("must have at most %d characters", k.Want)
	case *kind.MinItems:
		return fmt.Sprintf("must have at least %d items", k.Want)
	case *kind.MaxItems:
		return fmt.Sprintf("must have at most %d items", k.Want)
	case *kind.Pattern:
		return "must match the pattern that the schema names"
	case *kind.Format:
		return "must be of the format " + k.Want
	}
	words := k.KeywordPath()
	if len(words) == 0 {
		return "is not as the schema says"
	}
	return "breaks the rule " + words[len(words)-1] + " of the schema"
}
