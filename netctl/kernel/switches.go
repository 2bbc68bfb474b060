package kernel

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	mdnetlink "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"gantry/netctl"
)

// States of a bridge's port.
const (
	stateDisabled   = 0 // no carrier
	stateForwarding = 3
)

// switches are settings of a bridge, or of a port of one, by the kernel's number.
type switches map[int]uint16

// portSwitches are those of every port; a pod's in an overlay, one to other hosts and one of the pods' own bridge differ in some. A kernel
// that does not know one has not what it switches.
func portSwitches(end string) switches {
	out := switches{
		nl.IFLA_BRPORT_LEARNING: 0, nl.IFLA_BRPORT_UNICAST_FLOOD: 0, nl.IFLA_BRPORT_MCAST_FLOOD: 0, nl.IFLA_BRPORT_BCAST_FLOOD: 0,
		nl.IFLA_BRPORT_PROXYARP: 0, nl.IFLA_BRPORT_ISOLATED: 1, nl.IFLA_BRPORT_MODE: 0, nl.IFLA_BRPORT_NEIGH_SUPPRESS: 0,
		nl.IFLA_BRPORT_STATE: stateForwarding, nl.IFLA_BRPORT_VLAN_TUNNEL: 0, nl.IFLA_BRPORT_PROXYARP_WIFI: 0, nl.IFLA_BRPORT_LOCKED: 0,
	}
	switch end[:2] {
	case "go":
		out[nl.IFLA_BRPORT_PROXYARP], out[nl.IFLA_BRPORT_ISOLATED] = 1, 0
	case "gn":
		for _, flag := range []int{nl.IFLA_BRPORT_LEARNING, nl.IFLA_BRPORT_UNICAST_FLOOD, nl.IFLA_BRPORT_MCAST_FLOOD, nl.IFLA_BRPORT_BCAST_FLOOD} {
			out[flag] = 1 // what the host sends to all reaches the pods
		}
	}
	return out
}

// throughFences is the group_fwd_mask of bridges. What is sent to the address of LLDP would reach the host's own IP from the port and pass no rule of
// the bridge family; with this it is forwarded as other frames are, and the rules drop it.
const throughFences = 1 << 0xe

// bridgeSwitches are those of every bridge: off is whatever waits, asks, tags or leads frames elsewhere.
var bridgeSwitches = switches{
	nl.IFLA_BR_STP_STATE: 0, nl.IFLA_BR_VLAN_FILTERING: 0, nl.IFLA_BR_GROUP_FWD_MASK: throughFences, nl.IFLA_BR_MCAST_SNOOPING: 0,
	nl.IFLA_BR_NF_CALL_IPTABLES: 0, nl.IFLA_BR_NF_CALL_IP6TABLES: 0, nl.IFLA_BR_NF_CALL_ARPTABLES: 0,
}

// switched is what someone else switched at a bridge or a port.
type switched struct {
	link  string
	index int
	port  bool
	wrong switches // as it should be
}

// lookSwitches finds what is not as it should be, of links that are whole. Bridges come first: what they do to ports ends with them.
func (c *Controller) lookSwitches(links []netlink.Link) ([]switched, error) {
	whole := map[int]string{}
	for _, l := range links {
		text := l.Attrs().Name
		marked := l.Attrs().Alias != "" && (strings.HasPrefix(text, netctl.BridgeName(c.instance)) || isOverlayLink(c.instance, text))
		if marked || text == netctl.BridgeName(c.instance) {
			whole[l.Attrs().Index] = text
		}
	}
	if len(whole) == 0 {
		return nil, nil
	}
	var out []switched
	request := attribute(make([]byte, unix.SizeofIfInfomsg), unix.IFLA_LINKINFO|unix.NLA_F_NESTED, attribute(nil, unix.IFLA_INFO_KIND, []byte("bridge")))
	err := c.home.dump(unix.RTM_GETLINK, request, func(body []byte) {
		eachPart(body, unix.IFLA_LINKINFO, func(index int, info []byte) {
			attributes(info, func(kind uint16, values []byte) {
				if text := whole[index]; kind == unix.IFLA_INFO_DATA && text != "" {
					out = append(out, compareSwitches(switched{link: text, index: index}, bridgeSwitches, values)...)
				}
			})
		})
	})
	if err != nil {
		return nil, fmt.Errorf("list bridges: %w", err)
	}
	request = make([]byte, unix.SizeofIfInfomsg)
	request[0] = unix.AF_BRIDGE
	err = c.home.dump(unix.RTM_GETLINK, request, func(body []byte) {
		eachPart(body, unix.IFLA_PROTINFO, func(index int, values []byte) {
			if text := whole[index]; text != "" {
				out = append(out, compareSwitches(switched{link: text, index: index, port: true}, portSwitches(text), values)...)
			}
		})
	})
	if err != nil {
		return nil, fmt.Errorf("list ports: %w", err)
	}
	return out, nil
}

// compareSwitches returns s with what is wrong, or nothing.
func compareSwitches(s switched, should switches, values []byte) []switched {
	s.wrong = switches{}
	attributes(values, func(number uint16, value []byte) {
		want, known := should[int(number)]
		right := bytes.Equal(value, bridgeValue(s.port, int(number), want))
		if s.port && number == nl.IFLA_BRPORT_STATE {
			right = !waits(value)
		}
		if known && !right {
			s.wrong[int(number)] = want
		}
	})
	if len(s.wrong) == 0 {
		return nil
	}
	return []switched{s}
}

// waits says whether a port that has a carrier passes nothing, as spanning trees have it.
func waits(state []byte) bool {
	return len(state) == 1 && state[0] != stateDisabled && state[0] != stateForwarding
}

// eachPart calls f with the attributes of a kind of a message about a link.
func eachPart(body []byte, wanted uint16, f func(index int, value []byte)) {
	if len(body) < unix.SizeofIfInfomsg {
		return
	}
	index := int(binary.NativeEndian.Uint32(body[4:]))
	attributes(body[unix.SizeofIfInfomsg:], func(kind uint16, value []byte) {
		if kind == wanted {
			f(index, value)
		}
	})
}

// restore switches back what someone else switched. Links that are gone meanwhile are no error.
func (c *Controller) restore(list []switched) error {
	var faults []error
	for _, s := range list {
		c.log.Warn("restoring bridge settings that another program changed", "instance", c.instance, "link", s.link)
		if err := c.home.setSwitches(s.index, s.port, s.wrong); err != nil && !errors.Is(err, unix.ENODEV) {
			faults = append(faults, fmt.Errorf("%s: %w", s.link, err))
		}
	}
	return errors.Join(faults...)
}

// setSwitches sets settings of a bridge or port in one step.
func (h home) setSwitches(index int, port bool, values switches) error {
	kind, family := mdnetlink.HeaderType(unix.RTM_NEWLINK), byte(unix.AF_UNSPEC)
	var data []byte
	for number, value := range values {
		data = attribute(data, uint16(number), bridgeValue(port, number, value)) //nolint:gosec // one of the constants above
	}
	info := attribute(nil, unix.IFLA_PROTINFO|unix.NLA_F_NESTED, data)
	if port {
		kind, family = unix.RTM_SETLINK, unix.AF_BRIDGE
	} else {
		data = append(attribute(nil, unix.IFLA_INFO_KIND, []byte("bridge")), attribute(nil, unix.IFLA_INFO_DATA|unix.NLA_F_NESTED, data)...)
		info = attribute(nil, unix.IFLA_LINKINFO|unix.NLA_F_NESTED, data)
	}
	body := make([]byte, unix.SizeofIfInfomsg)
	body[0] = family
	binary.NativeEndian.PutUint32(body[4:], uint32(index)) //nolint:gosec // the kernel's own
	return h.call(mdnetlink.Message{
		Header: mdnetlink.Header{Type: kind, Flags: mdnetlink.Request | mdnetlink.Acknowledge}, Data: append(body, info...),
	})
}

// bridgeValue is a setting in the kernel's size.
func bridgeValue(port bool, number int, value uint16) []byte {
	switch {
	case !port && number == nl.IFLA_BR_STP_STATE:
		return binary.NativeEndian.AppendUint32(nil, uint32(value))
	case !port && number == nl.IFLA_BR_GROUP_FWD_MASK:
		return binary.NativeEndian.AppendUint16(nil, value)
	default:
		return []byte{byte(value)}
	}
}
