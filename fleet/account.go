package fleet

import "time"

// Account owns pods and keys; nothing of one account is visible to another.
type Account struct {
	ID        AccountID `cbor:"1,keyasint"`
	Name      string    `cbor:"2,keyasint"`
	CreatedAt time.Time `cbor:"3,keyasint"`
}

// Access is how much a key may do with one group of routes.
type Access string

// The accesses, weakest first; the empty access is none.
const (
	AccessNone  Access = ""
	AccessRead  Access = "read"
	AccessWrite Access = "write"
)

// Covers reports whether a holder of a may do what needs the access want.
func (a Access) Covers(want Access) bool {
	rank := map[Access]int{AccessNone: 0, AccessRead: 1, AccessWrite: 2}
	return rank[a] >= rank[want]
}

// Group is a group of routes that a key's permissions name (decisions.md, "Permissions of a key").
type Group string

// The groups that have routes.
const (
	GroupPods    Group = "pods"
	GroupCatalog Group = "catalog"
	GroupAccount Group = "account"
	GroupAdmin   Group = "admin" // operators only
)

// Groups lists the groups that an account's key may hold; admin is not among them.
func Groups() []Group { return []Group{GroupPods, GroupCatalog, GroupAccount} }

// Preset returns the permissions of a named preset: "all", "readOnly" or, for operators, "admin".
func Preset(name string) (map[Group]Access, bool) {
	access, ok := map[string]Access{"all": AccessWrite, "readOnly": AccessRead, "admin": AccessWrite}[name]
	if !ok {
		return nil, false
	}
	out := map[Group]Access{}
	for _, g := range Groups() {
		out[g] = access
	}
	if name == "admin" {
		out[GroupAdmin] = AccessWrite
	}
	return out, true
}

// Key is the record of an API key. Its secret text is not in it: Hash is a keyed hash.
type Key struct {
	ID        KeyID            `cbor:"1,keyasint"`
	Account   AccountID        `cbor:"2,keyasint"`
	Name      string           `cbor:"3,keyasint"`
	Hint      string           `cbor:"4,keyasint"` // first characters of the key
	Hash      []byte           `cbor:"5,keyasint"`
	Can       map[Group]Access `cbor:"6,keyasint"`
	CreatedAt time.Time        `cbor:"7,keyasint"`
	ExpiresAt time.Time        `cbor:"8,keyasint,omitempty"` // zero: never
}

// Principal is who makes a request: a key that was checked.
type Principal struct {
	Key     KeyID
	Account AccountID
	Can     map[Group]Access
}

// May reports whether the principal holds at least access want on group g.
func (p Principal) May(g Group, want Access) bool { return p.Can[g].Covers(want) }

// JoinToken lets one host join, once. Its secret is not in it: Hash is SHA-256 of 256 random bits.
type JoinToken struct {
	ID         TokenID      `cbor:"1,keyasint"`
	Hash       []byte       `cbor:"2,keyasint"`
	DataCenter DataCenterID `cbor:"3,keyasint"`
	Cloud      Cloud        `cbor:"4,keyasint"`
	ExpiresAt  time.Time    `cbor:"5,keyasint"`
}
