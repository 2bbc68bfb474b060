package survive

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"gantry/api/v2"
	"gantry/fleet"
	"gantry/test/devtest"
)

// boot is one run of a machine: mounts, network and processes of its own, which all end with its first process, an
// empty /run, and a boot id that no other has. Its resolver is on its own loopback. On it runs a whole Gantry, whose data
// folder outlives it.
type boot struct {
	testing.TB
	dir  string
	init *process
}

// machine is what the first process of a boot does, with the boot id's file, the gantry program, the folder, the
// image archive and the resolv.conf as arguments. User namespaces may mount a /proc only where one is in full view, which the boot id's file
// hides a part of, so there is a second one.
const machine = `set -e
mount --make-rprivate /
mount -t proc proc /proc
mount --bind "$1" /proc/sys/kernel/random/boot_id
mount -t tmpfs tmpfs /run
mkdir /run/proc
mount -t proc proc /run/proc
resolv=$(readlink -m /etc/resolv.conf)
mkdir -p "${resolv%/*}"
: >>"$resolv"
mount --bind "$5" "$resolv"
ip link set lo up
set +e
trap 'kill -INT $gantry' TERM
"$2" dev --data-dir "$3" --listen 127.0.0.1:18080 --simulate-gpus "NVIDIA H100 80GB HBM3:1" --image-archive "$4" &
gantry=$!
wait $gantry
while kill -0 $gantry 2>/dev/null; do wait $gantry; done`

// newBoot boots the machine whose disk is dir, and waits until its Gantry is up.
func newBoot(t testing.TB, dir, id string) *boot {
	t.Helper()
	b := &boot{TB: t, dir: dir}
	idFile, resolv := filepath.Join(filepath.Dir(dir), id), dir+".resolv"
	if err := errors.Join(os.WriteFile(idFile, []byte(id+"\n"), 0o600), os.WriteFile(resolv, []byte("nameserver 127.0.0.53\n"), 0o600),
		os.RemoveAll(filepath.Join(dir, "dev.json"))); err != nil {
		t.Fatal(err)
	}
	b.init = must[*process](t)(begin(dir+".log", nil, "unshare", "--mount", "--net", "--pid", "--fork", "--kill-child",
		"sh", "-c", machine, "sh", idFile, program("points", "gantry"), dir, suite.archive, resolv))
	t.Cleanup(b.powerCut)
	await(t, "Gantry is up", func() error {
		_, err := os.Stat(filepath.Join(dir, "dev.json"))
		return err
	})
	b.resolves()
	return b
}

// outside is a name that the machine's resolver knows.
const outside, outsideAddr = "outside.example", "192.0.2.7"

// resolves has the machine's resolver answer for as long as the test lasts.
func (b *boot) resolves() {
	b.Helper()
	socket := make(chan net.PacketConn, 1)
	go func() { // the thread is in another network than all others, and ends with the goroutine
		runtime.LockOSThread()
		defer close(socket)
		ns, err := os.Open("/proc/" + b.first() + "/ns/net")
		if err == nil {
			err = errors.Join(unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET), ns.Close())
		}
		if err != nil {
			b.Error(err)
			return
		}
		c, err := net.ListenPacket("udp4", "127.0.0.53:53")
		if err != nil {
			b.Error(err)
			return
		}
		socket <- c
	}()
	c, ok := <-socket
	if !ok {
		b.FailNow()
	}
	s := &dns.Server{PacketConn: c, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		if q.Question[0].Name == outside+"." && q.Question[0].Qtype == dns.TypeA {
			m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: outside + ".", Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 1}, A: net.ParseIP(outsideAddr)}}
		}
		_ = w.WriteMsg(m) // who asked asks again
	})}
	done := make(chan error, 1)
	go func() { done <- s.ActivateAndServe() }()
	b.Cleanup(func() {
		if err := errors.Join(c.Close(), <-done); err != nil && !errors.Is(err, net.ErrClosed) {
			b.Error(err)
		}
	})
}

// first is the first process of the boot, as this machine numbers it.
func (b *boot) first() string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", b.init.pid(), b.init.pid())) // it may have ended
	return strings.TrimSpace(string(text))
}

// powerCut ends everything of the boot at once.
func (b *boot) powerCut() {
	// Its first process, not the one that waits for it: that ends when nothing of the boot is left.
	if first, err := strconv.Atoi(b.first()); err == nil {
		_ = syscall.Kill(first, syscall.SIGKILL) // it may have ended
	}
	select {
	case <-b.init.done:
	case <-time.After(patience):
		b.Error("the boot does not end", b.init.end(syscall.SIGKILL))
	}
}

// shutDown stops Gantry as Ctrl-C does, and then the machine.
func (b *boot) shutDown() {
	b.Helper()
	if out, err := exec.Command("kill", "-TERM", b.first()).CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	select {
	case <-b.init.done:
	case <-time.After(patience):
		b.Error("gantry dev does not end")
	}
	if text := must[[]byte](b)(os.ReadFile(b.dir + ".log")); !strings.Contains(string(text), "nothing left behind") {
		b.Errorf("gantry dev said: %s", text)
	}
}

// gantry runs the command line on the machine and reads the pod that it prints.
func (b *boot) gantry(args ...string) (pod v2.Pod, err error) {
	var info devtest.Info
	text, err := os.ReadFile(filepath.Join(b.dir, "dev.json"))
	if err == nil {
		err = json.Unmarshal(text, &info)
	}
	if err != nil {
		return pod, err
	}
	cmd := exec.CommandContext(b.Context(), "nsenter", append([]string{"--target", b.first(), "--net", program("points", "gantry"), "-o", "json"}, args...)...)
	cmd.Env = append(os.Environ(), "GANTRY_API="+info.API, "GANTRY_API_KEY="+info.APIKey)
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return pod, fmt.Errorf("gantry %s: %w: %s", strings.Join(args, " "), err, exit.Stderr)
	}
	return pod, errors.Join(err, json.Unmarshal(out, &pod))
}

func (b *boot) is(id string, status fleet.PodStatus, incarnation uint64) func() error {
	return func() error {
		p, err := b.gantry("pod", "get", id)
		if err == nil && (p.Status != status || p.Incarnation != incarnation) {
			err = fmt.Errorf("%s in incarnation %d (%s), want %s in %d", p.Status, p.Incarnation, p.StatusReason, status, incarnation)
		}
		return err
	}
}

// TestHostReboot cuts a machine's power and boots it again: pods that ran are started again as new incarnations, and
// those that had ended or were stopped are not.
func TestHostReboot(t *testing.T) {
	dir := filepath.Join(must[string](t)(os.MkdirTemp(suite.dir, "r")), "dev")
	t.Cleanup(func() {
		if t.Failed() {
			logs, _ := filepath.Glob(filepath.Join(dir, "log", "*.log")) // the pattern is fine
			for _, name := range append(logs, dir+".log") {
				text, err := os.ReadFile(name)
				t.Logf("--- %s (%v)\n%s", name, err, text[max(0, len(text)-4096):])
			}
		}
	})
	b := newBoot(t, dir, "0b000000-0000-4000-8000-000000000001")
	create := func(name string, command ...string) string {
		args := append([]string{"pod", "create", name, image, "--cpu", "cpu3c", "--vcpu", "2", "--wait", "--"}, command...)
		return must[v2.Pod](t)(b.gantry(args...)).ID
	}
	const waits = `trap "exit 0" TERM; sleep 100000 & wait`
	runs, stopped := create("runs", "sh", "-c", waits), create("stopped", "sh", "-c", waits)
	must[v2.Pod](t)(b.gantry("pod", "stop", stopped, "--wait"))
	ended := create("ended", "sh", "-c", "sleep 1; until nslookup "+outside+" | grep "+outsideAddr+"; do sleep 0.1; done")
	await(t, "a pod ends, as it does when it can look up names through the machine", b.is(ended, fleet.StatusExited, 1))
	b.powerCut()

	b = newBoot(t, dir, "0b000000-0000-4000-8000-000000000002")
	await(t, "the pod that ran is started again", b.is(runs, fleet.StatusRunning, 2))
	for _, id := range []string{stopped, ended} {
		if err := b.is(id, fleet.StatusExited, 1)(); err != nil {
			t.Error(err)
		}
	}
	must[v2.Pod](t)(b.gantry("pod", "stop", runs, "--wait"))
	b.shutDown()
}
