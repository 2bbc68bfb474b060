package dns

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"gantry/netctl/sidecar"
)

// session is what one process was told.
type session struct {
	conn  *sidecar.Conn
	told  wanted
	there []uint32 // overlays that it has from another agent
}

func (s *session) call(ctx context.Context, verb string, ask any) error {
	if err := s.conn.Call(ctx, verb, ask, nil); err != nil {
		return fmt.Errorf("tell the process that answers names (%s): %w", verb, err)
	}
	return nil
}

// sync tells the process what differs from what it was told, and has it answer.
func (s *session) sync(ctx context.Context, want wanted) error {
	for vni, members := range want.overlays {
		if err := s.syncOverlay(ctx, vni, s.told.overlays[vni], members); err != nil {
			return err
		}
	}
	if want.base != s.told.base {
		if err := s.call(ctx, verbBase, want.base); err != nil {
			return err
		}
	}
	if want.pods != s.told.pods {
		if err := s.call(ctx, verbPods, want.pods); err != nil {
			return err
		}
	}
	if err := s.forget(ctx, want); err != nil {
		return err
	}
	begun := s.told.whole()
	if s.told = want; begun {
		return nil
	}
	return s.call(ctx, verbAnswer, nil)
}

func (s *session) syncOverlay(ctx context.Context, vni uint32, told, want *[]Name) error {
	switch told {
	case want:
		return nil
	case nil:
		return s.call(ctx, verbOverlay, change{VNI: vni, Set: *want})
	default:
		set, gone := difference(*told, *want)
		return s.call(ctx, verbChange, change{VNI: vni, Set: set, Gone: gone})
	}
}

// difference compares two sorted lists.
func difference(from, to []Name) (set []Name, gone []netip.Addr) {
	for len(from) > 0 || len(to) > 0 {
		switch {
		case len(from) == 0 || len(to) > 0 && compareMembers(to[0], from[0]) < 0:
			set, to = append(set, to[0]), to[1:]
		case len(to) == 0 || compareMembers(from[0], to[0]) < 0:
			gone, from = append(gone, from[0].Addr), from[1:]
		default:
			if from[0] != to[0] {
				set = append(set, to[0])
			}
			from, to = from[1:], to[1:]
		}
	}
	return set, gone
}

// forget has the process forget overlays that are wanted no more, and those of a former agent in which no pod is.
func (s *session) forget(ctx context.Context, want wanted) error {
	var drop, kept []uint32
	for vni := range s.told.overlays {
		if want.overlays[vni] == nil {
			drop = append(drop, vni)
		}
	}
	for _, vni := range s.there {
		switch {
		case want.overlays[vni] != nil:
		case anyIn(*want.pods, vni):
			kept = append(kept, vni)
		default:
			drop = append(drop, vni)
		}
	}
	s.there = kept
	for _, vni := range drop {
		if err := s.call(ctx, verbForget, vni); err != nil {
			return err
		}
	}
	return nil
}

func anyIn(pods map[netip.Addr][]uint32, vni uint32) bool {
	for _, vnis := range pods {
		if slices.Contains(vnis, vni) {
			return true
		}
	}
	return false
}
