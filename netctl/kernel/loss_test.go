package kernel

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"
)

// TestUntouchedPodLosesNothing keeps one datagram of a pod under way while other
// pods come and go and all rules are written anew.
func TestUntouchedPodLosesNothing(t *testing.T) {
	newOutside(t)
	ctx := context.Background()
	c := start(t, "0a1b")
	cfg := config(t, "0a1b", "10.88.16.0/20", "alpha")
	must(t, c.Set(ctx, cfg))
	inbox := listenUDP(t, outsideName)
	var conn net.Conn
	must(t, within(ns("0a1b", "alpha"), func() (err error) {
		conn, err = net.Dial("udp4", outsideAddr+":9")
		return err
	}))
	defer func() { _ = conn.Close() }()

	stop, lost := make(chan struct{}), make(chan error, 1)
	sent, slowest := 0, time.Duration(0)
	go func() {
		buf := make([]byte, 8)
		for {
			select {
			case <-stop:
				lost <- nil
				return
			default:
			}
			begun := time.Now()
			_, err := conn.Write([]byte("tick"))
			if err == nil {
				_ = inbox.SetReadDeadline(time.Now().Add(patience))
				_, _, err = inbox.ReadFrom(buf)
			}
			if err != nil {
				lost <- err
				return
			}
			sent++
			slowest = max(slowest, time.Since(begun))
		}
	}()
	for round := range 3 {
		next := cfg.Clone()
		for i, id := range podIDs(4) {
			next = next.With(newPod("0a1b", id, netip.AddrFrom4([4]byte{10, 88, 20, byte(10*round + i)})))
		}
		next.Deny = []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(round)}), 32)}
		must(t, c.Set(ctx, next))
		must(t, c.AddPod(ctx, newPod("0a1b", "extra", netip.MustParseAddr("10.88.31.9"))))
		must(t, c.RemovePod(ctx, "extra"))
	}
	must(t, c.Set(ctx, cfg))
	close(stop)
	// A second is what a lost ARP request costs.
	if err := <-lost; err != nil || sent < 100 || slowest > time.Second/2 {
		t.Errorf("after %d datagrams, the slowest in %s: %v", sent, slowest, err)
	}
	t.Logf("%d datagrams, the slowest in %s", sent, slowest)
}
