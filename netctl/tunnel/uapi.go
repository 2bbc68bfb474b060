package tunnel

import (
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// What the process is asked for over its control socket, in the words of WireGuard's configuration protocol. Only gantry-net and the
// agent know it; both are of one build.
const (
	VerbSet = "set" // Change; answer: nothing
	VerbGet = "get" // answer: a string
)

// Change is what WireGuard is to change. It is the one thing that holds the key beside its file, and crosses nothing but the control
// socket.
type Change struct {
	Text  string
	Greet [][]byte // public keys of peers with which a session is to begin at once
}

// encode writes a change.
func encode(c wgtypes.Config) string {
	var out strings.Builder
	say := func(key string, value any) { fmt.Fprintf(&out, "%s=%v\n", key, value) }
	if c.PrivateKey != nil {
		say("private_key", hex.EncodeToString(c.PrivateKey[:]))
	}
	if c.ListenPort != nil {
		say("listen_port", *c.ListenPort)
	}
	for _, p := range c.Peers {
		say("public_key", hex.EncodeToString(p.PublicKey[:]))
		if p.Remove {
			say("remove", true)
			continue
		}
		if p.Endpoint != nil {
			say("endpoint", p.Endpoint)
		}
		if p.PersistentKeepaliveInterval != nil {
			say("persistent_keepalive_interval", int(p.PersistentKeepaliveInterval.Seconds()))
		}
		if p.ReplaceAllowedIPs {
			say("replace_allowed_ips", true)
		}
		for _, ip := range p.AllowedIPs {
			say("allowed_ip", ip.String())
		}
	}
	return out.String()
}

// decode reads what WireGuard says that it has. What it does not know it leaves out.
func decode(text string) (*wgtypes.Device, error) {
	d := &wgtypes.Device{}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		var err error
		switch key {
		case "private_key":
			d.PrivateKey, err = decodeKey(value)
		case "listen_port":
			d.ListenPort, err = strconv.Atoi(value)
		case "public_key":
			d.Peers = append(d.Peers, wgtypes.Peer{})
			d.Peers[len(d.Peers)-1].PublicKey, err = decodeKey(value)
		default:
			if len(d.Peers) > 0 {
				err = decodePeer(&d.Peers[len(d.Peers)-1], key, value)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("the tunnel's process says %s: %w", key, err)
		}
	}
	return d, nil
}

func decodePeer(p *wgtypes.Peer, key, value string) error {
	var number int64
	var err error
	switch key {
	case "endpoint":
		at, err := netip.ParseAddrPort(value)
		p.Endpoint = net.UDPAddrFromAddrPort(at)
		return err
	case "allowed_ip":
		_, ip, err := net.ParseCIDR(value)
		if err == nil {
			p.AllowedIPs = append(p.AllowedIPs, *ip)
		}
		return err
	case "persistent_keepalive_interval", "last_handshake_time_sec", "last_handshake_time_nsec", "rx_bytes", "tx_bytes":
		number, err = strconv.ParseInt(value, 10, 64)
	}
	switch key {
	case "persistent_keepalive_interval":
		p.PersistentKeepaliveInterval = time.Duration(number) * time.Second
	case "last_handshake_time_sec":
		if number > 0 {
			p.LastHandshakeTime = time.Unix(number, 0)
		}
	case "last_handshake_time_nsec":
		p.LastHandshakeTime = p.LastHandshakeTime.Add(time.Duration(number))
	case "rx_bytes":
		p.ReceiveBytes = number
	case "tx_bytes":
		p.TransmitBytes = number
	}
	return err
}

func decodeKey(text string) (k wgtypes.Key, err error) {
	raw, err := hex.DecodeString(text)
	if err == nil && len(raw) != len(k) {
		err = fmt.Errorf("a key of %d bytes", len(raw))
	}
	copy(k[:], raw)
	return k, err
}
