package v2

// Me is a person who is signed in.
type Me struct {
	ID          string       `json:"id" doc:"Person identifier." example:"h4n7k2m9q5w1z8"`
	Login       string       `json:"login" doc:"What the person signs in as." example:"ada@example.com"`
	AccountID   string       `json:"accountId" doc:"The account in which the session acts." example:"a5f8k2m7q1w4z9"`
	Memberships []Membership `json:"memberships" doc:"The person's accounts."`
	Password    bool         `json:"password" doc:"Whether the person has a password."`
	TOTP        bool         `json:"totp" doc:"Whether signing in with the password takes a code, too."`
	Provider    bool         `json:"provider" doc:"Whether an account of the OpenID Connect provider is bound to the person."`
	Sessions    int          `json:"sessions" doc:"The person's sessions, this one among them."`
}

// Membership is what a person is in an account.
type Membership struct {
	AccountID string `json:"accountId" doc:"Account identifier." minLength:"1" maxLength:"256" example:"a5f8k2m7q1w4z9"`
	Name      string `json:"name" doc:"Name of the account." example:"research"`
	Role      string `json:"role" doc:"What the person may do there; see the docs of the console." enum:"owner,developer,viewer,billing" example:"developer"`
}

// ChooseAccountRequest is the body that has a session act in another account.
type ChooseAccountRequest struct {
	AccountID string `json:"accountId" doc:"One of the person's accounts." minLength:"1" maxLength:"256" example:"a5f8k2m7q1w4z9"`
}

// ChangePasswordRequest is the body that replaces a person's own password.
type ChangePasswordRequest struct {
	Password    Hidden `json:"password" doc:"The password so far." minLength:"1" maxLength:"256" example:"correct horse"`
	NewPassword Hidden `json:"newPassword" doc:"Another one." minLength:"10" maxLength:"256" example:"battery staple"`
}

// SetTOTPRequest is the body that has codes needed to sign in, or no more.
type SetTOTPRequest struct {
	Password Hidden `json:"password" doc:"The password." minLength:"1" maxLength:"256" example:"correct horse"`
	Secret   Hidden `json:"secret,omitempty" doc:"The secret of the codes, 16 to 40 bytes in base32. Left out: codes are needed no more." minLength:"26" maxLength:"80" example:"JBSWY3DPEHPK3PXPJBSWY3DPEHPK3PXP"`
	Code     Hidden `json:"code" doc:"A code of the secret: the new one, or the one so far." minLength:"6" maxLength:"6" example:"123456"`
}

// Device is a command line that waits to be let in.
type Device struct {
	Name      string `json:"name" doc:"What it calls its machine." example:"laptop"`
	Address   string `json:"address" doc:"Where it asked from." example:"192.0.2.7"`
	ReadOnly  bool   `json:"readOnly" doc:"Whether it asks to read only; else for all that who lets it in may do."`
	ExpiresAt Time   `json:"expiresAt" doc:"Until when it waits."`
}

// DecideDeviceRequest is the body that lets a command line in, or turns it away.
type DecideDeviceRequest struct {
	Allow         bool `json:"allow" doc:"Whether it is let in." example:"true"`
	ExpiresInDays int  `json:"expiresInDays,omitempty" doc:"Days for which its key works; left out or 0: until it is deleted." minimum:"0" maximum:"366" example:"30"`
}
