package link

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gantry/agent"
	"gantry/agent/session"
	"gantry/api/proxy"
	"gantry/api/rest"
	"gantry/scheduler/dispatch"
)

// callersEnv tells a process of this test that it holds idle connections, and which: address, host, path (-: nothing is asked for) and
// number, with a space between two; or, with an address alone, that it serves WebSockets there; or, with the word host, the folder of a
// host, its machine and a scheduler, that it is that host's agent.
const callersEnv = "GANTRY_TEST_CALLERS"

// perSource is how many connections come from one address of the loopback network, so that ports do not run out.
const perSource = 20000

// holdConnections is what the benchmarks of idle connections start as processes of their own: their memory and their files are not those
// of a scheduler. It ends with its standard input.
func holdConnections(what string) error {
	words := strings.Split(what, " ")
	switch {
	case words[0] == "host":
		h := &host{world: &world{dial: session.DialTCP, log: slog.New(slog.DiscardHandler)}, dir: words[1], machine: words[2], conf: runs}
		ctx, cancel := context.WithCancel(context.Background())
		over := make(chan struct{})
		go func() {
			defer close(over)
			if err := agent.Run(ctx, h.config(words[3])); err != nil {
				fmt.Println(err)
			}
		}()
		defer func() { cancel(); <-over }()
	case len(words) == 1:
		ln, err := net.Listen("tcp", words[0])
		if err != nil {
			return err
		}
		defer func() { _ = ln.Close() }()
		go upgrade(ln)
	default:
		n, err := strconv.Atoi(words[3])
		if err != nil {
			return err
		}
		for i := range n {
			c, err := hold(words[0], words[1], words[2], i/perSource)
			if err != nil {
				return err
			}
			defer func() { _ = c.Close() }()
		}
	}
	fmt.Println("held")
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// hold opens a connection from the nth address, and on it a WebSocket where path names one.
func hold(addr, host, path string, nth int) (net.Conn, error) {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(nth+1))}, KeepAlive: -1, Timeout: patience}
	c, err := dialer.Dial("tcp", addr)
	if err != nil || path == "-" {
		return c, err
	}
	_, err = fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"+
		"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n", path, host)
	if err != nil {
		return nil, err
	}
	answer := make([]byte, 0, 1024)
	for !bytes.HasSuffix(answer, []byte("\r\n\r\n")) && len(answer) < cap(answer) {
		if _, err := c.Read(answer[len(answer) : len(answer)+1]); err != nil {
			return nil, err
		}
		answer = answer[:len(answer)+1]
	}
	if !bytes.HasPrefix(answer, []byte("HTTP/1.1 101 ")) {
		return nil, errors.New(string(answer))
	}
	return c, nil
}

// affordable is how many connections a process can have that has so many files for each, 10,000 or so many as the environment says.
func affordable(b *testing.B, name string, files, otherwise int) int {
	b.Helper()
	n, err := strconv.Atoi(os.Getenv(name))
	if err != nil {
		n = otherwise
	}
	var most unix.Rlimit
	must(b, unix.Getrlimit(unix.RLIMIT_NOFILE, &most))
	return min(n, (int(most.Cur)-500)/files) //nolint:gosec // a limit of files
}

// beside starts a process of this test, and waits until it has what it is to hold.
func beside(b *testing.B, what string) {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), callersEnv+"="+what)
	in, err := cmd.StdinPipe()
	must(b, err)
	out, err := cmd.StdoutPipe()
	must(b, err)
	must(b, cmd.Start())
	b.Cleanup(func() { _ = in.Close(); _ = cmd.Wait() })
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			b.Fatal(err)
		}
		if line == "held\n" {
			return
		}
		b.Log(line)
	}
}

// resident is the memory of this process that is not of files, in bytes.
func resident(b *testing.B) float64 {
	b.Helper()
	text, err := os.ReadFile("/proc/self/status")
	must(b, err)
	_, text, _ = bytes.Cut(text, []byte("RssAnon:"))
	kb, err := strconv.ParseFloat(string(bytes.Fields(text)[0]), 64)
	must(b, err)
	return kb * 1024
}

func processor(b *testing.B) time.Duration {
	b.Helper()
	var use unix.Rusage
	must(b, unix.Getrusage(unix.RUSAGE_SELF, &use))
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}

// idleFor is for how long idle connections are watched.
const idleFor = 10 * time.Second

// measure reports what the connections that open makes cost this process, each, and of its processor while they are idle.
func measure(b *testing.B, n int, open func()) {
	b.Helper()
	debug.FreeOSMemory() // which the benchmark before left
	before := resident(b)
	open()
	b.ReportMetric(float64(n), "connections")
	b.ReportMetric((resident(b)-before)/float64(n)/1e3, "KB/connection")
	used := processor(b)
	window, cancel := context.WithTimeout(b.Context(), idleFor)
	defer cancel()
	<-window.Done()
	cost := processor(b) - used
	debug.FreeOSMemory() // as the runtime does by itself within minutes
	b.ReportMetric((resident(b)-before)/float64(n)/1e3, "KB-after-collection")
	b.ReportMetric(100*cost.Seconds()/idleFor.Seconds(), "%-of-a-core")
	b.ReportMetric(0, "ns/op")
}

// front serves the ports of a pod, as schedulers and gateways do, to any number of clients.
func front(b *testing.B, d door, limits rest.Limits) (addr string) {
	b.Helper()
	const boundless = 1 << 20
	limits.Connections, limits.PerAddress = boundless, boundless
	p := proxy.New(proxy.Config{Targets: d, Dialer: d, Log: d.at.world.log, All: boundless, PerAddress: boundless, PerAccount: boundless, PerPod: boundless})
	server := rest.NewServer(p.Wrap(http.NotFoundHandler()), limits, d.at.world.log)
	ln, err := net.Listen("tcp", loopback)
	must(b, err)
	go func() { _ = server.Serve(ln) }()
	b.Cleanup(func() { p.Close(); _ = server.Close() })
	return ln.Addr().String()
}

// BenchmarkIdleWebSockets has BENCH_SOCKETS (10,000) WebSockets open to a pod and nothing said on them. This process is the scheduler or
// gateway; the host's agent, the pod and its callers are others.
func BenchmarkIdleWebSockets(b *testing.B) {
	n := affordable(b, "BENCH_SOCKETS", 1, 10_000)
	w := newWorld(b)
	w.log = slog.New(slog.DiscardHandler)
	s := w.newScheduler(loopback, dispatch.Config{})
	s.begin()
	_, text, err := net.SplitHostPort(closedPort(b))
	must(b, err)
	port, err := strconv.Atoi(text)
	must(b, err)
	beside(b, "0.0.0.0:"+text)
	h := w.podBy([]*scheduler{s}, port, func(h *host) { beside(b, fmt.Sprintf("host %s %s %s", h.dir, h.machine, s.addr)) })
	addr := front(b, door{h, s}, rest.Limits{})
	host := fmt.Sprintf("%s-%d.%s", thePod, port, proxy.DefaultDomain)
	measure(b, n, func() { beside(b, fmt.Sprintf("%s %s / %d", addr, host, n)) })
}

// upgrade answers every request with a WebSocket, and says nothing more.
func upgrade(ln net.Listener) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil {
			_ = c.Close()
			continue
		}
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
			"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n")
	}
}

// BenchmarkIdleConnections has BENCH_CONNECTIONS (100,000) connections open to a scheduler or gateway, on which nothing is asked for, as
// far as this process and its caller may open files.
func BenchmarkIdleConnections(b *testing.B) {
	n := affordable(b, "BENCH_CONNECTIONS", 1, 100_000)
	w := newWorld(b)
	w.log = slog.New(slog.DiscardHandler)
	addr := front(b, door{nil, w.newScheduler(loopback, dispatch.Config{})}, rest.Limits{Header: time.Hour, Idle: time.Hour})
	measure(b, n, func() { beside(b, fmt.Sprintf("%s - - %d", addr, n)) })
}
