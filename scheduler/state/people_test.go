package state

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"gantry/fleet"
)

func ada() fleet.Person {
	return fleet.Person{ID: "p1", Login: "ada@example.com", CreatedAt: at(1), Memberships: []fleet.Membership{{Account: "acme", Role: fleet.RoleOwner}}}
}

func session(id string, begun int) fleet.Session {
	return fleet.Session{
		ID: fleet.SessionID(id), Person: "p1", Hash: []byte("hash of " + id), Account: "acme", CreatedAt: at(begun), ExpiresAt: at(begun + 100),
	}
}

func withPerson(t *testing.T) *world {
	t.Helper()
	w := newWorld(t).settle()
	w.must(PutAccount{fleet.Account{ID: "acme", Name: "acme"}}, PutPerson{Person: ada()})
	return w
}

func (w *world) sessions() (out []string) {
	w.view(func(v *View) {
		for _, s := range v.SessionsOf("p1") {
			out = append(out, string(s.ID))
		}
	})
	return out
}

func TestWhichPeopleAreRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		code   fleet.Code
		change func(*fleet.Person)
	}{
		"no id":              {fleet.CodeInvalid, func(p *fleet.Person) { p.ID = "" }},
		"no login":           {fleet.CodeInvalid, func(p *fleet.Person) { p.Login = "" }},
		"upper case":         {fleet.CodeInvalid, func(p *fleet.Person) { p.Login = "Ada" }},
		"a space":            {fleet.CodeInvalid, func(p *fleet.Person) { p.Login = "a b" }},
		"a long login":       {fleet.CodeInvalid, func(p *fleet.Person) { p.Login = strings.Repeat("a", fleet.MaxLogin+1) }},
		"a long password":    {fleet.CodeInvalid, func(p *fleet.Person) { p.Password = strings.Repeat("a", maxPHC+1) }},
		"a long secret":      {fleet.CodeInvalid, func(p *fleet.Person) { p.TOTP = make([]byte, maxSealedTOTP+1) }},
		"a long subject":     {fleet.CodeInvalid, func(p *fleet.Person) { p.Subject = strings.Repeat("a", maxSubject+1) }},
		"too many accounts":  {fleet.CodeInvalid, func(p *fleet.Person) { p.Memberships = make([]fleet.Membership, fleet.MaxMemberships+1) }},
		"no such role":       {fleet.CodeInvalid, func(p *fleet.Person) { p.Memberships[0].Role = "admin" }},
		"an account twice":   {fleet.CodeInvalid, func(p *fleet.Person) { p.Memberships = append(p.Memberships, p.Memberships[0]) }},
		"no such account":    {fleet.CodeNotFound, func(p *fleet.Person) { p.Memberships[0].Account = "nobody" }},
		"another's login":    {fleet.CodeExists, func(p *fleet.Person) { p.Login = "ada@example.com" }},
		"another's subject":  {fleet.CodeExists, func(p *fleet.Person) { p.Subject = "iss 1" }},
		"one that is no one": {fleet.CodeNotFound, func(p *fleet.Person) { p.Revision = 1 }},
		"an old revision":    {fleet.CodeStale, func(p *fleet.Person) { p.ID, p.Login = "p1", "ada@example.com" }},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t).settle()
			first := ada()
			first.Subject = "iss 1"
			w.must(PutAccount{fleet.Account{ID: "acme", Name: "acme"}}, PutPerson{Person: first})
			in := ada()
			in.ID, in.Login = "p2", "bob"
			tt.change(&in)
			w.refused(tt.code, PutPerson{Person: in})
			w.check()
		})
	}
}

func TestSessionsOfAPersonAreBoundedAndEnd(t *testing.T) {
	w := withPerson(t)
	for i := range fleet.MaxSessions + 2 {
		w.must(BeginSession{Session: session(fmt.Sprintf("s%02d", i), 10+i), Revision: 1})
	}
	if got := w.sessions(); len(got) != fleet.MaxSessions || got[0] != "s02" {
		t.Errorf("sessions %v: the oldest must have ended", got)
	}
	w.must(BeginSession{Session: session("late", 10+104), Revision: 1})
	if got := w.sessions(); got[0] != "s05" {
		t.Errorf("sessions %v: those that expired must be gone", got)
	}
	w.must(EndSessions{Person: "p1", Session: "late"})
	changed := ada()
	changed.Revision = 1
	w.must(PutPerson{Person: changed, End: true, Keep: "s07"})
	if got := w.sessions(); len(got) != 1 || got[0] != "s07" {
		t.Errorf("sessions %v after a change that ends all others", got)
	}
	changed.Revision, changed.Disabled = 2, true
	w.must(PutPerson{Person: changed, Keep: "s07"})
	if got := w.sessions(); len(got) != 0 {
		t.Errorf("sessions %v of a person who is disabled", got)
	}
	w.refused(fleet.CodeUnauthorized, BeginSession{Session: session("s99", 20), Revision: 3})
	w.must(DeletePerson{ID: "p1"})
	w.refused(fleet.CodeNotFound, DeletePerson{ID: "p1"})
	w.refused(fleet.CodeNotFound, EndSessions{Person: "p1"})
	w.check()
}

// TestWhatSignsOutEverywhereEndsCommandLines: keys of command lines are sessions that last, and a viewer can delete none.
func TestWhatSignsOutEverywhereEndsCommandLines(t *testing.T) {
	p := ada()
	p.Revision = 1
	off := p
	off.Disabled = true
	for name, tt := range map[string]struct {
		cmd  Command
		left bool
	}{
		"everywhere":      {EndSessions{Person: "p1"}, false},
		"one session":     {EndSessions{Person: "p1", Session: "s1"}, true},
		"another's":       {EndSessions{Person: "p2"}, true},
		"the operator":    {PutPerson{Person: p, End: true}, false},
		"all others":      {PutPerson{Person: p, End: true, Keep: "s1"}, true},
		"disabled":        {PutPerson{Person: off}, false},
		"deleted":         {DeletePerson{ID: "p1"}, false},
		"another is gone": {DeletePerson{ID: "p2"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := withPerson(t)
			bob := ada()
			bob.ID, bob.Login = "p2", "bob"
			w.must(PutPerson{Person: bob}, PutKey{fleet.Key{ID: "own", Account: "acme", Hash: []byte("own")}},
				PutKey{fleet.Key{ID: "line", Account: "acme", Hash: []byte("line"), Person: "p1", Device: true}},
				TouchKeys{Used: map[fleet.KeyID]time.Time{"line": at(5)}}, BeginSession{Session: session("s1", 10), Revision: 1}, tt.cmd)
			w.view(func(v *View) {
				_, line := v.Key("line")
				if _, own := v.Key("own"); line != tt.left || !own {
					t.Errorf("the command line's key is there: %v, the account's: %v", line, own)
				}
			})
			w.check()
		})
	}
}

func TestACodeIsGoodOnce(t *testing.T) {
	w := withPerson(t)
	p := ada()
	p.Revision, p.TOTP, p.TOTPStep = 1, []byte("sealed"), 5
	w.must(PutPerson{Person: p})
	for _, step := range []uint64{0, 4, 5} {
		w.refused(fleet.CodeUnauthorized, BeginSession{Session: session("s1", 10), Revision: 2, Step: step})
	}
	w.must(BeginSession{Session: session("s1", 10), Revision: 2, Step: 6})
	w.refused(fleet.CodeUnauthorized, BeginSession{Session: session("s2", 11), Revision: 2, Step: 6})
	p.Revision = 2 // as read before the code was used
	if got := w.must(PutPerson{Person: p}).(fleet.Person); got.TOTPStep != 6 {
		t.Errorf("the last step is %d: a code may be used again", got.TOTPStep)
	}
	w.refused(fleet.CodeStale, BeginSession{Session: session("s2", 11), Revision: 2, Step: 7})
	w.refused(fleet.CodeUnauthorized, BeginSession{Session: session("s2", 11), Revision: 3, Subject: "iss 1"}) // not this person's
	w.check()
}

func TestASessionActsInAnAccountOfItsPerson(t *testing.T) {
	w := withPerson(t)
	w.must(PutAccount{fleet.Account{ID: "beta", Name: "beta"}})
	other := session("s1", 10)
	other.Account = "beta"
	w.refused(fleet.CodeNotFound, BeginSession{Session: other, Revision: 1})
	w.must(BeginSession{Session: session("s1", 10), Revision: 1})
	w.refused(fleet.CodeExists, BeginSession{Session: session("s1", 10), Revision: 1})
	w.refused(fleet.CodeNotFound, ChooseAccount{Session: "s1", Account: "beta"})
	w.refused(fleet.CodeNotFound, ChooseAccount{Session: "s2", Account: "acme"})
	p := ada()
	p.Revision, p.Memberships = 1, append(p.Memberships, fleet.Membership{Account: "beta", Role: fleet.RoleViewer})
	w.must(PutPerson{Person: p})
	w.must(ChooseAccount{Session: "s1", Account: "beta"})
	w.view(func(v *View) {
		if s, ok := v.SessionByHash([]byte("hash of s1")); !ok || s.Account != "beta" {
			t.Errorf("%+v", s)
		}
	})
	w.check()
}

// drawPerson draws a command on people and on what they have.
func (w *world) drawPerson(t *rapid.T, account fleet.AccountID, now time.Time) Command {
	id, one := pick[fleet.PersonID](t, "person", "ada", "bob"), pick[fleet.SessionID](t, "session", "s1", "s2", "s3")
	var old fleet.Person
	w.view(func(v *View) { old, _ = v.Person(id) })
	switch rapid.IntRange(0, 5).Draw(t, "of people") {
	case 0:
		return DeletePerson{ID: id}
	case 1, 2:
		return BeginSession{Revision: old.Revision, Session: fleet.Session{
			ID: one, Person: id, Hash: []byte(one), Account: account, CreatedAt: now, ExpiresAt: now.Add(time.Second),
		}}
	case 3:
		return EndSessions{Person: id, Session: pick(t, "of the sessions", "", one)}
	case 4:
		return ChooseAccount{Session: one, Account: account}
	}
	key := fleet.Key{ID: pick[fleet.KeyID](t, "line", "k3", "k4"), Account: account, Hash: []byte("of a line"), Person: id, Device: true}
	if rapid.Bool().Draw(t, "a line") {
		return PutKey{key}
	}
	return PutPerson{Keep: one, End: rapid.Bool().Draw(t, "end"), Person: fleet.Person{
		ID: id, Login: pick(t, "login", "ada", "bob"), CreatedAt: now, Revision: old.Revision, Disabled: rapid.Bool().Draw(t, "disabled"),
		Memberships: []fleet.Membership{{Account: account, Role: pick(t, "role", fleet.RoleOwner, fleet.RoleViewer)}},
	}}
}
