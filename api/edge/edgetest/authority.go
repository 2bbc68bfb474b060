// Package edgetest runs a real certificate Authority for tests.
package edgetest

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/letsencrypt/challtestsrv"
	"github.com/letsencrypt/pebble/v2/ca"
	"github.com/letsencrypt/pebble/v2/db"
	"github.com/letsencrypt/pebble/v2/va"
	"github.com/letsencrypt/pebble/v2/wfe"
)

// Authority is a real ACME server on loopback, with the name server that it asks.
type Authority struct {
	URL       string         // of its directory
	ServerPEM []byte         // vouches for its own server
	Server    *x509.CertPool // the same
	Users     *x509.CertPool // vouches for what it has signed
	Command   string         // a program for TXT records
	Orders    func() int     // begun so far
	Records   func() int     // TXT records that were set, and not taken away
	Set       func() int     // TXT records that ever were set
}

// NewAuthority starts one that looks for answers at a port of loopback. A certificate is for so long.
func NewAuthority(t *testing.T, port int, valid time.Duration) *Authority {
	t.Helper()
	a := &Authority{}
	a.begin(t, port, valid, a.nameServer(t))
	return a
}

// NewAuthorityOf starts one that asks the name server at an address for TXT records. It has no Command and no counts of them.
func NewAuthorityOf(t *testing.T, names string, valid time.Duration) *Authority {
	t.Helper()
	a := &Authority{}
	a.begin(t, 1, valid, names)
	return a
}

func (a *Authority) begin(t *testing.T, port int, valid time.Duration, names string) {
	t.Helper()
	t.Setenv("PEBBLE_VA_NOSLEEP", "1")
	t.Setenv("PEBBLE_WFE_NONCEREJECT", "0")
	quiet := log.New(io.Discard, "", 0)
	a.Server, a.Users = x509.NewCertPool(), x509.NewCertPool()
	memory := db.NewMemoryStore()
	signer := ca.New(quiet, memory, "", "ecdsa", 0, 1, map[string]ca.Profile{"default": {ValidityPeriod: uint64(valid / time.Second)}})
	front := wfe.New(quiet, memory, va.New(quiet, port, port, false, names, memory), signer, nil, false, false, 0, 0)
	var mu sync.Mutex
	orders := 0
	handler := front.Handler()
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/order-plz" {
			mu.Lock()
			orders++
			mu.Unlock()
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	a.Orders = func() int { mu.Lock(); defer mu.Unlock(); return orders }
	a.URL = s.URL + wfe.DirectoryPath
	a.Server.AddCert(s.Certificate())
	a.ServerPEM = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	a.Users.AppendCertsFromPEM(signer.GetRootCert(0).PEM())
}

// nameServer starts a name server for which every name is on loopback, and makes the program that sets records there.
func (a *Authority) nameServer(t *testing.T) string {
	t.Helper()
	addr := freePort(t)
	names, err := challtestsrv.New(challtestsrv.Config{DNSAddrs: []string{addr}, Log: log.New(io.Discard, "", 0)})
	if err != nil {
		t.Fatal(err)
	}
	names.SetDefaultDNSIPv6("")
	go names.Run()
	t.Cleanup(names.Shutdown)
	var mu sync.Mutex
	there, set := 0, 0
	control := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		name := r.URL.Query().Get("name")
		if r.URL.Path == "/present" {
			names.AddDNSTXTRecord(name, r.URL.Query().Get("value"))
			there, set = there+1, set+1
			return
		}
		names.DeleteDNSTXTRecord(name)
		there--
	}))
	t.Cleanup(control.Close)
	a.Records = func() int { mu.Lock(); defer mu.Unlock(); return there }
	a.Set = func() int { mu.Lock(); defer mu.Unlock(); return set }
	a.Command = filepath.Join(t.TempDir(), "txt")
	script := fmt.Sprintf("#!/bin/sh\nexec curl -sf \"%s/$1?name=$2&value=$3\"\n", control.URL)
	if err := os.WriteFile(a.Command, []byte(script), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	return addr
}

// freePort returns an address that nobody listens on.
func freePort(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	return ln.Addr().String()
}
