package fleet

import (
	"bytes"
	"fmt"
	"slices"
	"time"
)

// Account owns pods and keys; nothing of one account is visible to another.
type Account struct {
	ID        AccountID `cbor:"1,keyasint"`
	Name      string    `cbor:"2,keyasint"`
	CreatedAt time.Time `cbor:"3,keyasint"`
	// Prepaid accounts spend credit: see Balance. Others are metered all the same, and never stopped.
	Prepaid bool `cbor:"4,keyasint,omitempty"`
	// Quotas replace the daemon's rate limits for this account; nil: the daemon's.
	Quotas *Quotas `cbor:"5,keyasint,omitempty"`
	Egress Egress  `cbor:"6,keyasint,omitempty"`
	// Limits are those of this account; what they do not name is as for all accounts.
	Limits Limits `cbor:"7,keyasint,omitempty"`
	// Suspended accounts' keys are refused; nil: it is not.
	Suspended *Suspension `cbor:"8,keyasint,omitempty"`
	// SpendLimit is the most per hour that the account lets itself spend; nil: what LimitSpend is.
	SpendLimit *Money `cbor:"9,keyasint,omitempty"`
	// LowBalance is the balance below which its owner is told; 0: never; nil: what the account spends in LowFor.
	LowBalance *Money `cbor:"10,keyasint,omitempty"`
	// Webhook is where its events are sent; nil: nowhere.
	Webhook *AccountWebhook `cbor:"11,keyasint,omitempty"`
}

// AccountWebhook is where an account's events are sent, and which.
type AccountWebhook struct {
	URL   string      `cbor:"1,keyasint"`
	Kinds []EventKind `cbor:"2,keyasint"`           // by name, each once
	Key   []byte      `cbor:"3,keyasint,omitempty"` // the sealed secret under which calls are signed; nil: they are not
}

// WebhookState is how far the calls of an account's webhook are.
type WebhookState struct {
	Place EventPlace `cbor:"1,keyasint"`           // of the last event that was sent, or given up
	At    time.Time  `cbor:"2,keyasint"`           // when the last call was taken or given up; zero: there was none
	Error string     `cbor:"3,keyasint,omitempty"` // why it was given up; empty: it was taken
}

// LowFor is for how long a low balance lasts at the present rate, where the account did not say which balance is low.
const LowFor = 24 * time.Hour

// MaySpend refuses what costs more per hour, on top of what the account spends, than it lets itself spend.
func (a *Account) MaySpend(spends, more Money) error {
	if a == nil || a.SpendLimit == nil || more <= 0 || spends <= *a.SpendLimit-more {
		return nil
	}
	return &Error{Code: CodeSpendLimit, Msg: fmt.Sprintf(
		"The account may not spend more than its own spend limit of $%.3f per hour: it spends $%.3f, and $%.3f more was asked for.",
		a.SpendLimit.USD(), spends.USD(), more.USD(),
	)}
}

// Low reports whether a balance is one that the account's owner is to be told of, and why; rate is what it spends per hour.
func (a *Account) Low(balance, rate Money) (why string, low bool) {
	switch {
	case !a.Prepaid:
		return "", false
	case a.LowBalance == nil:
		return "the balance lasts for less than a day at the present rate", balance < Money(LowFor/time.Hour)*rate
	case *a.LowBalance == 0:
		return "", false
	}
	return fmt.Sprintf("the balance is below $%.2f", a.LowBalance.USD()), balance < *a.LowBalance
}

// Suspension is an operator's word that an account may use nothing for now. What runs goes on.
type Suspension struct {
	Reason string    `cbor:"1,keyasint"` // its holders are told
	At     time.Time `cbor:"2,keyasint"`
}

// Refusal is the error that a holder of one of the account's keys gets.
func (s *Suspension) Refusal() error {
	return &Error{Code: CodeSuspended, Msg: "the account is suspended", Details: []string{s.Reason}}
}

// Quotas are how many API requests an account may make in each window; 0 in one: any number.
type Quotas struct {
	Minute int `cbor:"1,keyasint"`
	Hour   int `cbor:"2,keyasint"`
	Day    int `cbor:"3,keyasint"`
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

// The groups.
const (
	GroupPods       Group = "pods"
	GroupServerless Group = "serverless"
	GroupTemplates  Group = "templates"
	GroupVolumes    Group = "networkVolumes"
	GroupRegistries Group = "registries"
	GroupCatalog    Group = "catalog"
	GroupBilling    Group = "billing"
	GroupAccount    Group = "account"
	GroupGraphQL    Group = "graphql"
	GroupS3         Group = "s3"
	GroupAdmin      Group = "admin" // operators only
)

// Groups lists the groups that an account's key may hold; admin is not among them.
func Groups() []Group {
	return []Group{
		GroupPods, GroupServerless, GroupTemplates, GroupVolumes, GroupRegistries, GroupCatalog, GroupBilling, GroupAccount,
		GroupGraphQL, GroupS3,
	}
}

// Preset returns the permissions of a named preset: "all", "readOnly", "restricted" (none, for its
// maker to add to) or, for operators, "admin" and "adminReadOnly".
func Preset(name string) (map[Group]Access, bool) {
	access, ok := map[string]Access{
		"all": AccessWrite, "readOnly": AccessRead, "restricted": AccessNone, "admin": AccessWrite, "adminReadOnly": AccessRead,
	}[name]
	if !ok {
		return nil, false
	}
	out := map[Group]Access{}
	for _, g := range Groups() {
		if access != AccessNone {
			out[g] = access
		}
	}
	if name == "admin" || name == "adminReadOnly" {
		out[GroupAdmin] = access
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
	Disabled  bool             `cbor:"9,keyasint,omitempty"` // refused until enabled again
	// Invoke lists the endpoints whose jobs the key may submit; InvokeAll alone means every endpoint.
	Invoke []string `cbor:"10,keyasint,omitempty"`
	// Person is whose command line has the key, which may do no more than the person in its account at any time; empty: it is the account's.
	Person PersonID `cbor:"11,keyasint,omitempty"`
	Device bool     `cbor:"12,keyasint,omitempty"` // it was made for a command line, which may delete it
	// LastUsedAt is when the key was last used, to the minute. It lies in a table of its own and is set
	// in what views return.
	LastUsedAt time.Time `cbor:"-"`
}

// InvokeAll in Key.Invoke stands for every endpoint.
const InvokeAll = "*"

// Principal is who makes a request: a key that was checked.
type Principal struct {
	Key     KeyID
	Account AccountID
	Can     map[Group]Access
	Quotas  *Quotas  // of the account; nil: the daemon's
	Invoke  []string // endpoints whose jobs it may submit; InvokeAll: every endpoint
	// Pod is set for a pod's own key: it may read, stop, restart and terminate that pod, and nothing else.
	Pod PodID
	// Person is who uses a session, or the key of a command line; Session is set for a session, which has no Key.
	Person  PersonID
	Session SessionID
}

// May reports whether the principal holds at least access want on group g.
func (p Principal) May(g Group, want Access) bool { return p.Can[g].Covers(want) }

// MayInvoke reports whether the principal may submit jobs to an endpoint, and see and end them.
func (p Principal) MayInvoke(id EndpointID) bool {
	return p.Pod == "" && (slices.Contains(p.Invoke, InvokeAll) || slices.Contains(p.Invoke, string(id)))
}

// TokenRole says what a join token makes of its holder.
type TokenRole string

// The roles of join tokens.
const (
	TokenHost      TokenRole = ""
	TokenScheduler TokenRole = "scheduler"
	TokenGateway   TokenRole = "gateway"
)

// JoinToken lets one host, scheduler or gateway join, once. Its secret is not in it: Hash is SHA-256 of 256 random bits.
type JoinToken struct {
	ID         TokenID      `cbor:"1,keyasint"`
	Hash       []byte       `cbor:"2,keyasint"`
	DataCenter DataCenterID `cbor:"3,keyasint"`
	Cloud      Cloud        `cbor:"4,keyasint"`
	ExpiresAt  time.Time    `cbor:"5,keyasint"`

	Role     TokenRole `cbor:"6,keyasint,omitempty"`
	NonVoter bool      `cbor:"7,keyasint,omitempty"` // of schedulers: never gets a vote by itself
	Replaces MemberID  `cbor:"8,keyasint,omitempty"` // of schedulers: the member that goes once the new one votes

	// A token that was used is kept until it expires, so that who lost the answer can ask again: Request identifies what was asked
	// for (pki.RequestID), Joined is the host, member or gateway that came of it.
	Request []byte `cbor:"9,keyasint,omitempty"`
	Joined  string `cbor:"10,keyasint,omitempty"`
}

// Answers reports whether a token is good for a request: it is unused, or was used for this one.
func (k *JoinToken) Answers(request []byte) bool {
	return k.Joined == "" || bytes.Equal(k.Request, request)
}
