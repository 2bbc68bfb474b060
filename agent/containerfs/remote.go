package containerfs

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"gantry/fleet"
)

// Program is what reads and writes files of containers in processes of their own: a dead network file system holds
// whoever asks it for as long as it likes, and a process that is so held does not end. It is the calling program itself,
// with arguments that lead to Main.
type Program struct {
	Argv []string
	Env  []string // added to an environment of nothing
}

// Descriptors of such a process beside the standard ones.
const (
	rootFD   = 3
	statusFD = 4
)

// endGrace is how long a process that is not needed any more may take to clean up before it is killed.
const endGrace = 2 * time.Second

// job is the first line that the process reads. An archive may follow.
type job struct {
	Write         bool
	Path          string
	Users, Groups [][3]uint32
}

// status is what it says, first when the path was found and then when all is done.
type status struct {
	Code fleet.Code // of a fleet.Error; empty: of another one
	Text string     // empty: no error
}

// Remote is a Reading or a Writing of another process.
type Remote struct {
	cmd           *exec.Cmd
	stdin, stdout *os.File
	said          chan status // what it says
	gone          chan struct{}
}

// Find is that of Root. It returns when ctx ends, too. left is called when the process has ended, which may be much later.
func (p *Program) Find(ctx context.Context, r *Root, path string, left func()) (*Remote, error) {
	return p.begin(ctx, r, job{Path: path}, left)
}

// Into is that of Root. It returns when ctx ends, too. left is that of Find.
func (p *Program) Into(ctx context.Context, r *Root, path string, left func()) (*Remote, error) {
	return p.begin(ctx, r, job{Path: path, Write: true}, left)
}

func (p *Program) begin(ctx context.Context, r *Root, j job, left func()) (*Remote, error) {
	j.Users, j.Groups = r.ids.users.lines(), r.ids.groups.lines()
	line, err := json.Marshal(j)
	if err != nil {
		left()
		return nil, err
	}
	x, err := p.start(r, left)
	if err != nil {
		left()
		return nil, fmt.Errorf("reach into the pod: %w", err)
	}
	_, _ = x.stdin.Write(append(line, '\n')) // less than a pipe holds; one that has died says nothing
	if err := x.next(ctx); err != nil {
		_ = x.Close()
		return nil, err
	}
	return x, nil
}

// start starts the process.
func (p *Program) start(r *Root, left func()) (*Remote, error) {
	var ends []*os.File
	pipe := func() (read, write *os.File, err error) {
		if read, write, err = os.Pipe(); err == nil {
			ends = append(ends, read, write)
		}
		return read, write, err
	}
	in, stdin, err := pipe()
	var stdout, out, said, say *os.File
	if err == nil {
		if stdout, out, err = pipe(); err == nil {
			said, say, err = pipe()
		}
	}
	x := &Remote{stdin: stdin, stdout: stdout, said: make(chan status, 2), gone: make(chan struct{})}
	if err == nil {
		x.cmd = exec.Command(p.Argv[0], p.Argv[1:]...) //nolint:gosec // the program itself
		x.cmd.Dir, x.cmd.Env, x.cmd.Stdin, x.cmd.Stdout, x.cmd.ExtraFiles = "/", append([]string{"GOMAXPROCS=2"}, p.Env...), in, out, []*os.File{r.dir, say}
		err = x.cmd.Start()
	}
	if err != nil {
		for _, f := range ends {
			_ = f.Close() // nothing was written
		}
		return nil, err
	}
	for _, f := range []*os.File{in, out, say} {
		_ = f.Close() // the process has it
	}
	go func() { // until the process has ended, which may be never
		lines := json.NewDecoder(said)
		for {
			var s status
			if lines.Decode(&s) != nil {
				break
			}
			select {
			case x.said <- s:
			default: // it says no more than two things
			}
		}
		close(x.said)
		_ = said.Close() // read to its end
		_ = x.cmd.Wait() // it has said what there is to say
		close(x.gone)
		left()
	}()
	return x, nil
}

// next waits for what the process says next.
func (x *Remote) next(ctx context.Context) error {
	select {
	case s, ok := <-x.said:
		return s.error(ok)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// error is what a status means.
func (s status) error(ok bool) error {
	switch {
	case !ok:
		return errors.New("reach into the pod: the process ended without an answer")
	case s.Text == "":
		return nil
	case s.Code != "":
		return &fleet.Error{Code: s.Code, Msg: s.Text}
	}
	return errors.New(s.Text)
}

// Pack is that of Reading. It returns when ctx ends, too.
func (x *Remote) Pack(ctx context.Context, w io.Writer) error {
	stop := context.AfterFunc(ctx, func() { _ = x.stdout.Close() }) // which ends the reading
	defer stop()
	_, err := io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{x.stdout}, make([]byte, readSize))
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if err != nil {
		return err
	}
	return x.next(ctx)
}

// Unpack is that of Writing. It returns when ctx ends, too, with which the reading of r must end.
func (x *Remote) Unpack(ctx context.Context, r io.Reader) error {
	stop := context.AfterFunc(ctx, func() { _ = x.stdin.Close() }) // which ends the writing
	defer stop()
	read := make(chan error, 1)
	go func() { // ends with r or the process
		in := &source{r: r}
		_, _ = io.CopyBuffer(struct{ io.Writer }{x.stdin}, in, make([]byte, readSize)) // the process says why it takes no more
		if in.err == nil {
			_ = x.stdin.Close() // the archive's end
		}
		read <- in.err
	}()
	select {
	case err := <-read:
		if err != nil {
			return err
		}
		return x.next(ctx)
	case s, ok := <-x.said: // a fault, before the archive's end
		return s.error(ok)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// source remembers why its reader ended.
type source struct {
	r   io.Reader
	err error
}

// Read implements io.Reader.
func (s *source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && err != io.EOF {
		s.err = err
	}
	return n, err
}

// Close ends the process, without waiting for it.
func (x *Remote) Close() error {
	_ = x.stdin.Close()
	_ = x.stdout.Close()
	go func() { // ends with the grace
		timer := time.NewTimer(endGrace)
		defer timer.Stop()
		select {
		case <-x.gone:
		case <-timer.C:
			_ = x.cmd.Process.Kill()
		}
	}()
	return nil
}

// Gone is closed when the process has ended.
func (x *Remote) Gone() <-chan struct{} { return x.gone }

// Main is the process: it reads or writes what its standard input asks for, and returns the exit status.
func Main() int {
	say := json.NewEncoder(os.NewFile(statusFD, "status"))
	in := bufio.NewReaderSize(os.Stdin, readSize)
	line, err := in.ReadBytes('\n')
	var j job
	if err == nil {
		err = json.Unmarshal(line, &j)
	}
	if err == nil {
		root := NewRoot(os.NewFile(rootFD, "root of a container"), nil, nil).WithIDs(IDs{mapOf(j.Users), mapOf(j.Groups)})
		err = serve(root, j, in, func() error { return say.Encode(status{}) })
	}
	var s status
	if err != nil {
		s.Text = err.Error()
		if known, ok := errors.AsType[*fleet.Error](err); ok {
			s.Code, s.Text = known.Code, known.Msg
		}
	}
	if say.Encode(s) != nil {
		return 1
	}
	return 0
}

func serve(root *Root, j job, in io.Reader, found func() error) error {
	ctx := context.Background() // it ends with the process
	if j.Write {
		into, err := root.Into(j.Path)
		if err == nil {
			err = found()
		}
		if err != nil {
			return err
		}
		return into.Unpack(ctx, in)
	}
	from, err := root.Find(j.Path)
	if err == nil {
		err = found()
	}
	if err != nil {
		return err
	}
	out := bufio.NewWriterSize(os.Stdout, readSize)
	if err := from.Pack(ctx, out); err != nil {
		return err
	}
	if err := out.Flush(); err != nil {
		return err
	}
	return os.Stdout.Close()
}

// lines are the extents of a map; nil changes no id.
func (m idMap) lines() [][3]uint32 {
	if m == nil {
		return nil
	}
	out := [][3]uint32{}
	for _, e := range m {
		out = append(out, [3]uint32{e.inside, e.host, e.count})
	}
	return out
}

func mapOf(lines [][3]uint32) idMap {
	if lines == nil {
		return nil
	}
	out := idMap{}
	for _, l := range lines {
		out = append(out, extent{l[0], l[1], l[2]})
	}
	return out
}
