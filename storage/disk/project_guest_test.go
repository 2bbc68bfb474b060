//go:build guest

package disk

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// In the guest of test/nfslab the tests of all mechanisms run on project quotas, which other machines' kernels lack. The
// kernel does not hold those of ext4 against whoever has CAP_SYS_RESOURCE; root in a pod does not.
func init() {
	kinds = append(kinds[:0:0], kinds[0], kinds[0])
	kinds[0].name, kinds[0].mechanism, kinds[0].full = "project on xfs", Project, unix.ENOSPC
	kinds[1].name, kinds[1].mechanism, kinds[1].full = "project on ext4", Project, unix.EDQUOT
	benchKinds = kinds
	fileSystems[Project] = func(t testing.TB) string {
		if strings.HasSuffix(t.Name(), "xfs") {
			return onQuotas(t, "xfs", "-s", "size=4096") // the loop device has such blocks
		}
		return onQuotas(t, "ext4", "-O", "quota,project", "-E", "quotatype=prjquota")
	}
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&head, &caps[0]); err != nil {
		panic(err)
	}
	caps[0].Effective &^= 1 << unix.CAP_SYS_RESOURCE
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&head)), uintptr(unsafe.Pointer(&caps)), 0) //nolint:gosec // the kernel's way
	if errno != 0 {
		panic(errno)
	}
}

// onQuotas mounts a new file system with project quotas.
func onQuotas(t testing.TB, kind string, options ...string) string {
	t.Helper()
	base := t.TempDir()
	image, at := filepath.Join(base, "image"), filepath.Join(base, "mnt")
	must(t, os.Mkdir(at, 0o755))
	must(t, os.WriteFile(image, nil, 0o600))
	must(t, os.Truncate(image, 8<<30))
	if out, err := exec.CommandContext(t.Context(), "mkfs."+kind, append(options, "-q", image)...).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.%s: %v: %s", kind, err, out)
	}
	dev, err := attach(image, true)
	must(t, err)
	must(t, unix.Mount(dev.Name(), at, kind, 0, "prjquota"))
	must(t, dev.Close())
	t.Cleanup(func() { must(t, unix.Unmount(at, 0)) })
	return at
}

// TestAutoTakesQuotasOfXFSAlone: those of ext4 say EDQUOT, and are taken when they are asked for.
func TestAutoTakesQuotasOfXFSAlone(t *testing.T) {
	for kind, want := range map[string]string{"xfs": Project, "ext4": Loop} {
		t.Run(kind, func(t *testing.T) {
			p, err := Open(Config{Dir: fileSystems[Project](t), Direct: true, Mechanism: Auto})
			must(t, err)
			if got := p.Mechanism(); got != want {
				t.Errorf("mechanism %s, want %s; refused %v", got, want, p.Refused())
			}
		})
	}
}

// TestProjectsLimitFilesToo makes more files than a disk may have, and wants one to be in two disks.
func TestProjectsLimitFilesToo(t *testing.T) {
	forEach(t, func(t *testing.T, p *Pool, full error) {
		dir, err := p.Make(t.Context(), "d", 1)
		must(t, err)
		other, err := p.Make(t.Context(), "other", 1)
		must(t, err)
		write(t, dir, "note", "kept")
		if err := os.Link(filepath.Join(dir, "note"), filepath.Join(other, "note")); err == nil {
			t.Error("a file of one disk is in another, too")
		}
		m := p.chosen.(*projects)
		id, err := m.quota.id(dir)
		must(t, err)
		q, err := m.quota.get(id)
		must(t, err)
		must(t, m.quota.limit(id, q.maxBytes, 20))
		files := 0
		for ; err == nil && files < 100; files++ {
			err = unix.Mknod(filepath.Join(dir, "n"+strings.Repeat("x", files)), unix.S_IFIFO|0o600, 0)
		}
		if err != full || files < 10 { //nolint:errorlint // an errno as it is
			t.Errorf("%d files, then %v", files, err)
		}
	})
}
