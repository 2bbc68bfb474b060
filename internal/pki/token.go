package pki

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"gantry/fleet"
)

const (
	hidden      = "***"
	secretSize  = 32
	tokenPrefix = "gj1_"
	tokenIDLen  = fleet.IDLength
	tokenRaw    = sha256.Size + tokenIDLen + secretSize
	// tokenLen is exact: 78 bytes fill 104 characters of base64 without spare bits, so every token has one spelling.
	tokenLen = len(tokenPrefix) + tokenRaw/3*4
)

// ErrToken says that a text is not a join token. Its message never holds the text.
var ErrToken = errors.New("not a join token")

// Secret is 32 random bytes that prints as *** in every way that fmt, slog and encoding/json know. The zero Secret matches nothing.
//
// The bytes sit in a closure because fmt calls no methods on the unexported fields of a surrounding struct, and follows pointers there for
// a verb that does not fit; of a function it only ever prints the address.
type Secret struct{ bytes func() [secretSize]byte }

func newSecret(b [secretSize]byte) Secret { return Secret{func() [secretSize]byte { return b }} }

// Format writes *** for every verb.
func (Secret) Format(w fmt.State, _ rune) { _, _ = io.WriteString(w, hidden) }

// String returns ***.
func (Secret) String() string { return hidden }

// LogValue returns ***.
func (Secret) LogValue() slog.Value { return slog.StringValue(hidden) }

// MarshalText returns ***.
func (Secret) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// Hash returns the SHA-256 under which a secret is stored. A plain hash is right here, because the secret has 256 random bits.
func Hash(s Secret) [sha256.Size]byte {
	if s.bytes == nil {
		return [sha256.Size]byte{}
	}
	b := s.bytes()
	return sha256.Sum256(b[:])
}

// HashMatches reports, in constant time, whether hash is the stored hash of s.
func HashMatches(s Secret, hash []byte) bool {
	if s.bytes == nil {
		return false
	}
	sum := Hash(s)
	return subtle.ConstantTimeCompare(sum[:], hash) == 1
}

// JoinToken lets one new host or scheduler prove to the cluster that it may join, and the cluster prove to it that it is the right one.
// What it grants, until when, and whether it was used is state of the scheduler, found by ID. It prints as ***; Text reveals it.
type JoinToken struct {
	CA     Digest        // digest of the cluster's CA certificate
	ID     fleet.TokenID // public
	Secret Secret
}

// NewJoinToken makes a token with a random id and secret for the cluster whose CA has the given digest.
func NewJoinToken(ca Digest) JoinToken {
	var secret [secretSize]byte
	_, _ = rand.Read(secret[:]) // never returns an error
	return JoinToken{CA: ca, ID: fleet.TokenID(fleet.NewID()), Secret: newSecret(secret)}
}

// ParseJoinToken reads the form that Text returns, after removing white space around it. Every error wraps ErrToken and holds nothing of
// the text.
func ParseJoinToken(text string) (JoinToken, error) {
	text = strings.TrimSpace(text)
	if len(text) != tokenLen || !strings.HasPrefix(text, tokenPrefix) {
		return JoinToken{}, fmt.Errorf("%w: a token begins with %s and has %d characters, and this text has %d", ErrToken, tokenPrefix, tokenLen, len(text))
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text[len(tokenPrefix):])
	if err != nil || len(raw) != tokenRaw {
		return JoinToken{}, fmt.Errorf("%w: a character does not belong in it", ErrToken)
	}
	var secret [secretSize]byte
	copy(secret[:], raw[sha256.Size+tokenIDLen:])
	token := JoinToken{
		CA:     Digest(raw[:sha256.Size]),
		ID:     fleet.TokenID(raw[sha256.Size : sha256.Size+tokenIDLen]),
		Secret: newSecret(secret),
	}
	if !fleet.ValidID(string(token.ID)) {
		return JoinToken{}, fmt.Errorf("%w: its id is malformed", ErrToken)
	}
	return token, nil
}

// Text returns the token as a person passes it on: gj1_ and 104 characters. It is a secret. It returns "" for a token that neither
// NewJoinToken nor ParseJoinToken made.
func (t JoinToken) Text() string {
	if t.Secret.bytes == nil || !fleet.ValidID(string(t.ID)) {
		return ""
	}
	secret := t.Secret.bytes()
	raw := make([]byte, 0, tokenRaw)
	raw = append(raw, t.CA[:]...)
	raw = append(raw, t.ID...)
	raw = append(raw, secret[:]...)
	return tokenPrefix + base64.RawURLEncoding.EncodeToString(raw)
}

// Format writes *** for every verb.
func (JoinToken) Format(w fmt.State, _ rune) { _, _ = io.WriteString(w, hidden) }

// String returns ***.
func (JoinToken) String() string { return hidden }

// LogValue returns ***.
func (JoinToken) LogValue() slog.Value { return slog.StringValue(hidden) }

// MarshalText returns ***.
func (JoinToken) MarshalText() ([]byte, error) { return []byte(hidden), nil }
