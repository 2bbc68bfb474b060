package overlay

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"

	"google.golang.org/protobuf/encoding/protodelim"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/atomicfile"
)

const (
	mostMessage = 64 << 20 // bytes of one message of the file
	mostFaults  = 10       // after which the rest of a file is not read
)

// The file holds the messages that would tell all of it anew, one after the other. So whatever reads them off the link
// reads them here.

// encode writes down what is known.
func (t *desired) encode() ([]byte, error) {
	var out bytes.Buffer
	for _, m := range t.messages() {
		if _, err := protodelim.MarshalTo(&out, m); err != nil {
			return nil, fmt.Errorf("encode what is known of private networks: %w", err)
		}
	}
	return out.Bytes(), nil
}

func (t *desired) messages() []*agentrpc.Down {
	if t.set == nil {
		return nil
	}
	out := []*agentrpc.Down{{Kind: &agentrpc.Down_Network{Network: t.set}}}
	peers := &agentrpc.PeerChange{Full: true}
	for _, id := range slices.Sorted(maps.Keys(t.peers)) {
		peers.Put = append(peers.Put, encodePeer(id, t.peers[id]))
	}
	out = append(out, &agentrpc.Down{Kind: &agentrpc.Down_Peers{Peers: peers}})
	for _, id := range slices.Sorted(maps.Keys(t.overlays)) {
		n := t.overlays[id]
		if n.asked {
			continue // it is not as it should be
		}
		change := &agentrpc.OverlayChange{OverlayId: string(id), AccountId: string(n.account), Vni: n.vni, Cidr: n.cidr.String(), To: n.rev}
		for _, m := range n.members {
			change.Put = append(change.Put, &agentrpc.OverlayMember{Addr: m.addr.String(), PodId: string(m.pod), Name: m.name, HostId: string(m.host)})
		}
		out = append(out, &agentrpc.Down{Kind: &agentrpc.Down_Overlay{Overlay: change}})
	}
	return out
}

func encodePeer(id fleet.HostID, p peer) *agentrpc.HostPeer {
	out := &agentrpc.HostPeer{HostId: string(id), PublicKey: p.key}
	if p.addr.IsValid() {
		out.TunnelAddr = p.addr.String()
	}
	if p.endpoint.IsValid() {
		out.Endpoint = p.endpoint.String()
	}
	if p.plain.IsValid() {
		out.Plain = p.plain.String()
	}
	return out
}

// write writes what was encoded, as a whole or not at all.
func write(file string, text []byte) error {
	if err := atomicfile.Write(file, text, 0o600); err != nil {
		return fmt.Errorf("keep what is known of private networks: %w", err)
	}
	return nil
}

// read reads what write wrote; no file is nothing. Beside an error it returns all that could be read: what one message says may be
// of another version of the agent.
func read(file string) (desired, error) {
	t := newDesired()
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return t, nil
	}
	if err != nil {
		return t, fmt.Errorf("read what is known of private networks: %w", err)
	}
	defer func() { _ = f.Close() }()
	in := bufio.NewReader(f)
	var faults []error
	for len(faults) < mostFaults {
		var m agentrpc.Down
		err := protodelim.UnmarshalOptions{MaxSize: mostMessage}.UnmarshalFrom(in, &m)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			faults = append(faults, err)
			break
		}
		if _, err := t.hear(&m); err != nil {
			faults = append(faults, err)
		}
	}
	if err := errors.Join(faults...); err != nil {
		return t, fmt.Errorf("read what is known of private networks in %s: %w", file, err)
	}
	return t, nil
}

// hear takes a message that is for it. gap asks for everything.
func (t *desired) hear(m *agentrpc.Down) (gap bool, err error) {
	switch {
	case m.GetNetwork() != nil:
		return false, t.take(m.GetNetwork())
	case m.GetPeers() != nil:
		return false, t.changePeers(m.GetPeers())
	case m.GetOverlay() != nil:
		return t.change(m.GetOverlay())
	}
	return false, nil
}
