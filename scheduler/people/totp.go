package people

import (
	"crypto/hmac"
	"crypto/sha1" //nolint:gosec // RFC 6238, as all authenticator apps have it
	"crypto/subtle"
	"encoding/base32"
	"encoding/binary"
	"fmt"
	"strings"
	"time"
)

const (
	stepSeconds = 30
	digits      = 6
	minSecret   = 16 // bytes
	maxSecret   = 40
)

// ReadTOTP returns the secret that a text in base32 is, with or without spaces; false for one of another length than 16 to 40 bytes.
func ReadTOTP(text string) ([]byte, bool) {
	text = strings.ToUpper(strings.TrimRight(strings.ReplaceAll(text, " ", ""), "="))
	secret, err := base32.StdEncoding.WithPadding(base32.NoPadding).DecodeString(text)
	return secret, err == nil && len(secret) >= minSecret && len(secret) <= maxSecret
}

// StepAt returns the number of the half minute at a time.
func StepAt(at time.Time) uint64 { return uint64(at.Unix() / stepSeconds) } //nolint:gosec // after 1970

// Code returns the code of a step (RFC 6238: SHA-1, 6 digits).
func Code(secret []byte, step uint64) string {
	mac := hmac.New(sha1.New, secret)
	_, _ = mac.Write(binary.BigEndian.AppendUint64(nil, step)) // never returns an error
	sum := mac.Sum(nil)
	at := sum[len(sum)-1] & 0xf
	return fmt.Sprintf("%0*d", digits, binary.BigEndian.Uint32(sum[at:at+4])&0x7fffffff%1_000_000)
}

// CheckCode returns the step of a code that is good now, or was or will be half a minute away, and later than last; false: it is not.
func CheckCode(secret []byte, code string, now time.Time, last uint64) (uint64, bool) {
	at := StepAt(now)
	for step := at - 1; step <= at+1; step++ {
		if subtle.ConstantTimeCompare([]byte(Code(secret, step)), []byte(code)) == 1 && step > last {
			return step, true
		}
	}
	return 0, false
}
