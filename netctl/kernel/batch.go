package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	mdnetlink "github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// batchSize is how many changes one exchange with the kernel holds: the answers must fit the socket.
const batchSize = 100

// change holds an entry of a link and what the kernel is told about it.
type neighMessage struct {
	add   bool
	entry entry
	index int
}

// bytes is the message in the kernel's form: struct ndmsg and its attributes.
func (m neighMessage) message() mdnetlink.Message {
	kind, flags := mdnetlink.HeaderType(unix.RTM_DELNEIGH), mdnetlink.Request|mdnetlink.Acknowledge
	if m.add {
		kind, flags = unix.RTM_NEWNEIGH, flags|mdnetlink.Create|mdnetlink.Replace
	}
	data := make([]byte, unix.SizeofNdMsg, 64)
	data[0] = unix.AF_BRIDGE
	binary.NativeEndian.PutUint32(data[4:], uint32(m.index)) //nolint:gosec // an index is positive
	state, who := uint16(unix.NUD_NOARP|unix.NUD_REACHABLE), byte(unix.NTF_MASTER)
	switch m.entry.kind {
	case neighbour:
		data[0], state, who = unix.AF_INET, unix.NUD_PERMANENT, 0
	case toHost:
		who = unix.NTF_SELF
	}
	binary.NativeEndian.PutUint16(data[8:], state)
	data[10] = who
	if m.entry.kind != toPort {
		data = attribute(data, unix.NDA_DST, m.entry.addr[:])
	}
	data = attribute(data, unix.NDA_LLADDR, m.entry.mac[:])
	return mdnetlink.Message{Header: mdnetlink.Header{Type: kind, Flags: flags}, Data: data}
}

func attribute(to []byte, kind uint16, value []byte) []byte {
	to = binary.NativeEndian.AppendUint16(to, uint16(4+len(value))) //nolint:gosec // at most 10
	to = binary.NativeEndian.AppendUint16(to, kind)
	to = append(to, value...)
	for len(to)%4 != 0 {
		to = append(to, 0)
	}
	return to
}

// tell makes the changes, in order. Entries that are gone already are no error.
func (h home) tell(list []neighMessage) error {
	if len(list) == 0 {
		return nil
	}
	conn, err := h.dial()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // nothing is under way
	for len(list) > 0 {
		n := min(batchSize, len(list))
		if err := conn.SetDeadline(time.Now().Add(callTimeout)); err != nil {
			return err
		}
		if err := exchangeBatch(conn, list[:n]); err != nil {
			return err
		}
		list = list[n:]
	}
	return nil
}

// exchangeBatch sends messages in one go and reads the kernel's answer to each.
func exchangeBatch(conn *mdnetlink.Conn, list []neighMessage) error {
	messages := make([]mdnetlink.Message, len(list))
	for i, m := range list {
		messages[i] = m.message()
	}
	if _, err := conn.SendMessages(messages); err != nil {
		return fmt.Errorf("change neighbours: %w", err)
	}
	var faults []error
	for _, m := range list {
		_, err := conn.Receive()
		gone := !m.add && (errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EINVAL))
		if err != nil && !gone {
			faults = append(faults, fmt.Errorf("change neighbours: %s: %w", m.entry.addr.addr(), err))
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
		}
	}
	return errors.Join(faults...)
}

// tellEntries makes entries of links come and go. What comes goes first, so that what moves is never away: the kernel
// keeps one entry for an address.
func (c *Controller) tellEntries(gone, come []entry) error {
	if len(gone)+len(come) == 0 {
		return nil
	}
	indexes := map[name]int{}
	index := func(link name) (int, error) {
		if i, ok := indexes[link]; ok {
			return i, nil
		}
		l, err := c.linkByName(link.String())
		if err != nil {
			return 0, err
		}
		indexes[link] = 0
		if l != nil {
			indexes[link] = l.Attrs().Index
		}
		return indexes[link], nil
	}
	var faults []error
	missing := map[name]bool{}
	list := make([]neighMessage, 0, len(gone)+len(come))
	taken := map[entry]bool{} // neighbours that come: to delete the old one would take the new one away
	for _, e := range come {
		i, err := index(e.link)
		if err != nil {
			return errors.Join(append(faults, err)...)
		}
		if i == 0 { // what leads to others is not held up by one
			if !missing[e.link] {
				faults = append(faults, fmt.Errorf("overlay: there is no link %s", e.link))
			}
			missing[e.link] = true
			continue
		}
		if e.kind == neighbour {
			taken[entry{link: e.link, addr: e.addr}] = true
		}
		list = append(list, neighMessage{true, e, i})
	}
	for _, e := range gone {
		i, err := index(e.link)
		if err != nil {
			return errors.Join(append(faults, err)...)
		}
		if i != 0 && (e.kind != neighbour || !taken[entry{link: e.link, addr: e.addr}]) {
			list = append(list, neighMessage{false, e, i})
		}
	}
	return errors.Join(append(faults, c.home.tell(list))...)
}
