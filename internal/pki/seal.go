package pki

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"gantry/internal/atomicfile"
)

const (
	sealPrefix  = "gs1_"
	sealKeySize = 32
	sealVersion = 1
	sealIDSize  = 4
	sealHeader  = 1 + sealIDSize
)

// SealOverhead is how many bytes a sealed value is longer than what was sealed.
const SealOverhead = 33

// Errors of Open.
var (
	// ErrSealKey says that the value was sealed with another key than the sealer's.
	ErrSealKey = errors.New("sealed with another seal key")
	// ErrSealed says that the value is damaged, or was sealed for another purpose.
	ErrSealed = errors.New("sealed value is damaged or for another purpose")
)

// Sealer encrypts and authenticates secrets at rest under one key, with a derived key for each purpose. A purpose is a constant of the
// program that names a kind of value ("ca key"), after which the identifiers of what the value belongs to may follow. A sealer is safe
// for concurrent use.
//
// A sealed value is version (1 byte), key id (4), nonce (12), ciphertext, tag (16). Nonces are random, so one purpose must stay far below
// 2^32 values in the life of a key.
type Sealer struct {
	// derive returns a key for a purpose. It is a closure for the reason given at Secret.
	derive func(purpose string, size int) ([]byte, error)
	// macKey is derive for MAC, with the keys kept.
	macKey func(purpose string) ([]byte, error)
	id     [sealIDSize]byte
	// text returns the key as its file holds it; a closure for the same reason.
	text func() []byte
}

// NewSealKeyFile makes a random seal key and writes it to path with mode 0600. It returns an error that wraps fs.ErrExist, and changes
// nothing, if path exists. Losing this file means losing everything sealed with it.
func NewSealKeyFile(path string) error {
	var key [sealKeySize]byte
	_, _ = rand.Read(key[:]) // never returns an error
	return createSealKey(path, sealText(key[:]))
}

// WriteSealKeyFile writes a key that KeyText returned, as NewSealKeyFile does a random one. It returns an error that wraps fs.ErrExist,
// and changes nothing, if path exists with another content.
func WriteSealKeyFile(path string, text []byte) error {
	key, err := parseSealKey(text)
	if err != nil {
		return fmt.Errorf("write seal key: %w", err)
	}
	text = sealText(key)
	if old, _ := ReadSecretFile(path); subtle.ConstantTimeCompare(old, text) == 1 {
		return nil
	}
	return createSealKey(path, text)
}

func createSealKey(path string, text []byte) error {
	if err := atomicfile.Create(path, text, keyMode); err != nil {
		return fmt.Errorf("create seal key: %w", err)
	}
	return nil
}

func sealText(key []byte) []byte {
	return []byte(sealPrefix + base64.RawURLEncoding.EncodeToString(key) + "\n")
}

func parseSealKey(data []byte) ([]byte, error) {
	text, ok := strings.CutPrefix(strings.TrimSpace(string(data)), sealPrefix)
	key, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if !ok || err != nil || len(key) != sealKeySize {
		return nil, errors.New("this is not a seal key")
	}
	return key, nil
}

// LoadSealer reads the key that NewSealKeyFile wrote. The file must be a regular one that only its owner can read.
func LoadSealer(path string) (*Sealer, error) {
	data, err := ReadSecretFile(path)
	if err != nil {
		return nil, fmt.Errorf("load seal key: %w", err)
	}
	key, err := parseSealKey(data)
	if err != nil {
		return nil, fmt.Errorf("load seal key: %s is not a seal key file", path)
	}
	return newSealer(key)
}

func newSealer(key []byte) (*Sealer, error) {
	master, err := hkdf.Extract(sha256.New, key, []byte("gantry seal v1"))
	if err != nil {
		return nil, fmt.Errorf("derive seal key: %w", err)
	}
	s := &Sealer{}
	s.derive = func(purpose string, size int) ([]byte, error) {
		key, err := hkdf.Expand(sha256.New, master, purpose, size)
		if err != nil {
			return nil, fmt.Errorf("derive key: %w", err)
		}
		return key, nil
	}
	var keys sync.Map // by purpose
	s.macKey = func(purpose string) ([]byte, error) {
		if key, ok := keys.Load(purpose); ok {
			return key.([]byte), nil //nolint:forcetypeassert // it holds nothing else
		}
		key, err := s.derive("mac\x00"+purpose, sha256.Size)
		if err == nil {
			keys.Store(purpose, key)
		}
		return key, err
	}
	text := sealText(key)
	s.text = func() []byte { return slices.Clone(text) }
	id, err := s.derive("id", sealIDSize)
	if err != nil {
		return nil, err
	}
	copy(s.id[:], id)
	return s, nil
}

// KeyText returns the key as its file holds it, for another scheduler of the cluster. It is a secret: it opens everything that was
// sealed with it.
func (s *Sealer) KeyText() []byte { return s.text() }

// Seal encrypts plaintext for a purpose. The result is SealOverhead bytes longer and differs at every call.
func (s *Sealer) Seal(purpose string, plaintext []byte) ([]byte, error) {
	aead, err := s.aead(purpose)
	if err != nil {
		return nil, err
	}
	out := make([]byte, 0, sealHeader+aead.Overhead()+len(plaintext))
	out = append(out, sealVersion)
	out = append(out, s.id[:]...)
	return aead.Seal(out, nil, plaintext, additionalData(out, purpose)), nil
}

// Open returns what Seal was given for the same purpose, or ErrSealKey or ErrSealed.
func (s *Sealer) Open(purpose string, sealed []byte) ([]byte, error) {
	if len(sealed) < sealHeader || sealed[0] != sealVersion {
		return nil, ErrSealed
	}
	if subtle.ConstantTimeCompare(sealed[1:sealHeader], s.id[:]) != 1 {
		return nil, ErrSealKey
	}
	aead, err := s.aead(purpose)
	if err != nil {
		return nil, err
	}
	plaintext, err := aead.Open(nil, nil, sealed[sealHeader:], additionalData(sealed[:sealHeader], purpose))
	if err != nil {
		return nil, ErrSealed
	}
	return plaintext, nil
}

// MAC returns HMAC-SHA-256 of data under a key derived for the purpose. It is the keyed hash under which API keys are stored: without the
// seal key a copy of the state does not even allow a guess to be checked. Purposes are constants: the key of each is kept.
func (s *Sealer) MAC(purpose string, data []byte) ([sha256.Size]byte, error) {
	key, err := s.macKey(purpose)
	if err != nil {
		return [sha256.Size]byte{}, err
	}
	mac := hmac.New(sha256.New, key)
	mac.Write(data)
	return [sha256.Size]byte(mac.Sum(nil)), nil
}

// Format writes *** for every verb.
func (*Sealer) Format(w fmt.State, _ rune) { _, _ = io.WriteString(w, hidden) }

// String returns ***.
func (*Sealer) String() string { return hidden }

// LogValue returns ***.
func (*Sealer) LogValue() slog.Value { return slog.StringValue(hidden) }

func (s *Sealer) aead(purpose string) (cipher.AEAD, error) {
	key, err := s.derive("seal\x00"+purpose, sealKeySize)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("derive key: %w", err)
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// additionalData binds the header and the purpose to the ciphertext. The header has a fixed length, so the two cannot run together.
func additionalData(header []byte, purpose string) []byte {
	return append(append(make([]byte, 0, len(header)+len(purpose)), header...), purpose...)
}
