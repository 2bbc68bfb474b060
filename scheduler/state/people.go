package state

import (
	"cmp"
	"slices"
	"time"

	"gantry/fleet"
	"gantry/scheduler/state/table"
)

// The type numbers of commands about people; see numbers.go.
const (
	numPutPerson uint64 = 88 + iota
	numDeletePerson
	numBeginSession
	numEndSessions
	numChooseAccount uint64 = 95
)

func (PutPerson) number() uint64     { return numPutPerson }
func (DeletePerson) number() uint64  { return numDeletePerson }
func (BeginSession) number() uint64  { return numBeginSession }
func (EndSessions) number() uint64   { return numEndSessions }
func (ChooseAccount) number() uint64 { return numChooseAccount }

const (
	maxSealedTOTP = 128
	maxPHC        = 256
	maxSubject    = 512
)

// PutPerson creates a person (Revision 0) or replaces one, whose Revision it must have: what others changed meanwhile is not lost. With
// End, all sessions but Keep end. With End and no Keep, and when the person is disabled, the keys of its command lines go, too. Value: fleet.Person. Errors: invalid, exists (the login or
// the subject is another's), not_found (the person, an account), stale (another revision), rule (there are too many people).
type PutPerson struct {
	Person fleet.Person    `cbor:"1,keyasint"`
	End    bool            `cbor:"2,keyasint,omitempty"`
	Keep   fleet.SessionID `cbor:"3,keyasint,omitempty"`
}

// DeletePerson deletes a person, all sessions and the keys of its command lines. Errors: not_found.
type DeletePerson struct {
	ID fleet.PersonID `cbor:"1,keyasint"`
}

// BeginSession begins a session of a person whose password, code or subject was found good on the record with this Revision. Sessions
// that have expired go, and the oldest for want of room. Errors: not_found, unauthorized (the person is disabled, has
// another subject or needs a code, or one with this Step was used), stale (another revision), exists, invalid.
type BeginSession struct {
	Session  fleet.Session `cbor:"1,keyasint"`
	Revision uint64        `cbor:"2,keyasint"`
	Step     uint64        `cbor:"3,keyasint,omitempty"` // of TOTP; 0: no code was given
	Subject  string        `cbor:"4,keyasint,omitempty"` // whose provider was asked in place of the password and the code; empty: none
}

// EndSessions ends a session of a person, or all and the keys of its command lines. Value: int, how many sessions. Errors: not_found (the person).
type EndSessions struct {
	Person  fleet.PersonID  `cbor:"1,keyasint"`
	Session fleet.SessionID `cbor:"2,keyasint,omitempty"` // empty: all
}

// ChooseAccount has a session act in another account of its person. Errors: not_found (the session, or the person is not in the account).
type ChooseAccount struct {
	Session fleet.SessionID `cbor:"1,keyasint"`
	Account fleet.AccountID `cbor:"2,keyasint"`
}

func (c PutPerson) apply(t *txn) (any, error) {
	in := clonePerson(&c.Person)
	old := t.base.people.Get(t.Txn, in.ID)
	if err := cmp.Or(checkID("$.id", string(in.ID)), checkPerson(&in), t.checkMemberships(in.Memberships)); err != nil {
		return nil, err
	}
	switch {
	case old == nil && in.Revision > 0:
		return nil, fleet.NotFound("person")
	case old == nil && t.base.people.Count(t.Txn, table.All[fleet.Person]) >= fleet.MaxPeople:
		return nil, fleet.BreaksRule("there may be at most %d people", fleet.MaxPeople)
	case old != nil && in.Revision != old.Revision:
		return nil, fleet.Stale("the person was changed meanwhile")
	case t.others(t.base.peopleByLogin, in.Login, in.ID):
		return nil, exists("another person has this login")
	case in.Subject != "" && t.others(t.base.peopleBySubject, in.Subject, in.ID):
		return nil, exists("another person has this subject")
	}
	if old != nil {
		in.CreatedAt = old.CreatedAt
		if slices.Equal(in.TOTP, old.TOTP) {
			in.TOTPStep = max(in.TOTPStep, old.TOTPStep)
		}
	}
	in.Revision++
	t.base.people.Put(t.Txn, in.ID, &in)
	t.noteMemberships(old, &in)
	switch {
	case in.Disabled, c.End && c.Keep == "":
		t.signOut(in.ID)
	case c.End:
		t.endSessions(in.ID, func(s *fleet.Session) bool { return s.ID != c.Keep })
	}
	return clonePerson(&in), nil
}

func (t *txn) others(index *table.Index[string, fleet.PersonID, fleet.Person], key string, id fleet.PersonID) bool {
	for _, other := range index.Keys(t.Txn, key) {
		if other != id {
			return true
		}
	}
	return false
}

func (t *txn) noteMemberships(people ...*fleet.Person) {
	for _, p := range people {
		if p != nil {
			for _, m := range p.Memberships {
				t.Note(KindAccount, string(m.Account))
			}
		}
	}
}

func checkPerson(p *fleet.Person) error {
	switch {
	case !fleet.ValidLogin(p.Login):
		return fleet.Invalid("$.login", "must be 1 to 191 printable ASCII characters without spaces, in lower case")
	case len(p.Password) > maxPHC, len(p.TOTP) > maxSealedTOTP, len(p.Subject) > maxSubject:
		return fleet.Invalid("$", "is too long")
	case len(p.Memberships) > fleet.MaxMemberships:
		return fleet.Invalid("$.memberships", "must have at most 50 items")
	}
	return nil
}

func (t *txn) checkMemberships(all []fleet.Membership) error {
	last := fleet.AccountID("")
	for _, m := range all {
		switch {
		case m.Account <= last:
			return fleet.Invalid("$.memberships", "must be in the order of accounts, each once")
		case !fleet.ValidRole(m.Role):
			return fleet.Invalid("$.memberships", "a role must be one of 'owner', 'developer', 'viewer', 'billing'")
		case t.base.accounts.Get(t.Txn, m.Account) == nil:
			return fleet.NotFound("account")
		}
		last = m.Account
	}
	return nil
}

func (c DeletePerson) apply(t *txn) (any, error) {
	old := t.base.people.Get(t.Txn, c.ID)
	if old == nil {
		return nil, fleet.NotFound("person")
	}
	t.signOut(c.ID)
	t.base.people.Drop(t.Txn, c.ID)
	t.noteMemberships(old)
	return nil, nil
}

// signOut ends all sessions of a person and deletes the keys of its command lines, which are sessions that last.
func (t *txn) signOut(person fleet.PersonID) int {
	for _, id := range t.base.linesOf.Keys(t.Txn, person) {
		t.dropKey(id)
	}
	return t.endSessions(person, func(*fleet.Session) bool { return true })
}

func (t *txn) endSessions(person fleet.PersonID, which func(*fleet.Session) bool) (n int) {
	for _, id := range t.base.sessionsOf.Keys(t.Txn, person) {
		if which(t.base.sessions.Get(t.Txn, id)) {
			t.base.sessions.Drop(t.Txn, id)
			n++
		}
	}
	return n
}

func (c BeginSession) apply(t *txn) (any, error) {
	in := c.Session
	old := t.base.people.Get(t.Txn, in.Person)
	if err := cmp.Or(checkID("$.id", string(in.ID)), checkID("$.hash", string(in.Hash))); err != nil {
		return nil, err
	}
	refused := &fleet.Error{Code: fleet.CodeUnauthorized, Msg: "the person may not sign in"}
	switch {
	case old == nil:
		return nil, fleet.NotFound("person")
	case old.Disabled, c.Step > 0 && c.Step <= old.TOTPStep, c.Step == 0 && len(old.TOTP) > 0 && c.Subject == "", c.Subject != old.Subject && c.Subject != "":
		return nil, refused
	case old.Revision != c.Revision:
		return nil, fleet.Stale("the person was changed meanwhile")
	case in.Account != "" && old.RoleIn(in.Account) == "":
		return nil, fleet.NotFound("account")
	case len(in.Address) > maxID:
		return nil, fleet.Invalid("$.address", "must have at most 256 bytes")
	case t.base.sessions.Get(t.Txn, in.ID) != nil, len(t.base.sessionsByHash.Keys(t.Txn, string(in.Hash))) > 0:
		return nil, exists("there is such a session")
	}
	if c.Step > 0 {
		p := *old
		p.TOTPStep = c.Step
		t.base.people.Put(t.Txn, p.ID, &p)
	}
	t.endSessions(in.Person, func(s *fleet.Session) bool { return !in.CreatedAt.Before(s.ExpiresAt) })
	for {
		ids := t.base.sessionsOf.Keys(t.Txn, in.Person)
		if len(ids) < fleet.MaxSessions {
			break
		}
		t.base.sessions.Drop(t.Txn, slices.MinFunc(ids, func(a, b fleet.SessionID) int {
			return cmp.Or(t.base.sessions.Get(t.Txn, a).CreatedAt.Compare(t.base.sessions.Get(t.Txn, b).CreatedAt), cmp.Compare(a, b))
		}))
	}
	t.base.sessions.Put(t.Txn, in.ID, &in)
	return nil, nil
}

func (c EndSessions) apply(t *txn) (any, error) {
	if t.base.people.Get(t.Txn, c.Person) == nil {
		return nil, fleet.NotFound("person")
	}
	if c.Session == "" {
		return t.signOut(c.Person), nil
	}
	return t.endSessions(c.Person, func(s *fleet.Session) bool { return s.ID == c.Session }), nil
}

func (c ChooseAccount) apply(t *txn) (any, error) {
	old := t.base.sessions.Get(t.Txn, c.Session)
	if old == nil {
		return nil, fleet.NotFound("session")
	}
	if p := t.base.people.Get(t.Txn, old.Person); p == nil || p.RoleIn(c.Account) == "" {
		return nil, fleet.NotFound("account")
	}
	s := *old
	s.Account = c.Account
	t.base.sessions.Put(t.Txn, s.ID, &s)
	return nil, nil
}

func clonePerson(p *fleet.Person) fleet.Person {
	out := *p
	out.Memberships, out.TOTP = slices.Clone(p.Memberships), slices.Clone(p.TOTP)
	return out
}

func cloneSession(s *fleet.Session) fleet.Session {
	out := *s
	out.Hash = slices.Clone(s.Hash)
	return out
}

func person(p *fleet.Person) (fleet.Person, bool) {
	if p == nil {
		return fleet.Person{}, false
	}
	return clonePerson(p), true
}

// Person returns a person.
func (v *View) Person(id fleet.PersonID) (fleet.Person, bool) { return person(v.tb.people.Rows[id]) }

// PersonByLogin returns the person who has a login.
func (v *View) PersonByLogin(login string) (fleet.Person, bool) {
	return person(v.tb.peopleByLogin.One(login))
}

// PersonBySubject returns the person to whom a subject of OpenID Connect is bound.
func (v *View) PersonBySubject(subject string) (fleet.Person, bool) {
	return person(v.tb.peopleBySubject.One(subject))
}

// People returns all people, by age.
func (v *View) People() []fleet.Person {
	return byAgeOf(v.tb.people.Rows, func(p *fleet.Person) (time.Time, string) { return p.CreatedAt, string(p.ID) }, clonePerson)
}

// SessionByHash returns a session, which may have expired.
func (v *View) SessionByHash(hash []byte) (fleet.Session, bool) {
	s := v.tb.sessionsByHash.One(string(hash))
	if s == nil {
		return fleet.Session{}, false
	}
	return cloneSession(s), true
}

// SessionsOf returns the sessions of a person by age, those that have expired, too.
func (v *View) SessionsOf(person fleet.PersonID) []fleet.Session {
	return byAgeOf(v.tb.sessionsOf.Rows[person], func(s *fleet.Session) (time.Time, string) { return s.CreatedAt, string(s.ID) }, cloneSession)
}
