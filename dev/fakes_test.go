package dev

import (
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The test binary plays the children: it is started through links that have their names. What they do, they note in
// the file that this variable names.
const eventsVar = "DEVTEST_EVENTS"

func TestMain(m *testing.M) {
	play := map[string]func([]string) error{
		"gantry-scheduler": playScheduler, "gantry-agent": playAgent, "containerd": playContainerd,
		"crasher": playCrasher, "stubborn": playStubborn, "devmain": playDev,
		"containerd-shim-fake": func([]string) error { <-onTerm(); return nil },
	}[filepath.Base(os.Args[0])]
	if play == nil {
		os.Exit(m.Run())
	}
	if err := play(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func note(format string, args ...any) {
	f, err := os.OpenFile(os.Getenv(eventsVar), os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		panic(err)
	}
	_, _ = fmt.Fprintf(f, format+"\n", args...)
	_ = f.Close()
}

// option returns the value of a flag.
func option(args []string, name string) string {
	for i, a := range args {
		if a == name && i+1 < len(args) {
			return args[i+1]
		}
	}
	return ""
}

// onTerm begins to catch SIGTERM: called before a child notes that it runs, so that it then ends in order.
func onTerm() <-chan os.Signal {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGTERM)
	return c
}

// wanted reports whether a test asked for a behaviour, by a file beside the events.
func wanted(behaviour string) bool {
	_, err := os.Stat(os.Getenv(eventsVar) + "." + behaviour)
	return err == nil
}

func playScheduler(args []string) error {
	dir := option(args, "--data-dir")
	if args[0] == "init" {
		note("init %s", option(args, "--address"))
		if err := certify(filepath.Join(dir, "pki"), "/scheduler/m1"); err != nil {
			return err
		}
		if wanted("init-dies") {
			return errors.New("init dies half-way")
		}
		k := fmt.Sprintf(`{"clusterId":"c","adminKey":"gk_admin%d","accountId":"a","apiKey":"gk_user%d"}`, os.Getpid(), os.Getpid())
		return os.WriteFile(option(args, "--keys-file"), []byte(k), 0o600)
	}
	if wanted("scheduler-dies") {
		return errors.New("bad weather")
	}
	if args[0] == "join" {
		token, err := os.ReadFile(option(args, "--token-file"))
		if err != nil || strings.TrimSpace(string(token)) != "the-token" {
			return fmt.Errorf("token %q: %w", token, err)
		}
		note("%s joins", filepath.Base(dir))
		return certify(filepath.Join(dir, "pki"), "/scheduler/m"+strings.TrimPrefix(filepath.Base(dir), "scheduler-"))
	}
	l, err := net.Listen("tcp", option(args, "--listen"))
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		text := "follows"
		if leader, err := os.ReadFile(os.Getenv(eventsVar) + ".leader"); err == nil && string(leader) == filepath.Base(dir) {
			text = leads
		}
		_, _ = fmt.Fprintf(w, `{"status":"ok","conditions":[{"name":"leader","ok":true,"text":%q}]}`, text)
	})
	mux.HandleFunc("POST /admin/v1/cluster/tokens", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"token":"the-token","expiresAt":"2030-01-01T00:00:00.000Z"}`))
	})
	mux.HandleFunc("GET /admin/v1/cluster", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"members":[{"id":"m1","voter":true},{"id":"m2","voter":true},{"id":"m3","voter":true}]}`))
	})
	mux.HandleFunc("POST /admin/v1/hosts/tokens", func(w http.ResponseWriter, r *http.Request) {
		var k keys
		if err := readJSON(filepath.Join(dir, "..", "keys.json"), &k); err != nil ||
			r.Header.Get("Authorization") != "Bearer "+k.AdminKey.Reveal() {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = w.Write([]byte(`{"token":"the-token","expiresAt":"2030-01-01T00:00:00.000Z"}`))
	})
	mux.HandleFunc("GET /admin/v1/hosts", func(w http.ResponseWriter, _ *http.Request) {
		var hosts []string
		agents, _ := filepath.Glob(filepath.Join(dir, "..", "agent*"))
		for i, agent := range agents {
			state := "joining"
			if _, err := os.Stat(filepath.Join(agent, "running")); err == nil {
				state = "ready"
			}
			hosts = append(hosts, fmt.Sprintf(`{"id":"h%d","state":%q,"gpus":[{"type":"NVIDIA B200","simulated":true}]}`, i+1, state))
		}
		_, _ = fmt.Fprintf(w, `{"hosts":[%s]}`, strings.Join(hosts, ","))
	})
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: time.Second}
	go func() { _ = srv.Serve(l) }()
	term := onTerm()
	note("scheduler runs %s", option(args, "--link-listen"))
	if last := args[len(args)-1]; strings.HasPrefix(last, "--oidc-issuer=") {
		note("%s trusts %s", filepath.Base(dir), last)
	}
	note("quotas %s %s %s", option(args, "--rate-minute"), option(args, "--rate-hour"), option(args, "--rate-day"))
	<-term
	note("scheduler stops")
	return srv.Close()
}

// certify writes a certificate with one URI, as joining does.
func certify(dir, id string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	leaf := &x509.Certificate{SerialNumber: big.NewInt(1), URIs: []*url.URL{{Scheme: "spiffe", Host: "c", Path: id}}}
	der, err := x509.CreateCertificate(rand.Reader, leaf, leaf, key.Public(), key)
	if err != nil {
		return err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "node.crt"), text, 0o600))
}

func playAgent(args []string) error {
	dir := option(args, "--data-dir")
	running := filepath.Join(dir, "running")
	switch args[0] {
	case "join":
		file := option(args, "--token-file")
		info, err := os.Stat(file)
		if err != nil {
			return err
		}
		text, err := os.ReadFile(file)
		if err != nil || strings.TrimSpace(string(text)) != "the-token" || info.Mode().Perm() != 0o600 {
			return fmt.Errorf("token file %v %q: %w", info.Mode(), text, err)
		}
		note("join")
		return certify(filepath.Join(dir, "pki"), "/host/h"+cmp.Or(strings.TrimPrefix(strings.TrimPrefix(filepath.Base(dir), "agent"), "-"), "1"))
	case "clean":
		conn, err := net.Dial("unix", option(args, "--containerd"))
		if err != nil {
			return err
		}
		note("clean")
		if wanted("clean-fails") {
			return errors.New("a link would not go")
		}
		return conn.Close()
	}
	term := onTerm()
	note("agent runs %s", strings.Join(args[1:], " "))
	if err := os.WriteFile(running, nil, 0o600); err != nil {
		return err
	}
	<-term
	note("agent stops")
	return os.Remove(running)
}

func playContainerd(args []string) error {
	config, err := os.ReadFile(option(args, "--config"))
	if err != nil {
		return err
	}
	_, rest, _ := strings.Cut(string(config), "[grpc]\n  address = ")
	line, _, _ := strings.Cut(rest, "\n")
	var socket string
	if err := json.Unmarshal([]byte(line), &socket); err != nil {
		return err
	}
	if err := removeIfThere(socket); err != nil {
		return err
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	term := onTerm()
	note("containerd runs")
	<-term
	note("containerd stops")
	return l.Close()
}

func playCrasher([]string) error {
	note("%d", time.Now().UnixNano())
	return errors.New("crash")
}

func playStubborn([]string) error {
	signal.Ignore(syscall.SIGTERM)
	note("deaf")
	select {}
}
