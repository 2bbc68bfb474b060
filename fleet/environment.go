package fleet

import (
	"maps"
	"regexp"
	"slices"
)

// MaxSecretUses is how many references to secrets there may be in the environment of one pod.
const MaxSecretUses = 50

// secretUse is a reference to a secret within a value; its first group is the secret's name.
var secretUse = regexp.MustCompile(`\{\{[ \t]*(?:RUNPOD|GANTRY)_SECRET_(` + secretName + `)[ \t]*\}\}`)

// SecretsOf returns the names of the secrets that values of an environment refer to, sorted, and how many references there
// are.
func SecretsOf(env map[string]string) (names []string, uses int) {
	for _, value := range env {
		for _, use := range secretUse.FindAllStringSubmatch(value, -1) {
			names = append(names, use[1])
		}
	}
	slices.Sort(names)
	return slices.Compact(names), len(names)
}

// WithSecrets returns a copy of an environment in which references to secrets are replaced by what open returns for their
// names; where that is nothing, they stay. What it puts in is not looked at again.
func WithSecrets(env map[string]string, open func(name string) (value string, ok bool)) map[string]string {
	out := maps.Clone(env)
	for name, value := range env {
		out[name] = secretUse.ReplaceAllStringFunc(value, func(use string) string {
			if secret, ok := open(secretUse.FindStringSubmatch(use)[1]); ok {
				return secret
			}
			return use
		})
	}
	return out
}

// SizeWithSecrets returns the bytes of a value once its references to secrets are replaced by values of the size that size
// returns for their names.
func SizeWithSecrets(value string, size func(name string) int) int {
	n := len(value)
	for _, at := range secretUse.FindAllStringSubmatchIndex(value, -1) {
		n += size(value[at[2]:at[3]]) - (at[1] - at[0])
	}
	return n
}
