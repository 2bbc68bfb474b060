package people

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"gantry/fleet"
)

type clock struct{ at time.Time }

func (c *clock) now() time.Time { return c.at }

func TestAPasswordIsItsOwnHash(t *testing.T) {
	h := NewHasher()
	phc, err := h.Hash(t.Context(), "correct horse")
	if err != nil {
		t.Fatal(err)
	}
	for hash, want := range map[string]bool{phc: true, phc + "x": false, "": false, "$argon2id$v=19$m=9999999,t=2,p=1$AAAA$AAAA": false} {
		if ok, err := h.Verify(t.Context(), hash, "correct horse"); ok != want || err != nil {
			t.Errorf("%q: %v, %v", hash, ok, err)
		}
	}
	if ok, _ := h.Verify(t.Context(), phc, "correct horsf"); ok {
		t.Error("another password is good")
	}
	if ok, _ := h.Verify(t.Context(), "", ""); ok {
		t.Error("nobody's password is empty")
	}
}

// TestHashesAreBounded fills the places and the queue: one more is refused at once.
func TestHashesAreBounded(t *testing.T) {
	h := NewHasher()
	begun, hold := make(chan struct{}, atOnce+waiting), make(chan struct{})
	h.work = func() { begun <- struct{}{}; <-hold }
	ends := make(chan error, atOnce+waiting)
	for range atOnce + waiting {
		go func() { _, err := h.Verify(context.Background(), "", "x"); ends <- err }()
	}
	for range atOnce {
		<-begun
	}
	for len(h.queue) < atOnce+waiting {
		select {
		case <-t.Context().Done():
			t.Fatal("the queue does not fill")
		case <-time.After(time.Millisecond):
		}
	}
	_, err := h.Verify(t.Context(), "", "x")
	var e *fleet.Error
	if !errors.As(err, &e) || e.Code != fleet.CodeLimited || e.After <= 0 {
		t.Errorf("one more: %v", err)
	}
	if len(begun) > 0 {
		t.Error("more than two are hashed at a time")
	}
	close(hold)
	for range atOnce + waiting {
		if err := <-ends; err != nil {
			t.Error(err)
		}
	}
	if len(h.queue)+len(h.working) != 0 {
		t.Error("places are not given back")
	}
}

// TestCodes has the vectors of RFC 6238, appendix B, cut to six digits.
func TestCodes(t *testing.T) {
	secret := []byte("12345678901234567890")
	for at, want := range map[int64]string{59: "287082", 1111111109: "081804", 1111111111: "050471", 1234567890: "005924", 2000000000: "279037", 20000000000: "353130"} {
		if got := Code(secret, StepAt(time.Unix(at, 0))); got != want {
			t.Errorf("at %d: %s, want %s", at, got, want)
		}
	}
	now := time.Unix(1234567890, 0)
	for off, want := range map[int]bool{-2: false, -1: true, 0: true, 1: true, 2: false} {
		code := Code(secret, uint64(int(StepAt(now))+off)) //nolint:gosec // after 1970
		if _, ok := CheckCode(secret, code, now, 0); ok != want {
			t.Errorf("%d half minutes away: %v", off, ok)
		}
	}
	if _, ok := CheckCode(secret, Code(secret, StepAt(now)), now, StepAt(now)); ok {
		t.Error("a code is good twice")
	}
	for text, want := range map[string]bool{"JBSWY3DPEHPK3PXPJBSWY3DPEHPK3PXP": true, "jbsw y3dp ehpk 3pxp jbsw y3dp ehpk 3pxp": true, "JBSWY3DP": false, "1": false, "": false} {
		if _, ok := ReadTOTP(text); ok != want {
			t.Errorf("%q: %v", text, ok)
		}
	}
}

func TestAttemptsLockForLongerAndLonger(t *testing.T) {
	c := &clock{time.Unix(1e9, 0)}
	a := NewAttempts(3, c.now)
	for i, want := range []time.Duration{0, 0, 10 * time.Second, 20 * time.Second, 40 * time.Second} {
		a.Failed("ada")
		if got := a.Locked("ada"); got != want {
			t.Errorf("after %d failures: %v, want %v", i+1, got, want)
		}
	}
	for range 20 {
		a.Failed("ada")
	}
	if got := a.Locked("ada"); got != longestLock {
		t.Errorf("locked for %v", got)
	}
	if a.Locked("bob") != 0 {
		t.Error("another is locked out")
	}
	c.at = c.at.Add(forgetsAfter + time.Second)
	if a.Failed("ada"); a.Locked("ada") != 0 {
		t.Error("an hour later it is not forgotten")
	}
	for i := range maxAttempts + 5 {
		a.Failed(fmt.Sprint(i))
	}
	if len(a.keys) > maxAttempts {
		t.Errorf("%d are remembered", len(a.keys))
	}
}

func begin(t *testing.T, d *Devices, address string) fleet.DeviceCodes {
	t.Helper()
	codes, err := d.Begin(fleet.DeviceRequest{Name: "laptop", Address: address})
	if err != nil {
		t.Fatal(err)
	}
	return codes
}

func TestACommandLineIsLetInOnce(t *testing.T) {
	c := &clock{time.Unix(1e9, 0)}
	d := NewDevices(c.now)
	codes := begin(t, d, "a")
	take := func(want error) fleet.Secret {
		t.Helper()
		key, err := d.Take(codes.Device)
		if !errors.Is(err, want) {
			t.Fatalf("%v, want %v", err, want)
		}
		return key
	}
	take(ErrPending)
	take(ErrSlowDown)
	c.at = c.at.Add(DeviceInterval + time.Second)
	take(ErrSlowDown) // the interval has grown
	c.at = c.at.Add(time.Minute)
	take(ErrPending)
	if _, ok := d.Look("bcdf"); ok {
		t.Error("half a code is one")
	}
	if err := d.Decide(codes.User, func(fleet.DeviceRequest) (fleet.Secret, error) { return "", errors.New("no") }); err == nil {
		t.Error("a failure is hidden")
	}
	allow := func(fleet.DeviceRequest) (fleet.Secret, error) {
		if err := d.Decide(codes.User, nil); fleet.CodeOf(err) != fleet.CodeNotFound {
			t.Errorf("it is decided twice: %v", err)
		}
		return "the key", nil
	}
	if err := d.Decide(codes.User, allow); err != nil {
		t.Fatal(err)
	}
	if _, ok := d.Look(codes.User); ok {
		t.Error("a code is good after the decision")
	}
	if key := take(nil); key != "the key" {
		t.Errorf("got %q", key.Reveal())
	}
	take(ErrExpired)
	codes = begin(t, d, "a")
	if err := d.Decide(codes.User, nil); err != nil {
		t.Fatal(err)
	}
	take(ErrDenied)
	codes = begin(t, d, "a")
	c.at = c.at.Add(DeviceLife)
	if _, ok := d.Look(codes.User); ok {
		t.Error("a code is good for longer than ten minutes")
	}
	take(ErrExpired)
}

func TestCommandLinesThatWaitAreBounded(t *testing.T) {
	c := &clock{time.Unix(1e9, 0)}
	d := NewDevices(c.now)
	for range maxDevicesFrom {
		begin(t, d, "a")
	}
	if _, err := d.Begin(fleet.DeviceRequest{Address: "a"}); fleet.CodeOf(err) != fleet.CodeLimited {
		t.Errorf("one more of an address: %v", err)
	}
	for i := len(d.byHash); i < maxDevices; i++ {
		begin(t, d, fmt.Sprint(i))
	}
	if _, err := d.Begin(fleet.DeviceRequest{Address: "b"}); fleet.CodeOf(err) != fleet.CodeLimited {
		t.Errorf("one more in all: %v", err)
	}
	c.at = c.at.Add(DeviceLife)
	begin(t, d, "a")
	if len(d.byHash) != 1 || len(d.byUser) != 1 {
		t.Errorf("%d and %d are kept", len(d.byHash), len(d.byUser))
	}
}
