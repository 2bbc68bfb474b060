package scheduler

import (
	"context"
	"time"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// BeginDevice lets a command line wait for someone who lets it in. Errors: rate_limited.
func (s *Service) BeginDevice(_ context.Context, req fleet.DeviceRequest) (fleet.DeviceCodes, error) {
	return s.doors.devices.Begin(req)
}

// TakeDevice returns the key of a command line that was let in, once. Errors: those of people.Devices.
func (s *Service) TakeDevice(_ context.Context, code fleet.Secret) (fleet.Secret, error) {
	return s.doors.devices.Take(code)
}

// mayLetIn refuses who may not make a key for a command line, and who tried too many codes that nobody has.
func (s *Service) mayLetIn(who fleet.Principal) error {
	if who.Session == "" && !who.May(fleet.GroupAccount, fleet.AccessWrite) {
		return fleet.Forbidden("this key lacks account:write")
	}
	if wait := s.doors.codes.Locked(caller(who)); wait > 0 {
		return tooOften(wait)
	}
	return nil
}

func caller(who fleet.Principal) string { return string(who.Account) + " " + string(who.Person) }

// Device returns the command line that waits under a code. Errors: not_found, rate_limited, forbidden.
func (s *Service) Device(_ context.Context, who fleet.Principal, code string) (fleet.DeviceRequest, error) {
	if err := s.mayLetIn(who); err != nil {
		return fleet.DeviceRequest{}, err
	}
	req, ok := s.doors.devices.Look(code)
	if !ok {
		s.doors.codes.Failed(caller(who))
		return fleet.DeviceRequest{}, fleet.NotFound("command line")
	}
	return req, nil
}

// DecideDevice lets a command line in, with a key of the caller's account that may do no more than the caller, or turns it away. A
// person's key is worth what the person is in the account; days of 0: it does not expire. Errors: as Device, invalid.
func (s *Service) DecideDevice(ctx context.Context, who fleet.Principal, code string, allow bool, days int) error {
	if _, err := s.Device(ctx, who, code); err != nil {
		return err
	}
	if days < 0 || days > maxDeviceDays {
		return fleet.Invalid("$.expiresInDays", "must be 0 to 366")
	}
	if !allow {
		return s.doors.devices.Decide(code, nil)
	}
	return s.doors.devices.Decide(code, func(req fleet.DeviceRequest) (fleet.Secret, error) { return s.deviceKey(ctx, who, req, days) })
}

func (s *Service) deviceKey(ctx context.Context, who fleet.Principal, req fleet.DeviceRequest, days int) (fleet.Secret, error) {
	ask := fleet.KeyRequest{Name: "login " + req.Name, Person: who.Person, Device: true, Invoke: who.Invoke}
	preset := "all"
	if req.ReadOnly {
		preset, ask.Invoke = "readOnly", nil
	}
	if days > 0 {
		ask.ExpiresAt = s.Now().Add(time.Duration(days) * 24 * time.Hour)
	}
	var own fleet.Key
	if err := s.read(ctx, func(v *state.View) error { own, _ = v.Key(who.Key); return nil }); err != nil {
		return "", err
	}
	if outlives(ask.ExpiresAt, own.ExpiresAt) {
		ask.ExpiresAt = own.ExpiresAt
	}
	can, _ := fleet.Preset(preset)
	_, key, err := s.newKey(ctx, who.Account, ask, fleet.Narrowed(can, who.Can))
	return key, err
}
