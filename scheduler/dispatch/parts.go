package dispatch

import (
	"google.golang.org/protobuf/proto"

	"gantry/internal/agentrpc"
)

// The bounds of a message to a host. Its agent takes more, see maxMessage there.
const (
	// partSize is from how many bytes on a part of a message is not added to. With the largest order in it, it comes through a
	// slow line before the host takes the scheduler for silent.
	partSize = 256 << 10
	maxOrder = 3 << 20 // bytes of one order; its environment, with secrets, has at most 1 MiB
	maxDown  = partSize + maxOrder + 64<<10
	// wireOverhead is what an element of a list takes beside its bytes.
	wireOverhead = 4
)

// cut returns a message of lists in parts. The message stays as it is.
func cut(msg *agentrpc.Down) []*agentrpc.Down {
	if proto.Size(msg) <= partSize {
		return []*agentrpc.Down{msg}
	}
	var out []*agentrpc.Down
	switch {
	case msg.GetOverlay() != nil:
		o := msg.GetOverlay()
		part := func() *agentrpc.OverlayChange {
			next := &agentrpc.OverlayChange{
				OverlayId: o.GetOverlayId(), AccountId: o.GetAccountId(), Vni: o.GetVni(), Cidr: o.GetCidr(), From: o.GetFrom(), To: o.GetTo(),
			}
			out = append(out, &agentrpc.Down{Kind: &agentrpc.Down_Overlay{Overlay: next}})
			return next
		}
		inPieces(o.GetPut(), messageSize, func(put []*agentrpc.OverlayMember) { part().Put = put })
		inPieces(o.GetGone(), textSize, func(gone []string) { part().Gone = gone })
	case msg.GetPeers() != nil:
		part := func() *agentrpc.PeerChange {
			next := &agentrpc.PeerChange{Full: msg.GetPeers().GetFull()}
			out = append(out, &agentrpc.Down{Kind: &agentrpc.Down_Peers{Peers: next}})
			return next
		}
		inPieces(msg.GetPeers().GetPut(), messageSize, func(put []*agentrpc.HostPeer) { part().Put = put })
		inPieces(msg.GetPeers().GetGone(), textSize, func(gone []string) { part().Gone = gone })
	case msg.GetStorage() != nil:
		for _, r := range msg.GetStorage().GetRoots() {
			inPieces(r.GetVolumes(), messageSize, func(volumes []*agentrpc.StorageVolume) {
				root := &agentrpc.StorageRoot{Backend: r.GetBackend(), OwnDir: r.GetOwnDir(), Fresh: r.GetFresh(), Volumes: volumes}
				out = append(out, &agentrpc.Down{Kind: &agentrpc.Down_Storage{Storage: &agentrpc.StorageSet{Roots: []*agentrpc.StorageRoot{root}}}})
			})
		}
	default:
		return []*agentrpc.Down{msg}
	}
	for i, part := range out {
		part.Part, part.More = uint32(i), i < len(out)-1 //nolint:gosec // few
	}
	return out
}

func messageSize[M proto.Message](m M) int { return proto.Size(m) }

func textSize(s string) int { return len(s) }

// inPieces hands a list on in pieces of about partSize. An empty one is one piece.
func inPieces[T any](list []T, sizeOf func(T) int, take func([]T)) {
	for first := true; first || len(list) > 0; first = false {
		size, n := 0, 0
		for ; n < len(list) && size < partSize; n++ {
			size += sizeOf(list[n]) + wireOverhead
		}
		take(list[:n:n])
		list = list[n:]
	}
}
