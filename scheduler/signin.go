package scheduler

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"slices"
	"time"

	"gantry/fleet"
	"gantry/scheduler/people"
	"gantry/scheduler/state"
)

const (
	purposeSession = "session"
	purposeTOTP    = "totp"

	sessionLife   = 8 * time.Hour
	onceLife      = 7 * 24 * time.Hour
	personTries   = 5
	addressTries  = 20
	codeTries     = 10
	maxDeviceDays = 366
)

// doors is what signing in takes, beside records; see scheduler/people.
type doors struct {
	hasher                    *people.Hasher
	persons, addresses, codes *people.Attempts
	devices                   *people.Devices
}

func newDoors(now func() time.Time) doors {
	return doors{
		people.NewHasher(), people.NewAttempts(personTries, now), people.NewAttempts(addressTries, now), people.NewAttempts(codeTries, now),
		people.NewDevices(now),
	}
}

// errSignIn does not say what was wrong, nor whether there is such a person.
var errSignIn = &fleet.Error{Code: fleet.CodeUnauthorized, Msg: "the login, the password or the code is wrong"}

func tooOften(wait time.Duration) error {
	return &fleet.Error{Code: fleet.CodeLimited, Msg: "too many attempts failed", After: wait}
}

// SignIn begins a session and returns its secret and its end. Errors: unauthorized (the same for what is wrong and for who is not there,
// after the same time), rate_limited, not_allowed (the password is good for choosing another), invalid (the new password), forbidden.
func (s *Service) SignIn(ctx context.Context, in fleet.SignIn) (fleet.Secret, time.Time, error) {
	if in.Assertion != "" {
		return s.signInAsserted(ctx, in)
	}
	login := fleet.CleanLogin(in.Login)
	tries := login
	var p fleet.Person
	err := s.read(ctx, func(v *state.View) error {
		p, _ = v.PersonByLogin(login)
		if slices.ContainsFunc(v.SessionsOf(p.ID), func(one fleet.Session) bool { return one.Address == in.Address }) {
			tries += " " + in.Address // what others try elsewhere does not lock the person out there
		}
		return nil
	})
	if err != nil {
		return "", time.Time{}, err
	}
	if wait := max(s.doors.persons.Locked(tries), s.doors.addresses.Locked(in.Address)); wait > 0 {
		return "", time.Time{}, tooOften(wait)
	}
	step, err := s.prove(ctx, &p, in.Password, in.Code)
	if fleet.CodeOf(err) == fleet.CodeUnauthorized {
		s.doors.persons.Failed(tries)
		s.doors.addresses.Failed(in.Address)
		s.Log.Warn("sign-in refused", "address", in.Address)
	}
	if err != nil {
		return "", time.Time{}, err
	}
	if !p.OnceUntil.IsZero() {
		if p, err = s.choosePassword(ctx, p, in.NewPassword); err != nil {
			return "", time.Time{}, err
		}
	}
	token, until, err := s.beginSession(ctx, &p, in.Address, step, "")
	if err == nil {
		s.doors.persons.Succeeded(tries)
	}
	return token, until, err
}

// prove checks the password of a person, who may be nobody, and the code where there must be one; the step is that of the code. Whatever
// is wrong takes one hash and is errSignIn.
func (s *Service) prove(ctx context.Context, p *fleet.Person, password fleet.Secret, code string) (step uint64, err error) {
	now, phc := s.Now(), p.Password
	if p.Disabled || !p.OnceUntil.IsZero() && !now.Before(p.OnceUntil) || len(password) > fleet.MaxPassword {
		phc = ""
	}
	good, err := s.doors.hasher.Verify(ctx, phc, password)
	if err != nil {
		return 0, err
	}
	if good && len(p.TOTP) > 0 {
		secret, err := s.Sealer.Open(sealPurpose(purposeTOTP, "", string(p.ID)), p.TOTP)
		if err != nil {
			return 0, err
		}
		step, good = people.CheckCode(secret, code, now, p.TOTPStep)
	}
	if !good {
		return 0, errSignIn
	}
	return step, nil
}

// choosePassword replaces the password that an operator gave.
func (s *Service) choosePassword(ctx context.Context, p fleet.Person, chosen fleet.Secret) (fleet.Person, error) {
	if chosen == "" {
		return p, fleet.NotAllowed("this password may be used once: choose one of your own")
	}
	if err := s.newPassword(ctx, &p, "$.newPassword", chosen); err != nil {
		return p, err
	}
	return propose[fleet.Person](ctx, s, state.PutPerson{Person: p, End: true})
}

// newPassword sets a password that a person chose. Errors: invalid, rate_limited.
func (s *Service) newPassword(ctx context.Context, p *fleet.Person, path string, chosen fleet.Secret) (err error) {
	if len(chosen) < fleet.MinPassword || len(chosen) > fleet.MaxPassword || fleet.CleanLogin(chosen.Reveal()) == p.Login {
		return fleet.Invalid(path, "must have 10 to 256 bytes and not be the login")
	}
	if same, err := s.doors.hasher.Verify(ctx, p.Password, chosen); err != nil || same {
		if same {
			err = fleet.Invalid(path, "must be another than before")
		}
		return err
	}
	p.OnceUntil = time.Time{}
	p.Password, err = s.doors.hasher.Hash(ctx, chosen)
	return err
}

// signInAsserted begins a session of whom a provider of OpenID Connect knows. A verified e-mail address that is the login of a person
// without a subject binds the subject to the person, once.
func (s *Service) signInAsserted(ctx context.Context, in fleet.SignIn) (fleet.Secret, time.Time, error) {
	var said fleet.Assertion
	sealed, _ := base64.RawURLEncoding.DecodeString(in.Assertion.Reveal()) // what is no base64 opens nothing
	plain, err := s.Sealer.Open(fleet.AssertionPurpose, sealed)
	if err != nil || json.Unmarshal(plain, &said) != nil || !s.Now().Before(said.Until) || said.Subject == "" {
		return "", time.Time{}, errSignIn
	}
	var p fleet.Person
	var known, bound bool
	err = s.read(ctx, func(v *state.View) error {
		if p, bound = v.PersonBySubject(said.Subject); !bound && said.Email != "" {
			p, known = v.PersonByLogin(fleet.CleanLogin(said.Email))
		}
		return nil
	})
	if err != nil {
		return "", time.Time{}, err
	}
	if p.Disabled || !bound && (!known || p.Subject != "") {
		s.Log.Warn("sign-in through the provider refused", "address", in.Address)
		return "", time.Time{}, fleet.Forbidden("no person here has this login: ask an operator")
	}
	if !bound {
		p.Subject = said.Subject
		if p, err = propose[fleet.Person](ctx, s, state.PutPerson{Person: p}); err != nil {
			return "", time.Time{}, err
		}
	}
	return s.beginSession(ctx, &p, in.Address, 0, said.Subject)
}

func (s *Service) beginSession(ctx context.Context, p *fleet.Person, address string, step uint64, subject string) (fleet.Secret, time.Time, error) {
	account, err := s.firstAccount(ctx, p)
	if err != nil {
		return "", time.Time{}, err
	}
	token, now := fleet.NewAPIKey(), s.Now()
	hash, err := s.Sealer.MAC(purposeSession, []byte(token.Reveal()))
	if err != nil {
		return "", time.Time{}, err
	}
	one := fleet.Session{
		ID: fleet.SessionID(fleet.NewID()), Person: p.ID, Hash: hash[:], Account: account, Address: address,
		CreatedAt: now, ExpiresAt: now.Add(s.SessionLife),
	}
	ctx = fleet.WithAudit(ctx, fleet.AuditLine{
		Account: one.Account, Key: string(one.ID), KeyName: p.Login, Person: p.ID, Operation: "signIn", Object: string(p.ID), Face: "console",
		Address: address, Status: 201,
	})
	_, err = propose[any](ctx, s, state.BeginSession{Session: one, Revision: p.Revision, Step: step, Subject: subject})
	if fleet.CodeOf(err) == fleet.CodeUnauthorized {
		err = errSignIn // another request used the code
	}
	if err != nil {
		return "", time.Time{}, err
	}
	return token, one.ExpiresAt, nil
}

// firstAccount is where a new session acts. Errors: forbidden (the person is in no account), that of an account that is suspended.
func (s *Service) firstAccount(ctx context.Context, p *fleet.Person) (account fleet.AccountID, err error) {
	refusal := error(fleet.Forbidden("you are in no account: ask an operator"))
	err = s.read(ctx, func(v *state.View) error {
		for _, m := range p.Memberships {
			if a, ok := v.Account(m.Account); ok && a.Suspended == nil {
				account = a.ID
				return nil
			} else if ok {
				refusal = a.Suspended.Refusal()
			}
		}
		return refusal
	})
	return account, err
}

// authenticatePerson returns the principal of a session; false when there is none, or its person may not sign in any more, or is not in
// its account any more: what is meant for one account is never done in another.
func (s *Service) authenticatePerson(key fleet.Secret, view func(func(*state.View) error) error) (who fleet.Principal, ok bool, err error) {
	hash, err := s.Sealer.MAC(purposeSession, []byte(key.Reveal()))
	if err != nil {
		return who, false, err
	}
	err = view(func(v *state.View) error {
		one, there := v.SessionByHash(hash[:])
		p, known := v.Person(one.Person)
		switch {
		case !there || !known || p.Disabled:
			return nil
		case !s.Now().Before(one.ExpiresAt):
			return fleet.ErrKeyEnded
		}
		owner, there := v.Account(one.Account)
		role := p.RoleIn(one.Account)
		switch {
		case !there || role == "":
			return nil
		case owner.Suspended != nil:
			return owner.Suspended.Refusal()
		}
		who = fleet.Principal{Account: owner.ID, Can: role.Can(), Invoke: role.Invoke(), Quotas: owner.Quotas, Person: p.ID, Session: one.ID}
		ok = true
		return nil
	})
	return who, ok, err
}

// narrowed returns the principal of a key as its person, if it has one, may use it now; false: not at all.
func narrowed(v *state.View, key *fleet.Key, who fleet.Principal) (fleet.Principal, bool) {
	if key.Person == "" {
		return who, true
	}
	p, ok := v.Person(key.Person)
	role := p.RoleIn(key.Account)
	if !ok || p.Disabled || role == "" {
		return fleet.Principal{}, false
	}
	who.Person, who.Can = key.Person, fleet.Narrowed(key.Can, role.Can())
	if role.Invoke() == nil {
		who.Invoke = nil
	}
	return who, true
}
