package logs

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// MaxText is the length in bytes of the longest text of one record.
const MaxText = 16 << 10

// Stream says where a record came from.
type Stream string

// The streams. System marks what the agent or the logger itself says.
const (
	Stdout Stream = "stdout"
	Stderr Stream = "stderr"
	System Stream = "system"
	// runMark says that a run of the container begins, and which; no reader gets it.
	runMark Stream = "run"
)

// Source is the public name of who speaks in a line.
type Source string

// The sources. FromBoth only selects; no line has it.
const (
	FromBoth      Source = ""
	FromContainer Source = "container"
	FromSystem    Source = "system"
)

// ID names a line of a pod's log. The zero ID names none.
type ID struct {
	Time time.Time
	Seq  uint64 // 0 when unknown; a series starts at 1
}

// String returns "<RFC 3339 time>/<sequence>", or only the time where the
// sequence is unknown.
func (id ID) String() string {
	ts := string(appendTime(nil, id.Time.UnixNano()))
	if id.Seq == 0 {
		return ts
	}
	return ts + "/" + strconv.FormatUint(id.Seq, 10)
}

// ParseID reads what String wrote, and any RFC 3339 time with or without a
// sequence number.
func ParseID(s string) (ID, error) {
	ts, seq, with := strings.Cut(s, "/")
	t, err := time.Parse(time.RFC3339Nano, ts)
	if err != nil || !representable(t) {
		return ID{}, errors.New("log id: no RFC 3339 time")
	}
	id := ID{Time: t.UTC()}
	if with {
		if id.Seq, err = strconv.ParseUint(seq, 10, 64); err != nil {
			return ID{}, errors.New("log id: no sequence number")
		}
	}
	return id, nil
}

// Line is one record as readers get it.
type Line struct {
	Time    time.Time // UTC
	Seq     uint64
	Stream  Stream
	Partial bool   // the line goes on in a later record of this stream
	Text    string // without newline; may hold any other byte
}

// ID returns the id by which a reader can go on after this line.
func (l Line) ID() ID { return ID{Time: l.Time, Seq: l.Seq} }

// Source returns FromSystem for lines of stream system, else FromContainer.
func (l Line) Source() Source { return sourceOf(l.Stream) }

func sourceOf(s Stream) Source {
	if s == System {
		return FromSystem
	}
	return FromContainer
}

const (
	timeLen   = len("2006-01-02T15:04:05.000000000Z")
	maxHead   = timeLen + 1 + 20 + 1 + len("stdout") + 1 + 1 + 1
	maxRecord = maxHead + MaxText + 1
)

// record is a parsed line whose text lies in the buffer it was parsed from.
type record struct {
	nano    int64
	seq     uint64
	stream  Stream
	partial bool
	text    []byte
}

func (r record) line() Line {
	return Line{Time: time.Unix(0, r.nano).UTC(), Seq: r.seq, Stream: r.stream, Partial: r.partial, Text: string(r.text)}
}

// appendRecord adds the record and its newline to b.
func appendRecord(b []byte, r record) []byte {
	b = appendTime(b, r.nano)
	b = append(b, ' ')
	b = strconv.AppendUint(b, r.seq, 10)
	b = append(b, ' ')
	b = append(b, r.stream...)
	if r.partial {
		b = append(b, " P "...)
	} else {
		b = append(b, " F "...)
	}
	b = append(b, r.text...)
	return append(b, '\n')
}

func representable(t time.Time) bool {
	return t.Year() >= 1970 && t.Year() < 2262
}

func appendTime(b []byte, nano int64) []byte {
	return time.Unix(0, nano).UTC().AppendFormat(b, "2006-01-02T15:04:05.000000000Z")
}

// parseRecord reads one record without its newline.
func parseRecord(b []byte) (record, error) {
	var r record
	if len(b) < timeLen+1 || b[timeLen] != ' ' || b[timeLen-1] != 'Z' {
		return r, errNotRecord
	}
	nano, ok := parseTime(b[:timeLen])
	if !ok {
		return r, errNotRecord
	}
	seq, rest, ok := bytes.Cut(b[timeLen+1:], []byte{' '})
	if r.seq, ok = parseSeq(seq, ok); !ok {
		return r, errNotRecord
	}
	r.nano = nano
	stream, rest, ok := bytes.Cut(rest, []byte{' '})
	if !ok || len(rest) < 2 || rest[1] != ' ' || rest[0] != 'F' && rest[0] != 'P' {
		return r, errNotRecord
	}
	switch string(stream) {
	case string(Stdout):
		r.stream = Stdout
	case string(Stderr):
		r.stream = Stderr
	case string(System):
		r.stream = System
	case string(runMark):
		r.stream = runMark
	default:
		return r, errNotRecord
	}
	r.partial = rest[0] == 'P'
	r.text = rest[2:]
	if len(r.text) > MaxText {
		return r, errNotRecord
	}
	return r, nil
}

var errNotRecord = errors.New("not a log record")

// parseTime reads the fixed form that appendTime writes. Time is what a reader
// parses most, and time.Parse is ten times slower.
func parseTime(b []byte) (int64, bool) {
	const form = "0000-00-00T00:00:00.000000000Z"
	for i := range len(form) {
		if c := b[i]; form[i] == '0' && (c < '0' || c > '9') || form[i] != '0' && c != form[i] {
			return 0, false
		}
	}
	num := func(from, to int) int {
		n := 0
		for _, c := range b[from:to] {
			n = n*10 + int(c-'0')
		}
		return n
	}
	month, day, hour, minute, sec := num(5, 7), num(8, 10), num(11, 13), num(14, 16), num(17, 19)
	t := time.Date(num(0, 4), time.Month(month), day, hour, minute, sec, num(20, 29), time.UTC)
	if !representable(t) || int(t.Month()) != month || t.Day() != day || t.Hour() != hour || t.Minute() != minute || t.Second() != sec {
		return 0, false
	}
	return t.UnixNano(), true
}

func parseSeq(b []byte, found bool) (uint64, bool) {
	if !found || len(b) == 0 || len(b) > 20 || b[0] == '0' || b[0] == '+' {
		return 0, false
	}
	n, err := strconv.ParseUint(string(b), 10, 64)
	return n, err == nil
}

// runeCut returns where to cut b so that no UTF-8 character is torn; len(b)
// when its end is no torn character.
func runeCut(b []byte) int {
	for i := 1; i < utf8.UTFMax && i < len(b); i++ {
		c := b[len(b)-i]
		if utf8.RuneStart(c) {
			if c >= utf8.RuneSelf && !utf8.FullRune(b[len(b)-i:]) {
				return len(b) - i
			}
			break
		}
	}
	return len(b)
}

func droppedText(lines, size uint64, why string) string {
	return fmt.Sprintf("dropped %d lines, %d bytes: %s", lines, size, why)
}
