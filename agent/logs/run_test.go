package logs

import (
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// told is what a test writes into a log: a line of a stream, or a mark of a run.
type told struct {
	stream Stream
	text   string
}

// tell writes lines a millisecond apart, each into the series of its stream.
func tell(t *testing.T, dir string, all []told) {
	t.Helper()
	cw, sw := newTestWriter(t, dir, ContainerSeries, WriterOptions{}), newTestWriter(t, dir, SystemSeries, WriterOptions{})
	at := time.Now().Add(-time.Hour)
	for _, l := range all {
		w := cw
		if l.stream == System || l.stream == runMark {
			w = sw
		}
		at = at.Add(time.Millisecond)
		w.put(at, l.stream, false, []byte(l.text))
		w.flush()
	}
}

// TestPreviousRunIsThatBeforeTheNewestMark has logs with all marks, with some and with none.
func TestPreviousRunIsThatBeforeTheNewestMark(t *testing.T) {
	for name, c := range map[string]struct {
		log    []told
		want   []string
		absent bool
	}{
		"three runs": {log: []told{
			{runMark, "1"},
			{System, "pull"},
			{Stdout, "one"},
			{runMark, "2"},
			{System, "start"},
			{Stdout, "two"},
			{Stderr, "crash"},
			{runMark, "3"},
			{Stdout, "three"},
		}, want: []string{"start", "two", "crash"}},
		"an agent that marked again after its restart": {log: []told{
			{runMark, "1"},
			{Stdout, "one"},
			{runMark, "2"},
			{System, "pull"},
			{runMark, "2"},
			{Stdout, "two"},
			{runMark, "3"},
			{System, "pull"},
			{runMark, "3"},
			{Stdout, "three"},
		}, want: []string{"pull", "two"}},
		"a run that wrote nothing":  {log: []told{{runMark, "1"}, {Stdout, "one"}, {runMark, "2"}, {runMark, "3"}}},
		"numbers that were skipped": {log: []told{{runMark, "4"}, {Stdout, "four"}, {runMark, "9"}, {Stdout, "nine"}}, want: []string{"four"}},
		"a log that began before marks": {
			log:  []told{{System, "start"}, {Stdout, "old"}, {Stdout, "older"}, {runMark, "5"}, {Stdout, "five"}},
			want: []string{"start", "old", "older"},
		},
		"the same with no line of the system": {log: []told{{Stdout, "old"}, {runMark, "5"}, {Stdout, "five"}}, want: []string{"old"}},
		"a container that prints marks": {
			log:  []told{{runMark, "1"}, {Stdout, "run F 7"}, {runMark, "2"}, {Stdout, "2026-11-22T00:00:00.000000000Z 9 run F 8"}},
			want: []string{"run F 7"},
		},
		"only one run": {log: []told{{runMark, "1"}, {System, "pull"}, {Stdout, "one"}}, absent: true},
		"one run, marked again": {
			log: []told{{runMark, "1"}, {System, "pull"}, {runMark, "1"}, {Stdout, "one"}}, absent: true,
		},
		"no marks": {log: []told{{System, "start"}, {Stdout, "old"}}, absent: true},
		"no log":   {absent: true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			tell(t, dir, c.log)
			span, found, err := PreviousRun(dir)
			if err != nil || found == c.absent {
				t.Fatalf("found %v, %v", found, err)
			}
			if c.absent {
				return
			}
			var got []string
			for _, l := range readAll(t, dir, Options{Tail: MaxTail, Within: span}) {
				got = append(got, l.Text)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// TestMarksAreNoLines reads a log with marks without asking for a run.
func TestMarksAreNoLines(t *testing.T) {
	dir := t.TempDir()
	tell(t, dir, []told{{runMark, "1"}, {Stdout, "one"}, {runMark, "2"}, {System, "pull"}, {Stdout, "two"}})
	for _, o := range []Options{{Tail: MaxTail}, {Since: time.Unix(1, 0)}} {
		if got := texts(readAll(t, dir, o)); got != "one,pull,two" {
			t.Errorf("%+v: %s", o, got)
		}
	}
	if got := texts(readAll(t, dir, Options{Tail: MaxTail, Source: FromSystem})); got != "pull" {
		t.Errorf("of the system: %s", got)
	}
}

// TestASpanBoundsEveryQuestion asks for a part of a log in each way.
func TestASpanBoundsEveryQuestion(t *testing.T) {
	dir := t.TempDir()
	all := story(t, dir, 2000)
	span := Span{From: all[500].Time, To: all[1500].Time}
	for name, c := range map[string]struct {
		o    Options
		want []Line
	}{
		"tail":                    {Options{Tail: MaxTail}, all[500:1500]},
		"tail of a few":           {Options{Tail: 7}, all[1493:1500]},
		"tail 0":                  {Options{}, nil},
		"since in it":             {Options{Since: all[1400].Time}, all[1400:1500]},
		"since before it":         {Options{Since: all[3].Time}, all[500:1500]},
		"since after it":          {Options{Since: all[1600].Time}, nil},
		"after":                   {Options{After: all[1400].ID()}, all[1401:1500]},
		"after the last of them":  {Options{After: all[1499].ID()}, nil},
		"after one that is later": {Options{After: all[1700].ID()}, nil},
	} {
		c.o.Within = span
		if got := readAll(t, dir, c.o); !slices.Equal(got, c.want) {
			t.Errorf("%s: %d lines, want %d", name, len(got), len(c.want))
		}
	}
	if err := (Options{Follow: true, Within: span}).Validate(); err == nil {
		t.Error("a span is followed")
	}
}

func TestMarkRunIsReadBack(t *testing.T) {
	dir := t.TempDir()
	w := newTestWriter(t, dir, SystemSeries, WriterOptions{})
	for _, n := range []uint64{3, 4} {
		if err := w.MarkRun(n); err != nil {
			t.Fatal(err)
		}
	}
	var marks []string
	err := backwards(dir, SystemSeries, func(r record) bool { marks = append(marks, string(r.stream)+string(r.text)); return true })
	if err != nil || !slices.Equal(marks, []string{"run4", "run3"}) {
		t.Errorf("%q, %v", marks, err)
	}
	if err := backwards(filepath.Join(dir, "no"), SystemSeries, func(record) bool { return true }); err != nil {
		t.Errorf("a folder that is not there: %v", err)
	}
}
