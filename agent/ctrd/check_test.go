package ctrd

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"gantry/agent/pod"
)

// TestAListThatIsNotThere: only what leads to nothing is no list of users.
func TestAListThatIsNotThere(t *testing.T) {
	for name, make := range map[string]func(etc string) error{
		"nothing":                 func(string) error { return nil },
		"a folder that is a file": func(etc string) error { return errors.Join(os.Remove(etc), os.WriteFile(etc, nil, 0o644)) },
		"a link to itself":        func(etc string) error { return os.Symlink("passwd", filepath.Join(etc, "passwd")) },
		"a link that is too long": func(etc string) error {
			return os.Symlink(strings.Repeat("x", 300), filepath.Join(etc, "passwd"))
		},
		"a link out": func(etc string) error {
			return os.Symlink("../../../../../../etc/passwd-of-nobody", filepath.Join(etc, "passwd"))
		},
	} {
		root := t.TempDir()
		must(t, os.Mkdir(filepath.Join(root, "etc"), 0o755))
		must(t, make(filepath.Join(root, "etc")))
		if text, err := readList(root, "/etc/passwd"); err != nil || text != nil {
			t.Errorf("%s: %q, %v", name, text, err)
		}
		if err := checkRoot(root, pod.ContainerSpec{}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestAListThatCannotBeRead: an error of the host's is none of the image's. The file is of a process that has ended.
func TestAListThatCannotBeRead(t *testing.T) {
	root := t.TempDir()
	must(t, os.Mkdir(filepath.Join(root, "etc"), 0o755))
	list := filepath.Join(root, "etc", "passwd")
	must(t, os.WriteFile(list, nil, 0o644))
	process := exec.Command("sleep", "600")
	must(t, process.Start())
	err := unix.Mount("/proc/"+strconv.Itoa(process.Process.Pid)+"/status", list, "", unix.MS_BIND, "")
	t.Cleanup(func() { must(t, unmountAll(list)) })
	must(t, errors.Join(err, process.Process.Kill()))
	_ = process.Wait() // it was killed
	text, err := readList(root, "/etc/passwd")
	var final *pod.Error
	if err == nil || errors.As(err, &final) {
		t.Errorf("%q, %v", text, err)
	}
	if errors.As(fault("look up the image's user", err), &final); final == nil || final.Class != pod.Retry {
		t.Errorf("it is final: %v", final)
	}
	if _, err := openInside(filepath.Join(root, "none"), "/etc/passwd"); err == nil {
		t.Error("without a root there is no list")
	}
}
