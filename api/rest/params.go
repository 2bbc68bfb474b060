package rest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"gantry/fleet"
)

// maxParam bounds one parameter, in bytes.
const maxParam = 1024

// param is a declared parameter with its rule.
type param struct {
	name, in string
	required bool
	rule     *rule
}

type params []param

// args are the parameters of one request, checked. A parameter that was not sent is absent.
type args map[string][]string

func compileParams(declared []*huma.Param) (params, error) {
	var out params
	for _, p := range declared {
		r, err := compile(nil, p.Schema)
		if err != nil {
			return nil, fmt.Errorf("parameter %s: %w", p.Name, err)
		}
		out = append(out, param{name: p.Name, in: p.In, required: p.Required, rule: r})
	}
	return out, nil
}

// read returns the declared parameters of r; others are ignored. Errors: CodeMalformed for a
// query that cannot be read, CodeInvalid.
func (ps params) read(r *http.Request) (args, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, malformed("the query string cannot be read")
	}
	return ps.check(func(p param) []string {
		switch p.in {
		case "path":
			return []string{r.PathValue(p.name)}
		case "header":
			return r.Header.Values(p.name)
		}
		return query[p.name]
	})
}

// check returns the declared parameters, which sent looks up. Errors: CodeInvalid, CodeNotFound for a path that nothing has.
func (ps params) check(sent func(param) []string) (args, error) {
	c, out := &checking{}, args{}
	for _, p := range ps {
		values := sent(p)
		if p.in == "path" && (len(values) != 1 || len(values[0]) > maxParam) {
			return nil, fleet.NotFound("resource")
		}
		if values = p.check(c, values); values != nil {
			out[p.name] = values
		}
	}
	if len(c.failures) > 0 {
		return nil, invalid(c.failures)
	}
	return out, nil
}

func (p param) check(c *checking, values []string) []string {
	path := p.in + "." + p.name
	if p.rule.kind == "array" {
		return p.checkList(c, path, values)
	}
	if p.rule.kind == "boolean" && len(values) == 1 && values[0] == "" {
		return []string{"true"} // ?verbose
	}
	values = slices.DeleteFunc(slices.Clone(values), func(v string) bool { return v == "" })
	if len(values) == 0 {
		if p.required && p.in != "path" {
			c.fail(path, "must be given")
		}
		return nil
	}
	if len(values) > 1 {
		c.fail(path, "must be given once")
		return nil
	}
	p.checkOne(c, p.rule, path, values[0])
	return values
}

// checkList takes a list that is comma-joined, repeated, or both.
func (p param) checkList(c *checking, path string, values []string) []string {
	var out []string
	for _, v := range values {
		for item := range strings.SplitSeq(v, ",") {
			if item != "" {
				out = append(out, item)
			}
		}
	}
	c.checkSize(path, "items", len(out), nil, p.rule.maxItems)
	for _, item := range out {
		p.checkOne(c, p.rule.items, path, item)
	}
	return out
}

func (p param) checkOne(c *checking, r *rule, path, text string) {
	if len(text) > maxParam {
		c.fail(path, "must have at most %d characters", maxParam)
		return
	}
	var v any = text
	switch r.kind {
	case "boolean":
		if text != "true" && text != "false" {
			c.fail(path, "value must be one of 'true', 'false'")
			return
		}
		v = text == "true"
	case "integer":
		if _, err := strconv.Atoi(text); err != nil {
			c.fail(path, "must be a whole number")
			return
		}
		v = json.Number(text)
	}
	c.check(r, path, v)
}

func (a args) has(name string) bool { return len(a[name]) > 0 }

func (a args) text(name string) string {
	if !a.has(name) {
		return ""
	}
	return a[name][0]
}

func (a args) number(name string, absent int) int {
	n, err := strconv.Atoi(a.text(name))
	if err != nil {
		return absent
	}
	return n
}

func (a args) flag(name string, absent bool) bool {
	if !a.has(name) {
		return absent
	}
	return a.text(name) == "true"
}

func (a args) time(name string) time.Time {
	t, err := time.Parse(time.RFC3339, a.text(name))
	if err != nil {
		return time.Time{}
	}
	return t
}

// pathParam is the parameter {id}.
func pathParam(text, example string) *huma.Param {
	return &huma.Param{
		Name: "id", In: "path", Required: true, Description: text,
		Schema: &huma.Schema{Type: huma.TypeString, Examples: []any{example}},
	}
}

func queryParam(name, text string, s huma.Schema) *huma.Param {
	p := &huma.Param{Name: name, In: "query", Description: text, Schema: &s}
	if s.Type == huma.TypeArray {
		no := false
		p.Style, p.Explode = "form", &no
	}
	return p
}

// lengthParam is text of at most so many characters.
func lengthParam(name, text string, most int, example string) *huma.Param {
	return queryParam(name, text, huma.Schema{Type: huma.TypeString, MaxLength: &most, Examples: []any{example}})
}

func flagParam(name, text string, absent bool) *huma.Param {
	return queryParam(name, text, huma.Schema{Type: huma.TypeBoolean, Default: absent})
}

func listParam(name, text string, most int, words ...string) *huma.Param {
	items := &huma.Schema{Type: huma.TypeString}
	for _, w := range words {
		items.Enum = append(items.Enum, w)
	}
	return queryParam(name, text, huma.Schema{Type: huma.TypeArray, Items: items, MaxItems: &most})
}

func wordParam(name, text string, words ...string) *huma.Param {
	s := huma.Schema{Type: huma.TypeString}
	for _, w := range words {
		s.Enum = append(s.Enum, w)
	}
	return queryParam(name, text, s)
}

func countParam(name, text string, least, most int) *huma.Param {
	lo, hi := float64(least), float64(most)
	return queryParam(name, text, huma.Schema{Type: huma.TypeInteger, Minimum: &lo, Maximum: &hi})
}
