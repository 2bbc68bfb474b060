package rest

import (
	"encoding/json"
	"slices"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"gantry/fleet"
)

const (
	wordNone      = "none" // fleet.AccessNone in words
	wordInvokeAll = "all"  // fleet.InvokeAll in words
	maxInvoke     = 100
)

// Permissions are the accesses of a key by group, each none, read or write. Every group of fleet.Groups
// is there, admin only where the key has it.
type Permissions map[string]string

// WantedPermissions are accesses asked for, by group; groups that are not named stay the preset's.
type WantedPermissions map[string]string

// Schema lists the groups.
func (Permissions) Schema(huma.Registry) *huma.Schema {
	s := groupsSchema()
	for name := range s.Properties {
		s.Required = append(s.Required, name)
	}
	slices.Sort(s.Required)
	s.Properties[string(fleet.GroupAdmin)] = accessSchema()
	return s
}

// Schema lists the groups; there are no others.
func (WantedPermissions) Schema(huma.Registry) *huma.Schema {
	s := groupsSchema()
	s.AdditionalProperties = false
	return s
}

// OperatorPermissions are accesses that an operator asks for, by group: WantedPermissions with admin.
type OperatorPermissions map[string]string

// Schema takes any group; the service refuses those that do not exist. The groups are those of the answer.
func (OperatorPermissions) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeObject, AdditionalProperties: accessSchema()}
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

func (p WantedPermissions) accesses() map[fleet.Group]fleet.Access {
	if p == nil {
		return nil
	}
	out := map[fleet.Group]fleet.Access{}
	for group, word := range p {
		access := fleet.Access(word)
		if word == wordNone {
			access = fleet.AccessNone
		}
		out[fleet.Group(group)] = access
	}
	return out
}

func permissionsOf(can map[fleet.Group]fleet.Access) Permissions {
	out := Permissions{}
	for _, g := range fleet.Groups() {
		out[string(g)] = wordNone
	}
	for g, access := range can {
		if access != fleet.AccessNone {
			out[string(g)] = string(access)
		}
	}
	return out
}

// Invoke tells the endpoints whose jobs a key may submit: the word all, or a list of ids.
type Invoke struct {
	set, all bool
	ids      []string
	wrong    bool // what was read is neither
}

// Schema offers both forms. The keyword is one that requests are not checked for by rule: check does it.
func (Invoke) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Extensions: map[string]any{"oneOf": []any{
		map[string]any{"type": "string", "enum": []string{wordInvokeAll}},
		map[string]any{"type": "array", "maxItems": maxInvoke, "items": map[string]any{"type": "string", "pattern": "^[a-z][a-z0-9]{13}$"}},
	}}}
}

// IsZero reports whether the member is left out of a request.
func (v Invoke) IsZero() bool { return !v.set }

// MarshalJSON writes the word or the list.
func (v Invoke) MarshalJSON() ([]byte, error) {
	if v.all {
		return json.Marshal(wordInvokeAll)
	}
	return json.Marshal(append([]string{}, v.ids...))
}

// UnmarshalJSON reads either form and remembers whether it was none.
func (v *Invoke) UnmarshalJSON(data []byte) error {
	*v = Invoke{set: true}
	var word string
	if json.Unmarshal(data, &word) == nil {
		v.all, v.wrong = true, word != wordInvokeAll
		return nil
	}
	v.ids = []string{}
	v.wrong = json.Unmarshal(data, &v.ids) != nil
	return nil
}

func (v *Invoke) check(path string) []string {
	switch {
	case v.wrong:
		return []string{path + ": must be 'all' or a list of endpoint ids"}
	case len(v.ids) > maxInvoke:
		return []string{path + ": must have at most " + counted(maxInvoke, "items")}
	}
	var out []string
	for i, id := range v.ids {
		if !fleet.ValidID(id) {
			out = append(out, path+"["+strconv.Itoa(i)+"]: must be an endpoint id")
		}
	}
	return out
}

// endpoints is the list as fleet.Key has it; nil when it was left out.
func (v *Invoke) endpoints() []string {
	if v.all {
		return []string{fleet.InvokeAll}
	}
	return v.ids
}

func invokeOf(ids []string) Invoke {
	return Invoke{set: true, all: slices.Equal(ids, []string{fleet.InvokeAll}), ids: ids}
}
