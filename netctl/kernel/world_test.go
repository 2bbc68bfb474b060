package kernel

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"gantry/netctl"
)

const (
	outsideName = "outside"
	outsideAddr = "198.51.100.2"
	uplinkAddr  = "198.51.100.1"
	metaAddr    = "169.254.169.254"
	patience    = 2 * time.Minute
	refusal     = 250 * time.Millisecond // how long a dial that must fail is given
)

// newOutside makes a namespace beyond the host's uplink and starts an echo server on
// TCP port 80 there, which answers with the address it sees.
func newOutside(t testing.TB) {
	t.Helper()
	if err := shareNamespaces(); err != nil {
		t.Fatal(err)
	}
	before := census(t)
	ns, _, err := ensureNamespace(outsideName, 0, false)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	veth := &netlink.Veth{LinkAttrs: linkAttrs("up0", 1500, nil), PeerName: "eth0", PeerTxQLen: -1, PeerNamespace: netlink.NsFd(ns.file.Fd())}
	must(t, netlink.LinkAdd(veth))
	t.Cleanup(func() {
		must(t, netlink.LinkDel(veth))
		must(t, removeNamespace(outsideName))
		if after := census(t); after != before {
			t.Errorf("left behind:\n%s\nwas:\n%s", after, before)
		}
	})
	must(t, netlink.AddrAdd(veth, addrOf(netip.MustParsePrefix(uplinkAddr+"/24"))))
	must(t, netlink.LinkSetUp(veth))
	eth, err := ns.nl.LinkByName("eth0")
	must(t, err)
	lo, err := ns.nl.LinkByName("lo")
	must(t, err)
	must(t, ns.nl.AddrAdd(eth, addrOf(netip.MustParsePrefix(outsideAddr+"/24"))))
	must(t, ns.nl.AddrAdd(lo, addrOf(netip.MustParsePrefix(metaAddr+"/32"))))
	must(t, ns.nl.LinkSetUp(eth))
	must(t, ns.nl.LinkSetUp(lo))
	must(t, waitUp(context.Background(), ns.nl, "eth0"))
	must(t, within("", func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		must(t, err)
		defer h.Close()
		return waitUp(context.Background(), h, "up0")
	}))
	must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: veth.Index, Dst: addrOf(netip.MustParsePrefix(metaAddr + "/32")).IPNet, Gw: net.ParseIP(outsideAddr)}))
	serve(t, outsideName, ":80")
}

// serve answers every TCP connection with its peer's address until the test ends. An empty
// namespace name is the host.
func serve(t testing.TB, ns, addr string) {
	t.Helper()
	t.Cleanup(serveUntil(t, ns, addr))
}

// serveUntil is serve until the returned stop is called.
func serveUntil(t testing.TB, ns, addr string) (stop func()) {
	t.Helper()
	var l net.Listener
	must(t, within(ns, func() (err error) {
		l, err = net.Listen("tcp4", addr)
		return err
	}))
	done := make(chan struct{})
	go func() {
		defer close(done)
		answer(l)
	}()
	return func() {
		_ = l.Close()
		<-done
	}
}

// answer tells everybody who connects from where, until the listener is closed.
func answer(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
		_ = c.SetDeadline(time.Now().Add(patience))
		_, _ = io.WriteString(c, host)
		_ = c.Close()
	}
}

// ask dials and returns what serve says.
func ask(ns, addr string, wait time.Duration) (string, error) {
	var text []byte
	err := within(ns, func() error {
		c, err := net.DialTimeout("tcp4", addr, wait)
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		_ = c.SetDeadline(time.Now().Add(patience))
		text, err = io.ReadAll(c)
		return err
	})
	return string(text), err
}

func within(ns string, f func() error) error {
	if ns == "" {
		return f()
	}
	return onOwnThread(func() error {
		file, err := os.Open(filepath.Join(netnsDir, ns))
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }()
		if err := unix.Setns(int(file.Fd()), unix.CLONE_NEWNET); err != nil {
			return err
		}
		return f()
	})
}

func reaches(t testing.TB, ns, addr, seenAs string) {
	t.Helper()
	got, err := ask(ns, addr, patience)
	if err != nil || got != seenAs {
		t.Errorf("%s to %s: answer %q, %v; want to be seen as %s", ns, addr, got, err, seenAs)
	}
}

func refused(t testing.TB, ns, addr string) {
	t.Helper()
	if got, err := ask(ns, addr, refusal); err == nil {
		t.Errorf("%s reached %s, seen as %s", ns, addr, got)
	}
}

// start returns a controller that is cleaned and closed with the test.
func start(t testing.TB, instance string) *Controller {
	t.Helper()
	c, err := New(instance, slog.New(slog.DiscardHandler))
	must(t, err)
	t.Cleanup(func() {
		must(t, c.Clean(context.Background()))
		if left := objectsOf(t, instance); left != "" {
			t.Errorf("clean left of %s:\n%s", instance, left)
		}
		c.Close()
	})
	return c
}

func config(t testing.TB, instance, subnet string, ids ...string) netctl.Config {
	t.Helper()
	c := netctl.Config{Instance: instance, Subnet: netip.MustParsePrefix(subnet), MTU: 1500}
	used := map[netip.Addr]bool{}
	for _, id := range ids {
		a, err := netctl.NextAddr(c.Subnet, used)
		must(t, err)
		used[a] = true
		c = c.With(newPod(instance, id, a))
	}
	return c
}

// newPod is a pod as an agent has it: in a user namespace of its own.
func newPod(instance, id string, addr netip.Addr) netctl.Pod {
	p := netctl.NewPod(instance, id, addr)
	low := addr.As4()
	p.IDBase = 0x10000000 + uint32(low[2]&15)<<24 + uint32(low[3])<<16
	return p
}

func ns(instance, id string) string { return netctl.NamespaceName(instance, id) }

// census lists what this process's network could leak.
func census(t testing.TB) string {
	t.Helper()
	var lines []string
	links, err := retry(netlink.LinkList)
	must(t, err)
	for _, l := range links {
		lines = append(lines, "link "+l.Attrs().Name)
	}
	names, err := listNamespaces("")
	must(t, err)
	for _, n := range names {
		lines = append(lines, "netns "+n)
	}
	for _, l := range strings.Split(nft(t, "list", "tables"), "\n") {
		if l != "" {
			lines = append(lines, l)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	for _, l := range strings.Split(string(mounts), "\n") {
		if f := strings.Fields(l); len(f) > 4 && strings.HasPrefix(f[4], netnsDir+"/") {
			lines = append(lines, "mount "+f[4])
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func objectsOf(t testing.TB, instance string) string {
	t.Helper()
	var out []string
	for _, l := range strings.Split(census(t), "\n") {
		if strings.Contains(l, instance) {
			out = append(out, l)
		}
	}
	return strings.Join(out, "\n")
}

func nft(t testing.TB, args ...string) string {
	t.Helper()
	out, err := exec.Command("nft", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("nft %v: %v\n%s", args, err, out)
	}
	return string(out)
}

// threadsAtHome checks that no thread was left in another namespace.
func threadsAtHome(t testing.TB) {
	t.Helper()
	home, err := os.Readlink("/proc/self/ns/net")
	must(t, err)
	tasks, err := filepath.Glob("/proc/self/task/*/ns/net")
	must(t, err)
	deadline := time.Now().Add(patience)
	for _, task := range tasks {
		for {
			at, err := os.Readlink(task)
			if err != nil || at == home {
				break // the thread ended, or is where it belongs
			}
			if time.Now().After(deadline) {
				t.Errorf("%s is in %s", task, at)
				break
			}
			runtime.Gosched()
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func podIDs(n int) []string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf("pod%03d", i))
	}
	return out
}
