package logs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

const partialAge = time.Second

// Collect writes what a container prints on two pipes to w until both have
// ended, and returns nil then. When ctx ends earlier it stops reading, writes
// what it has and returns ctx's cause. The pipes must be in non-blocking mode.
// Neither w nor the pipes are closed.
func Collect(ctx context.Context, w *Writer, stdout, stderr *os.File) error {
	pipes := []*os.File{stdout, stderr}
	for _, p := range pipes {
		if err := p.SetReadDeadline(time.Time{}); err != nil {
			return fmt.Errorf("collect log: %w", err)
		}
	}
	stop := context.AfterFunc(ctx, func() {
		for _, p := range pipes {
			_ = p.SetReadDeadline(time.Unix(1, 0))
		}
	})
	defer stop()
	cutters := []*cutter{newCutter(w, Stdout), newCutter(w, Stderr)}
	parts := make(chan part)
	for i, p := range pipes {
		go readPipe(p, cutters[i], parts)
	}
	err := drain(w, cutters, parts)
	for _, c := range cutters {
		c.end(time.Now(), false)
	}
	w.note(time.Now(), true)
	if ferr := w.flush(); err == nil {
		err = ferr
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

type part struct {
	to   *cutter
	data []byte
	err  error
}

// readPipe reads into two buffers in turn: one is with the receiver, who is
// done with it when it takes the next.
func readPipe(f *os.File, to *cutter, parts chan<- part) {
	var bufs [2][]byte
	for i := range bufs {
		bufs[i] = make([]byte, batchBytes)
	}
	for i := 0; ; i++ {
		b := bufs[i%2]
		n, err := f.Read(b)
		parts <- part{to, b[:n], err}
		if err != nil {
			return
		}
	}
}

// drain feeds the cutters until every pipe has reported its end.
func drain(w *Writer, cutters []*cutter, parts <-chan part) error {
	var (
		errs    []error
		timer   = time.NewTimer(partialAge)
		waiting = true
	)
	defer timer.Stop()
	for open := len(cutters); open > 0; {
		select {
		case p := <-parts:
			now := time.Now()
			w.bucket.fill(now)
			p.to.write(now, p.data)
			w.flush()
			if p.err != nil {
				open--
				if !errors.Is(p.err, io.EOF) {
					errs = append(errs, p.err)
				}
			}
		case now := <-timer.C:
			waiting = false
			w.bucket.fill(now)
			for _, c := range cutters {
				if now.Sub(c.since) >= partialAge/2 {
					c.end(now, true)
				}
			}
			w.note(now, false)
			w.flush()
		}
		if !waiting && pending(w, cutters) {
			timer.Reset(partialAge)
			waiting = true
		}
	}
	return errors.Join(errs...)
}

func pending(w *Writer, cutters []*cutter) bool {
	for _, c := range cutters {
		if len(c.line) > 0 {
			return true
		}
	}
	return w.lost > 0 || w.lostBytes > 0
}

// cutter makes records of a stream of bytes.
type cutter struct {
	w      *Writer
	stream Stream
	line   []byte    // of a line whose end is not there yet
	since  time.Time // when line began
	skip   bool      // up to the next newline everything is lost
}

func newCutter(w *Writer, s Stream) *cutter {
	return &cutter{w: w, stream: s, line: make([]byte, 0, MaxText)}
}

// write takes the next bytes of the stream. It does not flush the writer.
func (c *cutter) write(now time.Time, p []byte) {
	for len(p) > 0 {
		if c.w.bucket.shut {
			c.lose(now, p)
			return
		}
		n := bytes.IndexByte(p, '\n')
		if c.skip {
			if n < 0 {
				c.w.lose(0, len(p), whyRate)
				return
			}
			c.w.lose(1, n, whyRate)
			c.skip, p = false, p[n+1:]
			continue
		}
		text, ended := p, n >= 0
		if ended {
			text, p = p[:n], p[n+1:]
		} else {
			p = nil
		}
		text = c.cutLong(now, text)
		switch {
		case !ended:
			c.hold(now, text)
		case len(c.line) == 0:
			c.w.offer(now, c.stream, false, text)
		default:
			c.line = append(c.line, text...)
			c.end(now, false)
		}
	}
}

// cutLong writes records while line and text are too long for one, and returns
// what is left of text.
func (c *cutter) cutLong(now time.Time, text []byte) []byte {
	for len(c.line)+len(text) > MaxText {
		n := MaxText - len(c.line)
		c.line = append(c.line, text[:n]...)
		text = text[n:]
		k := runeCut(c.line)
		c.w.offer(now, c.stream, true, c.line[:k])
		c.line = c.line[:copy(c.line, c.line[k:])]
	}
	return text
}

func (c *cutter) hold(now time.Time, text []byte) {
	if len(c.line) == 0 {
		c.since = now
	}
	c.line = append(c.line, text...)
}

// end writes the line so far.
func (c *cutter) end(now time.Time, partial bool) {
	if len(c.line) > 0 {
		c.w.offer(now, c.stream, partial, c.line)
		c.line = c.line[:0]
	}
}

// lose counts the lines of p and keeps only the beginning of the one after
// them. It looks at every byte once and is what bounds the work in a flood.
func (c *cutter) lose(now time.Time, p []byte) {
	last := bytes.LastIndexByte(p, '\n')
	if last < 0 && !c.skip && len(c.line)+len(p) <= MaxText {
		c.hold(now, p)
		return
	}
	rest := p[last+1:]
	c.w.lose(bytes.Count(p, []byte{'\n'}), len(c.line)+last+1, whyRate)
	c.line = c.line[:0]
	c.skip = last < 0 || len(rest) > MaxText
	if c.skip {
		c.w.lose(0, len(rest), whyRate)
		return
	}
	if len(rest) > 0 {
		c.hold(now, rest)
	}
}
