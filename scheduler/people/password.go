package people

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"strings"
	"time"

	"golang.org/x/crypto/argon2"

	"gantry/fleet"
)

// argon2id as OWASP recommends it.
const (
	memoryKiB = 19 << 10
	passes    = 2
	saltBytes = 16
	hashBytes = 32

	atOnce  = 2
	waiting = 8
	waitFor = 5 * time.Second
)

// Hasher hashes passwords, two at a time; a few more wait, for at most five seconds. It is safe for concurrent use.
type Hasher struct {
	working chan struct{}
	queue   chan struct{}
	work    func() // between the begin and the end of a hash; tests hold it
}

// NewHasher returns a Hasher.
func NewHasher() *Hasher {
	return &Hasher{working: make(chan struct{}, atOnce), queue: make(chan struct{}, atOnce+waiting), work: func() {}}
}

// begin waits for a turn. Errors: rate_limited, ctx's.
func (h *Hasher) begin(ctx context.Context) error {
	busy := &fleet.Error{Code: fleet.CodeLimited, Msg: "too many people sign in at the moment", After: 2 * time.Second}
	select {
	case h.queue <- struct{}{}:
	default:
		return busy
	}
	timer := time.NewTimer(waitFor)
	defer timer.Stop()
	select {
	case h.working <- struct{}{}:
		return nil
	case <-timer.C:
		<-h.queue
		return busy
	case <-ctx.Done():
		<-h.queue
		return ctx.Err()
	}
}

func (h *Hasher) end() { <-h.working; <-h.queue }

// Hash returns a password's hash in PHC's form. Errors: rate_limited, ctx's.
func (h *Hasher) Hash(ctx context.Context, password fleet.Secret) (string, error) {
	if err := h.begin(ctx); err != nil {
		return "", err
	}
	defer h.end()
	h.work()
	salt := make([]byte, saltBytes)
	_, _ = rand.Read(salt) // never returns an error
	key := argon2.IDKey([]byte(password.Reveal()), salt, passes, memoryKiB, 1, hashBytes)
	b64 := base64.RawStdEncoding
	return fmt.Sprintf("$argon2id$v=%d$m=%d,t=%d,p=1$%s$%s", argon2.Version, memoryKiB, passes, b64.EncodeToString(salt), b64.EncodeToString(key)), nil
}

// Verify reports whether a password has a hash. With an empty one, which is that of nobody, it takes as long and is false. Errors:
// rate_limited, ctx's.
func (h *Hasher) Verify(ctx context.Context, phc string, password fleet.Secret) (bool, error) {
	if err := h.begin(ctx); err != nil {
		return false, err
	}
	defer h.end()
	h.work()
	memory, times, salt, want, ok := parsePHC(phc)
	got := argon2.IDKey([]byte(password.Reveal()), salt, times, memory, 1, hashBytes)
	return ok && subtle.ConstantTimeCompare(got, want) == 1, nil
}

// parsePHC returns what a hash is made of; ok is false, and all else what takes as long, for a text that is none.
func parsePHC(phc string) (memory, times uint32, salt, want []byte, ok bool) {
	var version int
	b64 := base64.RawStdEncoding.Strict()
	fields := strings.Split(phc, "$")
	if len(fields) == 6 && fields[1] == "argon2id" {
		_, errVersion := fmt.Sscanf(fields[2], "v=%d", &version)
		_, errCost := fmt.Sscanf(fields[3], "m=%d,t=%d,p=1", &memory, &times)
		var errSalt, errHash error
		salt, errSalt = b64.DecodeString(fields[4])
		want, errHash = b64.DecodeString(fields[5])
		ok = errVersion == nil && errCost == nil && errSalt == nil && errHash == nil && version == argon2.Version &&
			memory > 0 && memory <= 1<<20 && times > 0 && times <= 16 && len(want) == hashBytes
	}
	if !ok {
		return memoryKiB, passes, make([]byte, saltBytes), make([]byte, hashBytes), false
	}
	return memory, times, salt, want, true
}

// Once returns a password that an operator hands over: 24 letters and digits, 119 bits.
func Once() fleet.Secret { return fleet.Secret(rand.Text()[:24]) }
