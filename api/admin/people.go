package admin

import "gantry/api/v2"

// Person is someone who signs in to the console without an API key.
type Person struct {
	ID          string          `json:"id" doc:"Person identifier." example:"h4n7k2m9q5w1z8"`
	Login       string          `json:"login" doc:"E-mail address or name to sign in as." example:"ada@example.com"`
	Memberships []v2.Membership `json:"memberships" doc:"The person's accounts."`
	Disabled    bool            `json:"disabled" doc:"When true, the person has no session and gets none."`
	Password    string          `json:"password" doc:"own; once: one that an operator gave, which is good for choosing another until it expires; none." enum:"own,once,none"`
	TOTP        bool            `json:"totp" doc:"Whether signing in with the password takes a code, too."`
	Provider    bool            `json:"provider" doc:"Whether an account of the OpenID Connect provider is bound to the person."`
	Sessions    int             `json:"sessions" doc:"Sessions that have not ended."`
	CreatedAt   v2.Time         `json:"createdAt" doc:"When the person was made."`
}

// PersonList is the answer that lists people.
type PersonList struct {
	v2.Page
	People []Person `json:"people" doc:"The people, oldest first."`
}

// WantedMembership is what a person is to be in an account.
type WantedMembership struct {
	AccountID string `json:"accountId" doc:"Account identifier." minLength:"1" maxLength:"256" example:"a5f8k2m7q1w4z9"`
	Role      string `json:"role" doc:"What the person may do there." enum:"owner,developer,viewer,billing" example:"developer"`
}

// CreatePersonRequest is the body that makes a person.
type CreatePersonRequest struct {
	Login       string             `json:"login" doc:"E-mail address or name to sign in as; case does not count." minLength:"1" maxLength:"191" pattern:"^[\\x21-\\x7e]+$" patternDescription:"printable ASCII without spaces" example:"ada@example.com"`
	Memberships []WantedMembership `json:"memberships" doc:"The person's accounts, each once." maxItems:"50"`
	NoPassword  bool               `json:"noPassword,omitempty" doc:"true: the person signs in through the OpenID Connect provider alone, which must have verified the login as e-mail address."`
}

// NewPerson is a person with the first password.
type NewPerson struct {
	Person   Person     `json:"person" doc:"The person."`
	Password *v2.Hidden `json:"password" doc:"A password that is good for choosing another, for 7 days. It cannot be shown again. Null: none was asked for." example:"ABCDEFGHIJKLMNOPQRSTUVWX"`
}

// UpdatePersonRequest is the body that changes a person; what is left out stays.
type UpdatePersonRequest struct {
	Login       *string             `json:"login,omitempty" doc:"E-mail address or name to sign in as." minLength:"1" maxLength:"191" pattern:"^[\\x21-\\x7e]+$" patternDescription:"printable ASCII without spaces" example:"ada@example.com"`
	Disabled    *bool               `json:"disabled,omitempty" doc:"true ends all sessions and lets none begin." example:"true"`
	Memberships *[]WantedMembership `json:"memberships,omitempty" doc:"All of the person's accounts, each once." maxItems:"50"`
}

// ResetPersonRequest is the body that takes away what a person lost.
type ResetPersonRequest struct {
	Password bool `json:"password,omitempty" doc:"Replaces the password by one that is good for choosing another." example:"true"`
	TOTP     bool `json:"totp,omitempty" doc:"Codes are needed no more." example:"true"`
	Provider bool `json:"provider,omitempty" doc:"Forgets the account of the OpenID Connect provider." example:"false"`
}
