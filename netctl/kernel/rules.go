package kernel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/nftables"
	mdnetlink "github.com/mdlayher/netlink"
	"sigs.k8s.io/knftables"

	"gantry/netctl"
)

const pinSet = "pods"

// ruleset keeps the instance's two nftables tables. Whole tables are written by
// nft in one transaction; one pod's element goes straight to the kernel, since
// starting a program would cost as much as all of the pod's other network.
type ruleset struct {
	instance string
	home     home
	nft      knftables.Interface

	publishing sync.Mutex // held while what is published is read and changed

	mu      sync.Mutex
	text    string         // static rules as last written
	handles string         // how the kernel numbered them
	deny    []netip.Prefix // Config.Deny of that text
	public  []netip.Addr   // Config.Public of that text
	names   bool           // Config.Names of that text
	flows   int            // Config.Flows of that text
	under   netctl.Underlay
}

// found is what one look at the tables gave.
type found struct {
	intact  bool // the rules are those that this process wrote
	deny    []netip.Prefix
	public  []netip.Addr
	names   bool
	flows   int
	under   netctl.Underlay
	handles string
	pins    map[pin]bool
	ports   ports
}

// pin is one element of the set: this link may send from this source.
type pin struct {
	link string
	mac  string
	addr netip.Addr
}

func newRuleset(instance string, at home) (*ruleset, error) {
	nft, err := knftables.New("", "")
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	return &ruleset{instance: instance, home: at, nft: nft}, nil
}

// pinsOf are those of all links of a pod.
func pinsOf(instance string, p netctl.Pod) []pin {
	out := []pin{pinOf(instance, p)}
	for _, at := range p.Overlays {
		out = append(out, pin{netctl.OverlayLinkName(instance, p.ID, at.VNI), at.MAC, at.Addr})
	}
	return out
}

func pinOf(instance string, p netctl.Pod) pin {
	return pin{netctl.LinkName(instance, p.ID), p.MAC, p.Addr}
}

// apply makes both tables those of want. Tables that are already so are left alone.
func (r *ruleset) apply(ctx context.Context, want netctl.Config) error {
	want = want.Clone()
	pins, ports := map[pin]bool{}, portsOf(want.Pods...)
	for _, p := range want.Pods {
		for _, one := range pinsOf(r.instance, p) {
			pins[one] = true
		}
	}
	bare := want.Clone()
	bare.Pods, bare.Overlays, bare.Barred, bare.Underlay.Plain = nil, nil, nil, nil
	text := transaction(r.nft, bare).String()
	have, err := r.look()
	if err != nil {
		return err
	}
	if have.intact && r.lastText() == text && maps.Equal(have.pins, pins) && have.ports.equal(ports) {
		r.written(text, have.handles, want)
		return nil
	}
	if err := r.run(ctx, transaction(r.nft, want)); err != nil {
		return fmt.Errorf("write filter rules: %w", err)
	}
	if have, err = r.look(); err != nil {
		return err
	}
	r.written(text, have.handles, want)
	return nil
}

// written remembers what is in force.
func (r *ruleset) written(text, handles string, want netctl.Config) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.text, r.handles, r.deny, r.public = text, handles, want.Deny, want.Public
	r.names, r.flows, r.under = want.Names, want.Flows, want.Underlay
}

func (r *ruleset) lastText() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text
}

// remove deletes both tables in one transaction; absent ones are no error.
func (r *ruleset) remove(ctx context.Context) error {
	tx := r.nft.NewTransaction()
	for _, f := range families() {
		t := knftables.Table{Family: f, Name: netctl.TableName(r.instance)}
		tx.Add(&t)
		tx.Delete(&t)
	}
	if err := r.run(ctx, tx); err != nil {
		return fmt.Errorf("remove filter rules: %w", err)
	}
	return nil
}

// run has nft do a transaction. The first after a boot waits for modules of the kernel, of which there are a dozen.
func (r *ruleset) run(ctx context.Context, tx *knftables.Transaction) error {
	ctx, cancel := context.WithTimeoutCause(ctx, rulesTimeout, fmt.Errorf("nft did not end within %v", rulesTimeout))
	defer cancel()
	err := r.home.in(func() error { return r.nft.Run(ctx, tx) })
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return fmt.Errorf("%w: %w", cause, err) // nft was killed, and says nothing
	}
	return err
}

// look reads the tables. Rules are recognised by their handles: the kernel gives
// a new one to every rule that is ever written.
func (r *ruleset) look() (found, error) {
	out := found{pins: map[pin]bool{}, ports: portsOf()}
	err := r.exchange(func(conn *nftables.Conn) (err error) {
		if out.handles, err = r.numbers(conn); err != nil {
			return err
		}
		if out.pins, err = r.readPins(conn); err != nil {
			return err
		}
		out.ports, err = r.readPorts(conn)
		return err
	})
	if err != nil {
		return out, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if out.intact = r.handles != "" && r.handles == out.handles; out.intact {
		out.deny, out.public = slices.Clone(r.deny), slices.Clone(r.public)
		out.names, out.flows, out.under = r.names, r.flows, r.under
	}
	return out, nil
}

// numbers lists the handles of all rules by chain.
func (r *ruleset) numbers(conn *nftables.Conn) (string, error) {
	var text strings.Builder
	for _, f := range []nftables.TableFamily{nftables.TableFamilyBridge, nftables.TableFamilyINet} {
		chains, err := conn.ListChainsOfTableFamily(f)
		if err != nil {
			return "", fmt.Errorf("list chains: %w", err)
		}
		for _, c := range chains {
			if c.Table.Name != netctl.TableName(r.instance) {
				continue
			}
			rules, err := conn.GetRules(c.Table, c)
			if err != nil {
				return "", fmt.Errorf("list rules: %w", err)
			}
			fmt.Fprintf(&text, "%d %s", f, c.Name)
			for _, rule := range rules {
				fmt.Fprintf(&text, " %d", rule.Handle)
			}
			text.WriteByte('\n')
		}
	}
	return text.String(), nil
}

// pins reads the source rules; without a table there are none.
func (r *ruleset) pins() (out map[pin]bool, err error) {
	err = r.exchange(func(conn *nftables.Conn) error {
		out, err = r.readPins(conn)
		return err
	})
	return out, err
}

func (r *ruleset) readPins(conn *nftables.Conn) (map[pin]bool, error) {
	out := map[pin]bool{}
	elements, err := elementsOf(conn, r.set())
	if err != nil {
		return nil, fmt.Errorf("source rules: %w", err)
	}
	for _, e := range elements {
		if p, ok := parsePin(e.Key); ok {
			out[p] = true
		}
	}
	return out, nil
}

// elementsOf reads a set or map; without it, or its table, there are none.
func elementsOf(conn *nftables.Conn, set *nftables.Set) ([]nftables.SetElement, error) {
	tables, err := conn.ListTablesOfFamily(set.Table.Family)
	if err != nil {
		return nil, fmt.Errorf("list tables: %w", err)
	}
	if !slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == set.Table.Name }) {
		return nil, nil
	}
	sets, err := conn.GetSets(set.Table)
	if err != nil {
		return nil, fmt.Errorf("list sets: %w", err)
	}
	if !slices.ContainsFunc(sets, func(s *nftables.Set) bool { return s.Name == set.Name }) {
		return nil, nil
	}
	elements, err := conn.GetSetElements(set)
	if err != nil {
		return nil, fmt.Errorf("list elements: %w", err)
	}
	return elements, nil
}

// pin lets the pod's link send from its source; repeating it is no error. When the
// tables are gone the error is ENOENT.
func (r *ruleset) pin(p netctl.Pod) error {
	var elements []nftables.SetElement
	for _, one := range pinsOf(r.instance, p) {
		key, err := one.key()
		if err != nil {
			return err
		}
		elements = append(elements, nftables.SetElement{Key: key})
	}
	err := r.exchange(func(conn *nftables.Conn) error {
		if err := conn.SetAddElements(r.set(), elements); err != nil {
			return err
		}
		return conn.Flush()
	})
	if err != nil {
		return fmt.Errorf("add source rule: %w", err)
	}
	return nil
}

// sources returns the addresses that the link may send from.
func (r *ruleset) sources(link string) ([]netip.Addr, error) {
	have, err := r.pins()
	var out []netip.Addr
	for p := range have {
		if p.link == link {
			out = append(out, p.addr)
		}
	}
	return out, err
}

// unpin removes what the link may send from.
func (r *ruleset) unpin(link string) error {
	have, err := r.pins()
	if err != nil {
		return err
	}
	var gone []nftables.SetElement
	for p := range have {
		if p.link != link {
			continue
		}
		key, err := p.key()
		if err != nil {
			return err
		}
		gone = append(gone, nftables.SetElement{Key: key})
	}
	if len(gone) == 0 {
		return nil
	}
	err = r.exchange(func(conn *nftables.Conn) error {
		if err := conn.SetDeleteElements(r.set(), gone); err != nil {
			return err
		}
		return conn.Flush()
	})
	if err != nil {
		return fmt.Errorf("remove source rule: %w", err)
	}
	return nil
}

func (r *ruleset) set() *nftables.Set {
	return &nftables.Set{
		Name:  pinSet,
		Table: &nftables.Table{Family: nftables.TableFamilyBridge, Name: netctl.TableName(r.instance)},
	}
}

// key is the kernel's form of ifname . ether_addr . ipv4_addr: each part padded to
// four octets, the name to sixteen.
func (p pin) key() ([]byte, error) {
	mac, err := net.ParseMAC(p.mac)
	if err != nil || len(mac) != 6 || !p.addr.Is4() || len(p.link) > 15 {
		return nil, fmt.Errorf("source rule: not a link, hardware address and IPv4 address")
	}
	key := make([]byte, 28)
	copy(key[:16], p.link)
	copy(key[16:], mac)
	copy(key[24:], p.addr.AsSlice())
	return key, nil
}

func parsePin(key []byte) (pin, bool) {
	if len(key) != 28 {
		return pin{}, false
	}
	return pin{cString(key[:16]), net.HardwareAddr(key[16:22]).String(), netip.AddrFrom4([4]byte(key[24:]))}, true
}

// exchange talks to nftables over one socket with a deadline.
func (r *ruleset) exchange(talk func(*nftables.Conn) error) error {
	options := []nftables.ConnOption{nftables.AsLasting(), nftables.WithSockOptions(func(c *mdnetlink.Conn) error {
		return c.SetDeadline(time.Now().Add(callTimeout))
	})}
	if r.home.file != nil {
		options = append(options, nftables.WithNetNSFd(int(r.home.file.Fd())))
	}
	conn, err := nftables.New(options...)
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	err = talk(conn)
	return errors.Join(err, conn.CloseLasting())
}

// cString is what stands before the first zero.
func cString(b []byte) string {
	text, _, _ := bytes.Cut(b, []byte{0})
	return string(text)
}
