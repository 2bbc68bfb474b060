// Package nfsserver is an NFS server for tests in the guest of test/nfslab: the kernel's own, in a network namespace of its own
// behind a wire that can be cut, with Debian's programs. There is one in a guest at a time.
package nfsserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Addr is the server's address, ClientAddr that of the rest of the guest.
const (
	Addr       = "10.77.0.1"
	ClientAddr = "10.77.0.2"
)

const (
	wire    = "nfs0" // on the client's side; its peer has the same name
	threads = 8
	control = "/proc/fs/nfsd/"
	pipes   = "/var/lib/nfs/rpc_pipefs"

	exporter = "exportfs" //nolint:misspell // the program's name
)

// Options are those of mount(2) with file system nfs4 and source Addr:PATH that a client here needs; what mount.nfs4 would
// find out itself is said.
const Options = "vers=4.2,addr=" + Addr + ",clientaddr=" + ClientAddr + ",proto=tcp,sec=sys,hard"

// Server is the server. Its methods must not be called concurrently.
type Server struct {
	t       testing.TB
	ns      int // descriptor of its network namespace
	daemons []*exec.Cmd
}

// Start starts the server, which exports nothing yet. All of it is gone when the test ends.
func Start(t testing.TB) *Server {
	t.Helper()
	s := &Server{t: t, ns: -1}
	t.Cleanup(s.close)
	s.must("make the server's network", s.network())
	s.must("mount the server's file systems", s.inside(func() error {
		return errors.Join(unix.Mount("nfsd", control, "nfsd", 0, ""), unix.Mount("rpc_pipefs", pipes, "rpc_pipefs", 0, ""))
	}))
	for name, text := range map[string]string{
		"nfsv4leasetime": "10", "nfsv4gracetime": "10", // seconds; the least that there is
		"versions": "-3 +4 +4.1 +4.2\n",
	} {
		s.must("set up the server", os.WriteFile(control+name, []byte(text), 0))
	}
	s.daemon("inotify wd:", "nfsdcld", "-F", "-s", "/var/lib/nfs/nfsdcld", "-p", pipes)
	s.daemon("nfsd.fh/channel", "rpc.mountd", "-F", "-N", "2", "-N", "3")
	s.Up()
	return s
}

// network makes the namespace and the wire.
func (s *Server) network() error {
	ready := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine: its namespace is not the others'
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			s.ns, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		}
		ready <- err
	}()
	if err := <-ready; err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = wire
	link := &netlink.Veth{LinkAttrs: attrs, PeerName: wire, PeerNamespace: netlink.NsFd(s.ns)}
	if err := netlink.LinkAdd(link); err != nil {
		return fmt.Errorf("make the wire: %w", err)
	}
	if err := address(ClientAddr); err != nil {
		return err
	}
	return s.inside(func() error { return address(Addr) })
}

// address gives the wire's end in the calling thread's network an address.
func address(addr string) error {
	a, err := netlink.ParseAddr(addr + "/24")
	if err != nil {
		return err
	}
	for _, name := range []string{"lo", wire} {
		link, err := netlink.LinkByName(name)
		if err == nil {
			err = netlink.LinkSetUp(link)
		}
		if err == nil && name == wire {
			err = netlink.AddrReplace(link, a)
		}
		if err != nil {
			return fmt.Errorf("bring up %s: %w", name, err)
		}
	}
	return nil
}

// inside calls do on a thread in the server's network.
func (s *Server) inside(do func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked
		err := unix.Setns(s.ns, unix.CLONE_NEWNET)
		if err == nil {
			err = do()
		}
		done <- err
	}()
	return <-done
}

// daemon starts a program of the server, and waits until it listens to the kernel, which does not ask again when nobody is there:
// it has a file open whose path ends with the sign, or that the kernel describes with it.
func (s *Server) daemon(sign, name string, args ...string) {
	s.t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stdout
	s.must("start "+name, s.inside(cmd.Start))
	s.daemons = append(s.daemons, cmd)
	for deadline := time.Now().Add(20 * time.Second); !listens(cmd.Process.Pid, sign); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("%s does not listen", name)
		}
	}
}

func listens(pid int, sign string) bool {
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return false
	}
	for _, fd := range fds {
		path, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, fd.Name()))     // it may be closed by now
		info, _ := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%s", pid, fd.Name())) // likewise
		if strings.HasSuffix(path, sign) || strings.Contains(string(info), sign) {
			return true
		}
	}
	return false
}

// run runs a program of the server to its end.
func (s *Server) run(name string, args ...string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var out []byte
	err := s.inside(func() (err error) {
		out, err = exec.CommandContext(ctx, name, args...).CombinedOutput()
		return err
	})
	if err != nil {
		s.t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
}

// Export exports a folder to everyone, with options as in /etc/exports, or changes its options.
func (s *Server) Export(dir, options string) {
	s.t.Helper()
	s.run(exporter, "-o", options, "*:"+dir)
}

// Unexport ends the export of a folder.
func (s *Server) Unexport(dir string) {
	s.t.Helper()
	s.run(exporter, "-u", "*:"+dir)
}

// Flush makes the kernel ask anew about every export and client, and let go of what it held of them.
func (s *Server) Flush() { s.t.Helper(); s.run(exporter, "-f") }

// Down stops the server as a halt would: connections end, and what it knew of its clients is forgotten, but for their names.
func (s *Server) Down() { s.t.Helper(); s.serve(0) }

// Up starts it again.
func (s *Server) Up() { s.t.Helper(); s.serve(threads) }

func (s *Server) serve(n int) {
	s.t.Helper()
	// The kernel makes its listeners in the network of who writes.
	s.must("set the number of threads", s.inside(func() error {
		return os.WriteFile(control+"threads", []byte(strconv.Itoa(n)), 0)
	}))
}

// Cut makes the wire lose everything in both directions, without a word to either side.
func (s *Server) Cut() {
	s.t.Helper()
	s.must("cut the wire", s.lose(100))
}

// Heal ends a Cut.
func (s *Server) Heal() {
	s.t.Helper()
	s.must("heal the wire", s.lose(0))
}

func (s *Server) lose(percent float32) error {
	return errors.Join(lose(percent), s.inside(func() error { return lose(percent) }))
}

func lose(percent float32) error {
	link, err := netlink.LinkByName(wire)
	if err != nil {
		return err
	}
	q := netlink.NewNetem(netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		netlink.NetemQdiscAttrs{Loss: percent})
	if percent == 0 {
		return netlink.QdiscDel(q)
	}
	return netlink.QdiscReplace(q)
}

// close takes everything away.
func (s *Server) close() {
	if s.ns < 0 {
		return
	}
	faults := []error{s.inside(func() error { return os.WriteFile(control+"threads", []byte("0"), 0) })}
	for _, d := range s.daemons {
		faults = append(faults, d.Process.Kill())
		_ = d.Wait() // it was killed
	}
	for _, at := range []string{strings.TrimSuffix(control, "/"), pipes} {
		faults = append(faults, unix.Unmount(at, unix.MNT_DETACH))
	}
	if link, err := netlink.LinkByName(wire); err == nil {
		faults = append(faults, netlink.LinkDel(link))
	}
	faults = append(faults, unix.Close(s.ns), os.WriteFile("/var/lib/nfs/etab", nil, 0o644))
	if err := errors.Join(faults...); err != nil {
		s.t.Error("take the server away: ", err)
	}
}

func (s *Server) must(what string, err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatalf("%s: %v", what, err)
	}
}
