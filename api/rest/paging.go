package rest

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"

	"gantry/api/v2"

	"github.com/danielgtaylor/huma/v2"

	"gantry/fleet"
)

// mostListed is how much of a list is answered at once.
const mostListed = 10_000

// listField returns which field of a list's answer is the list: the only slice of records beside a Page, or the answer itself (-1).
// It is false for what is no list.
func listField(t reflect.Type) (int, bool) {
	if t.Kind() == reflect.Slice {
		return -1, true
	}
	if t.Kind() != reflect.Struct {
		return 0, false
	}
	if _, ok := t.FieldByName("Next"); !ok {
		return 0, false
	}
	for i := range t.NumField() {
		if f := t.Field(i); f.Type.Kind() == reflect.Slice {
			return i, true
		}
	}
	return 0, false
}

// pageParams are the parameters of every list.
func pageParams() []*huma.Param {
	least, most, longest := 1.0, float64(mostListed), 1024
	return []*huma.Param{
		queryParam("limit", "How many at most.", huma.Schema{Type: huma.TypeInteger, Minimum: &least, Maximum: &most}),
		queryParam("cursor", "next of the answer before.", huma.Schema{Type: huma.TypeString, MaxLength: &longest}),
	}
}

// paged cuts the list of an answer to what was asked for and says where it goes on. Errors: too_many, malformed (cursor).
func paged(c *call, out reflect.Value, field int) error {
	list := out
	if field >= 0 {
		list = out.Field(field)
	}
	from, to, next, err := c.page(list.Len(), func(i int, aged bool) string { return itemKey(list.Index(i), aged) })
	if err != nil {
		return err
	}
	list.Set(list.Slice(from, to))
	if field >= 0 {
		out.FieldByName("Next").SetString(next)
	} else if next != "" {
		c.w.Header().Set("Link", linkTo(c.r.URL, next))
	}
	return nil
}

// page returns which part of a list of n items is asked for, and where it goes on; key is itemKey of item i. Errors: as paged.
func (c *call) page(n int, key func(i int, aged bool) string) (from, to int, next string, err error) {
	if n <= c.args.number("limit", mostListed) && !c.args.has("cursor") {
		return 0, n, "", nil
	}
	keys := make([]string, n)
	for i := range keys {
		keys[i] = key(i, false)
	}
	if !slices.IsSorted(keys) { // by age, then
		for i := range keys {
			keys[i] = key(i, true)
		}
	}
	if from, err = c.args.after(keys); err != nil {
		return 0, 0, "", err
	}
	to = min(n, from+c.args.number("limit", mostListed))
	switch {
	case to == n:
		return from, to, "", nil
	case !c.args.has("limit") && !c.args.has("cursor"):
		return 0, 0, "", &fleet.Error{Code: fleet.CodeTooMany, Msg: fmt.Sprintf(
			"the list has more than %d; ask for it in parts, with limit and then with cursor: next of the answer before", mostListed,
		)}
	}
	return from, to, base64.RawURLEncoding.EncodeToString([]byte(keys[to-1])), nil
}

// after returns the index behind the item that the cursor names, or behind where it would be.
func (a args) after(keys []string) (int, error) {
	if !a.has("cursor") {
		return 0, nil
	}
	key, err := base64.RawURLEncoding.DecodeString(a.text("cursor"))
	if err != nil {
		return 0, malformed("the cursor is none that a list gave")
	}
	if i := slices.Index(keys, string(key)); i >= 0 {
		return i + 1, nil
	}
	i, _ := slices.BinarySearch(keys, string(key))
	return i, nil
}

// linkTo is the Link header of a list without members.
func linkTo(at *url.URL, cursor string) string {
	query := at.Query()
	query.Set("cursor", cursor)
	return "<" + at.Path + "?" + query.Encode() + `>; rel="next"`
}

// itemKey is by what an item of a list is found again: its identifier or name, behind the time of its creation where the list is by
// age.
func itemKey(item reflect.Value, aged bool) string {
	item = reflect.Indirect(item)
	if item.Kind() != reflect.Struct {
		return fmt.Sprint(item.Interface())
	}
	var parts []string
	if f := item.FieldByName("CreatedAt"); aged && f.IsValid() {
		if at, ok := f.Interface().(v2.Time); ok {
			parts = append(parts, at.UTC().Format("2006-01-02T15:04:05.000000000"))
		}
	}
	for _, name := range []string{"ID", "Name", item.Type().Field(0).Name} {
		if f := item.FieldByName(name); f.IsValid() && f.Kind() == reflect.String {
			return strings.Join(append(parts, f.String()), " ")
		}
	}
	return strings.Join(parts, " ")
}

// isList reports whether a route answers a list, and which field of its answer that is.
func isList(rt route, answer reflect.Type) (int, bool) {
	if rt.method != http.MethodGet {
		return 0, false
	}
	return listField(answer)
}
