package kernel

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"gantry/internal/userns"
)

// tenantMark is set in processes that are root of a pod's user namespace.
const tenantMark = "NETCTL_TEST_TENANT"

// asTenant runs a verb as root of the user namespace that owns a network namespace, in both.
func asTenant(name string, words ...string) error {
	path := filepath.Join(netnsDir, name)
	owner, err := userns.OfNet(path)
	if err != nil {
		return err
	}
	if owner == nil {
		return errors.New("the pod has no user namespace")
	}
	defer func() { _ = owner.Close() }()
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer func() { _ = self.Close() }()
	cmd := exec.Command("nsenter", append([]string{
		fmt.Sprintf("--user=/proc/%d/fd/%d", os.Getpid(), owner.Fd()), "--net=" + path, "-S0", "-G0", "/proc/self/fd/3",
	}, words...)...)
	cmd.Env, cmd.ExtraFiles = append(os.Environ(), tenantMark+"=1"), []*os.File{self}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", words[0], err, out)
	}
	return nil
}

// tenant is the life of such a process.
func tenant(words []string) int {
	verbs := map[string]func([]string) error{"send": tenantSends, "knock": tenantKnocks, "meddle": tenantMeddles, "cut": tenantCuts, "ping": tenantPings}
	if err := verbs[words[0]](words[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// giveUp gives up all rights but one of those that containers have.
func giveUp() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	caps := [2]unix.CapUserData{{Effective: 1 << unix.CAP_NET_RAW, Permitted: 1 << unix.CAP_NET_RAW}}
	return unix.Capset(&header, &caps[0])
}

// tenantSends sends frames, in hexadecimal digits, by its link.
func tenantSends(frames []string) error {
	eth, err := net.InterfaceByName(podLink)
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	for _, text := range frames {
		frame, err := hex.DecodeString(text)
		if err != nil {
			return err
		}
		if err := unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: eth.Index}); err != nil {
			return err
		}
	}
	return nil
}

// probeAgain has a pod look for neighbors by ARP, as one that has all rights over its namespace can.
func probeAgain() error {
	return os.WriteFile("/proc/sys/net/ipv4/neigh/"+podLink+"/mcast_solicit", []byte("3"), 0o644)
}

// tenantKnocks fails when an address can be reached by TCP.
func tenantKnocks(addrs []string) error {
	if err := errors.Join(probeAgain(), giveUp()); err != nil {
		return err
	}
	for _, addr := range addrs {
		if c, err := net.DialTimeout("tcp4", addr, refusal/2); err == nil {
			return errors.Join(errors.New(addr+" was reached"), c.Close())
		}
	}
	return nil
}

// drops sums up what the rules of all agents have dropped.
func drops(t *testing.T) (sum int) {
	t.Helper()
	var list struct {
		Nftables []struct {
			Rule *struct {
				Expr []map[string]json.RawMessage
			}
		}
	}
	must(t, json.Unmarshal([]byte(nft(t, "-j", "list", "ruleset")), &list))
	for _, o := range list.Nftables {
		if o.Rule == nil {
			continue
		}
		for _, e := range o.Rule.Expr {
			var counter struct{ Packets int }
			if text, ok := e["counter"]; ok {
				must(t, json.Unmarshal(text, &counter))
				sum += counter.Packets
			}
		}
	}
	return sum
}

// TestRootOfAPodKnocksInVain: every address that is not a pod's to reach, and that the rules count it.
func TestRootOfAPodKnocksInVain(t *testing.T) {
	newOutside(t)
	c, other := start(t, "0a1b"), start(t, "0a1c")
	cfg := config(t, "0a1b", "10.88.16.0/20", "alpha", "beta")
	cfg.Deny = []netip.Prefix{netip.MustParsePrefix("198.51.100.128/25")}
	must(t, c.Set(context.Background(), cfg))
	must(t, other.Set(context.Background(), config(t, "0a1c", "10.88.32.0/20", "gamma")))
	serve(t, ns("0a1b", "beta"), ":8080")
	serve(t, ns("0a1c", "gamma"), ":8080")
	serve(t, "", ":9090") // an agent's or a scheduler's
	reaches(t, outsideName, uplinkAddr+":9090", outsideAddr)
	for what, addr := range map[string]string{
		"the gateway": "10.88.16.1:9090", "the host": uplinkAddr + ":9090", "the other gateway": "10.88.32.1:9090",
		"a closed port of the host": uplinkAddr + ":1", "metadata": metaAddr + ":80", "a denied range": "198.51.100.200:443",
		"another pod": "10.88.16.3:8080", "another agent's pod": "10.88.32.2:8080", "no pod": "10.88.16.200:8080",
	} {
		before := drops(t)
		if err := asTenant(ns("0a1b", "alpha"), "knock", addr); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if after := drops(t); after <= before {
			t.Errorf("%s: %d packets were dropped, %d before", what, after, before)
		}
	}
	reaches(t, ns("0a1b", "alpha"), outsideAddr+":80", uplinkAddr)
}

// tenantMeddles does with all rights over the pod's namespace what it can, and fails when it could do
// something to the host's, whose process it is given.
func tenantMeddles(words []string) error {
	host, err := strconv.Atoi(words[0])
	if err != nil {
		return err
	}
	eth, err := netlink.LinkByName(podLink)
	if err != nil {
		return err
	}
	var faults []error
	for what, try := range map[string]func() error{
		"enter the host's network": func() error {
			f, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", host))
			if err != nil {
				return err
			}
			return unix.Setns(int(f.Fd()), unix.CLONE_NEWNET)
		},
		"put a link there": func() error {
			return netlink.LinkAdd(&netlink.Veth{LinkAttrs: linkAttrs("gn0a1bevil", 1500, nil), PeerName: "gn0a1bevil2", PeerNamespace: netlink.NsPid(host)})
		},
		"move a link there":   func() error { return netlink.LinkSetNsPid(eth, host) },
		"change the kernel's": func() error { return os.WriteFile("/proc/sys/kernel/panic", []byte("0"), 0o644) },
		"load a module":       func() error { return unix.FinitModule(0, "", 0) },
	} {
		if try() == nil {
			faults = append(faults, errors.New("it could "+what))
		}
	}
	forged, err := net.ParseMAC("0a:58:0a:58:10:03")
	if err != nil {
		return err
	}
	for what, change := range map[string]func() error{
		"its address":     func() error { return netlink.AddrAdd(eth, addrOf(netip.MustParsePrefix("10.88.16.3/20"))) },
		"its MAC":         func() error { return netlink.LinkSetHardwareAddr(eth, forged) },
		"its forwarding":  func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("0"), 0o644) },
		"its filter":      func() error { return exec.Command("nft", "flush", "ruleset").Run() },
		"its neighbors":   probeAgain,
		"its largest MTU": func() error { return netlink.LinkSetMTU(eth, 9000) },
		"its links": func() error {
			return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: linkAttrs("gn0a1b", 1500, nil)})
		},
	} {
		if err := change(); err != nil {
			faults = append(faults, fmt.Errorf("it could not change %s: %w", what, err))
		}
	}
	return errors.Join(faults...)
}

// tenantCuts removes the pod's own link.
func tenantCuts([]string) error {
	eth, err := netlink.LinkByName(podLink)
	if err != nil {
		return err
	}
	return netlink.LinkDel(eth)
}

// hostState is what of the host a pod could want to change.
func hostState(t *testing.T) string {
	t.Helper()
	text := fingerprint(t) + "\n" + nft(t, "-s", "list", "ruleset")
	routes, err := retry(func() ([]netlink.Route, error) { return netlink.RouteList(nil, unix.AF_UNSPEC) })
	must(t, err)
	for _, r := range routes {
		text += "\n" + r.String()
	}
	for _, key := range []string{"net/ipv4/ip_forward", "net/ipv4/ip_unprivileged_port_start", "kernel/panic"} {
		value, err := os.ReadFile(filepath.Join("/proc/sys", key))
		must(t, err)
		text += "\n" + key + " " + string(value)
	}
	return text
}

// TestRootOfAPodMeddlesInVain: even with all rights over its own network, it changes nothing of the
// host's or of another pod's.
func TestRootOfAPodMeddlesInVain(t *testing.T) {
	newOutside(t)
	ctx := context.Background()
	c := start(t, "0a1b")
	must(t, c.Set(ctx, config(t, "0a1b", "10.88.16.0/20", "alpha", "beta")))
	serve(t, ns("0a1b", "beta"), ":8080")
	alpha, before := ns("0a1b", "alpha"), hostState(t)
	must(t, asTenant(alpha, "meddle", strconv.Itoa(os.Getpid())))
	if diff := cmp.Diff(before, hostState(t)); diff != "" {
		t.Errorf("the host has changed: %s", diff)
	}
	dropped := drops(t)
	refused(t, alpha, outsideAddr+":80") // it bears another's address
	if after := drops(t); after <= dropped {
		t.Errorf("%d packets were dropped, %d before", after, dropped)
	}
	reaches(t, "", "10.88.16.3:8080", "10.88.16.1")
	reaches(t, ns("0a1b", "beta"), outsideAddr+":80", uplinkAddr)

	must(t, asTenant(alpha, "cut"))
	if has, err := c.Has(ctx, "alpha"); has || err != nil {
		t.Errorf("a pod that has removed its link has one: %v", err)
	}
	must(t, c.Repair(ctx))
	reaches(t, alpha, outsideAddr+":80", uplinkAddr)
	if base, err := c.IDBase(ctx, "alpha"); base != 0x10020000 || err != nil {
		t.Errorf("its ids begin at %#x, %v", base, err)
	}
}

// TestNetworkOfAUserNamespace: a pod's users need no right to ping and to listen on low ports, and the
// host's processes come in as they do elsewhere.
func TestNetworkOfAUserNamespace(t *testing.T) {
	ctx := context.Background()
	c := start(t, "0a1b")
	cfg := config(t, "0a1b", "10.88.16.0/20", "alpha", "beta")
	cfg.Pods[1].IDBase = 0
	must(t, c.Set(ctx, cfg))
	for id, want := range map[string]uint32{"alpha": 0x10020000, "beta": 0, "none": 0} {
		if got, err := c.IDBase(ctx, id); got != want || err != nil {
			t.Errorf("%s: ids from %#x, %v", id, got, err)
		}
	}
	if owner, err := userns.OfNet(filepath.Join(netnsDir, ns("0a1b", "beta"))); owner != nil || err != nil {
		t.Errorf("the host's own: %v, %v", owner, err)
	}
	must(t, within(ns("0a1b", "alpha"), func() error {
		for key, want := range map[string]string{
			"net/ipv4/ip_unprivileged_port_start": "0", "net/ipv4/ping_group_range": "0 4294967294", "net/ipv6/conf/eth0/disable_ipv6": "1",
		} {
			value, err := os.ReadFile(filepath.Join("/proc/sys", key))
			if got := strings.Join(strings.Fields(string(value)), " "); err != nil || got != want {
				t.Errorf("%s is %q, %v", key, got, err)
			}
		}
		return nil
	}))
	st, err := c.Observed(ctx)
	must(t, err)
	if diff := cmp.Diff(cfg, st.Config, compare); diff != "" {
		t.Error(diff)
	}
}

// TestIDsOfANetworkVolumeMayPing: they are above 2^31, for every user of the pod.
func TestIDsOfANetworkVolumeMayPing(t *testing.T) {
	const base = 0xFFFD_0000 // of the last network volume that there may be
	ctx := context.Background()
	c := start(t, "0a1b")
	cfg := config(t, "0a1b", "10.88.16.0/20", "alpha")
	cfg.Pods[0].IDBase = base
	must(t, c.Set(ctx, cfg))
	if got, err := c.IDBase(ctx, "alpha"); got != base || err != nil {
		t.Errorf("ids from %#x, %v", got, err)
	}
	for _, user := range []string{"0", "1000", "65535"} {
		if err := asTenant(ns("0a1b", "alpha"), "ping", user); err != nil {
			t.Errorf("user %s: %v", user, err)
		}
	}
	// One more pod of the same volume has the same ids.
	other, _ := config(t, "0a1b", "10.88.16.0/20", "alpha", "beta").Pod("beta")
	other.IDBase = base
	must(t, c.AddPod(ctx, other))
	for _, id := range []string{"alpha", "beta"} {
		if has, err := c.Has(ctx, id); !has || err != nil {
			t.Errorf("%s: %v, %v", id, has, err)
		}
	}
}

// tenantPings opens the socket with which users without rights ping, as one of the pod's.
func tenantPings(user []string) error {
	id, err := strconv.Atoi(user[0])
	if err == nil {
		err = errors.Join(syscall.Setgroups(nil), syscall.Setgid(id), syscall.Setuid(id))
	}
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMP)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// TestUpgradeKeepsWhatStands: pods of before have a namespace of the host's. They keep it, with the link
// and everything in it, until they are started again.
func TestUpgradeKeepsWhatStands(t *testing.T) {
	newOutside(t)
	ctx := context.Background()
	old, c := start(t, "0a1b"), start(t, "0a1b")
	cfg := config(t, "0a1b", "10.88.16.0/20", "alpha", "beta")
	before := cfg.Clone()
	for i := range before.Pods {
		before.Pods[i].IDBase = 0
	}
	must(t, old.Set(ctx, before))
	serve(t, ns("0a1b", "alpha"), ":8080") // what runs there
	stood := fingerprint(t)
	for range 2 {
		must(t, c.Set(ctx, cfg))
		must(t, c.Repair(ctx))
	}
	if got := fingerprint(t); got != stood {
		t.Errorf("links changed: %s", cmp.Diff(stood, got))
	}
	reaches(t, "", "10.88.16.2:8080", "10.88.16.1")
	beta, _ := cfg.Pod("beta")
	must(t, c.AddPod(ctx, beta))
	for range 2 {
		must(t, c.Set(ctx, cfg))
		for id, want := range map[string]uint32{"alpha": 0, "beta": beta.IDBase} {
			if got, err := c.IDBase(ctx, id); got != want || err != nil {
				t.Errorf("%s: ids from %#x, %v", id, got, err)
			}
		}
	}
	reaches(t, ns("0a1b", "beta"), outsideAddr+":80", uplinkAddr)

	// The way back: an agent that knows no user namespaces leaves beta's alone.
	stood = fingerprint(t)
	must(t, old.Set(ctx, before))
	if got := fingerprint(t); got != stood {
		t.Errorf("links changed: %s", cmp.Diff(stood, got))
	}
	host := beta
	host.IDBase = 0
	must(t, old.AddPod(ctx, host))
	if got, err := old.IDBase(ctx, "beta"); got != 0 || err != nil {
		t.Errorf("after the way back: ids from %#x, %v", got, err)
	}
	reaches(t, ns("0a1b", "beta"), outsideAddr+":80", uplinkAddr)
	threadsAtHome(t)
}
