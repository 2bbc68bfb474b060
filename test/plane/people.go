package plane

import (
	"time"

	"gantry/fleet"
	"gantry/scheduler/people"
)

// Password is that of every person whom MakePerson makes.
const Password = "correct horse battery"

// MakePerson makes a person who signs in, and names the text of the session: <session-1>.
func (p *Plane) MakePerson(login string, memberships ...fleet.Membership) fleet.PersonView {
	p.t.Helper()
	made, once, err := p.CreatePerson(p.t.Context(), login, memberships, true)
	if err != nil {
		p.t.Fatal(err)
	}
	p.SignInAs(fleet.SignIn{Login: login, Password: once, NewPassword: Password})
	return made
}

// SignInAs begins a session, and names its text.
func (p *Plane) SignInAs(in fleet.SignIn) fleet.Secret {
	p.t.Helper()
	token, _, err := p.SignIn(p.t.Context(), in)
	if err != nil {
		p.t.Fatal(err)
	}
	p.names.mu.Lock()
	defer p.names.mu.Unlock()
	p.names.add("session", token.Reveal())
	return token
}

// Waiting has a command line wait to be let in, and names the code to type: <device-1>.
func (p *Plane) Waiting() fleet.DeviceCodes {
	p.t.Helper()
	codes, err := p.BeginDevice(p.t.Context(), fleet.DeviceRequest{Name: "laptop", Address: "192.0.2.7"})
	if err != nil {
		p.t.Fatal(err)
	}
	p.names.mu.Lock()
	defer p.names.mu.Unlock()
	p.names.add("device", codes.User)
	return codes
}

// LetIn gives a command line a key on the word of a principal, and names its text as that of a session.
func (p *Plane) LetIn(who fleet.Principal) fleet.Secret {
	p.t.Helper()
	codes := p.Waiting()
	if err := p.DecideDevice(p.t.Context(), who, codes.User, true, 0); err != nil {
		p.t.Fatal(err)
	}
	key, err := p.TakeDevice(p.t.Context(), codes.Device)
	if err != nil {
		p.t.Fatal(err)
	}
	p.names.mu.Lock()
	defer p.names.mu.Unlock()
	p.names.add("session", key.Reveal())
	return key
}

// CodeAt is the code of a secret in base32 at a time.
func CodeAt(secret string, at time.Time) string {
	plain, _ := people.ReadTOTP(secret)
	return people.Code(plain, people.StepAt(at))
}
