package edge

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mholt/acmez/v3/acme"

	"gantry/api/edge/edgetest"
	"gantry/test/program"
)

// script lays down a shell script.
func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "txt")
	program.Write(t, path, "#!/bin/sh\n"+text)
	return path
}

// A program that never ends, and writes without end, is ended with all that it began when the order is given up.
func TestCommandEndsWithItsOrder(t *testing.T) {
	pids := filepath.Join(t.TempDir(), "pids")
	c := &command{path: script(t, "yes & sleep 1000 & echo $! > "+pids+".new; mv "+pids+".new "+pids+"; wait")}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- c.Present(ctx, acme.Challenge{Identifier: acme.Identifier{Value: "gantry.test"}}) }()
	var child int
	eventually(t, "the program has begun", func() bool {
		text, _ := os.ReadFile(pids)
		child, _ = strconv.Atoi(strings.TrimSpace(string(text)))
		return child > 0
	})
	cancel()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) || len(err.Error()) > 2*toldOfCommand {
			t.Errorf("got %d bytes: %.200v", len(err.Error()), err)
		}
	case <-time.After(patience):
		t.Fatal("it goes on")
	}
	eventually(t, "what it began has ended", func() bool { return dead(child) })
}

// dead tells whether a process has ended, be it without anybody who has asked for how.
func dead(pid int) bool {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	return err != nil || strings.Contains(string(text), ") Z ") || syscall.Kill(pid, 0) != nil
}

// A record is taken away also when the order was given up, as when another scheduler leads.
func TestCommandCleansUpAfterTheOrder(t *testing.T) {
	done := filepath.Join(t.TempDir(), "done")
	c := &command{grace: patience, path: script(t, `[ "$1" = cleanup ] && echo "$2 $3" > `+done)}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.CleanUp(ctx, acme.Challenge{Identifier: acme.Identifier{Value: "gantry.test"}}); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(done); err != nil || !strings.HasPrefix(string(text), "_acme-challenge.gantry.test. ") {
		t.Errorf("%q %v", text, err)
	}
	c = &command{grace: 50 * time.Millisecond, path: script(t, "sleep 1000")}
	if err := c.CleanUp(ctx, acme.Challenge{}); !errors.Is(err, context.Canceled) {
		t.Errorf("the end waits for the program: %v", err)
	}
}

const (
	tsigKey   = `key "gantry." { algorithm hmac-sha256; secret "c2VjcmV0IG9mIGEgdGVzdCBhbG9uZQ=="; };` + "\n"
	namedConf = `include "%[1]s/tsig.key";
options { directory "%[1]s"; listen-on port %[2]s { 127.0.0.1; }; listen-on-v6 { none; }; pid-file none; session-keyfile none; lock-file none; recursion no; dnssec-validation no; };
controls { };
zone "gantry.test" { type primary; file "zone"; update-policy { grant gantry. wildcard *.gantry.test. TXT; }; };
`
	zone = "$TTL 60\n@ SOA ns.gantry.test. nobody.gantry.test. 1 60 60 60 60\n@ NS ns\nns A 127.0.0.1\n@ TXT ready\npods A 127.0.0.1\n"
)

// bind runs BIND with a zone that takes updates by RFC 2136, signed with tsig.key in the folder.
func bind(t *testing.T, dir string) (address string) {
	t.Helper()
	ln, port := listen(t)
	_ = ln.Close()
	address = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	for name, text := range map[string]string{"tsig.key": tsigKey, "zone": zone, "named.conf": fmt.Sprintf(namedConf, dir, strconv.Itoa(port))} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	cmd := exec.CommandContext(ctx, "named", "-g", "-n", "1", "-c", filepath.Join(dir, "named.conf"))
	said := &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = said, said, patience
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // it was killed
		if t.Failed() {
			t.Log(said)
		}
	})
	eventually(t, "BIND answers", func() bool { n, err := records(address, "gantry.test."); return err == nil && n == 1 })
	return address
}

// records counts the TXT records that a name server has under a name.
func records(address, name string) (int, error) {
	r := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	found, err := r.LookupTXT(ctx, name)
	if none := new(net.DNSError); errors.As(err, &none) && none.IsNotFound {
		return 0, nil
	}
	return len(found), err
}

// TestTheManualsProgram orders a wildcard with the very program of docs/operations.md, from a real authority that asks a real BIND.
func TestTheManualsProgram(t *testing.T) {
	dir := t.TempDir()
	names := bind(t, dir)
	manual, err := os.ReadFile(filepath.Join("..", "..", "docs", "operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile("(?s)```sh\n(#!/bin/sh[^`]*nsupdate[^`]*)```").FindSubmatch(manual)
	if found == nil {
		t.Fatal("docs/operations.md has no program for TXT records")
	}
	text := strings.NewReplacer("ns1.example.com", strings.Replace(names, ":", " ", 1), "/etc/gantry/tsig.key", filepath.Join(dir, "tsig.key")).Replace(string(found[1]))
	path := filepath.Join(dir, "txt")
	program.Write(t, path, text)
	ln, _ := listen(t)
	m, auth := newMember(t, ln), edgetest.NewAuthorityOf(t, names, 24*time.Hour)
	m.begin(t, ACMEConfig{
		Directory: auth.URL, Roots: auth.Server, Challenge: ChallengeTLS, Wildcard: "pods.gantry.test", Command: path, Listener: ln.Addr(),
		Store: &shared{files: map[string][]byte{}},
	}, true)
	eventually(t, "a certificate", func() bool { _, err := m.shown(auth, "x-80.pods.gantry.test"); return err == nil })
	if n, err := records(names, "_acme-challenge.pods.gantry.test."); err != nil || n != 0 {
		t.Errorf("%d records are left: %v", n, err)
	}
	c := &command{path: path, grace: patience}
	for _, value := range []string{"one", "two"} { // two orders of one name at a time
		if err := c.Present(t.Context(), acme.Challenge{Identifier: acme.Identifier{Value: "pods.gantry.test"}, KeyAuthorization: value}); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.CleanUp(t.Context(), acme.Challenge{Identifier: acme.Identifier{Value: "pods.gantry.test"}, KeyAuthorization: "one"}); err != nil {
		t.Fatal(err)
	}
	if n, err := records(names, "_acme-challenge.pods.gantry.test."); err != nil || n != 1 {
		t.Errorf("%d records, %v; the other order's must stay", n, err)
	}
	if err := c.Present(t.Context(), acme.Challenge{Identifier: acme.Identifier{Value: "elsewhere.test"}}); err == nil || !strings.Contains(err.Error(), "present _acme-challenge.elsewhere.test.: exit status") {
		t.Errorf("a refused update is no error: %v", err)
	}
}
