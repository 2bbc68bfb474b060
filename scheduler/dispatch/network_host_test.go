package dispatch

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/scheduler/inside"
)

// answers plays a host that answers with text, in frames of a few bytes.
func answers(text string, last ...*agentrpc.Frame) func(*agentrpc.OpenTunnel, agentrpc.Link_TunnelClient) {
	return func(ask *agentrpc.OpenTunnel, stream agentrpc.Link_TunnelClient) {
		send(stream, &agentrpc.Frame{Id: ask.GetId()})
		for piece := range chunks([]byte(text)) {
			send(stream, &agentrpc.Frame{Data: piece})
		}
		send(stream, append(last, &agentrpc.Frame{End: true})...)
	}
}

func TestHostNetwork(t *testing.T) {
	w := newWire(t)
	w.server.HostTimeout = 20 * time.Millisecond // with hosts that are away
	w.host(func(ask *agentrpc.OpenTunnel, stream agentrpc.Link_TunnelClient) {
		if ask.GetNetwork() == nil || len(ask.GetNetwork().GetProbes()) > 0 {
			t.Errorf("asked for %v", ask)
		}
		answers(`{"desired":"bridge\n","real":"bridge\n","tunnel":"kernel","drops":[{"why":"spoofed","packets":3,"bytes":180}],
			"tunnels":[{"host":"h2","addr":"100.127.0.2","sent":7}]}`)(ask, stream)
	})
	got, err := w.server.HostNetwork(w.ctx, testHost)
	check(t, err)
	want := fleet.HostNetwork{
		Desired: "bridge\n", Real: "bridge\n", Tunnel: "kernel", Drops: []fleet.NetDrop{{Why: "spoofed", Packets: 3, Bytes: 180}},
		Tunnels: []fleet.TunnelPeer{{Host: "h2", Addr: "100.127.0.2", Sent: 7}},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	_, err = w.server.HostNetwork(w.ctx, "away")
	wantError(t, "away", err, fleet.CodeUnavailable, "the host cannot be reached")
	w.host(answers(`{"desired":"half`))
	_, err = w.server.HostNetwork(w.ctx, testHost)
	wantError(t, "half an answer", err, fleet.CodeUnavailable, "can be read")
	w.host(answers("", &agentrpc.Frame{Error: "no network"}))
	_, err = w.server.HostNetwork(w.ctx, testHost)
	wantError(t, "an error", err, fleet.CodeUnavailable, "no network")
	w.host(func(ask *agentrpc.OpenTunnel, stream agentrpc.Link_TunnelClient) {
		send(stream, &agentrpc.Frame{Id: ask.GetId(), Error: "it is being changed"})
	})
	_, err = w.server.HostNetwork(w.ctx, testHost)
	wantError(t, "refused", err, fleet.CodeUnavailable, "it is being changed")
	ctx, cancel := context.WithCancel(w.ctx)
	defer cancel()
	w.host(func(ask *agentrpc.OpenTunnel, stream agentrpc.Link_TunnelClient) {
		send(stream, &agentrpc.Frame{Id: ask.GetId()})
	})
	err = w.server.askNetwork(ctx, testHost, time.Minute, &agentrpc.NetworkTarget{}, func(c *inside.Stream) error {
		cancel() // of one that does not answer
		_, err := c.Recv()
		return err
	})
	wantError(t, "silent", err, fleet.CodeUnavailable, "did not answer in time")
}

func TestProbe(t *testing.T) {
	w := newWire(t)
	w.server.HostTimeout = 20 * time.Millisecond // with hosts that are away
	asked := []fleet.Probe{
		{From: "p1", To: "p2", Addr: "10.64.0.2"},
		{From: "p2", To: "p1", Addr: "10.64.0.1"},
		{From: "p1", To: "p3", Addr: "10.64.0.3"},
		{From: "p2", To: "p3", Addr: "10.64.0.3"},
	}
	const found = `{"from":"p1","to":"p3","addr":"10.64.0.3","ms":0.5}
{"from":"p1","to":"p2","addr":"10.64.0.2","ms":-1,"problem":"no answer"}
{"from":"p9","to":"p2","addr":"10.64.0.2","ms":1}
{"from":"p1","to":"p3","addr":"10.64.0.3","ms":0.9}
`
	w.host(func(ask *agentrpc.OpenTunnel, stream agentrpc.Link_TunnelClient) {
		var words []string
		for _, from := range ask.GetNetwork().GetProbes() {
			for _, to := range from.GetTo() {
				words = append(words, from.GetPodId()+">"+to.GetPodId()+"@"+to.GetAddr())
			}
		}
		if got := strings.Join(words, " "); got != "p1>p2@10.64.0.2 p1>p3@10.64.0.3 p2>p1@10.64.0.1 p2>p3@10.64.0.3" {
			t.Errorf("asked for %s", got)
		}
		answers(found+`{"from":"p2","to":"p1","addr":"10.64.0.1","ms":2}`+"\n{")(ask, stream)
	})
	got, err := w.server.Probe(w.ctx, testHost, asked)
	check(t, err)
	want := []fleet.Probe{
		{From: "p1", To: "p2", Addr: "10.64.0.2", Problem: "no answer"},
		{From: "p2", To: "p1", Addr: "10.64.0.1", Millis: 2},
		{From: "p1", To: "p3", Addr: "10.64.0.3", Millis: 0.5},
		{From: "p2", To: "p3", Addr: "10.64.0.3", Problem: "its host told nothing of it in time"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	w.host(answers("no JSON"))
	_, err = w.server.Probe(w.ctx, testHost, asked)
	wantError(t, "nothing that can be read", err, fleet.CodeUnavailable, "can be read")
	_, err = w.server.Probe(w.ctx, "away", asked)
	wantError(t, "away", err, fleet.CodeUnavailable, "the host cannot be reached")
}
