package fleet

import (
	"slices"
	"strings"
	"time"
)

// PersonID identifies a person.
type PersonID string

// SessionID identifies a session.
type SessionID string

// Role is what a person may do in an account.
type Role string

// The roles. What each may do is in roles.
const (
	RoleOwner     Role = "owner"
	RoleDeveloper Role = "developer"
	RoleViewer    Role = "viewer"
	RoleBilling   Role = "billing"
)

// Roles lists the roles, that with most rights first.
func Roles() []Role { return []Role{RoleOwner, RoleDeveloper, RoleViewer, RoleBilling} }

// Can returns what a role may do, as permissions of a key; nothing for a text that is no role.
func (r Role) Can() map[Group]Access {
	all := func(access Access) map[Group]Access {
		out := map[Group]Access{}
		for _, g := range Groups() {
			out[g] = access
		}
		return out
	}
	switch r {
	case RoleOwner:
		return all(AccessWrite)
	case RoleDeveloper:
		out := all(AccessWrite)
		out[GroupAccount], out[GroupBilling] = AccessRead, AccessRead
		return out
	case RoleViewer:
		return all(AccessRead)
	case RoleBilling:
		return map[Group]Access{GroupBilling: AccessWrite, GroupAccount: AccessRead, GroupCatalog: AccessRead}
	}
	return map[Group]Access{}
}

// Invoke returns the endpoints whose jobs a role may submit, as Key.Invoke does.
func (r Role) Invoke() []string {
	if r == RoleOwner || r == RoleDeveloper {
		return []string{InvokeAll}
	}
	return nil
}

// Narrowed returns the permissions that two sets have in common.
func Narrowed(a, b map[Group]Access) map[Group]Access {
	out := map[Group]Access{}
	for g, access := range a {
		if b[g].Covers(access) {
			out[g] = access
		} else if b[g] != AccessNone {
			out[g] = b[g]
		}
	}
	return out
}

// Membership is what a person is in an account.
type Membership struct {
	Account AccountID `cbor:"1,keyasint"`
	Role    Role      `cbor:"2,keyasint"`
}

// The bounds of people.
const (
	MaxPeople      = 10_000
	MaxMemberships = 50 // of a person
	MaxSessions    = 10 // of a person; the oldest ends for a new one
	MaxLogin       = 191
	MinPassword    = 10
	MaxPassword    = 256
)

// Person is someone who signs in without an API key. An operator made the record.
type Person struct {
	ID          PersonID     `cbor:"1,keyasint"`
	Login       string       `cbor:"2,keyasint"` // e-mail address or name, in lower case; nobody else has it
	CreatedAt   time.Time    `cbor:"3,keyasint"`
	Memberships []Membership `cbor:"4,keyasint,omitempty"` // by account, each once
	Password    string       `cbor:"5,keyasint,omitempty"` // argon2id in PHC's form; empty: none
	// OnceUntil is until when Password is one that an operator gave, which is good for choosing another; zero: it is the person's own.
	OnceUntil time.Time `cbor:"6,keyasint,omitzero"`
	TOTP      []byte    `cbor:"7,keyasint,omitempty"` // the sealed secret; empty: a password is enough
	TOTPStep  uint64    `cbor:"8,keyasint,omitempty"` // of the last code; it and those before are used up
	Subject   string    `cbor:"9,keyasint,omitempty"` // of OpenID Connect: issuer, a space, subject
	Disabled  bool      `cbor:"10,keyasint,omitempty"`
	// Revision grows with every change but TOTPStep's, so that no change is lost to another.
	Revision uint64 `cbor:"11,keyasint"`
}

// RoleIn returns what the person is in an account; empty: nothing.
func (p *Person) RoleIn(account AccountID) Role {
	for _, m := range p.Memberships {
		if m.Account == account {
			return m.Role
		}
	}
	return ""
}

// ValidLogin reports whether a text can be a person's login: printable without spaces, in lower case, 1 to MaxLogin bytes.
func ValidLogin(login string) bool {
	return login != "" && len(login) <= MaxLogin && login == CleanLogin(login) &&
		!strings.ContainsFunc(login, func(r rune) bool { return r <= ' ' || r == 0x7f || r > 0x7e })
}

// CleanLogin is a login as it is compared.
func CleanLogin(login string) string { return strings.ToLower(strings.TrimSpace(login)) }

// ValidRole reports whether there is such a role.
func ValidRole(r Role) bool { return slices.Contains(Roles(), r) }

// Session is a person's, in one account at a time. Its secret is not in it: Hash is a keyed hash.
type Session struct {
	ID        SessionID `cbor:"1,keyasint"`
	Person    PersonID  `cbor:"2,keyasint"`
	Hash      []byte    `cbor:"3,keyasint"`
	Account   AccountID `cbor:"4,keyasint,omitempty"` // empty: the person is in no account
	CreatedAt time.Time `cbor:"5,keyasint"`
	ExpiresAt time.Time `cbor:"6,keyasint"`
	Address   string    `cbor:"7,keyasint,omitempty"` // of the browser
}

// PersonView is a person as shown: with the names of accounts, and how many sessions there are.
type PersonView struct {
	Person
	Names    map[AccountID]string
	Sessions []Session
}

// SignIn is what someone gives to sign in: login, password and code, or an assertion that the console made of a provider's word.
type SignIn struct {
	Login       string
	Password    Secret
	Code        string // of TOTP
	NewPassword Secret // in place of one that may be used once
	Assertion   Secret
	Address     string // of the client
}

// DeviceRequest is a command line that waits to be let in.
type DeviceRequest struct {
	Name      string // of the machine
	Address   string
	ReadOnly  bool
	ExpiresAt time.Time
}

// DeviceCodes are what a device gets: Device to poll with, User for a person to type.
type DeviceCodes struct {
	Device   Secret
	User     string
	Expires  time.Duration
	Interval time.Duration
}

// PersonUpdate changes a person; nil leaves a field as it is.
type PersonUpdate struct {
	Login       *string
	Disabled    *bool
	Memberships *[]Membership
}

// PersonReset takes away what a person lost: the password is replaced by one that may be used once.
type PersonReset struct{ Password, TOTP, Subject bool }

// Assertion is what the console says of who came back from a provider of OpenID Connect. Sealed under AssertionPurpose, it goes to the leader.
type Assertion struct {
	Subject string    `json:"s"` // issuer, a space, subject
	Email   string    `json:"e"` // empty: none that the provider verified
	Until   time.Time `json:"t"`
}

// AssertionPurpose is what assertions are sealed for.
const AssertionPurpose = "oidc assertion"
