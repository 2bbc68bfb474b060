package dispatch

import (
	"gantry/fleet"
	"gantry/internal/agentrpc"
)

// pinnedDigest is what a pod's image has to be: that of its first start with this reference. Empty before, and
// once the specification names another image than the incarnation has.
func pinnedDigest(p *fleet.Pod) string {
	if p.Image != p.Spec.Image {
		return ""
	}
	return p.Digest
}

// Prefetch asks a host to get an image, unless it is empty, and models, and reports whether the host could be asked. It is not written down
// anywhere: a host that is away, or that has not taken what it was sent before, is not asked.
func (s *Server) Prefetch(host fleet.HostID, image string, models ...string) bool {
	x := s.session(host)
	if x == nil {
		return false
	}
	ask := &agentrpc.Prefetch{Image: image, Models: models}
	if len(models) > 0 {
		ask.ModelHub = s.ModelHub
	}
	select {
	case x.down <- &agentrpc.Down{Kind: &agentrpc.Down_Prefetch{Prefetch: ask}}:
		x.sender.wake()
		return true
	default:
		return false
	}
}
