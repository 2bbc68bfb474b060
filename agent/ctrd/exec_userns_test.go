package ctrd

import (
	"archive/tar"
	"bytes"
	"io"
	"strings"
	"testing"

	"gantry/agent/containerfs"
)

// TestCommandsInAUserNamespace: the root of a container opens the ends of its pipes and its terminal by
// name, and its files go in and out under the owners that it sees.
func TestCommandsInAUserNamespace(t *testing.T) {
	x := &execBench{bench: setup(t)}
	x.s = x.spec(x.local(nil), "sleep 600")
	x.give(&x.s, testBase)
	x.start(x.s)
	t.Cleanup(func() { x.remove(x.s.Pod) })
	out, diag, code := x.run(containerfs.ExecSpec{
		Command: []string{"sh", "-c", "cat /dev/stdin > /dev/stdout; echo diag > /dev/stderr; id -u; stat -L -c %u /proc/self/fd/0 /proc/self/fd/1"}, Stdin: true,
	}, "text\n")
	if out != "text\n0\n0\n0\n" || diag != "diag\n" || code != 0 {
		t.Errorf("pipes: %q, %q, %d", out, diag, code)
	}
	out, _, code = x.run(containerfs.ExecSpec{
		Command: []string{"sh", "-c", "echo by-name > /dev/tty; echo by-path > $(tty); stat -c %u $(tty); stty size; chmod 600 $(tty) && echo its-own"}, TTY: true, Cols: 100, Rows: 30,
	}, "")
	for _, want := range []string{"by-name\r\n", "by-path\r\n", "0\r\n", "30 100\r\n", "its-own\r\n"} {
		if !strings.Contains(out, want) || code != 0 {
			t.Errorf("terminal: no %q in %q, %d", want, out, code)
		}
	}
	x.files(t)
	if left := x.r.leftExecs(); len(left) > 0 {
		t.Errorf("pipes are left: %v", left)
	}
	x.must(x.r.SweepExecs(x.ctx))
}

// files sends a file into the container, has its root look at it, and gets it back.
func (x *execBench) files(t *testing.T) {
	t.Helper()
	root, err := x.r.Root(x.ctx, x.s.Pod, x.s.Incarnation)
	x.must(err)
	defer root.Close()
	var in bytes.Buffer
	w := tar.NewWriter(&in)
	for _, h := range []tar.Header{{Name: "sent", Size: 4, Mode: 0o640, Uid: 1000, Gid: 1001}, {Name: "far", Size: 4, Mode: 0o600, Uid: 1_000_000}} {
		x.must(w.WriteHeader(&h))
		_, err := io.WriteString(w, "text")
		x.must(err)
	}
	x.must(w.Close())
	into, err := root.Into("/root")
	x.must(err)
	x.must(into.Unpack(x.ctx, &in))
	x.must(into.Close())
	out, _, code := x.run(containerfs.ExecSpec{Command: []string{"sh", "-c", "cd /root && stat -c '%u:%g %a' sent far && chown 7:8 far && cat far"}}, "")
	if out != "1000:1001 640\n65534:0 600\ntext" || code != 0 {
		t.Errorf("files in the container: %q, %d", out, code)
	}
	found, err := root.Find("/root/far")
	x.must(err)
	defer found.Close()
	var back bytes.Buffer
	x.must(found.Pack(x.ctx, &back))
	h, err := tar.NewReader(&back).Next()
	if err != nil || h.Uid != 7 || h.Gid != 8 {
		t.Errorf("the file comes back as %+v, %v", h, err)
	}
}
