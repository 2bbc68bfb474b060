package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"gantry/internal/sleep"
)

const emulator = "qemu-system-x86_64"

// machine is a whole computer of the lab. What its disk holds is gone with its process.
type machine struct {
	Name    string `json:"name"`
	System  string `json:"system"`  // bookworm, trixie or noble
	Pods    bool   `json:"pods"`    // whether it runs them
	Gateway bool   `json:"gateway"` // whether it is one, and nothing else
	Address string `json:"address"` // on the network that the machines share
	UUID    string `json:"uuid"`    // its main board's: no two machines have the same
	SSH     int    `json:"ssh"`     // port of loopback that leads to its SSH server
	PID     int    `json:"pid"`
}

// boot starts a machine. It dies with this process unless it is to be kept.
func (l *lab) boot(m *machine, index int, keep bool) error {
	image, err := l.image(m.System)
	if err != nil {
		return err
	}
	if m.SSH, err = freePort(); err != nil {
		return err
	}
	mac := func(link int) string { return fmt.Sprintf("52:54:00:6c:%02x:%02x", link, index+1) }
	words := []string{
		"root=/dev/vda rw console=ttyS0 panic=-1 net.ifnames=0 mitigations=off quiet systemd.show_status=0", "lab.name=" + m.Name,
		"lab.address=" + m.Address, "lab.gateway=" + gateway, "lab.hosts=" + l.names(), "lab.key=" + l.Key,
	}
	args := append([]string{
		"-name", "gantry-lab-" + m.Name, "-uuid", m.UUID, "-M", "pc", "-m", machineMemory, "-smp", machineCPUs, "-nodefaults", "-display", "none", "-kernel", filepath.Join(image, "vmlinuz"), "-initrd", filepath.Join(image, "initrd.img"),
		"-append", strings.Join(words, " "), "-serial", "file:" + l.console(m), "-device", "virtio-rng-pci",
		"-drive", "file=" + filepath.Join(image, "disk.img") + ",format=raw,if=virtio,snapshot=on,cache=unsafe,discard=unmap",
		"-netdev", fmt.Sprintf("user,id=out,restrict=on,hostfwd=tcp:127.0.0.1:%d-10.0.2.15:22", m.SSH), "-device", "virtio-net-pci,netdev=out,mac=" + mac(0),
		"-netdev", fmt.Sprintf("socket,id=lab,mcast=%s,localaddr=127.0.0.1", l.Segment), "-device", "virtio-net-pci,netdev=lab,mac=" + mac(1),
	}, l.accel...)
	cmd := exec.Command(emulator, args...)
	var faults bytes.Buffer
	cmd.Stderr = &faults
	if keep {
		log, err := os.Create(filepath.Join(l.dir, m.Name+".qemu"))
		if err != nil {
			return err
		}
		defer func() { _ = log.Close() }()
		cmd.Stderr = log
	}
	cmd.Env = append(os.Environ(), "TMPDIR="+l.dir) // for the disk's changes, in a file without a name
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	if !keep {
		cmd.SysProcAttr.Pdeathsig = unix.SIGKILL
	}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // it dies with the thread that started it
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
			l.log("%s ended; %s", m.Name, strings.TrimSpace(faults.String()))
		}
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start QEMU (package qemu-system-x86): %w", err)
	}
	m.PID = cmd.Process.Pid
	return nil
}

// off ends a machine at once, if its process is that.
func (l *lab) off(m *machine) {
	if !l.runs(m) {
		return
	}
	_ = unix.Kill(m.PID, unix.SIGKILL)
	for end := time.Now().Add(10 * time.Second); l.runs(m) && time.Now().Before(end); {
		time.Sleep(20 * time.Millisecond)
	}
}

// runs tells whether the process of a machine is there: the one that has its console for an argument.
func (l *lab) runs(m *machine) bool {
	if m.PID == 0 {
		return false
	}
	line, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(m.PID), "cmdline"))
	return err == nil && bytes.Contains(line, []byte(l.console(m)))
}

func (l *lab) console(m *machine) string { return filepath.Join(l.dir, m.Name+".console") }

// names names every machine to every other.
func (l *lab) names() string {
	var list []string
	for _, m := range l.Machines {
		list = append(list, m.Address+"="+m.Name)
	}
	return strings.Join(list, ",")
}

// reached waits until a machine runs programs for us.
func (l *lab) reached(ctx context.Context, m *machine, limit time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("%s cannot be reached for %v", m.Name, limit))
	defer cancel()
	for {
		err := l.connect(ctx, m)
		if err == nil {
			return nil
		}
		if !l.runs(m) {
			return fmt.Errorf("%s has ended: %s", m.Name, l.tail(m))
		}
		if sleep.For(ctx, 500*time.Millisecond) != nil {
			return errors.Join(context.Cause(ctx), err, errors.New(l.tail(m)))
		}
	}
}

// connect makes the one connection that serves all that follows: a handshake of emulated machines takes its time.
func (l *lab) connect(ctx context.Context, m *machine) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if err := exec.CommandContext(ctx, "ssh", "-F", l.path("ssh_config"), "-O", "check", m.Name).Run(); err == nil {
		return nil
	}
	// It goes on in the background, so it gets no pipe of ours.
	return exec.CommandContext(ctx, "ssh", "-F", l.path("ssh_config"), "-o", "ControlMaster=yes", "-o", "ControlPersist=yes", "-N", "-f", m.Name).Run()
}

// leave ends the connection to a machine, which a boot would leave hanging.
func (l *lab) leave(ctx context.Context, m *machine) {
	_, _ = l.local(ctx, "leave "+m.Name, "", "ssh", "-F", l.path("ssh_config"), "-O", "exit", m.Name)
}

// tail is the end of what a machine wrote to its console.
func (l *lab) tail(m *machine) string {
	text, err := os.ReadFile(l.console(m))
	if err != nil {
		return err.Error()
	}
	return tail(string(text), 3000)
}

// tail is the end of a text.
func tail(text string, size int) string { return text[max(0, len(text)-size):] }

// sh runs a script on a machine as root and returns what it wrote; what it wrote to standard error is in the error, and all is in the log.
func (l *lab) sh(ctx context.Context, m *machine, script string) (string, error) {
	return l.local(ctx, m.Name+"# "+script, "", "ssh", "-F", l.path("ssh_config"), m.Name, "set -eu\n"+script)
}

// put copies files and folders of this machine into a folder of another.
func (l *lab) put(ctx context.Context, m *machine, folder string, files ...string) error {
	args := append([]string{"-q", "-r", "-F", l.path("ssh_config")}, files...)
	_, err := l.local(ctx, "copy "+strings.Join(files, " ")+" to "+m.Name, "", "scp", append(args, m.Name+":"+folder)...)
	return err
}

// local runs a program of this machine.
func (l *lab) local(ctx context.Context, what, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	return l.exec(cmd, what, io.Discard)
}

// wholly gives a program a session of its own, all of which ends with its context.
func wholly(cmd *exec.Cmd) {
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
}

// exec runs a program, puts into the log what it wrote, and returns its output, which goes to another writer as well.
func (l *lab) exec(cmd *exec.Cmd, what string, also io.Writer) (string, error) {
	var out, fault bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = io.MultiWriter(&out, also), &fault, 5*time.Second
	began := time.Now()
	err := cmd.Run()
	l.detail("%s\n%s%s[%.1f s, %v]", what, out.String(), fault.String(), time.Since(began).Seconds(), err)
	if err != nil {
		return out.String(), fmt.Errorf("%s: %w: %s%s", what, err, out.String(), fault.String())
	}
	return out.String(), nil
}

// writeKey makes the key of this lab.
func (l *lab) writeKey(ctx context.Context) error {
	if _, err := l.local(ctx, "make a key", "", "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", l.path("key")); err != nil {
		return err
	}
	text, err := os.ReadFile(l.path("key.pub"))
	if err != nil {
		return err
	}
	fields := strings.Fields(string(text))
	if len(fields) < 2 {
		return fmt.Errorf("this is no key: %s", text)
	}
	if _, err := base64.StdEncoding.DecodeString(fields[1]); err != nil {
		return fmt.Errorf("this is no key: %s: %w", text, err)
	}
	l.Key = fields[1]
	return nil
}

// writeSSH writes what ssh, scp and Ansible need to know.
func (l *lab) writeSSH() error {
	var b strings.Builder
	for _, m := range l.Machines {
		fmt.Fprintf(&b, "Host %s\n  HostName 127.0.0.1\n  Port %d\n", m.Name, m.SSH)
	}
	fmt.Fprintf(&b, "Host *\n  User root\n  IdentityFile %s\n  IdentitiesOnly yes\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n"+
		"  ConnectTimeout 20\n  ServerAliveInterval 5\n  ServerAliveCountMax 6\n  ControlPath %s/%%n.ssh\n", l.path("key"), l.dir)
	return os.WriteFile(l.path("ssh_config"), []byte(b.String()), 0o600)
}

func freePort() (int, error) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	port := ln.Addr().(*net.TCPAddr).Port
	return port, ln.Close()
}
