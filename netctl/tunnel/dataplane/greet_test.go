package dataplane

import (
	"crypto/ecdh"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"gantry/netctl/tunnel"
)

// TestGreetingsCross: two hosts that begin a session at the same time have one soon.
func TestGreetingsCross(t *testing.T) {
	var keys [2]*ecdh.PrivateKey
	var wires [2]*net.UDPConn // wires[i] is where host i calls the other one
	for i := range wires {
		c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		wires[i] = c
		if keys[i], err = ecdh.X25519().GenerateKey(rand.Reader); err != nil {
			t.Fatal(err)
		}
	}
	servers := [2]*Server{NewServer(slog.New(slog.DiscardHandler)), NewServer(slog.New(slog.DiscardHandler))}
	for i, s := range servers {
		defer s.Close()
		order := tunnel.Order{
			Addr: netip.AddrFrom4([4]byte{100, 127, 0, byte(i + 1)}), VXLANPort: 4789, MTU: 1370, Key: keys[i].Bytes(),
			Peers: []tunnel.OrderPeer{{
				Key: keys[1-i].PublicKey().Bytes(), Addr: netip.AddrFrom4([4]byte{100, 127, 0, byte(2 - i)}),
				Endpoint: wires[i].LocalAddr().(*net.UDPAddr).AddrPort(),
			}},
		}
		body, err := json.Marshal(order)
		if err == nil {
			_, err = s.Handle(t.Context(), tunnel.VerbConfig, body, nil)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	cross(t, wires)
	for end := time.Now().Add(4 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		var states [2]tunnel.State
		for i, s := range servers {
			var err error
			if states[i], err = s.state(); err != nil {
				t.Fatal(err)
			}
		}
		if !states[0].Peers[0].Handshake.IsZero() && !states[1].Peers[0].Handshake.IsZero() {
			return
		}
		if time.Now().After(end) {
			t.Fatal("there is no session", fmt.Sprintf("%+v", states))
		}
	}
}

// cross carries what hosts send to each other, until the test ends. The first packets of both are on their way at the same time.
func cross(t *testing.T, wires [2]*net.UDPConn) {
	t.Helper()
	var first [2][]byte
	var hosts [2]netip.AddrPort
	for i, w := range wires {
		buf := make([]byte, 2048)
		if err := w.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
			t.Fatal(err)
		}
		n, from, err := w.ReadFromUDPAddrPort(buf)
		if err != nil {
			t.Fatal(err)
		}
		first[i], hosts[i] = buf[:n], from
	}
	for i, w := range wires {
		_ = w.SetReadDeadline(time.Time{})
		if _, err := wires[1-i].WriteToUDPAddrPort(first[i], hosts[1-i]); err != nil {
			t.Fatal(err)
		}
		go func() { // ends with the connection
			buf := make([]byte, 2048)
			for {
				n, _, err := w.ReadFromUDPAddrPort(buf)
				if err != nil {
					return
				}
				_, _ = wires[1-i].WriteToUDPAddrPort(buf[:n], hosts[1-i])
			}
		}()
	}
}
