package main

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"gantry/api/v2"
	"gantry/fleet"
	"gantry/test/plane"
)

// holds asserts that a text has all of the parts.
func holds(t *testing.T, what, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%s lacks %q:\n%s", what, part, text)
		}
	}
}

func TestNetworksThroughTheRealFace(t *testing.T) {
	s := newSite(t)
	holds(t, "net list", s.good("net list"), "There is no private network yet")
	holds(t, "net check", s.good("net check"), "There is nothing to check")
	holds(t, "put", s.good("admin datacenter put dev-1 --global-network --underlay private"), "private")
	holds(t, "put", s.good("admin datacenter put dev-1 --country DE"), "private", "DE") // it stays
	first := s.create("pod create a busybox --global-networking", "--gpu", plane.SimGPU)
	second := s.create("pod create b busybox --global-networking", "--gpu", plane.SimGPU)
	s.report(first, fleet.EventRunning)
	s.report(second, fleet.EventRunning)
	name := func(id fleet.PodID) string { return string(id) + ".gantry.internal" }
	holds(t, "pod get", s.good("pod get a"), "Network:      10.64.0.2 "+name(first)+"\n")
	holds(t, "net list", s.good("net list"), "Range:     10.64.0.0/16", "VXLAN id:  4096", "Pods:      2", "10.64.0.3  "+name(second))
	holds(t, "net check", s.good("net check"), "FROM \\ TO", "0.25", "2 pods, 2 probes, 2 answered\n")
	s.plane.Mute(second, "no answer within 1 s")
	var out bytes.Buffer
	code, text := s.run(context.Background(), &out, "net check")
	if code != exitFailed || text != "gantry: 1 of 2 probes got no answer\n" {
		t.Errorf("status %d: %s", code, text)
	}
	holds(t, "net check", out.String(), " x", "a to b (10.64.0.3): no answer within 1 s\n")
	out.Reset()
	if code, _ = s.run(context.Background(), &out, "net check --account "+string(plane.Research)); code != exitFailed {
		t.Errorf("status %d", code)
	}
	holds(t, "net check --account", out.String(), string(first)+" to "+string(second)+" (10.64.0.3): no answer within 1 s\n")
	s.bad(exitNotFound, "net check --account none0000000001")

	s.good("pod update a --no-global-networking") // from its next start on
	holds(t, "pod get", s.good("pod get a"), name(first))
	s.good("pod restart a")
	if out := s.good("pod get a"); strings.Contains(out, name(first)) {
		t.Errorf("after it left:\n%s", out)
	}
}

func TestNetworkSettingsThroughTheRealFace(t *testing.T) {
	s := newSite(t)
	holds(t, "get", s.good("admin network get"), "10.64.0.0/10, of which each network gets a /16", "gantry.internal, or runpod.internal", "Bandwidth limit:  none", "5m0s after its pod is gone")
	holds(t, "set", s.good("admin network set --pod-mbps 1000 --suffix lab.internal --alias gantry.internal --grace 1m"),
		"1000 Mbit/s each way", "lab.internal, or gantry.internal\n", "1m0s after")
	holds(t, "set", s.good("admin network set --no-alias"), "Names end with:   lab.internal\n")
	s.bad(exitUsage, "admin network set")
	s.bad(exitUsage, "admin network set --grace 1500ms")
	s.bad(exitUsage, "admin network set --no-alias --alias a.b")
	s.bad(exitUsage, "admin network set --pool here")
	account := string(plane.Research)
	holds(t, "egress", s.good("account update "+account+" --egress none"), "Egress:   none")
	holds(t, "egress", s.good("account show"), "Egress:   none")
	if out := s.good("account update " + account + " --egress open"); strings.Contains(out, "Egress") {
		t.Errorf("open:\n%s", out)
	}
	s.bad(exitUsage, "account update "+account+" --egress some")
	s.bad(exitUsage, "admin datacenter put dev-1 --underlay plain")
}

func TestHostNetworkThroughTheRealFace(t *testing.T) {
	s := newSite(t)
	s.plane.SetHostNetwork(plane.Host, fleet.HostNetwork{
		Desired: "bridge gb4096\nlink go1\nlink go2\n", Real: "bridge gb4096\nlink go2\nlink go9\n", Steps: []string{"add link go1", "remove link go9"},
		Problems: []string{"The tunnel to host0000000002 has no answer."}, Drops: []fleet.NetDrop{{Why: "spoofed", Packets: 3, Bytes: 1800}, {Why: "new-word"}}, Tunnel: "user space",
		Tunnels: []fleet.TunnelPeer{
			{Host: plane.CommunityHost, Addr: "100.127.0.2", Endpoint: "203.0.113.9:51820", Handshake: plane.Start().Add(-time.Minute), Received: 1500, Sent: 2},
			{Host: "host0000000003", Addr: "100.127.0.3", Plain: true},
			{Host: "host0000000004", Addr: "100.127.0.4"},
		},
	})
	const want = `Network:  2 steps away from what it should be
Tunnel:   WireGuard in a process, since the kernel has none
Problem: The tunnel to host0000000002 has no answer.
To do: add link go1
To do: remove link go9

TO HOST         ADDRESS      HEARD FROM         HOW        HANDSHAKE  RECEIVED  SENT
host0000000002  100.127.0.2  203.0.113.9:51820  encrypted  1m00s ago  1.5 kB    2 B
host0000000003  100.127.0.3  -                  plain      -          0 B       0 B
host0000000004  100.127.0.4  -                  encrypted  never      0 B       0 B

DROPPED   PACKETS  BYTES   WHAT
spoofed   3        1.8 kB  from a pod, with a source that is not its own
new-word  0        0 B     -
`
	host := string(plane.Host)
	if got := s.good("net show of-dev-1"); got != want {
		t.Errorf("got:\n%s", got)
	}
	if got := s.good("net show --text " + host); got != want+"\n  bridge gb4096\n- link go1\n  link go2\n+ link go9\n" {
		t.Errorf("got:\n%s", got)
	}
	s.plane.SetHostNetwork(plane.Host, fleet.HostNetwork{Tunnel: "kernel"})
	if got := s.good("net show " + host); got != "Network:  as it should be\nTunnel:   WireGuard of the kernel\n" {
		t.Errorf("got:\n%s", got)
	}
	s.bad(exitNotFound, "net show nowhere")
}

// TestDropsAreExplained holds the meanings of dropped packets against the table for operators.
func TestDropsAreExplained(t *testing.T) {
	text, err := os.ReadFile("../../docs/networking.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "## What is dropped")
	var words []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z]+)` \\|").FindAllStringSubmatch(table, -1) {
		words = append(words, row[1])
	}
	slices.Sort(words)
	if known := slices.Sorted(maps.Keys(dropMeanings)); !slices.Equal(words, known) {
		t.Errorf("docs/networking.md has %v, net show %v", words, known)
	}
}

// TestCheckShowsPodsByAddress has those first that nobody looked for.
func TestCheckShowsPodsByAddress(t *testing.T) {
	probe := func(from, to, ip string) v2.Probe {
		return v2.Probe{From: from, To: to, IP: ip, OK: true, Millis: new(0.5)}
	}
	got := checkText([]v2.Probe{probe("a", "z", "10.64.0.9"), probe("z", "b", "10.64.0.10"), probe("y", "b", "10.64.0.10")}, nil)
	const want = `MS FROM \ TO  a  y  z    b
a             -  -  0.5  -
y             -  -  -    0.5
z             -  -  -    0.5
b             -  -  -    -
`
	if got = laid(t, got, 0); !strings.HasPrefix(got, want) {
		t.Errorf("got:\n%s", got)
	}
}

// TestCheckOfManyPods shows no matrix where it would be too wide, and still what failed.
func TestCheckOfManyPods(t *testing.T) {
	var all []v2.Probe
	for from := range 11 {
		for to := range 11 {
			if from != to {
				all = append(all, v2.Probe{From: fmt.Sprint("pod", from), To: fmt.Sprint("pod", to), IP: "10.64.0.9", OK: true, Millis: new(0.5)})
			}
		}
	}
	all[0].OK, all[0].Millis, all[0].Problem = false, nil, "nothing\x1b came"
	const want = "pod0 to pod1 (10.64.0.9): nothing\ufffd came\n11 pods, 110 probes, 109 answered\n"
	if got := checkText(all, nil); got != want {
		t.Errorf("got:\n%s", got)
	}
}
