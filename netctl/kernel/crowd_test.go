package kernel

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gantry/netctl"
)

// crowd is a host with n pods, every second in one overlay, which has remote members too.
func crowd(t testing.TB, n, remote int) netctl.Config {
	t.Helper()
	c := config(t, "0a1b", "10.88.16.0/20", podIDs(n)...)
	c.Underlay = netctl.Underlay{Port: 4789, MTU: 1370, Plain: []netip.Addr{netip.MustParseAddr("192.0.2.2")}}
	o := netctl.Overlay{VNI: red, CIDR: overlayRange}
	for i := range n {
		c.Pods[i].IDBase = 0 // a user namespace costs a process, and is not what this is about
		if i%2 != 0 {
			continue
		}
		addr := netip.AddrFrom4([4]byte{10, 64, 1, byte(i)})
		c.Pods[i].Overlays = []netctl.Place{{VNI: red, Addr: addr, MAC: fmt.Sprintf("0a:67:0a:40:01:%02x", i), Link: "podnet1"}}
		o.Members = append(o.Members, netctl.Member{Addr: addr, MAC: c.Pods[i].Overlays[0].MAC})
	}
	return c.WithOverlay(withRemote(o, remote))
}

// withRemote is the overlay with members on another host.
func withRemote(o netctl.Overlay, n int) netctl.Overlay {
	o.Members = append([]netctl.Member(nil), o.Members...)
	for i := range n {
		hi, lo := byte(100+i>>8), byte(i)
		o.Members = append(o.Members, netctl.Member{
			Addr: netip.AddrFrom4([4]byte{10, 64, hi, lo}), MAC: fmt.Sprintf("0a:67:0a:40:%02x:%02x", hi, lo),
			Via: netctl.Via{Addr: netip.MustParseAddr("192.0.2.2")},
		})
	}
	return o
}

// TestOneChangeAmongManyPods keeps a datagram under way between two of 200 pods while others change.
func TestOneChangeAmongManyPods(t *testing.T) {
	ctx := context.Background()
	c := start(t, "0a1b")
	cfg := crowd(t, 200, 10)
	begun := time.Now()
	must(t, c.Set(ctx, cfg))
	t.Logf("set in %s", time.Since(begun))
	t.Cleanup(func() { disperse(t, cfg) })
	var inbox net.PacketConn
	var conn net.Conn
	must(t, within(ns("0a1b", "pod002"), func() (err error) {
		inbox, err = net.ListenPacket("udp4", "10.64.1.2:9")
		return err
	}))
	defer func() { _ = inbox.Close() }()
	must(t, within(ns("0a1b", "pod000"), func() (err error) {
		conn, err = net.Dial("udp4", "10.64.1.2:9")
		return err
	}))
	defer func() { _ = conn.Close() }()
	stop, lost := make(chan struct{}), make(chan error, 1)
	sent := 0
	go func() { lost <- tickUntil(stop, conn, inbox, &sent) }()

	const limit = 200 * time.Millisecond
	o, _ := cfg.Overlay(red)
	pod := netctl.NewPod("0a1b", "zulu", netip.MustParseAddr("10.88.31.1"))
	pod.Overlays = []netctl.Place{{VNI: red, Addr: netip.MustParseAddr("10.64.200.1"), MAC: "0a:67:0a:40:c8:01", Link: "podnet1"}}
	limited := cfg.Pods[50]
	limited.Mbps, limited.Closed = 500, true
	for name, change := range map[string]func(round int) error{
		"one member more": func(i int) error {
			return c.SetOverlay(ctx, withRemote(netctl.Overlay{VNI: red, CIDR: o.CIDR, Members: o.Members[:100]}, 11+i))
		},
		"one pod more":             func(int) error { return c.AddPod(ctx, pod) },
		"a pod's limit and policy": func(i int) error { limited.Mbps += i; return c.AddPod(ctx, limited) },
	} {
		fastest := time.Hour
		for round := 0; round < 3 && fastest > limit; round++ {
			begun := time.Now()
			must(t, change(round))
			fastest = min(fastest, time.Since(begun))
			must(t, c.RemovePod(ctx, "zulu"))
		}
		if t.Logf("%s: %s", name, fastest); fastest > limit {
			t.Errorf("%s took %s", name, fastest)
		}
	}
	close(stop)
	if err := <-lost; err != nil || sent < 20 {
		t.Errorf("after %d datagrams: %v", sent, err)
	}
}

// disperse lets the kernel take all links away with their namespaces at once: one by one it takes seconds.
func disperse(t *testing.T, cfg netctl.Config) {
	t.Helper()
	for _, p := range cfg.Pods {
		must(t, removeNamespace(p.Namespace))
	}
	eventually(t, "links stay without their namespaces", func() bool {
		_, err := net.InterfaceByName(netctl.LinkName(cfg.Instance, cfg.Pods[len(cfg.Pods)-1].ID))
		return err != nil
	})
}

// tickUntil sends one datagram after the other, each when the last has arrived.
func tickUntil(stop chan struct{}, conn net.Conn, inbox net.PacketConn, sent *int) error {
	buf := make([]byte, 8)
	for {
		select {
		case <-stop:
			return nil
		default:
		}
		if _, err := conn.Write([]byte("tick")); err != nil {
			return err
		}
		_ = inbox.SetReadDeadline(time.Now().Add(patience))
		if _, _, err := inbox.ReadFrom(buf); err != nil {
			return err
		}
		*sent++
	}
}

// BenchmarkOverlay measures one change among 200 pods, and an overlay with 10,000 members.
func BenchmarkOverlay(b *testing.B) {
	ctx := context.Background()
	c := start(b, "0a1b")
	cfg := crowd(b, 200, 0)
	must(b, c.Set(ctx, cfg))
	local, _ := cfg.Overlay(red)
	few, many, more := withRemote(local, 0), withRemote(local, 10_000), withRemote(local, 10_001)
	pod := newPod("0a1b", "zulu", netip.MustParseAddr("10.88.31.1"))
	pod.Overlays = []netctl.Place{{VNI: red, Addr: netip.MustParseAddr("10.64.200.1"), MAC: "0a:67:0a:40:c8:01", Link: "podnet1"}}
	b.Run("add-pod-among-200", func(b *testing.B) {
		for b.Loop() {
			must(b, c.AddPod(ctx, pod))
			b.StopTimer()
			must(b, c.RemovePod(ctx, pod.ID))
			b.StartTimer()
		}
	})
	b.Run("10000-members", func(b *testing.B) {
		for b.Loop() {
			must(b, c.SetOverlay(ctx, many))
			b.StopTimer()
			must(b, c.SetOverlay(ctx, few))
			b.StartTimer()
		}
	})
	must(b, c.SetOverlay(ctx, many))
	b.Run("one-more-of-10000", func(b *testing.B) {
		for b.Loop() {
			must(b, c.SetOverlay(ctx, more))
			b.StopTimer()
			must(b, c.SetOverlay(ctx, many))
			b.StartTimer()
		}
	})
	b.Run("add-pod-among-10000", func(b *testing.B) {
		for b.Loop() {
			must(b, c.AddPod(ctx, pod))
			b.StopTimer()
			must(b, c.RemovePod(ctx, pod.ID))
			b.StartTimer()
		}
	})
	b.Run("repair-10000-unchanged", func(b *testing.B) {
		begun := processorTime(b)
		for b.Loop() {
			must(b, c.Repair(ctx))
		}
		b.ReportMetric(float64((processorTime(b)-begun).Milliseconds())/float64(b.N), "cpu-ms/op")
	})
}

// processorTime is what this process has used of it, in the kernel too.
func processorTime(t testing.TB) time.Duration {
	t.Helper()
	var used unix.Rusage
	must(t, unix.Getrusage(unix.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
