package agentrpc

import (
	"crypto/x509"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"gantry/internal/pki"
)

var gatewayID = pki.Identity{Role: pki.RoleGateway, ID: "g1"}

// TestAHostConnectsToTheGatewayThatItWasTold: neither a scheduler nor another gateway at its address will do, nor a gateway at that of
// a scheduler.
func TestAHostConnectsToTheGatewayThatItWasTold(t *testing.T) {
	checkLeaks(t)
	ca := newCA(t)
	host := newStore(t, ca, hostID)
	for name, c := range map[string]struct {
		is   pki.Identity
		of   *pki.CA
		want string // the gateway that is meant; empty: a scheduler
		says string // empty: it is taken
	}{
		"the gateway":                   {gatewayID, ca, "g1", ""},
		"another gateway":               {pki.Identity{Role: pki.RoleGateway, ID: "g2"}, ca, "g1", "and not gateway/g1"},
		"a scheduler":                   {schedulerID, ca, "g1", "not gateway.gantry"},
		"a gateway for a scheduler":     {gatewayID, ca, "", "not scheduler.gantry"},
		"the gateway of other clusters": {gatewayID, newCA(t), "g1", "certificate"},
	} {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		mux, err := NewMux(ln, newStore(t, c.of, c.is), MuxConfig{Log: slog.New(slog.DiscardHandler), DataOnly: true})
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan *DataConn, 1)
		go func() {
			var d *DataConn
			if conn, err := mux.Data().Accept(); err == nil {
				d, _ = AcceptData(conn, nil, anyHost)
			}
			done <- d
		}()
		d, err := DialData(testContext(t), host, dialPlain, DataPeer{Addr: ln.Addr().String(), Gateway: c.want}, &DataHello{})
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			_ = d.Close()
		}
		if err := mux.Close(); err != nil {
			t.Error(err)
		}
		if d := <-done; d != nil {
			_ = d.Close()
		}
	}
}

// TestWhatAGatewayMaySpeak: of the protocols of a scheduler's port forwarded HTTP and gRPC, the methods of which refuse by themselves; and
// its own port takes data connections alone.
func TestWhatAGatewayMaySpeak(t *testing.T) {
	checkLeaks(t)
	ca := newCA(t)
	listen := func(who pki.Identity, dataOnly bool) string {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		mux, err := NewMux(ln, newStore(t, ca, who), MuxConfig{Log: slog.New(slog.DiscardHandler), DataOnly: dataOnly})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = mux.Close() })
		return ln.Addr().String()
	}
	verify := map[string]string{ALPNRaft: "refused", ALPNJobs: "refused", ALPNData: "refused", ALPNHTTP: "", ALPNGRPC: ""}
	scheduler, gateway := listen(schedulerID, false), listen(gatewayID, true)
	ask := func(addr, protocol, server string, as *pki.Store) error {
		check := pki.VerifyScheduler
		if server == pki.GatewayName {
			check = func(leaf, ca *x509.Certificate, now time.Time) error {
				return pki.VerifyGateway(leaf, ca, gatewayID.ID, now)
			}
		}
		config, err := clientOf(as, protocol, server, check)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := dialPlain(testContext(t), addr)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := shakeHands(testContext(t), raw, config)
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.Read(make([]byte, 1)) // in TLS 1.3 a refusal shows here; nobody takes the connection otherwise
		return err
	}
	store := newStore(t, ca, gatewayID)
	for protocol, says := range verify {
		err := ask(scheduler, protocol, pki.ServerName, store)
		if refused := err != nil && strings.Contains(err.Error(), "bad certificate"); refused != (says != "") {
			t.Errorf("a gateway that speaks %s with a scheduler: %v", protocol, err)
		}
	}
	host := newStore(t, ca, hostID)
	for _, protocol := range []string{ALPNGRPC, ALPNRaft, ALPNJobs, ALPNHTTP} {
		if err := ask(gateway, protocol, pki.GatewayName, host); err == nil || !strings.Contains(err.Error(), "application protocol") {
			t.Errorf("a host that speaks %s with a gateway: %v", protocol, err)
		}
	}
}
