package rest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// encodeDocument returns an OpenAPI document as JSON in which every response, header, parameter and long member that is used more
// than once stands once, among the components. A tenth of the operations' text is their own; the rest are the same answers.
func encodeDocument(api any) ([]byte, error) {
	data, err := json.Marshal(api)
	if err != nil {
		return nil, err
	}
	var doc map[string]any
	if err := json.Unmarshal(data, &doc); err != nil {
		return nil, err
	}
	dropPatternTexts(doc)
	components, ok := doc["components"].(map[string]any)
	if !ok {
		return nil, fmt.Errorf("the document has no components")
	}
	dropUnused(components, data)
	var ops []map[string]any
	paths, _ := doc["paths"].(map[string]any)
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		item, _ := paths[path].(map[string]any)
		for _, method := range slices.Sorted(maps.Keys(item)) {
			if op, ok := item[method].(map[string]any); ok {
				ops = append(ops, op)
			}
		}
	}
	for _, s := range []sharer{
		{kind: "headers", each: eachHeader, name: func(key string, _ map[string]any) string { return key }},
		{kind: "responses", each: eachResponse, name: responseName},
		{kind: "parameters", each: eachParameter, name: parameterName},
	} {
		if err := s.share(components, ops); err != nil {
			return nil, err
		}
	}
	shareProperties(components)
	return json.Marshal(doc)
}

// dropUnused leaves out schemas to which nothing of a document refers: those of members that may be null are where they are used.
func dropUnused(components map[string]any, document []byte) {
	schemas, _ := components["schemas"].(map[string]any)
	maps.DeleteFunc(schemas, func(name string, _ any) bool {
		return !bytes.Contains(document, []byte(`"`+schemaPrefix+name+`"`))
	})
}

// longProperty is from how many bytes on a member that several records have becomes a schema of its own.
const longProperty = 200

// shareProperties moves long members that several records have to the schemas.
func shareProperties(components map[string]any) {
	schemas, _ := components["schemas"].(map[string]any)
	records := slices.Sorted(maps.Keys(schemas))
	each := func(f func(key string, v map[string]any) map[string]any) {
		for _, name := range records {
			record, _ := schemas[name].(map[string]any)
			properties, _ := record["properties"].(map[string]any)
			eachMember(properties, f)
		}
	}
	uses := map[string]int{}
	each(func(_ string, v map[string]any) map[string]any { uses[jsonOf(v)]++; return v })
	names := map[string]string{}
	each(func(key string, v map[string]any) map[string]any {
		t := jsonOf(v)
		if uses[t] < 2 || len(t) < longProperty {
			return v
		}
		if names[t] == "" {
			names[t] = free(schemas, strings.ToUpper(key[:1])+key[1:])
			schemas[names[t]] = v
		}
		return map[string]any{"$ref": schemaPrefix + names[t]}
	})
}

// jsonOf is the JSON of a part of the document; the members of maps are in order.
func jsonOf(v map[string]any) string {
	data, err := json.Marshal(v)
	if err != nil {
		return ""
	}
	return string(data)
}

// dropPatternTexts takes out a member of schemas that the library adds and OpenAPI does not know. What it says stands in
// the errors that a broken pattern gets.
func dropPatternTexts(v any) {
	switch v := v.(type) {
	case map[string]any:
		delete(v, "patternDescription")
		for _, member := range v {
			dropPatternTexts(member)
		}
	case []any:
		for _, member := range v {
			dropPatternTexts(member)
		}
	}
}

// sharer moves one kind of object to the components.
type sharer struct {
	kind string
	// each replaces every object of this kind in an operation by what f returns for it; key is what it stands under.
	each func(op map[string]any, f func(key string, v map[string]any) map[string]any)
	name func(key string, v map[string]any) string
}

func (s sharer) share(components map[string]any, ops []map[string]any) error {
	uses := map[string]int{}
	for _, op := range ops {
		s.each(op, func(_ string, v map[string]any) map[string]any { uses[jsonOf(v)]++; return v })
	}
	shared, names := map[string]any{}, map[string]string{}
	for _, op := range ops {
		s.each(op, func(key string, v map[string]any) map[string]any {
			t := jsonOf(v)
			if uses[t] < 2 {
				return v
			}
			if names[t] == "" {
				names[t] = free(shared, s.name(key, v))
				shared[names[t]] = v
			}
			return map[string]any{"$ref": "#/components/" + s.kind + "/" + names[t]}
		})
	}
	if _, taken := components[s.kind]; taken {
		return fmt.Errorf("the components have %s of their own", s.kind)
	}
	components[s.kind] = shared
	return nil
}

// free returns a name that is not taken yet.
func free(taken map[string]any, name string) string {
	for n, try := 2, name; ; n++ {
		if _, ok := taken[try]; !ok {
			return try
		}
		try = name + strconv.Itoa(n)
	}
}

func eachHeader(op map[string]any, f func(string, map[string]any) map[string]any) {
	eachResponse(op, func(_ string, response map[string]any) map[string]any {
		headers, _ := response["headers"].(map[string]any)
		eachMember(headers, f)
		return response
	})
}

func eachResponse(op map[string]any, f func(string, map[string]any) map[string]any) {
	responses, _ := op["responses"].(map[string]any)
	eachMember(responses, f)
}

func eachMember(m map[string]any, f func(string, map[string]any) map[string]any) {
	for _, key := range slices.Sorted(maps.Keys(m)) {
		if v, ok := m[key].(map[string]any); ok {
			m[key] = f(key, v)
		}
	}
}

func eachParameter(op map[string]any, f func(string, map[string]any) map[string]any) {
	list, _ := op["parameters"].([]any)
	for i := range list {
		if v, ok := list[i].(map[string]any); ok {
			name, _ := v["name"].(string)
			list[i] = f(name, v)
		}
	}
}

// responseName names an answer for its record, and any other for its status.
func responseName(status string, response map[string]any) string {
	content, _ := response["content"].(map[string]any)
	body, _ := content["application/json"].(map[string]any)
	schema, _ := body["schema"].(map[string]any)
	if ref, ok := schema["$ref"].(string); ok {
		return strings.TrimPrefix(ref, schemaPrefix)
	}
	code, err := strconv.Atoi(status)
	if err != nil {
		return status
	}
	return strings.NewReplacer(" ", "", "-", "").Replace(http.StatusText(code))
}

func parameterName(name string, v map[string]any) string {
	in, _ := v["in"].(string)
	return strings.ReplaceAll(name, "-", "") + strings.ToUpper(in[:min(1, len(in))]) + in[min(1, len(in)):]
}
