package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	names "gantry/netctl/dns"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestNamesAreAnsweredWithoutRights: the process is nobody, sees no files, and outlives who started it.
func TestNamesAreAnsweredWithoutRights(t *testing.T) {
	dir, err := os.MkdirTemp("", "names")
	must(t, err)
	defer func() { must(t, os.RemoveAll(dir)) }()
	program := filepath.Join(dir, "gantry-net")
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // there are no libraries where it runs
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c := names.ProcessConfig{
		Program: program, RunDir: filepath.Join(dir, "run"), Instance: "t",
		Listen: netip.AddrFrom4([4]byte{127, 56, byte(os.Getpid() >> 8), byte(os.Getpid())}), Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	p := names.NewProcess(c)
	defer func() { must(t, p.Remove(ctx)) }()
	must(t, p.SetOverlay(ctx, names.Overlay{VNI: 1, Members: []names.Name{{Addr: netip.MustParseAddr("10.64.0.2"), Pod: "podaaa", Name: "web"}}}))
	must(t, p.Set(ctx, names.Base{Suffixes: []string{"gantry.internal"}}))
	must(t, p.SetPods(ctx, map[netip.Addr][]uint32{netip.MustParseAddr("127.0.0.1"): {1}}))
	at := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, netip.AddrPortFrom(c.Listen, 53).String())
	}}
	if found, err := at.LookupNetIP(ctx, "ip4", "web.gantry.internal."); err != nil || fmt.Sprint(found) != "[10.64.0.2]" {
		t.Error(found, err)
	}

	pid, status := answering(t)
	for key, want := range map[string]string{
		"Uid": strings.TrimSpace(strings.Repeat(" "+strconv.Itoa(dnsID), 4)), "Gid": strings.TrimSpace(strings.Repeat(" "+strconv.Itoa(dnsID), 4)), "Groups": "",
		"CapInh": "0000000000000000", "CapPrm": "0000000000000000", "CapEff": "0000000000000000", "CapBnd": "0000000000000000", "CapAmb": "0000000000000000",
		"NoNewPrivs": "1", "Seccomp": "2", "NSsid": strconv.Itoa(pid),
	} {
		if got := status[key]; got != want {
			t.Errorf("%s of the process is %q, want %q", key, got, want)
		}
	}
	if entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/root", pid)); err != nil || len(entries) > 0 {
		t.Errorf("the process sees %v, %v", entries, err)
	}
}

// answering finds the process that this one started.
func answering(t *testing.T) (int, map[string]string) {
	t.Helper()
	children, err := filepath.Glob("/proc/[0-9]*/status")
	must(t, err)
	for _, path := range children {
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		status := map[string]string{}
		for line := range strings.Lines(string(text)) {
			key, value, _ := strings.Cut(line, ":")
			status[key] = strings.Join(strings.Fields(value), " ")
		}
		if status["PPid"] == strconv.Itoa(os.Getpid()) && strings.HasPrefix(status["Uid"], strconv.Itoa(dnsID)) {
			pid, err := strconv.Atoi(status["Pid"])
			must(t, err)
			return pid, status
		}
	}
	t.Fatal("there is no process of that user")
	return 0, nil
}
