package fleet

import (
	"crypto/rand"
	"strings"
)

// Identifiers are 14 lower-case letters and digits, starting with a letter. They are opaque:
// nothing may be read out of one but equality and order.
type (
	// PodID names a pod for ever; it is never used again.
	PodID string
	// HostID names a host from its join until it is gone.
	HostID string
	// AccountID names an account.
	AccountID string
	// KeyID names an API key; it is not the key's secret text.
	KeyID string
	// DataCenterID names a data center, as its operator wrote it (for example "EU-RO-1").
	DataCenterID string
	// TokenID names a join token.
	TokenID string
	// TemplateID names a template.
	TemplateID string
	// RegistryID names a registry credential.
	RegistryID string
	// VolumeID names a network volume.
	VolumeID string
	// EndpointID names a serverless endpoint.
	EndpointID string
	// ClusterID names a cluster.
	ClusterID string
	// ModelID names a public model. Its operator chose it, and no endpoint has the same.
	ModelID string
)

// IDLength is the number of characters of a generated identifier.
const IDLength = 14

const (
	idLetters  = "abcdefghijklmnopqrstuvwxyz"
	idAlphabet = idLetters + "0123456789"
)

// reservedWords are the first path words of the public API. No identifier equals one, so that a
// path can never be read in two ways (wire-facts, "Vocabulary warning").
var reservedWords = map[string]bool{
	"pods": true, "serverless": true, "templates": true, "network-volumes": true, "registries": true,
	"catalog": true, "billing": true, "clusters": true, "account": true, "secrets": true, "openapi.json": true,
	"keys": true, "network": true, "s3-keys": true, "ssh-keys": true, "events": true, "audit": true, "delegations": true, "files": true, "models": true,
}

// NewID returns a new random identifier. It is safe for concurrent use.
func NewID() string {
	for {
		id := randomText(idLetters, 1) + randomText(idAlphabet, IDLength-1)
		if !reservedWords[id] {
			return id
		}
	}
}

// ValidID reports whether s has the form of a generated identifier.
func ValidID(s string) bool {
	if len(s) != IDLength || !strings.Contains(idLetters, s[:1]) {
		return false
	}
	for i := 1; i < len(s); i++ {
		if !strings.Contains(idAlphabet, s[i:i+1]) {
			return false
		}
	}
	return true
}

// randomText draws n characters from an alphabet of at most 256, without bias.
func randomText(alphabet string, n int) string {
	out := make([]byte, 0, n)
	limit := byte(256 - 256%len(alphabet) - 1)
	buf := make([]byte, 2*n)
	for len(out) < n {
		_, _ = rand.Read(buf) // crypto/rand never returns an error
		for _, b := range buf {
			if b <= limit && len(out) < n {
				out = append(out, alphabet[int(b)%len(alphabet)])
			}
		}
	}
	return string(out)
}
