package pki

import (
	"bytes"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"strings"
	"testing"
)

func TestJoinTokenRoundTrip(t *testing.T) {
	token := NewJoinToken(Digest{1, 2, 3})
	text := token.Text()
	if len(text) != tokenLen || !strings.HasPrefix(text, "gj1_") {
		t.Fatalf("token of %d characters", len(text))
	}
	got, err := ParseJoinToken(" " + text + "\n")
	if err != nil {
		t.Fatal(err)
	}
	if got.CA != token.CA || got.ID != token.ID || got.Text() != text {
		t.Error("the parsed token differs")
	}
	hash := Hash(token.Secret)
	if !HashMatches(got.Secret, hash[:]) {
		t.Error("the parsed secret does not match its hash")
	}
	if other := NewJoinToken(token.CA); other.ID == token.ID || HashMatches(other.Secret, hash[:]) {
		t.Error("two tokens are alike")
	}
}

func TestHashMatchesRefuses(t *testing.T) {
	secret := NewJoinToken(Digest{}).Secret
	hash := Hash(secret)
	zero := Hash(Secret{})
	raw := secret.bytes()
	for name, ok := range map[string]bool{
		"no hash":       HashMatches(secret, nil),
		"short hash":    HashMatches(secret, hash[:31]),
		"no secret":     HashMatches(Secret{}, zero[:]),
		"another hash":  HashMatches(secret, zero[:]),
		"secret itself": HashMatches(secret, raw[:]),
	} {
		if ok {
			t.Errorf("%s matches", name)
		}
	}
}

func TestParseJoinTokenRefuses(t *testing.T) {
	text := NewJoinToken(Digest{9}).Text()
	const length, inside, id = "begins with gj1_ and has 108 characters", "a character does not belong", "its id is malformed"
	for name, tt := range map[string]struct{ bad, says string }{
		"empty":            {"", length},
		"prefix only":      {"gj1_", length},
		"other version":    {"gj2_" + text[4:], length},
		"truncated":        {text[:len(text)-1], length},
		"four shorter":     {text[:len(text)-4], length},
		"longer":           {text + "A", length},
		"standard base64":  {text[:50] + "+" + text[51:], inside},
		"line break":       {text[:50] + "\n" + text[51:], inside},
		"id of capitals":   {text[:47] + strings.Repeat("R", 20) + text[67:], id},
		"another language": {text[:50] + "é" + text[52:], inside},
	} {
		_, err := ParseJoinToken(tt.bad)
		if !errors.Is(err, ErrToken) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v; want %q in it", name, err, tt.says)
		} else if strings.Contains(err.Error(), text[60:]) {
			t.Errorf("%s: the error holds the token", name)
		}
	}
}

func TestTextOfUnmadeTokenIsEmpty(t *testing.T) {
	made := NewJoinToken(Digest{})
	for _, token := range []JoinToken{{ID: made.ID}, {ID: "short", Secret: made.Secret}, {Secret: made.Secret}} {
		if got := token.Text(); got != "" {
			t.Errorf("Text = %q", got)
		}
	}
}

// TestSecretsPrintAsStars prints each secret type in every usual way, also hidden in an unexported field of another struct.
func TestSecretsPrintAsStars(t *testing.T) {
	token := NewJoinToken(Digest{})
	sealKey := []byte("0123456789-seal-key-abcdefghijkl")
	sealer, err := newSealer(sealKey)
	if err != nil {
		t.Fatal(err)
	}
	// What must not show, in the spellings that the verbs would give it.
	secrets := []string{token.Text()}
	tokenBytes := token.Secret.bytes()
	master, err := hkdf.Extract(sha256.New, sealKey, []byte("gantry seal v1"))
	if err != nil {
		t.Fatal(err)
	}
	ca := newTestCA(t, "c")
	caKey, err := ca.key().Bytes()
	if err != nil {
		t.Fatal(err)
	}
	for _, raw := range [][]byte{tokenBytes[:], sealKey, master, caKey} {
		secrets = append(secrets, fmt.Sprintf("%x", raw[:4]), fmt.Sprintf("%X", raw[:4]),
			new(big.Int).SetBytes(raw).String()[:20], fmt.Sprintf("%d %d %d", raw[0], raw[1], raw[2]), fmt.Sprintf("%#x, %#x, %#x", raw[0], raw[1], raw[2]))
	}
	values := []any{
		token, &token, token.Secret, sealer,
		struct{ S Secret }{token.Secret},
		struct{ s Secret }{token.Secret},
		struct{ t JoinToken }{token},
		struct{ s *Sealer }{sealer},
		ca,
		struct{ ca *CA }{ca},
		struct{ ca CA }{*ca},
	}
	for _, value := range values {
		var out bytes.Buffer
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d"} {
			fmt.Fprintf(&out, verb+"\n", value)
		}
		slog.New(slog.NewTextHandler(&out, nil)).Info("m", "v", value)
		slog.New(slog.NewJSONHandler(&out, nil)).Info("m", "v", value)
		text, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		out.Write(text)
		for _, secret := range secrets {
			if strings.Contains(out.String(), secret) {
				t.Errorf("%T shows %q in %q", value, secret, out.String())
			}
		}
	}
	if got := fmt.Sprint(token, token.Secret, sealer); got != "*** *** ***" {
		t.Errorf("printed %q", got)
	}
}

func FuzzParseJoinToken(f *testing.F) {
	f.Add(NewJoinToken(Digest{1}).Text())
	f.Add("")
	f.Add("gj1_")
	f.Fuzz(func(t *testing.T, text string) {
		token, err := ParseJoinToken(text)
		if err != nil {
			if !errors.Is(err, ErrToken) {
				t.Fatalf("error of another kind: %v", err)
			}
			return
		}
		if got := token.Text(); got != strings.TrimSpace(text) {
			t.Fatalf("a token has two spellings: %q and %q", text, got)
		}
	})
}
