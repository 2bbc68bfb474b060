package rest

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/admin"
	"gantry/api/v2"
	"gantry/fleet"
)

// newRegistry returns a registry of schemas that knows the values of package v2.
func newRegistry() huma.Registry {
	reg := huma.NewMapRegistry(schemaPrefix, huma.DefaultSchemaNamer)
	for from, to := range map[reflect.Type]reflect.Type{
		reflect.TypeFor[v2.Time]():                       reflect.TypeFor[time.Time](),
		reflect.TypeFor[v2.Invoke]():                     reflect.TypeFor[string](),
		reflect.TypeFor[v2.Maybe[string]]():              reflect.TypeFor[string](),
		reflect.TypeFor[v2.Maybe[int64]]():               reflect.TypeFor[int64](),
		reflect.TypeFor[v2.Maybe[float64]]():             reflect.TypeFor[float64](),
		reflect.TypeFor[v2.Maybe[v2.Time]]():             reflect.TypeFor[time.Time](),
		reflect.TypeFor[v2.Maybe[admin.AccountQuotas]](): reflect.TypeFor[admin.AccountQuotas](),
		reflect.TypeFor[v2.Maybe[v2.WebhookRequest]]():   reflect.TypeFor[v2.WebhookRequest](),
	} {
		reg.RegisterTypeAlias(from, to)
	}
	return reg
}

// schemaOf returns the schema of a record, after all records that it brought along are described to their ends.
func (a *API) schemaOf(t reflect.Type) *huma.Schema {
	reg := a.huma.OpenAPI().Components.Schemas
	s := reg.Schema(t, true, t.Name())
	for name, record := range reg.Map() {
		if !a.described[name] {
			a.described[name] = true
			describeRecord(reg, record, reg.TypeFromRef(schemaPrefix+name))
		}
	}
	return s
}

// describeRecord adds to a record's schema what huma does not read from its type. Members of a change have no defaults, and
// say what they do in the tag change where they are those of a create, too.
func describeRecord(reg huma.Registry, s *huma.Schema, t reflect.Type) {
	changes := strings.HasPrefix(t.Name(), "Update")
	for _, f := range reflect.VisibleFields(t) {
		name, optional, _ := strings.Cut(f.Tag.Get("json"), ",")
		p := s.Properties[name]
		if p == nil {
			continue
		}
		if text := f.Tag.Get("change"); changes {
			p.Description, p.Default = cmp.Or(text, p.Description), nil
		}
		if f.Tag.Get("gantry") != "" { // a member of ours, which the contract does not know
			p.Extensions = map[string]any{"x-gantry": true}
		}
		if own := formOf(f.Type); own != nil {
			own.Description, own.Examples = p.Description, p.Examples
			s.Properties[name] = own
			continue
		}
		if f.Tag.Get("gantry") != "" {
			p.Extensions = map[string]any{"x-gantry": true}
		}
		p.Nullable = p.Nullable && p.Type != huma.TypeArray // as huma assumes of Go slices
		_, null := reflect.Zero(f.Type).Interface().(interface{ Nullable() })
		if null || f.Type.Kind() == reflect.Pointer && optional == "" {
			s.Properties[name] = nullable(reg, p, optional != "")
		}
	}
	describeMore(s, t)
}

// nullable returns a schema that takes null, too. That of a request's member has no reference, so that it can be checked.
func nullable(reg huma.Registry, p *huma.Schema, request bool) *huma.Schema {
	switch {
	case p.Ref != "" && !request:
		return &huma.Schema{Description: p.Description, AnyOf: []*huma.Schema{{Ref: p.Ref}, {Type: "null"}}}
	case p.Ref != "":
		whole := *reg.SchemaFromRef(p.Ref)
		whole.Description = p.Description
		p = &whole
	}
	p.Nullable = true
	return p
}

// formOf returns the schema of a value whose Go type does not tell it; nil of others.
func formOf(t reflect.Type) *huma.Schema {
	switch t {
	case reflect.TypeFor[v2.Permissions]():
		s := groupsSchema()
		s.Required = slices.Sorted(maps.Keys(s.Properties))
		s.Properties[string(fleet.GroupAdmin)] = accessSchema()
		return s
	case reflect.TypeFor[v2.WantedPermissions]():
		s := groupsSchema()
		s.AdditionalProperties = false
		return s
	case reflect.TypeFor[admin.OperatorPermissions](): // the service refuses groups that do not exist
		return &huma.Schema{Type: huma.TypeObject, AdditionalProperties: accessSchema()}
	case reflect.TypeFor[v2.Invoke](): // a keyword that rule does not check: checkInvoke does
		return &huma.Schema{Extensions: map[string]any{"oneOf": []any{
			map[string]any{"type": "string", "enum": []string{v2.InvokeAll}},
			map[string]any{"type": "array", "maxItems": maxInvoke, "items": map[string]any{"type": "string", "pattern": modelIDPattern}},
		}}}
	}
	return nil
}

// describeMore adds what tags of fields cannot say.
func describeMore(s *huma.Schema, t reflect.Type) {
	switch t {
	case reflect.TypeFor[v2.CreatePodRequest](), reflect.TypeFor[v2.UpdatePodRequest](),
		reflect.TypeFor[v2.CreateTemplateRequest](), reflect.TypeFor[v2.UpdateTemplateRequest](),
		reflect.TypeFor[v2.CreateEndpointRequest](), reflect.TypeFor[v2.UpdateEndpointRequest](),
		reflect.TypeFor[v2.CreateClusterRequest]():
		describeSettings(s)
	case reflect.TypeFor[admin.PrefetchRequest]():
		describeImage(s.Properties["image"])
	}
}

// describeSettings describes what pods and templates are made from.
func describeSettings(s *huma.Schema) {
	describeImage(s.Properties["image"])
	env, most := s.Properties["env"], maxEnvValue
	env.Extensions = map[string]any{"propertyNames": map[string]any{"pattern": envNamePattern}}
	env.AdditionalProperties = &huma.Schema{Type: huma.TypeString, MaxLength: &most}
}

func describeImage(s *huma.Schema) {
	s.Pattern, s.PatternDescription = imagePattern, "an image reference such as docker.io/library/nginx:1.29"
}

func groupsSchema() *huma.Schema {
	s := &huma.Schema{Type: huma.TypeObject, Properties: map[string]*huma.Schema{}}
	for _, g := range fleet.Groups() {
		s.Properties[string(g)] = accessSchema()
	}
	return s
}

func accessSchema() *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Enum: []any{wordNone, string(fleet.AccessRead), string(fleet.AccessWrite)}}
}

// checkShape returns what is wrong with a body that its schema cannot tell, in the form of Problem.errors.
func checkShape(body any) []string {
	switch in := body.(type) {
	case *v2.CreatePodRequest:
		return checkCreatePod(in)
	case *v2.UpdatePodRequest:
		return checkSettings(in.Args, in.Ports, in.Env)
	case *v2.CreateTemplateRequest:
		return checkSettings(in.Args, in.Ports, in.Env)
	case *v2.UpdateTemplateRequest:
		return checkSettings(in.Args, in.Ports, in.Env)
	case *v2.CreateEndpointRequest:
		return checkCreateEndpoint(in)
	case *v2.CreateClusterRequest:
		return checkCreateCluster(in)
	case *v2.UpdateEndpointRequest:
		return checkEndpoint(&in.EndpointSettings, in.Scaling)
	case *admin.PutModelRequest:
		return checkPutModel(in)
	case *v2.ExecRequest:
		return checkExec(in)
	case *v2.CreateKeyRequest:
		return checkInvoke(&in.Invoke, "$.invoke")
	case *v2.SSHKeys:
		return checkSSHKeys(in)
	case *admin.CreateAccountKeyRequest:
		return checkInvoke(&in.Invoke, "$.invoke")
	case *admin.AddCreditRequest:
		return checkAddCredit(in)
	case *admin.PutCPUFlavorRequest:
		return checkPutCPUFlavor(in)
	case *admin.UpdateHostRequest:
		return checkUpdateHost(in)
	case *admin.UpdateNetworkRequest:
		return checkUpdateNetwork(in)
	}
	return nil
}
