package people

import (
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"math/big"
	"strings"
	"sync"
	"time"

	"gantry/fleet"
)

// The bounds of command lines that wait (RFC 8628).
const (
	maxDevices     = 256
	maxDevicesFrom = 8 // of one address
	DeviceLife     = 10 * time.Minute
	DeviceInterval = 5 * time.Second

	userLetters = "BCDFGHJKLMNPQRSTVWXZ" // no vowels, so no words; RFC 8628, 6.1
	userChars   = 8
)

// What a command line that polls is told.
var (
	ErrPending  = errors.New("authorization_pending")
	ErrSlowDown = errors.New("slow_down")
	ErrDenied   = errors.New("access_denied")
	ErrExpired  = errors.New("expired_token")
)

// Devices holds the command lines that wait to be let in. It is safe for concurrent use.
type Devices struct {
	now func() time.Time

	mu     sync.Mutex // guards the fields below
	byHash map[[32]byte]*device
	byUser map[string]*device
}

type device struct {
	fleet.DeviceRequest
	hash     [32]byte
	user     string
	interval time.Duration
	polled   time.Time
	state    deviceState
	key      fleet.Secret
}

type deviceState int

const (
	waits deviceState = iota
	deciding
	denied
	allowed
)

// NewDevices returns a Devices in which none waits.
func NewDevices(now func() time.Time) *Devices {
	return &Devices{now: now, byHash: map[[32]byte]*device{}, byUser: map[string]*device{}}
}

// Begin lets a command line wait. Errors: rate_limited (too many wait, in all or of its address).
func (d *Devices) Begin(req fleet.DeviceRequest) (fleet.DeviceCodes, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now, same := d.now(), 0
	for _, one := range d.byHash {
		switch {
		case !now.Before(one.ExpiresAt):
			d.drop(one)
		case one.Address == req.Address:
			same++
		}
	}
	if len(d.byHash) >= maxDevices || same >= maxDevicesFrom {
		return fleet.DeviceCodes{}, &fleet.Error{Code: fleet.CodeLimited, Msg: "too many command lines wait to be let in", After: time.Minute}
	}
	text := rand.Text() + rand.Text() // 260 bits
	one := &device{DeviceRequest: req, hash: sha256.Sum256([]byte(text)), user: userCode(), interval: DeviceInterval}
	for d.byUser[one.user] != nil {
		one.user = userCode()
	}
	one.ExpiresAt = now.Add(DeviceLife)
	d.byHash[one.hash], d.byUser[one.user] = one, one
	return fleet.DeviceCodes{Device: fleet.Secret(text), User: one.user[:4] + "-" + one.user[4:], Expires: DeviceLife, Interval: DeviceInterval}, nil
}

func (d *Devices) drop(one *device) {
	delete(d.byHash, one.hash)
	delete(d.byUser, one.user)
}

func userCode() string {
	out := make([]byte, userChars)
	for i := range out {
		n, err := rand.Int(rand.Reader, big.NewInt(int64(len(userLetters))))
		if err != nil { // never
			panic(err)
		}
		out[i] = userLetters[n.Int64()]
	}
	return string(out)
}

func cleanUser(code string) string {
	return strings.ToUpper(strings.NewReplacer("-", "", " ", "").Replace(code))
}

// waiting returns the one that waits under a user's code; nil: there is none.
func (d *Devices) waiting(user string) *device {
	one := d.byUser[cleanUser(user)]
	if one == nil || one.state != waits || !d.now().Before(one.ExpiresAt) {
		return nil
	}
	return one
}

// Look returns what waits under a user's code; false: nothing does, or it was decided.
func (d *Devices) Look(user string) (fleet.DeviceRequest, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if one := d.waiting(user); one != nil {
		return one.DeviceRequest, true
	}
	return fleet.DeviceRequest{}, false
}

// Decide lets one in with the key that allow makes, or turns it away where allow is nil. A code is decided once: while allow runs, it is
// another's no more; when it fails, the code waits again. Errors: not_found, and allow's.
func (d *Devices) Decide(user string, allow func(fleet.DeviceRequest) (fleet.Secret, error)) error {
	d.mu.Lock()
	one := d.waiting(user)
	if one == nil {
		d.mu.Unlock()
		return fleet.NotFound("command line")
	}
	one.state = deciding
	if allow == nil {
		one.state = denied
	}
	d.mu.Unlock()
	if allow == nil {
		return nil
	}
	key, err := allow(one.DeviceRequest)
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		one.state = waits
		return err
	}
	one.state, one.key = allowed, key
	return nil
}

// Take returns the key of one that was let in, once. Errors: ErrPending, ErrSlowDown, ErrDenied, ErrExpired (also of an unknown code).
func (d *Devices) Take(code fleet.Secret) (fleet.Secret, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	one, now := d.byHash[sha256.Sum256([]byte(code.Reveal()))], d.now()
	if one == nil {
		return "", ErrExpired
	}
	if !now.Before(one.ExpiresAt) {
		d.drop(one)
		return "", ErrExpired
	}
	fast := now.Sub(one.polled) < one.interval
	one.polled = now
	switch {
	case one.state == denied:
		d.drop(one)
		return "", ErrDenied
	case one.state == allowed:
		d.drop(one)
		return one.key, nil
	case fast:
		one.interval += DeviceInterval
		return "", ErrSlowDown
	}
	return "", ErrPending
}
