package scheduler

import (
	"cmp"
	"context"
	"slices"
	"time"

	"gantry/fleet"
	"gantry/scheduler/people"
	"gantry/scheduler/state"
)

// personView returns a person with what belongs to it.
func personView(v *state.View, p fleet.Person, now time.Time) fleet.PersonView {
	out := fleet.PersonView{Person: p, Names: map[fleet.AccountID]string{}}
	for _, m := range p.Memberships {
		if a, ok := v.Account(m.Account); ok {
			out.Names[m.Account] = a.Name
		}
	}
	out.Sessions = slices.DeleteFunc(v.SessionsOf(p.ID), func(s fleet.Session) bool { return !now.Before(s.ExpiresAt) })
	return out
}

// People lists all people.
func (s *Service) People(ctx context.Context) (out []fleet.PersonView, err error) {
	var all []fleet.Person
	if err := s.read(ctx, func(v *state.View) error { all = v.People(); return nil }); err != nil {
		return nil, err
	}
	out = make([]fleet.PersonView, 0, len(all))
	err = inPieces(s, all, func(v *state.View, p fleet.Person) { out = append(out, personView(v, p, s.Now())) })
	return out, err
}

// Person returns a person. Errors: not_found.
func (s *Service) Person(ctx context.Context, id fleet.PersonID) (out fleet.PersonView, err error) {
	err = s.read(ctx, func(v *state.View) error {
		p, ok := v.Person(id)
		if !ok {
			return fleet.NotFound("person")
		}
		out = personView(v, p, s.Now())
		return nil
	})
	return out, err
}

// CreatePerson makes a person, with a password that may be used once, unless the person is to sign in through a provider alone.
func (s *Service) CreatePerson(
	ctx context.Context, login string, memberships []fleet.Membership, password bool,
) (fleet.PersonView, fleet.Secret, error) {
	p := fleet.Person{ID: fleet.PersonID(fleet.NewID()), Login: fleet.CleanLogin(login), CreatedAt: s.Now(), Memberships: inOrder(memberships)}
	var once fleet.Secret
	if password {
		var err error
		if once, err = s.givePassword(ctx, &p); err != nil {
			return fleet.PersonView{}, "", err
		}
	}
	if _, err := propose[fleet.Person](ctx, s, state.PutPerson{Person: p}); err != nil {
		return fleet.PersonView{}, "", err
	}
	view, err := s.Person(ctx, p.ID)
	return view, once, err
}

func inOrder(all []fleet.Membership) []fleet.Membership {
	return slices.SortedFunc(slices.Values(all), func(a, b fleet.Membership) int { return cmp.Compare(a.Account, b.Account) })
}

// givePassword sets a password that may be used once.
func (s *Service) givePassword(ctx context.Context, p *fleet.Person) (once fleet.Secret, err error) {
	once = people.Once()
	p.OnceUntil = s.Now().Add(onceLife)
	p.Password, err = s.doors.hasher.Hash(ctx, once)
	return once, err
}

// changePerson applies a change to a person as it is now, also when others change it meanwhile.
func (s *Service) changePerson(ctx context.Context, id fleet.PersonID, end bool, keep fleet.SessionID, change func(*fleet.Person)) (fleet.Person, error) {
	return untilFresh(ctx, func() (fleet.Person, error) {
		view, err := s.Person(ctx, id)
		if err != nil {
			return fleet.Person{}, err
		}
		change(&view.Person)
		return propose[fleet.Person](ctx, s, state.PutPerson{Person: view.Person, End: end, Keep: keep})
	})
}

// UpdatePerson changes a person; one that is disabled has no sessions any more.
func (s *Service) UpdatePerson(ctx context.Context, id fleet.PersonID, change fleet.PersonUpdate) (fleet.PersonView, error) {
	_, err := s.changePerson(ctx, id, false, "", func(p *fleet.Person) {
		if change.Login != nil {
			p.Login = fleet.CleanLogin(*change.Login)
		}
		if change.Disabled != nil {
			p.Disabled = *change.Disabled
		}
		if change.Memberships != nil {
			p.Memberships = inOrder(*change.Memberships)
		}
	})
	if err != nil {
		return fleet.PersonView{}, err
	}
	return s.Person(ctx, id)
}

// ResetPerson takes away what a person lost, and ends all sessions. The text is that of a new password that may be used once, if asked for.
func (s *Service) ResetPerson(ctx context.Context, id fleet.PersonID, what fleet.PersonReset) (once fleet.Secret, err error) {
	var given fleet.Person
	if what.Password {
		if once, err = s.givePassword(ctx, &given); err != nil {
			return "", err
		}
	}
	_, err = s.changePerson(ctx, id, true, "", func(p *fleet.Person) {
		if what.Password {
			p.Password, p.OnceUntil = given.Password, given.OnceUntil
		}
		if what.TOTP {
			p.TOTP, p.TOTPStep = nil, 0
		}
		if what.Subject {
			p.Subject = ""
		}
	})
	if err != nil {
		return "", err
	}
	return once, nil
}

// DeletePerson deletes a person.
func (s *Service) DeletePerson(ctx context.Context, id fleet.PersonID) error {
	_, err := propose[any](ctx, s, state.DeletePerson{ID: id})
	return err
}

// self refuses who is not a person's session.
func self(who fleet.Principal) error {
	if who.Session == "" {
		return fleet.Forbidden("only someone who signed in as a person may do this, not a key")
	}
	return nil
}

// Me returns who is signed in.
func (s *Service) Me(ctx context.Context, who fleet.Principal) (fleet.PersonView, error) {
	if err := self(who); err != nil {
		return fleet.PersonView{}, err
	}
	return s.Person(ctx, who.Person)
}

// ChooseAccount has the caller's session act in another account. Errors: not_found.
func (s *Service) ChooseAccount(ctx context.Context, who fleet.Principal, account fleet.AccountID) error {
	if err := self(who); err != nil {
		return err
	}
	_, err := propose[any](ctx, s, state.ChooseAccount{Session: who.Session, Account: account})
	return err
}

// again checks the password, and the code if there must be one, of who is signed in. Errors: those of self, forbidden, rate_limited.
func (s *Service) again(ctx context.Context, who fleet.Principal, password fleet.Secret, code string, needsCode bool) (fleet.Person, uint64, error) {
	view, err := s.Me(ctx, who)
	p := view.Person
	if err != nil {
		return p, 0, err
	}
	tries := string(who.Session)
	if wait := s.doors.persons.Locked(tries); wait > 0 {
		return p, 0, tooOften(wait)
	}
	proven := p
	if !needsCode {
		proven.TOTP = nil
	}
	step, err := s.prove(ctx, &proven, password, code)
	if fleet.CodeOf(err) == fleet.CodeUnauthorized {
		s.doors.persons.Failed(tries)
		err = fleet.Forbidden("the password or the code is wrong") // 401 would end the page's session
	}
	return p, step, err
}

// ChangePassword replaces the caller's password and ends all other sessions.
func (s *Service) ChangePassword(ctx context.Context, who fleet.Principal, password, chosen fleet.Secret) error {
	p, _, err := s.again(ctx, who, password, "", false)
	if err != nil {
		return err
	}
	if err := s.newPassword(ctx, &p, "$.newPassword", chosen); err != nil {
		return err
	}
	_, err = propose[fleet.Person](ctx, s, state.PutPerson{Person: p, End: true, Keep: who.Session})
	return err
}

// SetTOTP has the caller sign in with codes of a secret from now on, of which one must be given; with none, with the password alone, for
// which a code of the secret so far must be given. All other sessions end.
func (s *Service) SetTOTP(ctx context.Context, who fleet.Principal, password fleet.Secret, secret fleet.Secret, code string) error {
	p, step, err := s.again(ctx, who, password, code, secret == "")
	if err != nil {
		return err
	}
	switch {
	case secret == "":
		p.TOTP, p.TOTPStep = nil, step
	case len(p.TOTP) > 0:
		return fleet.NotAllowed("codes are needed already: remove them first")
	default:
		plain, ok := people.ReadTOTP(secret.Reveal())
		if !ok {
			return fleet.Invalid("$.secret", "must be 16 to 40 bytes in base32")
		}
		if p.TOTPStep, ok = people.CheckCode(plain, code, s.Now(), 0); !ok {
			return fleet.Forbidden("the code is not one of this secret: is the clock right?")
		}
		if p.TOTP, err = s.Sealer.Seal(sealPurpose(purposeTOTP, "", string(p.ID)), plain); err != nil {
			return err
		}
	}
	_, err = propose[fleet.Person](ctx, s, state.PutPerson{Person: p, End: true, Keep: who.Session})
	return err
}

// EndOwnSessions ends all sessions of the caller, that of the request, too.
func (s *Service) EndOwnSessions(ctx context.Context, who fleet.Principal) error {
	if err := self(who); err != nil {
		return err
	}
	_, err := propose[any](ctx, s, state.EndSessions{Person: who.Person})
	return err
}

// SignOut ends the caller's session, or deletes the key with which the caller came, if that is a command line's.
func (s *Service) SignOut(ctx context.Context, who fleet.Principal) error {
	if who.Session != "" {
		_, err := propose[any](ctx, s, state.EndSessions{Person: who.Person, Session: who.Session})
		return err
	}
	key, err := s.Key(ctx, who, who.Key)
	if err != nil {
		return err
	}
	if !key.Device {
		return fleet.NotAllowed("this key is not one of gantry login: delete it by its id")
	}
	return s.DeleteKey(ctx, who, who.Key)
}
