package client

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strconv"
	"time"
)

const maxEvent = 4 << 20 // bytes of one event

var errEventTooLong = errors.New("read the log: an event is longer than 4 MiB")

// event is one server-sent event.
type event struct {
	kind, id string
	data     []byte
	retry    time.Duration
}

// eventReader reads server-sent events as the HTML standard defines them (9.2.6).
type eventReader struct {
	in *bufio.Reader
	id string // of the last event that named one
}

func newEventReader(r io.Reader) *eventReader {
	return &eventReader{in: bufio.NewReaderSize(r, 32<<10)}
}

// next returns the next event. An event that the end of the stream cut off is dropped: io.EOF.
func (r *eventReader) next() (event, error) {
	ev, size, any := event{}, 0, false
	for {
		text, err := r.line(maxEvent - size)
		if err != nil {
			return event{}, err
		}
		size += len(text)
		if len(text) == 0 {
			if any {
				ev.id = r.id
				ev.data = bytes.TrimSuffix(ev.data, []byte("\n"))
				return ev, nil
			}
			continue
		}
		name, value, _ := bytes.Cut(text, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		any = any || len(name) > 0
		switch string(name) {
		case "data":
			ev.data = append(append(ev.data, value...), '\n')
		case "id":
			if bytes.IndexByte(value, 0) < 0 {
				r.id = string(value)
			}
		case "event":
			ev.kind = string(value)
		case "retry":
			if ms, err := strconv.Atoi(string(value)); err == nil && ms >= 0 {
				ev.retry = time.Duration(ms) * time.Millisecond
			}
		}
	}
}

// line reads one line of at most limit bytes, without its end.
func (r *eventReader) line(limit int) ([]byte, error) {
	var out []byte
	for {
		part, err := r.in.ReadSlice('\n')
		out = append(out, part...)
		if len(out) > limit {
			return nil, errEventTooLong
		}
		if err == nil {
			return bytes.TrimSuffix(bytes.TrimSuffix(out, []byte("\n")), []byte("\r")), nil
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return nil, err
		}
	}
}
