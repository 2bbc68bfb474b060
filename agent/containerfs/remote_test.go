package containerfs

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"gantry/fleet"
)

var program = &Program{Argv: []string{os.Args[0], "files-helper"}, Env: []string{"GORACE=atexit_sleep_ms=0"}}

func TestMain(m *testing.M) {
	switch {
	case len(os.Args) == 2 && os.Args[1] == "files-helper":
		os.Exit(Main())
	case len(os.Args) == 3 && os.Args[1] == "agent":
		os.Exit(agent(os.Args[2]))
	}
	os.Exit(m.Run())
}

// agent is one that looks for a file in a root that does not answer, and ends.
func agent(dir string) int {
	root, err := os.Open(dir)
	if err != nil {
		return 1
	}
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	if _, err := program.Find(ctx, NewRoot(root, nil, nil), "/volume/x", func() {}); !errors.Is(err, context.DeadlineExceeded) {
		return 1
	}
	return 0
}

// TestAnotherProcessDoesTheSame: what goes in comes out, and refusals keep their words.
func TestAnotherProcessDoesTheSame(t *testing.T) {
	b := newBox(t)
	b.mkdir("from", "to")
	b.write("from/big", strings.Repeat("0123456789", 100_000))
	b.link("big", "from/link")
	var ended sync.WaitGroup
	left := func() func() { ended.Add(1); return ended.Done }
	from, err := program.Find(t.Context(), b.root, "/from", left())
	b.must(err)
	var tar bytes.Buffer
	b.must(from.Pack(t.Context(), &tar))
	b.must(from.Close())
	into, err := program.Into(t.Context(), b.root, "/to", left())
	b.must(err)
	b.must(into.Unpack(t.Context(), bytes.NewReader(tar.Bytes())))
	b.must(into.Close())
	if text, err := os.ReadFile(b.path("to/from/link")); err != nil || len(text) != 1_000_000 {
		t.Errorf("%d bytes came back, %v", len(text), err)
	}

	_, err = program.Find(t.Context(), b.root, "/none", left())
	wantCode(t, "a file that is not there", err, fleet.CodeNotFound, "no such file")
	into, err = program.Into(t.Context(), b.root, "/to", left())
	b.must(err)
	bad := archive(t, file("../x", "x"))
	in, feed := io.Pipe() // never ends by itself
	go func() { _, _ = feed.Write(bad) }()
	wantCode(t, "a bad archive", into.Unpack(t.Context(), in), fleet.CodeInvalid, "entry 1")
	b.must(errors.Join(feed.Close(), into.Close()))

	into, err = program.Into(t.Context(), b.root, "/to", left())
	b.must(err)
	ctx, cancel := context.WithCancelCause(t.Context())
	in, feed = io.Pipe()
	go func() {
		_, _ = feed.Write(tar.Bytes()[:600_000])
		cancel(errors.New("let go"))
		_ = feed.CloseWithError(io.ErrClosedPipe)
	}()
	if err := into.Unpack(ctx, in); err == nil || !strings.Contains(err.Error(), "let go") && !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("one that was let go: %v", err)
	}
	b.must(into.Close())
	ended.Wait()
	if names, err := os.ReadDir(b.path("to")); err != nil || len(names) != 1 {
		t.Errorf("left: %v, %v", names, err)
	}
}

// deaf is a folder that answers nothing until it is let go.
type deaf struct {
	fusefs.Inode
	hear chan struct{}
}

func (d *deaf) Lookup(context.Context, string, *fuse.EntryOut) (*fusefs.Inode, syscall.Errno) {
	<-d.hear
	return nil, syscall.ENOENT
}

// TestADeadVolumeDoesNotKeepTheAgent: who asks it cannot be ended, but whoever has it asked can.
func TestADeadVolumeDoesNotKeepTheAgent(t *testing.T) {
	dir, root := t.TempDir(), &deaf{hear: make(chan struct{})}
	server, err := fusefs.Mount(dir, root, &fusefs.Options{MountOptions: fuse.MountOptions{Name: "deaf", DirectMountStrict: true}})
	if err != nil {
		t.Fatal(err)
	}
	hear := sync.OnceFunc(func() { close(root.hear) })
	t.Cleanup(func() {
		hear()
		if err := server.Unmount(); err != nil {
			t.Error(err)
		}
	})
	cmd := exec.Command(os.Args[0], "agent", dir)
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	ended := make(chan error, 1)
	go func() { ended <- cmd.Run() }()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("the agent does not end")
	}

	folder, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer folder.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	left := make(chan struct{})
	if _, err := program.Find(ctx, NewRoot(folder, nil, nil), "/volume/x", func() { close(left) }); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	select {
	case <-left:
		t.Error("the process counts as ended")
	default:
	}
	hear()
	<-left
}
