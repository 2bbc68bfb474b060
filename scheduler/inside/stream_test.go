package inside

import (
	"errors"
	"io"
	"strings"
	"testing"

	"gantry/internal/agentrpc"
)

var errLine = errors.New("the line is cut")

// pipe is a tunnel's stream: the host's frames come out of in, those for it go into out.
type pipe struct {
	in    []*agentrpc.Frame
	end   error
	out   []*agentrpc.Frame
	fails bool
}

func (p *pipe) Recv() (*agentrpc.Frame, error) {
	if len(p.in) == 0 {
		return nil, p.end
	}
	f := p.in[0]
	p.in = p.in[1:]
	return f, nil
}

func (p *pipe) Send(f *agentrpc.Frame) error {
	if p.fails {
		return errLine
	}
	p.out = append(p.out, f)
	return nil
}

// TestHowATunnelIsReadAndWritten: to the frame that is the last, in pieces, and no more once it is closed.
func TestHowATunnelIsReadAndWritten(t *testing.T) {
	data := func(s string) *agentrpc.Frame { return &agentrpc.Frame{Data: []byte(s)} }
	for name, c := range map[string]struct {
		in   []*agentrpc.Frame
		end  error
		want string
		err  string
	}{
		"an end":          {[]*agentrpc.Frame{data("a"), {}, data("b"), {End: true}, data("c")}, nil, "ab", ""},
		"with its data":   {[]*agentrpc.Frame{{Data: []byte("a"), End: true}, data("c")}, nil, "a", ""},
		"without one":     {[]*agentrpc.Frame{data("a")}, io.EOF, "a", ""},
		"lost":            {[]*agentrpc.Frame{data("a")}, errLine, "a", io.ErrUnexpectedEOF.Error()},
		"an error":        {[]*agentrpc.Frame{data("a"), {Error: "no\xff"}}, nil, "a", "no?"},
		"refused at once": {[]*agentrpc.Frame{{Error: "no", End: true}}, nil, "", "no"},
	} {
		c2 := NewStream(&pipe{in: c.in, end: c.end}, nil)
		got, err := io.ReadAll(c2)
		if string(got) != c.want || (err == nil) != (c.err == "") || err != nil && err.Error() != c.err {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		if _, again := c2.Read(make([]byte, 1)); (again == io.EOF) != (err == nil) { //nolint:errorlint // the Reader's own
			t.Errorf("%s, and again: %v", name, again)
		}
	}
	to := &pipe{in: []*agentrpc.Frame{data("x")}}
	c := NewStream(to, nil)
	long := strings.Repeat("y", 2*frameSize+1)
	if n, err := c.Write([]byte(long)); n != len(long) || err != nil || len(to.out) != 3 || len(to.out[2].GetData()) != 1 {
		t.Errorf("wrote %d bytes in %d frames, %v", n, len(to.out), err)
	}
	if err := errors.Join(c.CloseWrite(), c.CloseWrite()); err != nil || len(to.out) != 4 || !to.out[3].GetEnd() {
		t.Errorf("the end, twice: %v, %d frames", err, len(to.out))
	}
	if n, err := c.Write([]byte("z")); n != 0 || !errors.Is(err, io.ErrClosedPipe) || len(to.out) != 4 {
		t.Errorf("behind the end: %d, %v", n, err)
	}
	if err := errors.Join(c.Close(), c.Close()); err != nil {
		t.Error(err)
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("read from what is closed: %v", err)
	}
	for closed, want := range map[bool]error{true: io.ErrClosedPipe, false: io.ErrUnexpectedEOF} {
		c := NewStream(&pipe{end: errLine, fails: true}, nil)
		if closed {
			_ = c.Close()
		}
		if _, err := c.Recv(); !errors.Is(err, want) {
			t.Errorf("closed %v: %v", closed, err)
		}
		if n, err := c.Write([]byte(long)); n != 0 || !errors.Is(err, errLine) {
			t.Errorf("wrote %d bytes, %v", n, err)
		}
	}
	if _, err := NewStream(&pipe{end: io.EOF}, nil).Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("of a host that goes: %v", err)
	}
}
