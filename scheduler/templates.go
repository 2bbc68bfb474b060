package scheduler

import (
	"cmp"
	"context"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// CreateTemplate makes a template of the caller's account, with ID, Account, Source, Rev and CreatedAt of its own; replayed
// tells that once was seen before. Errors: not_found (the registry credential), rule, invalid.
func (s *Service) CreateTemplate(
	ctx context.Context, who fleet.Principal, t fleet.Template, once *fleet.Once,
) (made fleet.Template, replayed bool, err error) {
	if err := checkMounts(t.Persistent, nil); err != nil {
		return fleet.Template{}, false, err
	}
	t.ID, t.Account, t.CreatedAt = fleet.TemplateID(fleet.NewID()), who.Account, s.Now()
	t.Rev, t.Source, t.Category = 0, "", cmp.Or(t.Category, fleet.CategoryNVIDIA)
	made, replayed, err = writeRecord(ctx, s, who, t.ID, t, once)
	if fleet.CodeOf(err) == fleet.CodeStale { // all that a new template hangs on
		err = noRegistry()
	}
	return made, replayed, err
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
			if cmp.Or(t.Source, fleet.SourceCommunity) == source {
				t.Registry = ""
				out = append(out, t)
			}
		}
		return nil
	})
	return out, err
}

// Template returns a template of the caller's account, or a public one; of another account's, without its registry
// credential. Errors: not_found.
func (s *Service) Template(ctx context.Context, who fleet.Principal, id fleet.TemplateID) (out fleet.Template, err error) {
	err = s.read(ctx, func(v *state.View) error { out, err = usableTemplate(v, who.Account, id); return err })
	return out, err
}

// usableTemplate returns a template as the account may use it. Errors: not_found.
func usableTemplate(v *state.View, account fleet.AccountID, id fleet.TemplateID) (fleet.Template, error) {
	t, ok := state.Find[fleet.Template](v, id)
	switch {
	case !ok || t.Account != account && !t.Public:
		return fleet.Template{}, fleet.NotFound("template")
	case t.Account != account:
		t.Registry = ""
	}
	return t, nil
}

// podTemplate returns the template that a request for a pod names.
func podTemplate(v *state.View, account fleet.AccountID, id fleet.TemplateID) (fleet.Template, error) {
	t, err := usableTemplate(v, account, id)
	switch {
	case err != nil:
		return t, missing("$.templateId", "no such template")
	case t.Serverless:
		return t, fleet.BreaksRule("a serverless template cannot be used for a pod")
	}
	return t, nil
}

// UpdateTemplate does to a template of the caller's account what change does, which may be called more than once. Pods that
// were made from it stay as they are. A template that is public no more leaves the slice of the catalog that it was in.
func (s *Service) UpdateTemplate(
	ctx context.Context, who fleet.Principal, id fleet.TemplateID, change func(*fleet.Template),
) (fleet.Template, error) {
	return untilFresh(ctx, func() (t fleet.Template, err error) {
		err = s.read(ctx, func(v *state.View) error {
			if t, err = state.Get[fleet.Template](v, who.Account, id); err != nil {
				return err
			}
			change(&t)
			return cmp.Or(checkMounts(t.Persistent, nil), knownRegistry(v, who.Account, t.Registry))
		})
		if err != nil {
			return fleet.Template{}, err
		}
		return propose[fleet.Template](ctx, s, state.Put[fleet.Template]{Record: t})
	})
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
	return propose[fleet.Template](ctx, s, state.SetTemplateSource{Template: id, Source: source})
}
