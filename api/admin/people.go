package admin

import "gantry/api/v2"

// Person is someone who signs in to the console without an API key.
type Person struct {
	ID          string          `json:"id" doc:"Person identifier." example:"h4n7k2m9q5w1z8"`
	Login       string          `json:"login" doc:"E-mail address or name." example:"ada@example.com"`
	Memberships []v2.Membership `json:"memberships" doc:"The person's accounts."`
	Disabled    bool            `json:"disabled" doc:"Whether the person may not sign in."`
	Password    string          `json:"password" doc:"once: an operator gave it, to choose another." enum:"own,once,none"`
	TOTP        bool            `json:"totp" doc:"Whether signing in takes a code, too."`
	Provider    bool            `json:"provider" doc:"Whether an account of the provider is bound."`
	Sessions    int             `json:"sessions" doc:"How many there are."`
	CreatedAt   v2.Time         `json:"createdAt" doc:"When the person was made."`
}

// PersonList is the answer that lists people.
type PersonList struct {
	v2.Page
	People []Person `json:"people" doc:"Oldest first."`
}

// WantedMembership is what a person is to be in an account.
type WantedMembership struct {
	AccountID string `json:"accountId" doc:"Account identifier." minLength:"1" maxLength:"256" example:"a5f8k2m7q1w4z9"`
	Role      string `json:"role" doc:"The role there." enum:"owner,developer,viewer,billing" example:"developer"`
}

// CreatePersonRequest is the body that makes a person.
type CreatePersonRequest struct {
	Login       string             `json:"login" doc:"E-mail address or name." minLength:"1" maxLength:"191" pattern:"^[\\x21-\\x7e]+$" patternDescription:"printable ASCII without spaces" example:"ada@example.com"`
	Memberships []WantedMembership `json:"memberships" doc:"The person's accounts, each once." maxItems:"50"`
	NoPassword  bool               `json:"noPassword,omitempty" doc:"true: signs in through the provider alone."`
}

// NewPerson is a person with the first password.
type NewPerson struct {
	Person   Person     `json:"person" doc:"The person."`
	Password *v2.Hidden `json:"password" doc:"To choose another with, within 7 days; shown once." example:"ABCDEFGHIJKLMNOPQRSTUVWX"`
}

// UpdatePersonRequest is the body that changes a person; what is left out stays.
type UpdatePersonRequest struct {
	Login       *string             `json:"login,omitempty" doc:"E-mail address or name." minLength:"1" maxLength:"191" pattern:"^[\\x21-\\x7e]+$" patternDescription:"printable ASCII without spaces" example:"ada@example.com"`
	Disabled    *bool               `json:"disabled,omitempty" doc:"true ends all sessions." example:"true"`
	Memberships *[]WantedMembership `json:"memberships,omitempty" doc:"The person's accounts, each once." maxItems:"50"`
}

// ResetPersonRequest is the body that takes away what a person lost.
type ResetPersonRequest struct {
	Password bool `json:"password,omitempty" doc:"Replaces the password." example:"true"`
	TOTP     bool `json:"totp,omitempty" doc:"Codes are needed no more." example:"true"`
	Provider bool `json:"provider,omitempty" doc:"Forgets the provider's account." example:"false"`
}
