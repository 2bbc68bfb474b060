package dns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"gantry/netctl/sidecar"
	"gantry/test/program"
)

// TestMain is also the answering process, without its confinement, of which cmd/gantry-net has the test.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == Command {
		if err := answering(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		syscall.Exit(0) // os.Exit has a program with a race detector wait for a second
	}
	os.Exit(m.Run())
}

func answering() error {
	if err := unix.Listen(3, 8); err != nil {
		return err
	}
	l, err := net.FileListener(os.NewFile(3, "control"))
	if err != nil {
		return err
	}
	return sidecar.Serve(context.Background(), l, os.Args[2], sidecar.Program{Serve: Serve},
		[]*os.File{os.NewFile(4, "udp"), os.NewFile(5, "tcp")}, slog.New(slog.DiscardHandler))
}

// hostOf is what an agent needs to have a process: the program is a copy of this test's, which may be replaced.
func hostOf(t *testing.T) ProcessConfig {
	t.Helper()
	dir, err := os.MkdirTemp("", "names")
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	c := ProcessConfig{
		Program: filepath.Join(dir, "gantry-net"), RunDir: filepath.Join(dir, "run"), Instance: "t",
		Listen: netip.AddrFrom4([4]byte{127, 55, byte(os.Getpid() >> 8), byte(os.Getpid())}), Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	replaceProgram(t, c)
	t.Cleanup(func() {
		p := NewProcess(c)
		must(t, p.Remove(within(t)))
		if _, err := os.Stat(control(c)); err == nil {
			t.Error("the process is still there")
		}
	})
	return c
}

// control is where a process is told.
func control(c ProcessConfig) string { return filepath.Join(c.RunDir, "dns.sock") }

// replaceProgram puts another program, which does the same, in place of the old one.
func replaceProgram(t *testing.T, c ProcessConfig) {
	t.Helper()
	same, err := os.ReadFile("/proc/self/exe")
	must(t, err)
	program.Write(t, c.Program+".tmp", string(same)+time.Now().String())
	must(t, os.Rename(c.Program+".tmp", c.Program))
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// fill tells an agent's process all that the test's pods need.
func fill(t *testing.T, p *Process, upstreams ...netip.AddrPort) {
	t.Helper()
	for _, o := range testOverlays() {
		// The first calls wait for the process; it does not matter with which.
		must(t, p.SetOverlay(within(t), o))
	}
	must(t, p.Set(within(t), testBase(upstreams...)))
	must(t, p.SetPods(within(t), map[netip.Addr][]uint32{local(1): {1}, local(2): {2}, local(4): {9}}))
}

// standing is the connection to the process that answers.
func standing(t *testing.T, p *Process) *sidecar.Conn {
	t.Helper()
	conn, err := p.client.Conn(within(t))
	must(t, err)
	return conn
}

// pidOf returns the process that answers, as the kernel says.
func pidOf(t *testing.T, p *Process) int {
	t.Helper()
	return standing(t, p).PID()
}

// resolves tells what a name means to an asker at a process.
func resolves(c ProcessConfig, n int, name string) string {
	m, err := ask("udp", netip.AddrPortFrom(c.Listen, port).String(), local(n), query(name, dns.TypeA))
	switch {
	case err != nil:
		return err.Error()
	case len(m.Answer) == 1:
		return m.Answer[0].(*dns.A).A.String()
	}
	return dns.RcodeToString[m.Rcode]
}

func wantAddr(t *testing.T, c ProcessConfig, n int, name, want string) {
	t.Helper()
	if got := resolves(c, n, name); got != want {
		t.Errorf("%s asked for by %d: %s, want %s", name, n, got, want)
	}
}

// asking asks all the time, and counts what was wrong.
func asking(t *testing.T, c ProcessConfig) (stop func() (good, bad int64)) {
	var good, bad atomic.Int64
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if got := resolves(c, 1, "web.gantry.internal."); got == "10.64.0.2" {
				good.Add(1)
			} else {
				bad.Add(1)
				t.Log(got)
			}
			select {
			case <-time.After(time.Second / podRate):
			case <-ctx.Done():
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return func() (int64, int64) {
		seen := good.Load()
		until(t, func() bool { return good.Load() > seen })
		cancel()
		<-done
		return good.Load(), bad.Load()
	}
}

func TestProcess(t *testing.T) {
	c := hostOf(t)
	up := upstreamServer(t, good)
	first := NewProcess(c)
	fill(t, first, up)
	wantAddr(t, c, 1, "web.gantry.internal.", "10.64.0.2")
	wantAddr(t, c, 2, "web.gantry.internal.", "10.64.0.3")
	wantAddr(t, c, 4, "web.gantry.internal.", "SERVFAIL")
	wantAddr(t, c, 1, "example.com.", "192.0.2.1")
	var st unix.Stat_t
	must(t, unix.Stat(control(c), &st))
	if st.Mode&0o777 != 0o600 || st.Uid != 0 {
		t.Errorf("others can reach the control socket: mode %o, owner %d", st.Mode, st.Uid)
	}
	pid := pidOf(t, first)

	t.Run("a change", func(t *testing.T) {
		o := testOverlays()[0]
		o.Members = append(o.Members[1:], Name{addr("10.64.7.7"), "podnew", "fresh"})
		must(t, first.SetOverlay(within(t), o))
		wantAddr(t, c, 1, "fresh.gantry.internal.", "10.64.7.7")
		wantAddr(t, c, 1, "web.gantry.internal.", "NXDOMAIN")
		must(t, first.SetOverlay(within(t), testOverlays()[0]))
		must(t, first.RemoveOverlay(within(t), 3))
		stats, err := first.Stats(within(t))
		must(t, err)
		if stats.Internal == 0 || stats.Forwarded != 1 {
			t.Errorf("%+v", stats)
		}
	})

	t.Run("the next agent", func(t *testing.T) {
		stop := asking(t, c)
		must(t, first.SetOverlay(within(t), Overlay{VNI: 77}))
		first.Close()
		wantAddr(t, c, 2, "db.gantry.internal.", "10.64.0.2")
		second := NewProcess(c)
		defer second.Close()
		fill(t, second, up)
		if pidOf(t, second) != pid {
			t.Error("the process was not adopted")
		}
		var got []uint32
		if err := standing(t, second).Call(within(t), verbOverlays, nil, &got); err != nil || fmt.Sprint(got) != "[1 2 3]" {
			t.Errorf("it has overlays %v, %v", got, err)
		}
		if good, bad := stop(); bad > 0 {
			t.Errorf("%d questions were lost, %d were not", bad, good)
		}
	})
}

// TestProcessIsReplaced: when it died, when its program was replaced, when it hangs.
func TestProcessIsReplaced(t *testing.T) {
	c := hostOf(t)
	pid := 0
	t.Run("kill", func(t *testing.T) {
		p := NewProcess(c)
		defer p.Close()
		fill(t, p)
		pid = pidOf(t, p)
		stop := asking(t, c)
		until(t, func() bool { return resolves(c, 2, "db.gantry.internal.") == "10.64.0.2" })
		must(t, unix.Kill(pid, unix.SIGKILL))
		wantAddr(t, c, 2, "web.gantry.internal.", "10.64.0.3") // it waits in the socket
		must(t, p.SetPods(within(t), map[netip.Addr][]uint32{local(1): {1}, local(2): {2}}))
		if now := pidOf(t, p); now == pid {
			t.Error("it is not another process")
		}
		if good, bad := stop(); bad > 1 { // one may have been read
			t.Errorf("%d questions were lost, %d were not", bad, good)
		}
		pid = pidOf(t, p)
	})

	t.Run("another program", func(t *testing.T) {
		stop := asking(t, c)
		replaceProgram(t, c)
		p := NewProcess(c)
		defer p.Close()
		fill(t, p)
		now := pidOf(t, p)
		if now == pid {
			t.Error("the old program goes on")
		}
		until(t, func() bool { return unix.Kill(pid, 0) != nil || zombie(pid) })
		if good, bad := stop(); bad > 0 {
			t.Errorf("%d questions were lost, %d were not", bad, good)
		}
		pid = now
	})

	t.Run("one that hangs", func(t *testing.T) {
		must(t, unix.Kill(pid, unix.SIGSTOP))
		p := NewProcess(c)
		defer p.Close()
		fill(t, p)
		wantAddr(t, c, 1, "web.gantry.internal.", "10.64.0.2")
		if pidOf(t, p) == pid {
			t.Error("it cannot be")
		}
	})
}

// TestPortIsTaken: it is said at once, and is over when the port is free.
func TestPortIsTaken(t *testing.T) {
	c := hostOf(t)
	taken, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(c.Listen, port)))
	must(t, err)
	p := NewProcess(c)
	defer p.Close()
	must(t, p.Set(within(t), testBase()))
	began := time.Now()
	if err := p.SetPods(within(t), map[netip.Addr][]uint32{local(1): nil}); !errors.Is(err, unix.EADDRINUSE) || time.Since(began) > time.Minute {
		t.Errorf("after %v: %v", time.Since(began), err)
	}
	must(t, taken.Close())
	until(t, func() bool { return p.SetPods(within(t), map[netip.Addr][]uint32{local(1): nil}) == nil })
}

func zombie(pid int) bool {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, state, _ := strings.Cut(string(text), ") ")
	return strings.HasPrefix(state, "Z")
}

// TestOnlyRootTellsNames: the socket is root's, and who is not gets no word.
func TestOnlyRootTellsNames(t *testing.T) {
	c := hostOf(t)
	p := NewProcess(c)
	defer p.Close()
	fill(t, p)
	must(t, os.Chmod(filepath.Dir(c.RunDir), 0o755))
	must(t, os.Chmod(c.RunDir, 0o755))
	must(t, os.Chmod(control(c), 0o777)) //nolint:gosec // as if the mode had not kept them out
	errs := make(chan error, 1)
	go func() {
		// A thread that becomes somebody else, and ends with the goroutine.
		lockedAs(65534, func() {
			conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: control(c), Net: "unix"})
			if err == nil {
				_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
				_, _ = conn.Write([]byte("\x00\x00\x00\x10" + `{"verb":"hello"}`))
				if n, _ := conn.Read(make([]byte, 1)); n > 0 {
					err = fmt.Errorf("it was answered")
				}
				_ = conn.Close()
			}
			errs <- err
		})
	}()
	must(t, <-errs)
	if _, err := p.Stats(within(t)); err != nil {
		t.Errorf("the agent was pushed away: %v", err)
	}
}

func lockedAs(uid int, f func()) {
	runtime.LockOSThread()
	if _, _, errno := syscall.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); errno != 0 {
		panic(errno)
	}
	f()
}
