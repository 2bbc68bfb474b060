// Command attacker tries, inside a container, what a container must not be able to do, and says of each attempt
// whether it was refused:
//
//	attacker escape        every way out that needs no help, one line for each
//	attacker files N       opens up to N files and says how many it got
//	attacker memory N      takes N MB of memory
//	attacker files-of DIR  makes empty files in DIR until that fails
//	attacker flood         writes to standard output until it is killed
//	attacker take TABLE N  takes up to N of a table of the kernel's, says how many it got, and keeps them
//	attacker have TABLE N...  takes N of each table, and ends
//	attacker snoop WORD... looks for words, written backwards, in all that /proc and /sys show
package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	if len(os.Args) < 2 {
		os.Exit(2)
	}
	number := 0
	if len(os.Args) > 2 {
		number, _ = strconv.Atoi(os.Args[2])
	}
	switch os.Args[1] {
	case "escape":
		for _, a := range attempts {
			if err := a.try(); err != nil {
				fmt.Printf("refused %s: %v\n", a.name, err)
			} else {
				fmt.Printf("SUCCEEDED %s\n", a.name)
			}
		}
		fmt.Println("done")
	case "files":
		files(number)
	case "memory":
		memory(number)
	case "files-of":
		filesOf(os.Args[2])
	case "flood":
		flood()
	case "take":
		most, _ := strconv.Atoi(os.Args[3])
		take(os.Args[2], most)
	case "have":
		have(os.Args[2:])
	case "snoop":
		snoop(os.Args[2:])
	}
}

// attempt is one way out. try returns nil when it led somewhere.
type attempt struct {
	name string
	try  func() error
}

var errHarmless = errors.New("it changed nothing")

var attempts = []attempt{
	{"mount a file system", func() error { return unix.Mount("none", "/mnt", "tmpfs", 0, "") }},
	{"mount proc anew", func() error { return unix.Mount("proc", "/mnt", "proc", 0, "") }},
	{"mount a bind", func() error { return unix.Mount("/etc", "/mnt", "", unix.MS_BIND, "") }},
	{"remount the root", func() error { return unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_RDONLY, "") }},
	{"unmount a mask", func() error { return unix.Unmount("/proc/kcore", unix.MNT_DETACH) }},
	{"unmount /proc", func() error { return unix.Unmount("/proc", unix.MNT_DETACH) }},
	{"open a mount tree", func() error { _, err := unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLONE); return err }},
	{"pivot the root", func() error { return unix.PivotRoot("/tmp", "/tmp") }},
	{"a user namespace", func() error { return unix.Unshare(unix.CLONE_NEWUSER) }},
	{"a mount namespace", func() error { return unix.Unshare(unix.CLONE_NEWNS) }},
	{"a network namespace", func() error { return unix.Unshare(unix.CLONE_NEWNET) }},
	{"the first process's namespaces", func() error { return enter("/proc/1/ns/mnt") }},
	{"the parent of the user namespace", parentNamespace},
	{"a device node of the host's memory", func() error { return unix.Mknod("/tmp/mem", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 1))) }},
	{"a device node of a disk", func() error { return unix.Mknod("/tmp/disk", unix.S_IFBLK|0o666, int(unix.Mkdev(8, 0))) }},
	{"read /dev/mem of the image", func() error { return read("/evil/mem") }},
	{"read a disk of the image", func() error { return read("/evil/disk") }},
	{"write the core pattern", func() error { return write("/proc/sys/kernel/core_pattern", "|/evil") }},
	{"write the module loader", func() error { return write("/proc/sys/kernel/modprobe", "/evil") }},
	{"write sysrq-trigger", func() error { return write("/proc/sysrq-trigger", "h") }},
	{"write uevent_helper", func() error { return write("/sys/kernel/uevent_helper", "/evil") }},
	{"read kcore", func() error { return read("/proc/kcore") }},
	{"read the host's keys", func() error { return read("/proc/keys") }},
	{"read timers", func() error { return read("/proc/timer_list") }},
	{"read the firmware", func() error { _, err := os.ReadDir("/sys/firmware/acpi"); return err }},
	{"read the kernel's log", func() error { _, err := unix.Klogctl(unix.SYSLOG_ACTION_READ_ALL, make([]byte, 64)); return err }},
	{"a release agent", func() error { return write("/sys/fs/cgroup/memory/release_agent", "/evil") }},
	{"a group of its own", func() error { return os.Mkdir("/sys/fs/cgroup/memory/mine", 0o755) }},
	{"load a module", func() error { return unix.InitModule([]byte{0}, "") }},
	{"boot another kernel", func() error { return call(unix.SYS_KEXEC_LOAD, 0, 0, 0) }},
	{"reboot", func() error { return unix.Reboot(unix.LINUX_REBOOT_CMD_CAD_OFF) }},
	{"load a BPF program", func() error { return call(unix.SYS_BPF, 5, 0, 0) }},
	{"performance events", func() error {
		_, err := unix.PerfEventOpen(&unix.PerfEventAttr{Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_CPU_CLOCK}, -1, 0, -1, 0)
		return err
	}},
	{"a key", func() error {
		_, err := unix.AddKey("user", "x", []byte("y"), unix.KEY_SPEC_SESSION_KEYRING)
		return err
	}},
	{"set the clock", func() error { return unix.Settimeofday(&unix.Timeval{Sec: time.Now().Unix() + 3600}) }},
	{"set the host's name", func() error { return unix.Sethostname([]byte("evil")) }},
	{"turn swap on", func() error { return call(unix.SYS_SWAPON, 0, 0, 0) }},
	{"raise the file limit", func() error { return unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1 << 30, Max: 1 << 30}) }},
	{"be spared when memory is short", func() error { return write("/proc/self/oom_score_adj", "-1000") }},
	{"open a file by handle", func() error {
		_, err := unix.OpenByHandleAt(unix.AT_FDCWD, unix.NewFileHandle(1, make([]byte, 8)), unix.O_RDONLY)
		return err
	}},
	{"a raw disk through /sys", func() error { return write("/sys/block/loop0/queue/scheduler", "none") }},
	{"leave by chroot", leaveByChroot},
	{"replace the runtime", func() error { return write("/proc/self/exe", "x") }},
	{"a packet of any kind", func() error { return socket(unix.AF_PACKET, unix.SOCK_RAW, 0x0300) }},
	{"the audit log", func() error { return socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_AUDIT) }},
	{"the firewall", firewall},
	{"gain rights by exec", gain},
}

func call(n, a, b, c uintptr) error {
	if _, _, errno := unix.Syscall(n, a, b, c); errno != 0 {
		return errno
	}
	return nil
}

func read(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	n, err := f.Read(make([]byte, 16))
	if err != nil {
		return err
	}
	if n == 0 {
		return errHarmless
	}
	return nil
}

func write(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

func enter(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	return unix.Setns(fd, 0)
}

// parentNamespace goes from its own user namespace to the one above.
func parentNamespace() error {
	fd, err := unix.Open("/proc/self/ns/user", unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	up, err := unix.IoctlRetInt(fd, unix.NS_GET_PARENT)
	if err != nil {
		return err
	}
	return unix.Setns(up, unix.CLONE_NEWUSER)
}

// leaveByChroot is the oldest way: a folder that stays open beyond a root that moves below it. In a container of
// its own mount namespace it ends at the container's root.
func leaveByChroot() error {
	top, err := os.Open("/")
	if err != nil {
		return err
	}
	defer func() { _ = top.Close() }()
	_ = os.MkdirAll("/tmp/deep", 0o755)
	if err := unix.Chroot("/tmp/deep"); err != nil {
		return err
	}
	if err := top.Chdir(); err != nil {
		return err
	}
	for range 64 {
		if err := unix.Chdir(".."); err != nil {
			return err
		}
	}
	if err := unix.Chroot("."); err != nil {
		return err
	}
	if _, err := os.Stat("/evil"); err == nil {
		return errHarmless // its own root again
	}
	return nil
}

func socket(domain, kind, proto int) error {
	fd, err := unix.Socket(domain, kind, proto)
	if err != nil {
		return err
	}
	if domain == unix.AF_PACKET {
		_ = unix.Close(fd)
		return errHarmless // of its own network namespace, whose link pins source and MAC
	}
	return unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1})
}

// firewall asks for a change of its network namespace's rules.
func firewall() error {
	return write("/proc/sys/net/ipv4/ip_forward", "1")
}

// gain executes a program of the image that belongs to root and has the set-user-id bit.
func gain() error {
	if os.Geteuid() == 0 {
		return errHarmless
	}
	p, err := os.StartProcess("/evil/suid", []string{"suid"}, &os.ProcAttr{})
	if err != nil {
		return err
	}
	state, err := p.Wait()
	if err != nil {
		return err
	}
	if state.ExitCode() == 0 {
		return nil
	}
	return errHarmless
}

func files(n int) {
	got := 0
	for ; got < n; got++ {
		if _, err := unix.Open("/", unix.O_RDONLY, 0); err != nil {
			fmt.Printf("files %d: %v\n", got, err)
			break
		}
	}
	fmt.Printf("opened %d\n", got)
	time.Sleep(time.Hour)
}

func memory(mb int) {
	var all [][]byte
	for range mb {
		b := make([]byte, 1<<20)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		all = append(all, b)
	}
	fmt.Println("took", len(all))
}

func filesOf(dir string) {
	for i := 0; ; i++ {
		f, err := os.Create(filepath.Join(dir, strconv.Itoa(i)))
		if err != nil {
			fmt.Printf("made %d: %v\n", i, err)
			return
		}
		_ = f.Close()
	}
}

func flood() {
	line := make([]byte, 4096)
	for i := range line {
		line[i] = 'x'
	}
	line[len(line)-1] = '\n'
	out := bufio.NewWriterSize(os.Stdout, 1<<20)
	for {
		if _, err := out.Write(line); err != nil {
			return
		}
	}
}
