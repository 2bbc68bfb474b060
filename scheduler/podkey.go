package scheduler

import (
	"crypto/subtle"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// purposePodKey is the purpose of the MAC that a pod's own key is made from.
const purposePodKey = "pod key"

// podKey returns a pod's own key. It is stored nowhere: whoever has the seal key can make it again.
func (s *Service) podKey(id fleet.PodID) (fleet.Secret, error) {
	mac, err := s.Sealer.MAC(purposePodKey, []byte(id))
	if err != nil {
		return "", err
	}
	return fleet.PodKey(id, mac[:]), nil
}

// authenticatePod returns the principal of a pod's own key; false when it is none, or of a pod that is terminated.
func (s *Service) authenticatePod(key fleet.Secret, view func(func(*state.View) error) error) (fleet.Principal, bool, error) {
	id, ok := fleet.PodOfKey(key.Reveal())
	if !ok {
		return fleet.Principal{}, false, nil
	}
	want, err := s.podKey(id)
	if err != nil || subtle.ConstantTimeCompare([]byte(want.Reveal()), []byte(key.Reveal())) != 1 {
		return fleet.Principal{}, false, err
	}
	who := fleet.Principal{Pod: id}
	err = view(func(v *state.View) error {
		p, there := v.Pod(id)
		if ok = there && p.Status != fleet.StatusTerminated; ok {
			owner, known := v.Account(p.Account)
			who.Account, who.Quotas, ok = p.Account, owner.Quotas, known
			if owner.Suspended != nil {
				return owner.Suspended.Refusal()
			}
		}
		return nil
	})
	return who, ok && err == nil, err
}

// mayTouch refuses another pod than its own to a pod's own key, as though it were not there.
func mayTouch(who fleet.Principal, id fleet.PodID) error {
	if who.Pod != "" && who.Pod != id {
		return fleet.NotFound("pod")
	}
	return nil
}
