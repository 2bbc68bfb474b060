package fleet

import (
	"regexp"
	"time"
)

// MaxSecretBytes is the most bytes of a secret's value.
const MaxSecretBytes = 32 << 10

// AccountSecret is a named value that the pods of an account may have in their environment. What it is lies in Sealed only.
type AccountSecret struct {
	Account   AccountID `cbor:"1,keyasint"`
	Name      string    `cbor:"2,keyasint"` // of the form SecretName
	Sealed    []byte    `cbor:"3,keyasint"`
	CreatedAt time.Time `cbor:"4,keyasint"`
	UpdatedAt time.Time `cbor:"5,keyasint"` // when its value was last set
}

// SecretName is the form of the name of an account's secret, and SecretNameRule says it in words.
const (
	SecretName     = "^" + secretName + "$"
	SecretNameRule = "1 to 64 letters, digits, '_' and '-', not beginning with a digit or '-'"
	secretName     = "[A-Za-z_][A-Za-z0-9_-]{0,63}"
)

var validSecret = regexp.MustCompile(SecretName)

// ValidSecretName reports whether an account's secret may have the name.
func ValidSecretName(name string) bool { return validSecret.MatchString(name) }
