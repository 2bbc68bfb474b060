package tunnel

import (
	"crypto/ecdh"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"gantry/internal/atomicfile"
)

const keyLen = 32

// Key is a private key of Curve25519. It shows itself to no printer and no encoder but WriteKey.
type Key struct{ b [keyLen]byte }

// NewKey makes a key.
func NewKey() Key {
	var k Key
	_, _ = rand.Read(k.b[:]) // it never fails
	k.clamp()
	return k
}

// clamp gives the scalar the form of RFC 7748, as `wg genkey` does.
func (k *Key) clamp() {
	k.b[0] &= 248
	k.b[31] = k.b[31]&127 | 64
}

// Public is the key's other half, base64; "" of the zero value.
func (k Key) Public() string {
	if k == (Key{}) {
		return ""
	}
	priv, err := ecdh.X25519().NewPrivateKey(k.b[:])
	if err != nil {
		return "" // there is no such scalar of 32 bytes
	}
	return base64.StdEncoding.EncodeToString(priv.PublicKey().Bytes())
}

// String hides the key.
func (Key) String() string { return "(private key)" }

// GoString hides the key.
func (Key) GoString() string { return "(private key)" }

// LogValue hides the key.
func (Key) LogValue() slog.Value { return slog.StringValue("(private key)") }

// MarshalText refuses: a key leaves the host for nowhere.
func (Key) MarshalText() ([]byte, error) { return nil, errors.New("a private key is not encoded") }

// ReadKey reads a file of WriteKey. An error of the system, such as fs.ErrNotExist, is inside the one that it returns.
func ReadKey(path string) (Key, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return Key{}, fmt.Errorf("read the tunnel's key: %w", err)
	}
	raw, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(text)))
	if err != nil || len(raw) != keyLen {
		return Key{}, fmt.Errorf("the tunnel's key in %s: want %d bytes in base64", path, keyLen)
	}
	k := Key{b: [keyLen]byte(raw)}
	if k == (Key{}) {
		return Key{}, fmt.Errorf("the tunnel's key in %s is empty", path)
	}
	k.clamp()
	return k, nil
}

// WriteKey writes a key to a file that only its owner may read, as a whole or not at all.
func WriteKey(path string, k Key) error {
	text := base64.StdEncoding.EncodeToString(k.b[:]) + "\n"
	if err := atomicfile.Write(path, []byte(text), 0o600); err != nil {
		return fmt.Errorf("write the tunnel's key: %w", err)
	}
	return nil
}

// parsePublic reads a public key. The key of small order that is all zeros is none.
func parsePublic(text string) ([keyLen]byte, error) {
	raw, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil || len(raw) != keyLen || [keyLen]byte(raw) == [keyLen]byte{} {
		return [keyLen]byte{}, errors.New("public key: want 32 bytes in base64")
	}
	return [keyLen]byte(raw), nil
}
