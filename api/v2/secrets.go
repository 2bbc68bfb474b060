package v2

// Secret is a secret of an account without its value, which is never shown.
type Secret struct {
	Name      string `json:"name" doc:"Name, by which the environment of pods refers to it." example:"HF_TOKEN"`
	CreatedAt Time   `json:"createdAt" doc:"When it was made."`
	UpdatedAt Time   `json:"updatedAt" doc:"When its value was last set."`
}

// SecretList is the answer to listing secrets.
type SecretList struct {
	Page
	Secrets []Secret `json:"secrets" doc:"The account's secrets, by name."`
}

// PutSecretRequest is the body that sets a secret.
type PutSecretRequest struct {
	Value Hidden `json:"value" doc:"Value: text of at most 32768 bytes, without NUL. It is never shown." minLength:"1" maxLength:"32768" example:"hf_0000000000"`
}
