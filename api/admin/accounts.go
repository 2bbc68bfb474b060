package admin

import (
	"gantry/api/v2"
)

// OperatorAccount is an account's record as operators see it.
type OperatorAccount struct {
	v2.Account
	Quotas *AccountQuotas `json:"quotas" doc:"Rate limits of its own; null: the daemon's."`

	Suspended *Suspended `json:"suspended" doc:"Why and since when its keys are refused; null: they are not."`
}

// Suspended tells of an account that is suspended.
type Suspended struct {
	Reason string  `json:"reason" doc:"Why. Holders of the account's keys are told." example:"unpaid since May"`
	At     v2.Time `json:"at" doc:"Since when."`
}

// SuspendAccountRequest is the body that suspends an account.
type SuspendAccountRequest struct {
	Reason   string `json:"reason" doc:"Why. Holders of the account's keys are told." minLength:"1" maxLength:"1024" example:"unpaid since May"`
	StopPods bool   `json:"stopPods,omitempty" doc:"Stop its pods, too. Default: they run on, and are charged."`
}

// AccountQuotas are how many API requests an account may make in each window.
type AccountQuotas struct {
	Minute int `json:"minute" doc:"Requests in a minute; 0: any number." minimum:"0" maximum:"1000000000" example:"600"`
	Hour   int `json:"hour" doc:"Requests in an hour; 0: any number." minimum:"0" maximum:"1000000000" example:"20000"`
	Day    int `json:"day" doc:"Requests in a day; 0: any number." minimum:"0" maximum:"1000000000" example:"200000"`
}

// OperatorAccountList is the answer to listing accounts.
type OperatorAccountList struct {
	v2.Page
	Accounts []OperatorAccount `json:"accounts" doc:"All accounts."`
}

// CreateAccountRequest is the body that makes an account.
type CreateAccountRequest struct {
	Name string `json:"name" doc:"Name of the account." minLength:"1" maxLength:"191" pattern:"^[^\\x00-\\x1f\\x7f-\\x9f]*$" patternDescription:"printable text" example:"research"`
}

// UpdateAccountRequest is the body that changes an account.
type UpdateAccountRequest struct {
	Name    *string                 `json:"name,omitempty" doc:"Name of the account." minLength:"1" maxLength:"191" pattern:"^[^\\x00-\\x1f\\x7f-\\x9f]*$" patternDescription:"printable text" example:"research"`
	Prepaid *bool                   `json:"prepaid,omitempty" doc:"Whether the account spends credit and may spend no more than it has." example:"true"`
	Quotas  v2.Maybe[AccountQuotas] `json:"quotas,omitzero" doc:"Rate limits of its own; null: the daemon's again."`
	Egress  string                  `json:"egress,omitempty" doc:"What its pods reach outside of their private networks, from now on, those that run included. open: everything but hosts; none: nothing; answers to who reaches them, and names, still work." enum:"open,none" example:"none"`

	Limits *LimitChanges `json:"limits,omitempty" doc:"How much it may have; null in one: as much as all accounts."`
}

// CreateAccountKeyRequest is the body that makes a key for an account.
type CreateAccountKeyRequest struct {
	v2.KeyFields
	Permissions OperatorPermissions `json:"permissions,omitempty" doc:"Access to single groups of routes, in place of the preset's; admin is the operators' routes."`
	Preset      string              `json:"preset,omitempty" doc:"all: write everywhere; readOnly: read everywhere; restricted: nothing but what permissions adds; admin: all, and the operators' routes; adminReadOnly: read everywhere, the operators' routes too. Default: restricted with permissions, else all." enum:"all,readOnly,restricted,admin,adminReadOnly" example:"all"`
}

// AddCreditRequest is the body that adds to a balance.
type AddCreditRequest struct {
	Amount float64 `json:"amount" doc:"USD, to 10^-9; negative takes credit away." minimum:"-1000000" maximum:"1000000" example:"25"`
}

// Balance is what is left of an account's credit.
type Balance struct {
	Balance float64 `json:"balance" doc:"USD."`
}

// OperatorPermissions are accesses that an operator asks for, by group: WantedPermissions with admin.
type OperatorPermissions map[string]string
