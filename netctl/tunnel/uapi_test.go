package tunnel

import (
	"encoding/hex"
	"net"
	"reflect"
	"strings"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// TestWordsOfTheProcess writes a change, and reads what a process has.
func TestWordsOfTheProcess(t *testing.T) {
	key, one, other := wgtypes.Key{1}, wgtypes.Key{2}, wgtypes.Key{3}
	port, keepalive := 51820, 25*time.Second
	_, allowed, err := net.ParseCIDR("100.127.0.2/32")
	if err != nil {
		t.Fatal(err)
	}
	at := &net.UDPAddr{IP: net.IPv4(192, 0, 2, 1).To4(), Port: 7}
	got := encode(wgtypes.Config{PrivateKey: &key, ListenPort: &port, Peers: []wgtypes.PeerConfig{
		{PublicKey: other, Remove: true},
		{PublicKey: one, Endpoint: at, PersistentKeepaliveInterval: &keepalive, ReplaceAllowedIPs: true, AllowedIPs: []net.IPNet{*allowed}},
	}})
	inHex := func(k wgtypes.Key) string { return hex.EncodeToString(k[:]) }
	want := "private_key=" + inHex(key) + "\nlisten_port=51820\npublic_key=" + inHex(other) + "\nremove=true\npublic_key=" + inHex(one) +
		"\nendpoint=192.0.2.1:7\npersistent_keepalive_interval=25\nreplace_allowed_ips=true\nallowed_ip=100.127.0.2/32\n"
	if got != want {
		t.Errorf("written %q, want %q", got, want)
	}
	text := "private_key=" + inHex(key) + "\nlisten_port=51820\nfwmark=1\npublic_key=" + inHex(one) + "\npreshared_key=" + inHex(key) +
		"\nprotocol_version=1\nendpoint=192.0.2.1:7\nlast_handshake_time_sec=5\nlast_handshake_time_nsec=6\ntx_bytes=8\nrx_bytes=9\n" +
		"persistent_keepalive_interval=25\nallowed_ip=100.127.0.2/32\npublic_key=" + inHex(other) + "\nlast_handshake_time_sec=0\nlast_handshake_time_nsec=0\n"
	have, err := decode(text)
	if err != nil {
		t.Fatal(err)
	}
	is := &wgtypes.Device{PrivateKey: key, ListenPort: 51820, Peers: []wgtypes.Peer{
		{
			PublicKey: one, Endpoint: at, LastHandshakeTime: time.Unix(5, 6), TransmitBytes: 8, ReceiveBytes: 9,
			PersistentKeepaliveInterval: keepalive, AllowedIPs: []net.IPNet{*allowed},
		},
		{PublicKey: other},
	}}
	if !reflect.DeepEqual(have, is) {
		t.Errorf("read %+v, want %+v", have, is)
	}
	for _, wrong := range []string{"private_key=0", "listen_port=x", "public_key=" + strings.Repeat("0", 66)} {
		if _, err := decode(wrong); err == nil {
			t.Errorf("%q is read", wrong)
		}
	}
	for _, wrong := range []string{"endpoint=x", "allowed_ip=x", "rx_bytes=x"} {
		if _, err := decode("public_key=" + inHex(one) + "\n" + wrong); err == nil {
			t.Errorf("%q is read", wrong)
		}
	}
}
