package chaos

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gantry/api/admin"
	"gantry/internal/agentrpc"
	"gantry/internal/pki"
)

// damage overwrites pages in the middle of a member's log.
func damage(m *member) error {
	path := filepath.Join(m.data, "raft", "raft.db")
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	junk := make([]byte, 64<<10)
	for i := range junk {
		junk[i] = byte(i*7 + 13)
	}
	_, err = f.WriteAt(junk, 0)
	return errors.Join(err, f.Sync(), f.Close())
}

// tlsAnswer fails when a scheduler refuses a certificate, or none, for a protocol.
func (c *cluster) tlsAnswer(store *pki.Store, protocol string) error {
	ctx, cancel := context.WithTimeout(context.Background(), upTime)
	defer cancel()
	conn, err := c.clients.Dial(ctx, "tcp", c.members[0].link())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	conf := &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: []string{protocol}, InsecureSkipVerify: true} //nolint:gosec // it is the server that is tried
	if store != nil {
		conf.GetClientCertificate = store.GetClientCertificate
	}
	over := tls.Client(conn, conf)
	if err := over.HandshakeContext(ctx); err != nil {
		return err
	}
	// A refusal of our certificate shows at the first read; a listener that takes it waits for us to speak.
	if err := over.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	_, err = over.Read(make([]byte, 1))
	var late net.Error
	if errors.As(err, &late) && late.Timeout() {
		return nil
	}
	if errors.Is(err, io.EOF) {
		return errors.New("the connection was closed")
	}
	return err
}

func TestRow33Certificates(t *testing.T) {
	c, list := withAgents(t)
	host, err := pki.OpenStore(filepath.Join(list[0].data, "pki"))
	must(t, err)
	scheduler, err := pki.OpenStore(filepath.Join(c.members[0].data, "pki"))
	must(t, err)
	for _, protocol := range []string{agentrpc.ALPNRaft, agentrpc.ALPNJobs, agentrpc.ALPNHTTP} {
		if err := c.tlsAnswer(scheduler, protocol); err != nil {
			t.Errorf("a scheduler's certificate is refused for %s: %v", protocol, err)
		}
		if err := c.tlsAnswer(host, protocol); err == nil {
			t.Errorf("a host's certificate speaks %s", protocol)
		}
		if err := c.tlsAnswer(nil, protocol); err == nil {
			t.Errorf("without a certificate one speaks %s", protocol)
		}
	}
}

func TestRow33JoinTokens(t *testing.T) {
	c, list := withAgents(t)
	place := list[0].place
	refused := func(what, token string, asScheduler bool) {
		t.Helper()
		name := filepath.Join(suite.lab.Dir, "agent-refused-"+strings.ReplaceAll(what, " ", "-"))
		var err error
		if asScheduler {
			m, newErr := c.newMember()
			must(t, newErr)
			err = c.joinWith(m, token)
		} else {
			_, err = c.joinHost(&agent{name: "refused", place: place, data: name}, token)
		}
		if err == nil {
			t.Errorf("%s let someone join", what)
		} else {
			t.Logf("%s: %v", what, err)
		}
	}
	used, err := c.hostToken(t.Context())
	must(t, err)
	first := &agent{name: "first", place: place, data: filepath.Join(suite.lab.Dir, "agent-first")}
	first.id, err = c.joinHost(first, used)
	must(t, err)
	t.Cleanup(func() { must(t, c.admin(http.MethodDelete, "/admin/v1/hosts/"+first.id, nil, nil)) })
	refused("a used token", used, false)

	forHost, err := c.hostToken(t.Context())
	must(t, err)
	refused("a token for hosts", forHost, true)
	forMember, err := c.memberToken(map[string]any{})
	must(t, err)
	refused("a token for schedulers", forMember, false)
	if long { // the shortest life of a token is a minute
		life := map[string]any{"dataCenterId": "dc-1", "ttlSeconds": 60}
		var old admin.JoinToken
		must(t, c.admin(http.MethodPost, "/admin/v1/hosts/tokens", life, &old))
		time.Sleep(time.Until(old.ExpiresAt.Add(time.Second))) // until it has expired
		refused("an expired token", old.Token.Reveal(), false)
	}

	// A try with the wrong role does not use a token up.
	m := &agent{name: "second", place: place, data: filepath.Join(suite.lab.Dir, "agent-second")}
	if m.id, err = c.joinHost(m, forHost); err != nil {
		t.Errorf("a token for hosts that a scheduler tried: %v", err)
	} else {
		must(t, c.admin(http.MethodDelete, "/admin/v1/hosts/"+m.id, nil, nil))
	}
}
