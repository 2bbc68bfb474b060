package graphql_test

import (
	"encoding/json"
	"strings"
	"testing"
)

// introspection is the query that clients and editors send to learn a schema.
const introspection = `query IntrospectionQuery { __schema { queryType { name } mutationType { name } subscriptionType { name }
  types { ...FullType } directives { name description locations args { ...InputValue } } } }
fragment FullType on __Type { kind name description fields(includeDeprecated: true) { name description args { ...InputValue } type { ...TypeRef }
  isDeprecated deprecationReason } inputFields { ...InputValue } interfaces { ...TypeRef } enumValues(includeDeprecated: true) { name description
  isDeprecated deprecationReason } possibleTypes { ...TypeRef } }
fragment InputValue on __InputValue { name description type { ...TypeRef } defaultValue }
fragment TypeRef on __Type { kind name ofType { kind name ofType { kind name ofType { kind name ofType { kind name ofType { kind name ofType { kind
  name ofType { kind name } } } } } } } }`

func TestIntrospectionIsOn(t *testing.T) {
	s := newSite(t)
	got := s.ask("", introspection)
	if got.status != 200 || strings.Contains(got.body, `"errors"`) || len(got.body) < 50_000 || len(got.body) > 500_000 {
		t.Fatalf("%d, %d bytes: %.500s", got.status, len(got.body), got.body)
	}
	var out struct {
		Data struct {
			Schema struct {
				Types []struct {
					Name        string
					InputFields []struct {
						Name string
						Type struct{ Kind string }
					}
					Fields []struct {
						Name string
						Args []struct {
							Name string
							Type struct{ Kind, Name string }
						}
					}
				}
			} `json:"__schema"`
		}
	}
	if err := json.Unmarshal([]byte(got.body), &out); err != nil {
		t.Fatal(err)
	}
	// Clients declare variables of the types that they know: they validate against nullable arguments and members alone.
	inputs := 0
	for _, of := range out.Data.Schema.Types {
		if strings.HasPrefix(of.Name, "__") {
			continue
		}
		for _, f := range of.InputFields {
			inputs++
			if f.Type.Kind == "NON_NULL" {
				t.Errorf("%s.%s must be nullable", of.Name, f.Name)
			}
		}
		for _, f := range of.Fields {
			for _, arg := range f.Args {
				if arg.Type.Kind == "NON_NULL" || arg.Type.Name == "ID" {
					t.Errorf("%s.%s(%s) must be nullable, and no ID", of.Name, f.Name, arg.Name)
				}
			}
		}
	}
	if inputs < 100 {
		t.Errorf("%d members of inputs", inputs)
	}
}
