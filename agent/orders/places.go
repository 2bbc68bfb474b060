package orders

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"

	"gantry/agent/overlay"
	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/internal/agentrpc"
)

const maxPlaces = 4 // of a pod

// privateLink is what an interface of a private network in a pod may be called.
var privateLink = regexp.MustCompile(`^[a-z][a-z0-9]{0,14}$`)

// decodePlaces reads the places of an order in private networks. The error says in a sentence what the host does not take.
func decodePlaces(in []*agentrpc.OverlayPlace) ([]pod.Place, error) {
	if len(in) > maxPlaces {
		return nil, fmt.Errorf("the order has the pod in %d private networks, of which it can be in %d", len(in), maxPlaces)
	}
	var out []pod.Place
	for _, p := range in {
		cidr, err := overlay.CheckRange(p.GetOverlayId(), p.GetVni(), p.GetCidr())
		if err != nil {
			return nil, fmt.Errorf("the order has the pod in a private network that the host does not take: %w", err)
		}
		addr, err := netip.ParseAddr(p.GetAddr())
		if err != nil || !cidr.Contains(addr) {
			return nil, errors.New("the order has the pod in a private network at an address that is not the network's")
		}
		if name := p.GetLink(); !privateLink.MatchString(name) || name == "eth0" || name == "lo" {
			return nil, errors.New("the order has the pod in a private network by a link without a proper name")
		}
		out = append(out, pod.Place{Overlay: fleet.OverlayID(p.GetOverlayId()), VNI: p.GetVni(), CIDR: cidr, Addr: addr, Link: p.GetLink()})
	}
	slices.SortFunc(out, func(a, b pod.Place) int { return int(a.VNI) - int(b.VNI) })
	for i, p := range out {
		if i > 0 && out[i-1].VNI == p.VNI || slices.ContainsFunc(out[:i], func(o pod.Place) bool { return o.Link == p.Link }) {
			return nil, errors.New("the order has the pod in one private network twice")
		}
	}
	return out, nil
}
