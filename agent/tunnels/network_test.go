package tunnels

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gantry/agent/overlay"
	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/netctl"
)

// TestNetworkThroughATunnel asks for the host's network, and for who reaches whom.
func TestNetworkThroughATunnel(t *testing.T) {
	d := newDesk(t)
	host := netctl.Config{Instance: "0a1b", Subnet: netip.MustParsePrefix("10.88.0.0/20"), MTU: 1500}
	control := netctl.NewFake(netctl.NewFakeKernel(), "0a1b")
	d.must(control.Set(t.Context(), host))
	dir := t.TempDir()
	keeper := overlay.New(overlay.Config{
		Host: "h1", Control: control, Resolv: filepath.Join(dir, "resolv.conf"), File: filepath.Join(dir, "networks.bin"),
		Changed: func() {}, Log: slog.New(slog.DiscardHandler),
	}, host)
	d.t.Overlays, d.t.Public = keeper, func() []netip.Addr { return nil }
	d.t.Pinger = func(fleet.PodID) (*overlay.Pinger, error) { return overlay.OpenPinger() }
	ask := func(probes ...*agentrpc.ProbeFrom) string {
		tunnel, first := d.open(d.ctx, &agentrpc.OpenTunnel{Target: &agentrpc.OpenTunnel_Network{Network: &agentrpc.NetworkTarget{Probes: probes}}})
		defer close(tunnel.leave)
		text := first.GetError()
		for {
			f, err := tunnel.Recv()
			d.must(err)
			if text += string(f.GetData()); f.GetEnd() {
				return text
			}
		}
	}
	var is fleet.HostNetwork
	d.must(json.Unmarshal([]byte(ask()), &is))
	if !strings.Contains(is.Real, "bridge gn0a1b") || is.Tunnel != "none" || is.Problems == nil {
		t.Errorf("%+v", is)
	}
	to := []*agentrpc.ProbeTo{{PodId: "x", Addr: "127.0.0.1"}, {PodId: "y", Addr: "255.255.255.254"}, {PodId: "z", Addr: "nowhere"}, {PodId: "w", Addr: "::1"}}
	lines := strings.Split(strings.TrimSpace(ask(&agentrpc.ProbeFrom{PodId: "pod1", To: to}, &agentrpc.ProbeFrom{PodId: "waiting", To: to[:1]})), "\n")
	got := map[string]fleet.Probe{}
	for _, line := range lines {
		var p fleet.Probe
		d.must(json.Unmarshal([]byte(line), &p))
		got[string(p.From)+" "+string(p.To)] = p
	}
	if p := got["pod1 x"]; p.Millis <= 0 || p.Problem != "" || p.Addr != "127.0.0.1" {
		t.Errorf("an address that answers: %+v", p)
	}
	d.t.Pinger = func(fleet.PodID) (*overlay.Pinger, error) { return nil, errors.New("words that are for nobody") }
	if text := ask(&agentrpc.ProbeFrom{PodId: "pod1", To: to[:1]}); !strings.Contains(text, `"the pod's network could not be used"`) {
		t.Errorf("of a network that cannot be used is told %s", text)
	}
	many := &agentrpc.ProbeFrom{PodId: "waiting", To: slices.Repeat(to[:1], maxProbes)}
	if lines := strings.Split(strings.TrimSpace(ask(many)), "\n"); len(lines) != maxProbes {
		t.Errorf("%d answers came to as many questions as there may be", len(lines))
	}
	refused := func(want string) {
		t.Helper()
		tunnel, first := d.open(d.ctx, &agentrpc.OpenTunnel{Target: &agentrpc.OpenTunnel_Network{Network: &agentrpc.NetworkTarget{Probes: []*agentrpc.ProbeFrom{many}}}})
		close(tunnel.leave)
		if first.GetError() != want {
			t.Errorf("refused with %v, not %q", first, want)
		}
	}
	many.To = append(many.To, to[0])
	refused("8193 probes are too many at once")
	d.t.Overlays = nil
	refused("this host takes no part in private networks")
	if len(got) != 5 || got["pod1 y"].Problem != "no answer came within a second" || got["pod1 z"].Problem != "no answer came within a second" || got["waiting x"].Problem != "the pod does not run" {
		t.Errorf("%+v", got)
	}
}
