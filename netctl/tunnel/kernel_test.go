package tunnel

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/ipc"
	"golang.zx2c4.com/wireguard/tun"
)

// standIn is a link that is configured as the kernel's would be, on a machine whose kernel has none.
func standIn(t *testing.T, name string) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(unix.Mount("tmpfs", "/run", "tmpfs", 0, "")) // of this process alone
	t.Cleanup(func() { _ = unix.Unmount("/run", unix.MNT_DETACH) })
	link, err := tun.CreateTUN(name, 1420)
	must(err)
	d := device.NewDevice(link, conn.NewStdNetBind(), device.NewLogger(device.LogLevelSilent, ""))
	t.Cleanup(d.Close)
	file, err := ipc.UAPIOpen(name)
	must(err)
	l, err := ipc.UAPIListen(name, file)
	must(err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go d.IpcHandle(c)
		}
	}()
}

// TestKernelLink: all but the making of the link, on a stand-in that wgctrl speaks to over a socket.
func TestKernelLink(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if _, err := os.Stat("/var/run"); err != nil {
		t.Fatal(err)
	}
	standIn(t, "gw0a0b")
	k := NewKernel("0a0b", slog.New(slog.DiscardHandler))
	k.typ = "tuntap"
	want := Config{
		Instance: "0a0b", Addr: netip.MustParseAddr("100.127.0.1"), Range: netip.MustParsePrefix("100.127.0.0/16"), ListenPort: 51820, VXLANPort: 4789,
		MTU: 1370, Key: NewKey(),
	}
	for i := range 3 {
		want.Peers = append(want.Peers, Peer{
			Host: fmt.Sprint("host", i), PublicKey: NewKey().Public(), Addr: netip.AddrFrom4([4]byte{100, 127, 1, byte(i)}),
			Endpoint: netip.MustParseAddrPort("192.0.2.7:51820"), Keepalive: 25 * time.Second,
		})
	}
	want.Peers[2].Endpoint = netip.AddrPort{}
	set := func() {
		t.Helper()
		if err := k.Set(t.Context(), want); err != nil {
			t.Fatal(err)
		}
		check(t, k, want)
	}
	set()
	set()
	want.Peers[0].PublicKey = NewKey().Public() // its key is another
	want.Peers[1].Endpoint = netip.MustParseAddrPort("192.0.2.8:1")
	want.Peers = want.Peers[:2]
	set()
	want.Key, want.MTU, want.Addr = NewKey(), 1300, netip.MustParseAddr("100.127.0.9")
	set()
	if err := k.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := k.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := netlink.LinkByName("gw0a0b"); err == nil {
		t.Error("the link is there")
	}
}

func check(t *testing.T, k *Kernel, want Config) {
	t.Helper()
	l, err := netlink.LinkByName("gw0a0b")
	if err != nil {
		t.Fatal(err)
	}
	addrs, err := netlink.AddrList(l, unix.AF_INET)
	if err != nil || len(addrs) != 1 || addrs[0].IPNet.String() != want.Addr.String()+"/32" {
		t.Errorf("addresses %v: %v", addrs, err)
	}
	routes, err := netlink.RouteList(l, unix.AF_INET)
	if err != nil || len(routes) != 1 || routes[0].Dst.String() != want.Range.String() || routes[0].Src.String() != want.Addr.String() {
		t.Errorf("routes %v: %v", routes, err)
	}
	if l.Attrs().MTU != want.MTU+Overhead || l.Attrs().RawFlags&unix.IFF_UP == 0 {
		t.Errorf("link %+v", l.Attrs())
	}
	peers, err := k.Peers(t.Context())
	if err != nil || len(peers) != len(want.Peers) {
		t.Fatalf("peers %v: %v", peers, err)
	}
	for i, p := range want.Peers {
		if got := peers[i]; got.Host != p.Host || got.Addr != p.Addr || got.Endpoint != p.Endpoint {
			t.Errorf("peer %+v, want %+v", got, p)
		}
	}
}

// TestSupportedLeavesNothing: whether the kernel has it or not, a try leaves no link.
func TestSupportedLeavesNothing(t *testing.T) {
	t.Logf("the kernel has WireGuard: %v", Supported())
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if l.Type() == kernelLink {
			t.Errorf("%s was left", l.Attrs().Name)
		}
	}
}
