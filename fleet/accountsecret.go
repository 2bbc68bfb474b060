package fleet

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
)

// The bounds of an account's secrets.
const (
	MaxSecretBytes = 32 << 10 // of one value
	MaxSecretUses  = 50       // references to secrets in the environment of one pod
)

// AccountSecret is a named value that the pods of an account may have in their environment. What it is lies
// in Sealed only.
type AccountSecret struct {
	Account   AccountID `cbor:"1,keyasint"`
	Name      string    `cbor:"2,keyasint"` // see ValidSecretName
	Sealed    []byte    `cbor:"3,keyasint"`
	CreatedAt time.Time `cbor:"4,keyasint"`
	UpdatedAt time.Time `cbor:"5,keyasint"` // when its value was last set
}

var (
	secretName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]{0,63}$`)
	// secretUse is a reference to a secret within a value; its first group is the secret's name.
	secretUse = regexp.MustCompile(`\{\{[ \t]*(?:RUNPOD|GANTRY)_SECRET_([A-Za-z_][A-Za-z0-9_-]{0,63})[ \t]*\}\}`)
)

// ValidSecretName reports whether an account's secret may have the name: 1 to 64 letters, digits, '_' and '-', of
// which the first is a letter or '_'.
func ValidSecretName(name string) bool { return secretName.MatchString(name) }

// SecretsOf returns the names of the secrets that values of an environment refer to, sorted, and how many
// references there are.
func SecretsOf(env map[string]string) (names []string, uses int) {
	for _, value := range env {
		if !strings.Contains(value, "_SECRET_") {
			continue
		}
		for _, use := range secretUse.FindAllStringSubmatch(value, -1) {
			names = append(names, use[1])
			uses++
		}
	}
	slices.Sort(names)
	return slices.Compact(names), uses
}

// WithSecrets returns a copy of an environment in which references to secrets are replaced by what open returns
// for their names; where that is nothing, they stay. What it puts in is not looked at again.
func WithSecrets(env map[string]string, open func(name string) (value string, ok bool)) map[string]string {
	out := maps.Clone(env)
	for name, value := range env {
		if strings.Contains(value, "_SECRET_") {
			out[name] = secretUse.ReplaceAllStringFunc(value, func(use string) string {
				if secret, ok := open(secretUse.FindStringSubmatch(use)[1]); ok {
					return secret
				}
				return use
			})
		}
	}
	return out
}

// SizeWithSecrets returns the bytes of a value once its references to secrets are replaced by values of the size that
// size returns for their names.
func SizeWithSecrets(value string, size func(name string) int) int {
	n := len(value)
	if !strings.Contains(value, "_SECRET_") {
		return n
	}
	for _, at := range secretUse.FindAllStringSubmatchIndex(value, -1) {
		n += size(value[at[2]:at[3]]) - (at[1] - at[0])
	}
	return n
}
