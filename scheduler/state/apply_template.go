package state

import (
	"fmt"
	"strings"

	"gantry/fleet"
)

// What one account may have, so that none fills the state.
const (
	maxTemplates  = 1000
	maxRegistries = 200
	maxKeys       = 100
	maxSSHKeys    = 100
)

// tooMany refuses one more thing of an account.
func tooMany(most int, things string) error {
	return fleet.BreaksRule("an account may have at most %d %s", most, things)
}

func (c PutTemplate) apply(t *txn) (any, error) {
	in := cloneTemplate(&c.Template)
	if err := checkID("$.id", string(in.ID)); err != nil {
		return nil, err
	}
	if in.Rev != 0 {
		return c.replace(t, &in)
	}
	again, err := t.replay(onceTemplate, in.Account, c.Once, recorded(t, &t.base.templates, cloneTemplate))
	if err != nil || again != nil {
		return again, err
	}
	switch {
	case get(t, &t.base.accounts, in.Account) == nil:
		return nil, fleet.NotFound("account")
	case get(t, &t.base.templates, in.ID) != nil:
		return nil, exists("there is a template with this id")
	case countOf(t, &t.base.templates, in.Account, func(*fleet.Template) bool { return true }) >= maxTemplates:
		return nil, tooMany(maxTemplates, "templates")
	}
	if err := t.checkRegistry(in.Account, in.Registry); err != nil {
		return nil, err
	}
	in.Source = "" // an operator's to give
	t.remember(onceTemplate, in.Account, c.Once, string(in.ID), in.CreatedAt)
	return t.putTemplate(&in), nil
}

// replace puts a template in the place of the account's that it names. When it was made, and the slice of
// the catalog that a public one is in, stay.
func (c PutTemplate) replace(t *txn, in *fleet.Template) (any, error) {
	old := get(t, &t.base.templates, in.ID)
	switch {
	case old == nil || old.Account != in.Account:
		return nil, fleet.NotFound("template")
	case old.Rev != in.Rev:
		return nil, fleet.Stale("the template changed")
	}
	if err := t.checkRegistry(in.Account, in.Registry); err != nil {
		return nil, err
	}
	in.CreatedAt, in.Source = old.CreatedAt, old.Source
	if !in.Public {
		in.Source = ""
	}
	return t.putTemplate(in), nil
}

// putTemplate writes a template with the next revision and returns a copy of it.
func (t *txn) putTemplate(template *fleet.Template) fleet.Template {
	template.Rev++
	put(t, &t.base.templates, template.ID, template)
	t.note(KindAccount, string(template.Account))
	return cloneTemplate(template)
}

func (c DeleteTemplate) apply(t *txn) (any, error) {
	template := get(t, &t.base.templates, c.Template)
	if template == nil || template.Account != c.Account {
		return nil, fleet.NotFound("template")
	}
	pods := t.livePods(c.Account, func(p *fleet.Pod) bool { return p.Spec.Template == c.Template })
	if err := inUse("the template", pods); err != nil {
		return nil, err
	}
	drop(t, &t.base.templates, c.Template)
	t.note(KindAccount, string(c.Account))
	return nil, nil
}

func (c SetTemplateSource) apply(t *txn) (any, error) {
	old := get(t, &t.base.templates, c.Template)
	if old == nil {
		return nil, fleet.NotFound("template")
	}
	template := *old
	switch c.Source {
	case fleet.SourceOfficial, fleet.SourceVerified:
		template.Source = c.Source
	case fleet.SourceCommunity, "":
		template.Source = ""
	default:
		return nil, fleet.Invalid("$.source", "must be official, verified or community")
	}
	if !template.Public {
		return nil, fleet.BreaksRule("the template is not public")
	}
	return t.putTemplate(&template), nil
}

func (c PutRegistry) apply(t *txn) (any, error) {
	registry := c.Registry
	if err := checkID("$.id", string(registry.ID)); err != nil {
		return nil, err
	}
	again, err := t.replay(onceRegistry, registry.Account, c.Once, recorded(t, &t.base.registries, cloneRegistry))
	if err != nil || again != nil {
		return again, err
	}
	switch {
	case get(t, &t.base.accounts, registry.Account) == nil:
		return nil, fleet.NotFound("account")
	case get(t, &t.base.registries, registry.ID) != nil:
		return nil, exists("there is a registry credential with this id")
	case countOf(t, &t.base.registries, registry.Account, func(*fleet.Registry) bool { return true }) >= maxRegistries:
		return nil, tooMany(maxRegistries, "registry credentials")
	}
	put(t, &t.base.registries, registry.ID, &registry)
	t.remember(onceRegistry, registry.Account, c.Once, string(registry.ID), registry.CreatedAt)
	t.note(KindAccount, string(registry.Account))
	return cloneRegistry(&registry), nil
}

func (c DeleteRegistry) apply(t *txn) (any, error) {
	registry := get(t, &t.base.registries, c.Registry)
	if registry == nil || registry.Account != c.Account {
		return nil, fleet.NotFound("registry credential")
	}
	templates := countOf(t, &t.base.templates, c.Account, func(o *fleet.Template) bool { return o.Registry == c.Registry })
	pods := t.livePods(c.Account, func(p *fleet.Pod) bool { return p.Spec.Registry == c.Registry })
	if err := inUse("the registry credential", uses{n: templates, thing: "template"}, pods); err != nil {
		return nil, err
	}
	drop(t, &t.base.registries, c.Registry)
	t.note(KindAccount, string(c.Account))
	return nil, nil
}

// checkRegistry refuses a credential that is not the account's, or not there any more; none is fine.
func (t *txn) checkRegistry(account fleet.AccountID, id fleet.RegistryID) error {
	if id == "" {
		return nil
	}
	if r := get(t, &t.base.registries, id); r == nil || r.Account != account {
		return fleet.Stale("the registry credential is gone")
	}
	return nil
}

// livePods finds the pods of an account that match and are not terminated.
func (t *txn) livePods(account fleet.AccountID, match func(*fleet.Pod) bool) uses {
	out := uses{thing: "pod"}
	for _, id := range t.podsOf(account) {
		if p := get(t, &t.base.pods, id); p != nil && p.Account == account && p.Status != fleet.StatusTerminated && match(p) {
			out.add(string(p.ID), p.Spec.Name)
		}
	}
	return out
}

// uses is how many things of a kind use another, with the first of them.
type uses struct {
	n     int
	thing string
	named []string // up to maxNamed
}

const maxNamed = 10

func (u *uses) add(id, name string) {
	if u.n++; u.n <= maxNamed {
		text := u.thing + " " + id
		if name != "" {
			text += " (" + name + ")"
		}
		u.named = append(u.named, text)
	}
}

// inUse refuses to delete what is used, and says by what.
func inUse(what string, by ...uses) error {
	var parts, named []string
	total := 0
	for _, u := range by {
		switch {
		case u.n == 1:
			parts = append(parts, "1 "+u.thing)
		case u.n > 1:
			parts = append(parts, fmt.Sprintf("%d %ss", u.n, u.thing))
		}
		total += u.n
		named = append(named, u.named...)
	}
	verb := "have"
	if total == 1 {
		verb = "has"
	}
	if total == 0 {
		return nil
	}
	return &fleet.Error{
		Code: fleet.CodeInUse, Msg: fmt.Sprintf("%s is in use: %s %s it", what, strings.Join(parts, " and "), verb), Details: named,
	}
}
