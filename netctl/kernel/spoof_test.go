package kernel

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestSpoofedSourcesAreDropped sends raw frames from a pod. Each bad one is followed
// by a good one on the same road: when the good one has arrived, the bad one would have.
func TestSpoofedSourcesAreDropped(t *testing.T) {
	newOutside(t)
	bridgeFilter(t, "0") // else the forward rules would cover for a port that is not isolated
	c := start(t, "0a1b")
	must(t, c.Set(context.Background(), config(t, "0a1b", "10.88.16.0/20", "alpha", "beta")))
	inbox := listenUDP(t, outsideName)
	beside := listenUDP(t, ns("0a1b", "beta"))
	good := frame{
		src: "0a:58:0a:58:10:02", dst: "0a:58:0a:58:10:01", kind: unix.ETH_P_IP,
		from: "10.88.16.2", to: outsideAddr, text: "good",
	}
	bad := map[string]func(*frame){
		"address of nobody":            func(f *frame) { f.from = "10.88.16.99" },
		"address of another pod":       func(f *frame) { f.from = "10.88.16.3" },
		"address of the gateway":       func(f *frame) { f.from = "10.88.16.1" },
		"address outside the subnet":   func(f *frame) { f.from = "198.51.100.77" },
		"hardware address of nobody":   func(f *frame) { f.src = "0a:58:00:00:00:99" },
		"hardware address of the host": func(f *frame) { f.src = "0a:58:0a:58:10:01" },
		"all of another pod's":         func(f *frame) { f.src, f.from = "0a:58:0a:58:10:03", "10.88.16.3" },
		"VLAN tag":                     func(f *frame) { f.vlan = true },
		"another pod, directly":        func(f *frame) { f.dst, f.to = "0a:58:0a:58:10:03", "10.88.16.3" },
		"another pod, by broadcast":    func(f *frame) { f.dst, f.to = "ff:ff:ff:ff:ff:ff", "10.88.16.3" },
		"another pod, through host":    func(f *frame) { f.to = "10.88.16.3" },
		"link-local":                   func(f *frame) { f.to = metaAddr },
	}
	for name, change := range bad {
		f := good
		f.text = "bad: " + name
		change(&f)
		send(t, ns("0a1b", "alpha"), f.bytes(t), good.bytes(t))
		if got := receive(t, inbox); got != "good" {
			t.Errorf("outside got %q", got)
			receive(t, inbox)
		}
	}
	// The same for the other pod's inbox: the host's own datagram is the good one.
	conn, err := net.Dial("udp4", "10.88.16.3:9")
	must(t, err)
	defer func() { _ = conn.Close() }()
	_, err = conn.Write([]byte("host"))
	must(t, err)
	if got := receive(t, beside); got != "host" {
		t.Errorf("the other pod got %q", got)
	}
}

func TestPodCannotPoisonNeighbours(t *testing.T) {
	newOutside(t)
	c := start(t, "0a1b")
	must(t, c.Set(context.Background(), config(t, "0a1b", "10.88.16.0/20", "alpha", "beta")))
	serve(t, ns("0a1b", "beta"), ":8080")
	reaches(t, "", "10.88.16.3:8080", "10.88.16.1")
	send(t, ns("0a1b", "alpha"),
		arp(t, "0a:58:0a:58:10:02", "0a:58:0a:58:10:02", "10.88.16.3"), // beta is at alpha's
		arp(t, "0a:58:0a:58:10:03", "0a:58:0a:58:10:03", "10.88.16.3"), // the bridge should learn beta's here
		arp(t, "0a:58:0a:58:10:02", "0a:58:0a:58:10:03", "10.88.16.2"),
		arp(t, "0a:58:0a:58:10:02", "0a:58:0a:58:10:02", "10.88.16.1"), // alpha is the gateway
	)
	reaches(t, "", "10.88.16.3:8080", "10.88.16.1")
	reaches(t, ns("0a1b", "beta"), outsideAddr+":80", uplinkAddr)
}

// bridgeFilter switches whether bridged frames pass the rules of routed ones, where
// the kernel can do that at all.
func bridgeFilter(t *testing.T, value string) {
	t.Helper()
	old, err := os.ReadFile(bridgeFilterPath)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	must(t, err)
	must(t, setBridgeFilter(value))
	t.Cleanup(func() { must(t, setBridgeFilter(string(old))) })
}

const bridgeFilterPath = "/proc/sys/net/bridge/bridge-nf-call-iptables"

// setBridgeFilter is bridgeFilter in the network namespace that the thread is in, which it leaves so.
func setBridgeFilter(value string) error {
	if err := os.WriteFile(bridgeFilterPath, []byte(value), 0o644); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

type frame struct {
	src, dst, from, to, text string
	kind                     uint16
	vlan                     bool
}

func (f frame) bytes(t *testing.T) []byte {
	t.Helper()
	out := append(mac(t, f.dst), mac(t, f.src)...)
	if f.vlan {
		out = append(out, 0x81, 0, 0, 5)
	}
	out = binary.BigEndian.AppendUint16(out, f.kind)
	ip := make([]byte, 20, 28+len(f.text))
	ip[0], ip[8], ip[9] = 0x45, 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(ip[2:], uint16(28+len(f.text)))
	copy(ip[12:], netip.MustParseAddr(f.from).AsSlice())
	copy(ip[16:], netip.MustParseAddr(f.to).AsSlice())
	binary.BigEndian.PutUint16(ip[10:], checksum(ip))
	ip = binary.BigEndian.AppendUint16(ip, 4000)
	ip = binary.BigEndian.AppendUint16(ip, 9)
	ip = binary.BigEndian.AppendUint16(ip, uint16(8+len(f.text)))
	ip = append(ip, 0, 0) // no checksum
	return append(append(out, ip...), f.text...)
}

// arp is an unasked answer to everyone.
func arp(t *testing.T, src, hw, addr string) []byte {
	t.Helper()
	out := append(mac(t, "ff:ff:ff:ff:ff:ff"), mac(t, src)...)
	out = append(out, 8, 6, 0, 1, 8, 0, 6, 4, 0, 2)
	for range 2 {
		out = append(append(out, mac(t, hw)...), netip.MustParseAddr(addr).AsSlice()...)
	}
	return out
}

func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

func mac(t *testing.T, s string) net.HardwareAddr {
	t.Helper()
	m, err := net.ParseMAC(s)
	must(t, err)
	return m
}

// send has the pod's own root send frames.
func send(t *testing.T, name string, frames ...[]byte) {
	t.Helper()
	words := []string{"send"}
	for _, f := range frames {
		words = append(words, hex.EncodeToString(f))
	}
	must(t, asTenant(name, words...))
}

func listenUDP(t *testing.T, name string) net.PacketConn {
	t.Helper()
	var conn net.PacketConn
	must(t, within(name, func() (err error) {
		conn, err = net.ListenPacket("udp4", ":9")
		return err
	}))
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func receive(t *testing.T, conn net.PacketConn) string {
	t.Helper()
	must(t, conn.SetReadDeadline(time.Now().Add(patience)))
	buf := make([]byte, 256)
	n, _, err := conn.ReadFrom(buf)
	must(t, err)
	return string(buf[:n])
}
