package v2

// Registry is a credential for private images. Its user name and password are never shown.
type Registry struct {
	ID   string `json:"id" doc:"Registry credential identifier." example:"r3g8k2m7q1w4z9"`
	Name string `json:"name" doc:"Name of the credential."`
}

// RegistryList is the answer to listing registry credentials.
type RegistryList struct {
	Page
	Registries []Registry `json:"registries" doc:"The account's registry credentials, oldest first."`
}

// UpdateRegistryRequest is the body that replaces a registry credential's user name and password.
type UpdateRegistryRequest struct {
	Username string `json:"username" doc:"User name at the registry. No control characters and no colon." minLength:"1" maxLength:"256" pattern:"^[^\\x00-\\x1f\\x7f:]*$" patternDescription:"text without control characters and colons" example:"robot"`
	Password Hidden `json:"password" doc:"Password or token at the registry. No NUL." minLength:"1" maxLength:"16384" pattern:"^[^\\x00]*$" patternDescription:"text without NUL" example:"placeholder"`
}

// CreateRegistryRequest is the body that makes a registry credential.
type CreateRegistryRequest struct {
	Name string `json:"name" doc:"Name of the credential; need not be unique. No control characters." minLength:"1" maxLength:"191" pattern:"^[^\\x00-\\x1f\\x7f-\\x9f]*$" patternDescription:"printable text" example:"team images"`
	UpdateRegistryRequest
}
