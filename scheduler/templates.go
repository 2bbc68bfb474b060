package scheduler

import (
	"cmp"
	"context"
	"slices"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// CreateTemplate makes a template of the caller's account, with ID, Account, Source, Rev and CreatedAt of
// its own; replayed tells that once was seen before. Errors: not_found (the registry credential),
// invalid.
func (s *Service) CreateTemplate(
	ctx context.Context, who fleet.Principal, t fleet.Template, once *fleet.Once,
) (made fleet.Template, replayed bool, err error) {
	t.ID, t.Account, t.CreatedAt = fleet.TemplateID(fleet.NewID()), who.Account, s.Now()
	t.Rev, t.Source, t.Category = 0, "", cmp.Or(t.Category, fleet.CategoryNVIDIA)
	made, err = untilFresh(ctx, func() (out fleet.Template, err error) {
		cmd := state.Put[fleet.Template]{Record: t, Once: once}
		if why := s.read(ctx, func(v *state.View) error { return knownRegistry(v, who.Account, t.Registry) }); why != nil {
			out, replayed, err = s.templateBefore(ctx, cmd, why)
		} else {
			out, replayed, err = proposeOnce[fleet.Template](ctx, s, cmd)
		}
		return out, err
	})
	if err == nil && !replayed {
		s.Log.Info("template created", "template", made.ID, "account", who.Account)
	}
	return made, replayed, err
}

// templateBefore answers a create whose registry credential is not there, but which may have been done while
// it was. The state machine does not make a template without its credential, so that none is made now.
func (s *Service) templateBefore(ctx context.Context, cmd state.Put[fleet.Template], why error) (fleet.Template, bool, error) {
	if cmd.Once == nil || fleet.CodeOf(why) != fleet.CodeNotFound {
		return fleet.Template{}, false, why
	}
	made, replayed, err := proposeOnce[fleet.Template](ctx, s, cmd)
	switch {
	case replayed:
		return made, true, nil
	case fleet.CodeOf(err) == fleet.CodeInvalid || fleet.CodeOf(err) == fleet.CodeExists:
		return fleet.Template{}, false, err // the key's own
	case fleet.CodeOf(err) == fleet.CodeUnavailable:
		return fleet.Template{}, false, err // nobody knows yet whether it was done
	}
	return fleet.Template{}, false, why
}

// Templates lists the templates of the caller's account, oldest first.
func (s *Service) Templates(ctx context.Context, who fleet.Principal) ([]fleet.Template, error) {
	return recordsOf[fleet.Template](ctx, s, who)
}

// PublicTemplates lists the public templates of a source, oldest first, without their registry
// credentials.
func (s *Service) PublicTemplates(ctx context.Context, source fleet.TemplateSource) ([]fleet.Template, error) {
	out := []fleet.Template{}
	err := s.read(ctx, func(v *state.View) error {
		for _, t := range v.PublicTemplates() {
			if sourceOf(&t) == source {
				t.Registry = ""
				out = append(out, t)
			}
		}
		return nil
	})
	return out, err
}

func sourceOf(t *fleet.Template) fleet.TemplateSource { return cmp.Or(t.Source, fleet.SourceCommunity) }

// Template returns a template of the caller's account, or a public one; of another account's, without
// its registry credential.
func (s *Service) Template(ctx context.Context, who fleet.Principal, id fleet.TemplateID) (fleet.Template, error) {
	var out fleet.Template
	err := s.read(ctx, func(v *state.View) error {
		var ok bool
		if out, ok = usableTemplate(v, who.Account, id); !ok {
			return fleet.NotFound("template")
		}
		return nil
	})
	return out, err
}

// usableTemplate returns a template as the account may use it.
func usableTemplate(v *state.View, account fleet.AccountID, id fleet.TemplateID) (fleet.Template, bool) {
	t, ok := state.Find[fleet.Template](v, id)
	switch {
	case !ok || t.Account != account && !t.Public:
		return fleet.Template{}, false
	case t.Account != account:
		t.Registry = ""
	}
	return t, true
}

// podTemplate returns the template that a request for a pod names.
func podTemplate(v *state.View, account fleet.AccountID, id fleet.TemplateID) (fleet.Template, error) {
	t, ok := usableTemplate(v, account, id)
	switch {
	case !ok:
		return t, missing("$.templateId", "no such template")
	case t.Serverless:
		return t, fleet.BreaksRule("a serverless template cannot be used for a pod")
	}
	return t, nil
}

// UpdateTemplate changes a template of the caller's account. Pods that were made from it stay as they
// are. A template that is public no more leaves the slice of the catalog that it was in.
func (s *Service) UpdateTemplate(
	ctx context.Context, who fleet.Principal, id fleet.TemplateID, change fleet.TemplateUpdate,
) (fleet.Template, error) {
	return untilFresh(ctx, func() (fleet.Template, error) {
		var t fleet.Template
		err := s.read(ctx, func(v *state.View) (err error) {
			if t, err = state.Get[fleet.Template](v, who.Account, id); err != nil {
				return err
			}
			changeTemplate(&t, change)
			if change.Registry == nil {
				return nil
			}
			return knownRegistry(v, who.Account, t.Registry)
		})
		if err != nil {
			return fleet.Template{}, err
		}
		return propose[fleet.Template](ctx, s, state.Put[fleet.Template]{Record: t})
	})
}

func changeTemplate(t *fleet.Template, c fleet.TemplateUpdate) {
	set(&t.Name, c.Name)
	set(&t.Image, c.Image)
	set(&t.Args, c.Args)
	set(&t.DiskGB, c.DiskGB)
	set(&t.Ports, c.Ports)
	set(&t.Env, c.Env)
	set(&t.Registry, c.Registry)
	set(&t.Serverless, c.Serverless)
	set(&t.Public, c.Public)
	set(&t.Category, c.Category)
	set(&t.StartSSH, c.StartSSH)
	set(&t.StartJupyter, c.StartJupyter)
	set(&t.AllowedCUDA, c.AllowedCUDA)
	if c.Persistent != nil {
		t.Persistent = c.Persistent
	}
	if !t.Public {
		t.Source = ""
	}
}

// set overwrites a field with what is given for it.
func set[T any](field, value *T) {
	if value != nil {
		*field = *value
	}
}

// DeleteTemplate deletes a template of the caller's account. Errors: not_found, rule (a pod that is not
// terminated was made from it).
func (s *Service) DeleteTemplate(ctx context.Context, who fleet.Principal, id fleet.TemplateID) error {
	return deleteRecord[fleet.Template](ctx, s, who, id)
}

// SetTemplateSource says in which slice of the public catalog a template is. Errors: not_found, rule (it
// is not public), invalid.
func (s *Service) SetTemplateSource(
	ctx context.Context, id fleet.TemplateID, source fleet.TemplateSource,
) (fleet.Template, error) {
	sources := []fleet.TemplateSource{fleet.SourceOfficial, fleet.SourceVerified, fleet.SourceCommunity}
	if !slices.Contains(sources, source) {
		return fleet.Template{}, fleet.Invalid("$.source", "value must be one of 'official', 'verified', 'community'")
	}
	return propose[fleet.Template](ctx, s, state.SetTemplateSource{Template: id, Source: source})
}
