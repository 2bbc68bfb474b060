package kernel

import (
	"encoding/binary"
	"fmt"
	"time"

	mdnetlink "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// dial opens a socket to the kernel in the namespace.
func (h home) dial() (*mdnetlink.Conn, error) {
	var conf mdnetlink.Config
	if h.file != nil {
		conf.NetNS = int(h.file.Fd())
	}
	conn, err := mdnetlink.Dial(unix.NETLINK_ROUTE, &conf)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	return conn, nil
}

// call makes one change.
func (h home) call(m mdnetlink.Message) error {
	conn, err := h.dial()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // nothing is under way
	if err := conn.SetDeadline(time.Now().Add(callTimeout)); err != nil {
		return err
	}
	_, err = conn.Execute(m)
	return err
}

// dump reads a table of the kernel's, of which there may be very much: each is given a message's body.
func (h home) dump(kind int, request []byte, each func(body []byte)) error {
	return h.in(func() error { return dumpHere(unix.NETLINK_ROUTE, kind, request, each) })
}

// dumpHere is dump on a thread that is in the namespace. The larger the pieces that are asked for the better: for each the kernel goes through
// its table from the start.
func dumpHere(protocol, kind int, request []byte, each func(body []byte)) error {
	list, err := retry(func() ([][]byte, error) {
		req := nl.NewNetlinkRequest(kind, unix.NLM_F_DUMP)
		req.AddRawData(request)
		return req.Execute(protocol, 0)
	})
	for _, body := range list {
		each(body)
	}
	return err
}

// attributes calls f with those of a message, or of one of its attributes.
func attributes(data []byte, f func(kind uint16, value []byte)) {
	for len(data) >= unix.NLA_HDRLEN {
		n := int(binary.NativeEndian.Uint16(data))
		if n < unix.NLA_HDRLEN || n > len(data) {
			return
		}
		f(binary.NativeEndian.Uint16(data[2:])&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER), data[unix.NLA_HDRLEN:n])
		data = data[min((n+3)&^3, len(data)):]
	}
}

// neighbours reads the entries of links, by their indexes.
func (h home) neighbours(into map[entry]bool, links map[int]name) error {
	for _, family := range []byte{unix.AF_BRIDGE, unix.AF_INET} {
		request := make([]byte, unix.SizeofNdMsg)
		request[0] = family
		err := h.dump(unix.RTM_GETNEIGH, request, func(body []byte) {
			if e, ok := parseNeighbour(body, family, links); ok {
				into[e] = true
			}
		})
		if err != nil {
			return fmt.Errorf("list neighbours: %w", err)
		}
	}
	return nil
}

// parseNeighbour reads a message of the kernel into what neighMessage makes of it. Others than those of members are none.
func parseNeighbour(body []byte, family byte, links map[int]name) (e entry, ok bool) {
	if len(body) < unix.SizeofNdMsg {
		return e, false
	}
	link, mine := links[int(binary.NativeEndian.Uint32(body[4:]))]
	if !mine || body[0] != family {
		return e, false
	}
	e.link = link
	permanent, flags := binary.NativeEndian.Uint16(body[8:])&unix.NUD_PERMANENT != 0, body[10]
	var to, master, mac bool
	attributes(body[unix.SizeofNdMsg:], func(kind uint16, value []byte) {
		switch {
		case kind == unix.NDA_DST && len(value) == len(e.addr):
			e.addr, to = octets(value), true
		case kind == unix.NDA_LLADDR && len(value) == len(e.mac):
			e.mac, mac = hardware(value), true
		case kind == unix.NDA_MASTER:
			master = true
		}
	})
	self := flags&unix.NTF_SELF != 0
	switch {
	case family == unix.AF_INET:
		e.kind, ok = neighbour, permanent && to && mac
	case permanent && !self: // the link's own
	case flags&unix.NTF_MASTER != 0 || master:
		e.kind, e.addr, ok = toPort, octets{}, mac
	default:
		e.kind, ok = toHost, self && to && mac
	}
	return e, ok
}
