package v2

// Key is an API key without its secret text.
type Key struct {
	ID          string      `json:"id" doc:"Key identifier; not the key itself." example:"m2c9v4x7b1n5q8"`
	Name        string      `json:"name" doc:"Name of the key."`
	Hint        string      `json:"hint" doc:"First characters of the key." example:"gk_a1B2c3"`
	Permissions Permissions `json:"permissions" doc:"Access to each group of routes: none, read or write."`
	Invoke      Invoke      `json:"invoke" doc:"Endpoints whose jobs the key may submit: all, or a list of ids."`
	Disabled    bool        `json:"disabled" doc:"When true, the key is refused until it is enabled again."`
	CreatedAt   Time        `json:"createdAt" doc:"When the key was made."`
	ExpiresAt   *Time       `json:"expiresAt" doc:"When the key ends to work; null: never."`
	LastUsedAt  *Time       `json:"lastUsedAt" doc:"When the key was last used, to about a minute; null: never."`
}

// NewKey is an API key with its secret text, which is shown this once.
type NewKey struct {
	Key  Key    `json:"key" doc:"The key's record."`
	Text Hidden `json:"apiKey" doc:"The key. It is not stored and cannot be shown again." example:"gk_0000000000000000000000000000000000000000000"`
}

// KeyList is the answer to listing keys.
type KeyList struct {
	Page
	Keys []Key `json:"keys" doc:"The account's keys."`
}

// CreateKeyRequest is the body that makes a key.
type CreateKeyRequest struct {
	KeyFields
	Permissions WantedPermissions `json:"permissions,omitempty" doc:"Access to single groups of routes, in place of the preset's."`
	Preset      string            `json:"preset,omitempty" doc:"all: write everywhere; readOnly: read everywhere; restricted: nothing but what permissions adds. Default: restricted with permissions, else all." enum:"all,readOnly,restricted" example:"readOnly"`
}

// KeyFields are what every request for a key has.
type KeyFields struct {
	Name      string `json:"name" doc:"Name of the key." minLength:"1" maxLength:"191" pattern:"^[^\\x00-\\x1f\\x7f-\\x9f]*$" patternDescription:"printable text" example:"ci"`
	Invoke    Invoke `json:"invoke,omitzero" doc:"Endpoints whose jobs the key may submit: all, or a list of at most 100 ids. Default: all with the preset all, else none."`
	ExpiresAt *Time  `json:"expiresAt,omitempty" doc:"When the key ends to work, in the future. Omitted: never."`
}

// UpdateKeyRequest is the body that changes a key.
type UpdateKeyRequest struct {
	Name     *string `json:"name,omitempty" doc:"Name of the key." minLength:"1" maxLength:"191" pattern:"^[^\\x00-\\x1f\\x7f-\\x9f]*$" patternDescription:"printable text" example:"ci"`
	Disabled *bool   `json:"disabled,omitempty" doc:"true refuses the key until it is enabled again." example:"true"`
}

// Permissions are the accesses of a key by group, each none, read or write. Every group of fleet.Groups
// is there, admin only where the key has it.
type Permissions map[string]string

// WantedPermissions are accesses asked for, by group; groups that are not named stay the preset's.
type WantedPermissions map[string]string
