package fleet

import (
	"log/slog"
	"strings"
)

// Secret is text that must not be shown: it prints, logs and formats as "***". Reveal returns it.
type Secret string

// String returns "***".
func (Secret) String() string { return "***" }

// GoString returns "***".
func (Secret) GoString() string { return "***" }

// LogValue returns "***".
func (Secret) LogValue() slog.Value { return slog.StringValue("***") }

// MarshalText returns "***", also for JSON: who must show a secret reveals it first.
func (Secret) MarshalText() ([]byte, error) { return []byte("***"), nil }

// Reveal returns the secret text.
func (s Secret) Reveal() string { return string(s) }

// keyPrefix begins every API key; the first keyVisible characters of one may be shown.
const (
	keyPrefix  = "gk_"
	keyChars   = 43
	keyVisible = len(keyPrefix) + 6
	base62     = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
)

// NewAPIKey returns a new API key: "gk_" and 43 base62 characters, 256 random bits.
func NewAPIKey() Secret { return Secret(keyPrefix + randomText(base62, keyChars)) }

// The lengths of what follows the prefixes of an S3 key pair.
const (
	s3AccessPrefix = "user_"
	s3AccessChars  = 27
	s3SecretPrefix = "rps_"
	s3SecretChars  = 43
)

// NewS3Key returns a new key pair of the S3 interface: the access key is "user_" and 27 base62 characters, the secret
// "rps_" and 43, 256 random bits.
func NewS3Key() (access string, secret Secret) {
	return s3AccessPrefix + randomText(base62, s3AccessChars), Secret(s3SecretPrefix + randomText(base62, s3SecretChars))
}

// ValidAPIKey reports whether s has the form of an API key.
func ValidAPIKey(s string) bool {
	if len(s) != len(keyPrefix)+keyChars || !strings.HasPrefix(s, keyPrefix) {
		return false
	}
	return strings.Trim(s[len(keyPrefix):], base62) == ""
}

// KeyHint returns the part of an API key that may be shown to tell keys apart.
func KeyHint(s Secret) string {
	if len(s) < keyVisible {
		return ""
	}
	return string(s[:keyVisible])
}
