package ctrd

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/client"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"

	"gantry/agent/containerfs"
	"gantry/agent/pod"
	"gantry/fleet"
)

// gate calls back after calls that make and start processes.
type gate struct {
	tasks.TasksClient
	made, started func()
	starts        int
}

// Exec implements tasks.TasksClient.
func (g *gate) Exec(ctx context.Context, in *tasks.ExecProcessRequest, opts ...grpc.CallOption) (*emptypb.Empty, error) {
	defer g.made()
	return g.TasksClient.Exec(ctx, in, opts...)
}

// Start implements tasks.TasksClient.
func (g *gate) Start(ctx context.Context, in *tasks.StartRequest, opts ...grpc.CallOption) (*tasks.StartResponse, error) {
	defer g.started()
	g.starts++
	return g.TasksClient.Start(ctx, in, opts...)
}

// TestExecIsNotStartedForWhoHasGone lets the caller leave at each step.
func TestExecIsNotStartedForWhoHasGone(t *testing.T) {
	x := setupExec(t, nil)
	for _, step := range []string{"made", "started"} {
		ctx, leave := context.WithCancel(x.ctx)
		nothing := func() {}
		g := &gate{TasksClient: x.r.client.TaskService(), made: nothing, started: nothing}
		map[string]func(){"made": func() { g.made = leave }, "started": func() { g.started = leave }}[step]()
		r, err := New(x.r.cfg)
		x.must(err)
		x.must(r.client.Close())
		r.client, err = client.New(r.cfg.Socket, client.WithExtraDialOpts(r.dialOptions()), client.WithServices(client.WithTaskClient(g)))
		x.must(err)
		p, err := r.Exec(ctx, x.s.Pod, 1, containerfs.ExecSpec{Command: []string{"sleep", "500"}, Stdin: true})
		var e *pod.Error
		if p != nil || !errors.As(err, &e) || !errors.Is(err, context.Canceled) {
			t.Errorf("%s: got %v, %v", step, p, err)
		}
		if want := map[string]int{"made": 0, "started": 1}[step]; g.starts != want {
			t.Errorf("%s: started %d times", step, g.starts)
		}
		if left := r.leftExecs(); len(left) > 0 {
			t.Errorf("%s: pipes are left: %v", step, left)
		}
		x.nothingRuns()
		if n := len(x.pids()); n != 1 {
			t.Errorf("%s: %d processes are left", step, n)
		}
		x.must(r.Close())
		leave()
	}
}

// midway calls do when it is read.
type midway struct{ do func() }

// Read implements io.Reader.
func (m midway) Read([]byte) (int, error) {
	m.do()
	return 0, io.EOF
}

// TestFilesOfARoot writes and reads files of a pod's real root.
func TestFilesOfARoot(t *testing.T) {
	x := setupExec(t, nil)
	root, err := x.r.Root(x.ctx, x.s.Pod, 1)
	x.must(err)
	defer func() { x.must(root.Close()) }()
	var packed bytes.Buffer
	w := tar.NewWriter(&packed)
	x.must(w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "f", Mode: 0o640, Uid: 7, Gid: 8, Size: 300_000}))
	_, err = w.Write(make([]byte, 300_000))
	x.must(errors.Join(err, w.Close()))
	show := func() string {
		out, diag, _ := x.run(containerfs.ExecSpec{Command: []string{"sh", "-c", "cd /www; ls -A; wc -c <f; stat -c '%a %u:%g' f"}}, "")
		return out + diag
	}
	into, err := root.Into("/www")
	x.must(err)
	before := show()
	err = into.Unpack(x.ctx, io.MultiReader(bytes.NewReader(packed.Bytes()[:100_000]), midway{func() {
		if now := show(); now != before {
			t.Errorf("in the middle there is\n%s", now)
		}
	}}))
	if fleet.CodeOf(err) != fleet.CodeInvalid {
		t.Errorf("half an archive: %v", err)
	}
	for range 2 {
		x.must(into.Unpack(x.ctx, bytes.NewReader(packed.Bytes())))
		if got := show(); got != "f\nindex.html\n300000\n640 7:8\n" {
			t.Errorf("there is\n%s", got)
		}
	}
	x.must(into.Close())
	if _, err := root.Into("/dev/shm"); fleet.CodeOf(err) != fleet.CodeNotAllowed || !strings.Contains(err.Error(), "in memory") {
		t.Errorf("into memory: %v", err)
	}
	if out, diag, code := x.run(containerfs.ExecSpec{Command: []string{"sh", "-c", "echo text >/dev/shm/f"}}, ""); code != 0 {
		t.Fatal(out, diag)
	}
	found, err := root.Find("/dev/shm/f")
	x.must(err)
	defer func() { x.must(found.Close()) }()
	var read bytes.Buffer
	x.must(found.Pack(x.ctx, &read))
	r := tar.NewReader(&read)
	if _, err := r.Next(); err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(r); err != nil || string(text) != "text\n" {
		t.Errorf("read %q, %v", text, err)
	}
}
