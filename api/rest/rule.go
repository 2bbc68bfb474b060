package rest

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"

	"gantry/fleet"
)

// namePattern describes the pattern of names. Regular expressions that all languages read the same way say only the half
// of it; fleet.PlainText is the whole rule.
const namePattern = "printable text"

// maxFailures bounds how many failures one answer lists.
const maxFailures = 32

// rule is a schema made ready for checking: no references, patterns compiled, names sorted. It is
// immutable and safe for concurrent use.
type rule struct {
	kind     string // "" takes anything
	nullable bool
	enum     []string

	min, max       *float64
	minLen, maxLen *int
	pattern        *regexp.Regexp
	patternText    string
	dateTime       bool

	items              *rule
	minItems, maxItems *int

	props    map[string]*rule
	required []string
	others   *rule // of the values of other properties
	closed   bool  // no other properties
	maxProps *int

	reg huma.Registry // all schemas of the API
}

// compile makes a rule of a schema. It knows the keywords that this package's schemas use and
// refuses the others, so that nothing documented stays unchecked.
func compile(reg huma.Registry, s *huma.Schema) (*rule, error) {
	for s.Ref != "" {
		s = reg.SchemaFromRef(s.Ref)
	}
	if s.OneOf != nil || s.AnyOf != nil || s.AllOf != nil || s.Not != nil || s.UniqueItems || s.MultipleOf != nil ||
		s.ExclusiveMinimum != nil || s.ExclusiveMaximum != nil || s.MinProperties != nil || len(s.DependentRequired) > 0 {
		return nil, errors.New("schema has a keyword that requests are not checked for")
	}
	out := &rule{
		kind: s.Type, nullable: s.Nullable, min: s.Minimum, max: s.Maximum, minLen: s.MinLength, maxLen: s.MaxLength,
		minItems: s.MinItems, maxItems: s.MaxItems, maxProps: s.MaxProperties,
		required: slices.Sorted(slices.Values(s.Required)), dateTime: s.Format == "date-time", reg: reg,
	}
	for _, e := range s.Enum {
		out.enum = append(out.enum, fmt.Sprint(e))
	}
	var err error
	if s.Pattern != "" {
		if out.pattern, err = regexp.Compile(s.Pattern); err != nil {
			return nil, err
		}
		out.patternText = s.PatternDescription
	}
	if s.Items != nil {
		if out.items, err = compile(reg, s.Items); err != nil {
			return nil, err
		}
	}
	return out, out.compileObject(reg, s)
}

func (r *rule) compileObject(reg huma.Registry, s *huma.Schema) (err error) {
	if len(s.Properties) > 0 {
		r.props = map[string]*rule{}
	}
	for name, p := range s.Properties {
		if r.props[name], err = compile(reg, p); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	switch more := s.AdditionalProperties.(type) {
	case bool:
		r.closed = !more
	case *huma.Schema:
		if r.others, err = compile(reg, more); err != nil {
			return err
		}
	}
	return nil
}

// checking is one walk over a value.
type checking struct {
	failures  []string
	rewritten bool // a number was replaced by its plain form
}

func (c *checking) fail(path, format string, args ...any) {
	if len(c.failures) < maxFailures {
		c.failures = append(c.failures, path+": "+fmt.Sprintf(format, args...))
	}
}

// check walks v, as decoded with UseNumber, and returns it, with numbers in plain form.
func (c *checking) check(r *rule, path string, v any) any {
	if v == nil && r.nullable || r.kind == "" {
		return v
	}
	if got := kindOf(v); got != r.kind && (got != "number" || r.kind != "integer") {
		c.fail(path, "got %s, want %s", got, r.kind)
		return v
	}
	switch v := v.(type) {
	case string:
		c.checkString(r, path, v)
	case json.Number:
		return c.checkNumber(r, path, v)
	case []any:
		c.checkSize(path, "items", len(v), r.minItems, r.maxItems)
		for i := range v {
			if r.items != nil && len(c.failures) < maxFailures {
				v[i] = c.check(r.items, path+"["+strconv.Itoa(i)+"]", v[i])
			}
		}
	case map[string]any:
		c.checkObject(r, path, v)
	}
	return v
}

func (c *checking) checkObject(r *rule, path string, v map[string]any) {
	c.checkSize(path, "properties", len(v), nil, r.maxProps)
	var unknown []string
	for _, name := range sortedNames(v) {
		p, known := r.props[name]
		switch {
		case known:
			v[name] = c.check(p, join(path, name), v[name])
		case r.closed:
			unknown = append(unknown, name)
		case r.others != nil && len(c.failures) < maxFailures:
			v[name] = c.check(r.others, join(path, name), v[name])
		}
	}
	if len(unknown) > 0 {
		c.fail(path, "%s not allowed", r.additional(unknown))
	}
	for _, name := range r.required {
		if _, there := v[name]; !there {
			c.fail(path, "missing property %s", quoteName(name))
		}
	}
}

// maxShownNames bounds how many unknown properties an error names.
const maxShownNames = 10

// additional names properties that an object must not have, of those that another place of the API has, or that are almost names of
// this one: what else stands in the place of a name may be a secret, and is not repeated.
func (r *rule) additional(unknown []string) string {
	var shown []string
	for _, name := range unknown {
		if len(shown) < maxShownNames && (r.apiHas(name) || r.almostHas(name)) {
			shown = append(shown, quoteName(name))
		}
	}
	rest := len(unknown) - len(shown)
	switch {
	case len(shown) == 0 && rest == 1:
		return "an additional property, whose name the API does not have, is"
	case len(shown) == 0:
		return strconv.Itoa(rest) + " additional properties, whose names the API does not have, are"
	case rest > 0:
		return "additional properties " + strings.Join(shown, ", ") + " and " + counted(rest, "others")
	}
	return "additional properties " + strings.Join(shown, ", ")
}

// apiHas tells whether any object of the API has a property of the name, in whatever case.
func (r *rule) apiHas(name string) bool {
	if len(name) > maxShownName {
		return false
	}
	for _, s := range r.reg.Map() {
		for known := range s.Properties {
			if strings.EqualFold(known, name) {
				return true
			}
		}
	}
	return false
}

// almostHas tells whether a name is a part of one of the object's, or differs from it by two characters at most.
func (r *rule) almostHas(name string) bool {
	const least = 4 // characters
	return len(name) >= least && len(name) <= maxShownName && len(fleet.Similar(name, slices.Collect(maps.Keys(r.props)))) > 0
}

func (c *checking) checkString(r *rule, path, v string) {
	switch {
	case len(r.enum) > 0 && !slices.Contains(r.enum, v):
		c.fail(path, "value must be one of '%s'", strings.Join(r.enum, "', '"))
		return
	case r.dateTime && !validTime(v):
		c.fail(path, "must be a date and time as RFC 3339 writes it")
		return
	}
	before := len(c.failures)
	c.checkSize(path, "characters", utf8.RuneCountInString(v), r.minLen, r.maxLen)
	if r.pattern != nil && len(c.failures) == before && (!r.pattern.MatchString(v) || r.patternText == namePattern && !fleet.PlainText(v)) {
		if r.patternText != "" {
			c.fail(path, "must be %s", r.patternText)
		} else {
			c.fail(path, "must match the pattern %s", r.pattern)
		}
	}
}

func (c *checking) checkSize(path, what string, n int, least, most *int) {
	switch {
	case least != nil && n < *least:
		c.fail(path, "must have at least %s", counted(*least, what))
	case most != nil && n > *most:
		c.fail(path, "must have at most %s", counted(*most, what))
	}
}

// counted writes n things; what is the plural of a word that ends with s.
func counted(n int, what string) string {
	if n == 1 {
		what = strings.TrimSuffix(what, "s")
	}
	return strconv.Itoa(n) + " " + what
}

// maxExact is the largest whole number that every JSON reader keeps exact.
const maxExact = 1 << 53

func (c *checking) checkNumber(r *rule, path string, v json.Number) any {
	f, err := strconv.ParseFloat(v.String(), 64)
	if err != nil || r.kind == "integer" && math.Abs(f) > maxExact {
		c.fail(path, "is too large")
		return v
	}
	switch {
	case r.kind == "integer" && f != math.Trunc(f):
		c.fail(path, "got number, want integer")
	case r.min != nil && f < *r.min:
		c.fail(path, "must be at least %s", plain(*r.min))
	case r.max != nil && f > *r.max:
		c.fail(path, "must be at most %s", plain(*r.max))
	case r.kind == "integer" && strings.ContainsAny(v.String(), ".eE"):
		c.rewritten = true
		return json.Number(strconv.FormatInt(int64(f), 10))
	}
	return v
}

func plain(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

func kindOf(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case string:
		return "string"
	case json.Number:
		return "number"
	case []any:
		return "array"
	default:
		return "object"
	}
}

func sortedNames(m map[string]any) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// maxShownName bounds how much of a property's name an error shows.
const maxShownName = 64

// cleanName returns the name with what could break out of a message or a terminal replaced, cut.
func cleanName(name string) string {
	var out strings.Builder
	n := 0
	for _, c := range name {
		if n++; n > maxShownName {
			out.WriteString("...")
			break
		}
		if c < ' ' || c > '~' || c == '\'' || c == '`' || c == '\\' || c == '<' || c == '>' {
			c = '?'
		}
		out.WriteRune(c)
	}
	return out.String()
}

func quoteName(name string) string { return "'" + cleanName(name) + "'" }

// join extends a JSON path by a property.
func join(path, name string) string {
	for i := 0; i < len(name); i++ {
		c := name[i]
		letter := c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return path + "[" + quoteName(name) + "]"
		}
	}
	if name == "" || len(name) > maxShownName {
		return path + "[" + quoteName(name) + "]"
	}
	return path + "." + name
}
