package dataplane

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"

	"gantry/netctl/tunnel"
)

// Server is the process's part that the agent asks. It implements companion.Handler.
type Server struct {
	log    *slog.Logger
	device *Device
	wg     *device.Device // nil until the first order
	done   chan struct{}
	ended  sync.WaitGroup
	mu     sync.Mutex                // wg
	keyed  time.Time                 // when this host got its key: sessions of before are none
	told   map[string]netip.AddrPort // endpoints of peers, by key, as they were ordered last

	greets  map[string]*greeting // by key
	greeted chan struct{}        // there are greets
}

// NewServer makes a server. Close it.
func NewServer(log *slog.Logger) *Server {
	s := &Server{
		log: log, device: NewDevice(netip.AddrFrom4([4]byte{}), 0, 0), told: map[string]netip.AddrPort{}, done: make(chan struct{}),
		greets: map[string]*greeting{}, greeted: make(chan struct{}, 1),
	}
	s.ended.Go(s.watch)
	return s
}

// watch tells the device every second which peers have no session, and looks after greetings.
func (s *Server) watch() {
	tick, look := time.NewTicker(time.Second), time.NewTimer(time.Hour)
	defer tick.Stop()
	defer look.Stop()
	for {
		select {
		case <-s.done:
			return
		case <-tick.C:
			s.mu.Lock()
			s.chill()
			s.mu.Unlock()
		case <-s.greeted:
			look.Reset(lookAfter)
		case <-look.C:
			s.mu.Lock()
			more := s.greetAgain()
			s.mu.Unlock()
			if more {
				look.Reset(lookAfter)
			}
		}
	}
}

// chill is one look of watch. The caller has the lock.
func (s *Server) chill() {
	if s.wg == nil {
		return
	}
	have, err := s.read()
	if err != nil {
		return // it is closed
	}
	var cold []addr
	for _, p := range have.peers {
		if a, err := netip.ParsePrefix(p.allowed); err == nil && a.Addr().Is4() && (time.Since(p.handshake) > staleAt || p.handshake.Before(s.keyed)) {
			cold = append(cold, a.Addr().As4())
		}
	}
	s.device.pace.setCold(cold)
}

// Device is what the server tells.
func (s *Server) Device() *Device { return s.device }

// Close ends the tunnel.
func (s *Server) Close() {
	close(s.done)
	s.ended.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.wg != nil {
		s.wg.Close()
	}
	_ = s.device.Close() // it never fails
}

// Handle implements companion.Handler.
func (s *Server) Handle(_ context.Context, verb string, ask []byte, files []*os.File) (any, error) {
	if verb == tunnel.VerbTap && len(files) == 1 {
		var t tunnel.Tap
		if err := json.Unmarshal(ask, &t); err != nil {
			return nil, errors.Join(err, files[0].Close())
		}
		return nil, s.device.SetTap(t.VNI, t.Index, files[0])
	}
	for _, f := range files {
		_ = f.Close() // nobody asked for it
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch verb {
	case tunnel.VerbConfig:
		var o tunnel.Order
		if err := json.Unmarshal(ask, &o); err != nil {
			return nil, err
		}
		return nil, s.configure(o)
	case tunnel.VerbMember:
		var m tunnel.Members
		if err := json.Unmarshal(ask, &m); err != nil {
			return nil, err
		}
		return nil, s.device.SetOverlay(m.VNI, m.All)
	case tunnel.VerbForget:
		var vni uint32
		if err := json.Unmarshal(ask, &vni); err != nil {
			return nil, err
		}
		s.device.RemoveOverlay(vni)
		return nil, nil
	case tunnel.VerbState:
		return s.state()
	default:
		return nil, fmt.Errorf("%q is not known", verb)
	}
}

// configure makes the tunnel as ordered. Sessions with peers that stay go on.
func (s *Server) configure(o tunnel.Order) error {
	if !o.Addr.Is4() {
		return errors.New("the tunnel's address is none of IPv4")
	}
	s.device.Configure(o.Addr, o.VXLANPort, o.MTU)
	if s.wg == nil {
		s.wg = device.NewDevice(s.device, counted{conn.NewStdNetBind(), &s.device.pace}, &device.Logger{
			Verbosef: device.DiscardLogf,
			Errorf:   func(format string, args ...any) { s.log.Warn("WireGuard", "says", fmt.Sprintf(format, args...)) },
		})
	}
	have, err := s.read()
	if err != nil {
		return err
	}
	if have.key != hex.EncodeToString(o.Key) {
		s.keyed = time.Now()
	}
	if err := s.wg.IpcSet(s.difference(have, o)); err != nil {
		return fmt.Errorf("the tunnel does not take its settings: %w", err)
	}
	if err := s.wg.Up(); err != nil {
		return err
	}
	s.chill()
	s.told = map[string]netip.AddrPort{}
	for _, p := range o.Peers {
		key := hex.EncodeToString(p.Key)
		s.told[key] = p.Endpoint
		if have.peers[key] == nil || have.key != hex.EncodeToString(o.Key) {
			s.greet(p, o.Addr.As4())
		}
	}
	return nil
}

// difference is what has to be told of what is ordered, in words of WireGuard's configuration protocol.
func (s *Server) difference(have ipc, o tunnel.Order) string {
	var out strings.Builder
	say := func(key, value string) { out.WriteString(key + "=" + value + "\n") }
	if key := hex.EncodeToString(o.Key); key != have.key {
		say("private_key", key)
	}
	if port := strconv.Itoa(int(o.ListenPort)); port != have.port {
		say("listen_port", port)
	}
	want := map[string]bool{}
	for _, p := range o.Peers {
		want[hex.EncodeToString(p.Key)] = true
	}
	for key := range have.peers {
		if !want[key] {
			say("public_key", key)
			say("remove", "true")
		}
	}
	for _, p := range o.Peers {
		key := hex.EncodeToString(p.Key)
		old, there := have.peers[key]
		allowed, keepalive := netip.PrefixFrom(p.Addr, 32).String(), strconv.Itoa(int(p.Keepalive/time.Second))
		// Where a peer was heard counts for more than where it was to be called, until that changes.
		call := p.Endpoint.IsValid() && (!there || !old.endpoint.IsValid() || s.told[key] != p.Endpoint)
		if there && !call && old.allowed == allowed && old.keepalive == keepalive {
			continue
		}
		say("public_key", key)
		say("replace_allowed_ips", "true")
		say("allowed_ip", allowed)
		say("persistent_keepalive_interval", keepalive)
		if call {
			say("endpoint", p.Endpoint.String())
		}
	}
	return out.String()
}

// ipc is what WireGuard says of itself.
type ipc struct {
	key, port string
	peers     map[string]*ipcPeer // by key
}

type ipcPeer struct {
	key                device.NoisePublicKey
	allowed, keepalive string // of several allowed addresses, the last
	endpoint           netip.AddrPort
	handshake          time.Time
	received, sent     int64
}

// read asks WireGuard what it has.
func (s *Server) read() (ipc, error) {
	text, err := s.wg.IpcGet()
	if err != nil {
		return ipc{}, fmt.Errorf("the tunnel does not say what it has: %w", err)
	}
	out := ipc{peers: map[string]*ipcPeer{}}
	p := &ipcPeer{}
	var seconds, nanos int64
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		number, _ := strconv.ParseInt(value, 10, 64) // 0 for what is none
		switch key {
		case "private_key":
			out.key = value
		case "listen_port":
			out.port = value
		case "public_key":
			p = &ipcPeer{}
			_ = p.key.FromHex(value) // it is WireGuard's own
			out.peers[value] = p
		case "endpoint":
			p.endpoint, _ = netip.ParseAddrPort(value) // the zero value for what is none
		case "allowed_ip":
			p.allowed = value
		case "persistent_keepalive_interval":
			p.keepalive = value
		case "last_handshake_time_sec":
			seconds = number
		case "last_handshake_time_nsec":
			if nanos = number; seconds != 0 || nanos != 0 {
				p.handshake = time.Unix(seconds, nanos)
			}
		case "rx_bytes":
			p.received = number
		case "tx_bytes":
			p.sent = number
		}
	}
	return out, nil
}

func (s *Server) state() (tunnel.State, error) {
	out := tunnel.State{Drops: s.device.Drops(), Taps: s.device.Taps()}
	if s.wg == nil {
		return out, nil
	}
	have, err := s.read()
	if err != nil {
		return tunnel.State{}, err
	}
	for text, p := range have.peers {
		key, err := hex.DecodeString(text)
		if err != nil {
			return tunnel.State{}, err
		}
		out.Peers = append(out.Peers, tunnel.OrderPeerState{Key: key, Endpoint: p.endpoint, Handshake: p.handshake, Received: p.received, Sent: p.sent})
	}
	return out, nil
}
