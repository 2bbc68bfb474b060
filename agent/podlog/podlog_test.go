package podlog

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gantry/agent/logs"
	"gantry/fleet"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// fresh are logs in a folder of their own, and what they say to the agent's log.
func fresh(t *testing.T) (*Logs, *bytes.Buffer) {
	said := &bytes.Buffer{}
	l := New(filepath.Join(t.TempDir(), "logs"), func(fleet.PodID) bool { return true }, slog.New(slog.NewTextHandler(said, nil)))
	t.Cleanup(func() { must(t, l.Close()) })
	return l, said
}

// prints writes a line as the pod's container does.
func prints(t *testing.T, l *Logs, id fleet.PodID, text string) {
	t.Helper()
	must(t, l.Prepare(id))
	w, err := logs.NewWriter(l.Dir(id), logs.ContainerSeries, logs.WriterOptions{})
	must(t, err)
	must(t, w.WriteLine(logs.Stdout, text))
	must(t, w.Close())
}

func read(t *testing.T, l *Logs, q fleet.LogQuery, within logs.Span) (texts []string, ids []string) {
	t.Helper()
	q.Tail = 100
	must(t, l.Read(t.Context(), "p", q, within, func(line fleet.LogLine) error {
		texts, ids = append(texts, line.Source+": "+line.Line), append(ids, line.ID)
		return nil
	}))
	return texts, ids
}

// TestWhatIsReadOfALog: what both series have, one of them, what comes after a line, and the run before the newest.
func TestWhatIsReadOfALog(t *testing.T) {
	l, said := fresh(t)
	is := func(what string, q fleet.LogQuery, within logs.Span, want ...string) []string {
		t.Helper()
		got, ids := read(t, l, q, within)
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q", what, got)
		}
		return ids
	}
	is("nothing is written yet", fleet.LogQuery{}, logs.Span{})
	l.Begin("p", 1)
	l.System("p", "pulling")
	prints(t, l, "p", "hello")
	if _, err := l.Span("p", true); fleet.CodeOf(err) != fleet.CodeNotAllowed {
		t.Errorf("an earlier run of the first: %v", err)
	}
	l.Begin("p", 2)
	l.System("p", "again")
	ids := is("all", fleet.LogQuery{}, logs.Span{}, "system: pulling", "container: hello", "system: again")
	is("of the container", fleet.LogQuery{Source: "container"}, logs.Span{}, "container: hello")
	is("of the system", fleet.LogQuery{Source: "system"}, logs.Span{}, "system: pulling", "system: again")
	is("after a line", fleet.LogQuery{After: ids[1]}, logs.Span{}, "system: again")
	now, err := l.Span("p", false)
	if err != nil || now != (logs.Span{}) {
		t.Errorf("all of it is %v, %v", now, err)
	}
	before, err := l.Span("p", true)
	must(t, err)
	is("the run before", fleet.LogQuery{}, before, "system: pulling", "container: hello")
	stop := errors.New("stop")
	if err := l.Read(t.Context(), "p", fleet.LogQuery{Tail: 1}, logs.Span{}, func(fleet.LogLine) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("an error of who reads: %v", err)
	}
	var refused *fleet.Error
	err = l.Read(t.Context(), "p", fleet.LogQuery{After: "x"}, logs.Span{}, func(fleet.LogLine) error { return nil })
	if !errors.As(err, &refused) || !slices.Equal(refused.Details, []string{"Last-Event-ID: must be the id of an earlier event"}) {
		t.Errorf("after what is no id: %v", err)
	}
	if said.Len() != 0 {
		t.Errorf("said %s", said)
	}
}

// TestALogGoesOnAfterItsFilesWereClosed: also when its pod was removed or left, and comes again.
func TestALogGoesOnAfterItsFilesWereClosed(t *testing.T) {
	for name, c := range map[string]struct {
		closes func(*Logs) error
		want   []string
	}{
		"nothing":   {func(*Logs) error { return nil }, []string{"system: one", "system: two"}},
		"it left":   {func(l *Logs) error { l.Leave("p"); return nil }, []string{"system: one", "system: two"}},
		"all close": {(*Logs).Close, []string{"system: one", "system: two"}},
		"removed":   {func(l *Logs) error { return l.Remove("p") }, []string{"system: two"}},
	} {
		l, said := fresh(t)
		l.System("p", "one")
		must(t, c.closes(l))
		if there := l.Has("p"); there != (len(c.want) == 2) || name != "nothing" && len(l.writers) != 0 {
			t.Errorf("%s: there is a log: %v, open are %v", name, there, l.writers)
		}
		l.System("p", "two")
		if got, _ := read(t, l, fleet.LogQuery{}, logs.Span{}); !slices.Equal(got, c.want) || said.Len() != 0 {
			t.Errorf("%s: %q, said %q", name, got, said)
		}
	}
}

// TestTheEndOfALog: the newest lines of the container alone, as text of a bounded length.
func TestTheEndOfALog(t *testing.T) {
	l, said := fresh(t)
	if got := l.Tail("p", 5, time.Time{}); got != "" || said.Len() != 0 {
		t.Errorf("of none: %q, said %q", got, said)
	}
	l.System("p", "pulling")
	for _, text := range []string{"one", "two", "th\xffree"} {
		prints(t, l, "p", text)
	}
	if got := l.Tail("p", 2, time.Time{}); got != "two\nthree" {
		t.Errorf("two lines: %q", got)
	}
	if got := l.Tail("p", 2, time.Now().Add(time.Hour)); got != "" {
		t.Errorf("of later: %q", got)
	}
	prints(t, l, "p", strings.Repeat("x", MaxTail-1))
	if got := l.Tail("p", 4, time.Time{}); got != "\n"+strings.Repeat("x", MaxTail-1) {
		t.Errorf("%d bytes, the first are %.5q", len(got), got)
	}
	if said.Len() != 0 {
		t.Errorf("said %s", said)
	}
	must(t, os.WriteFile(l.Dir("file"), nil, 0o600))
	if got := l.Tail("file", 2, time.Time{}); got != "" || !strings.Contains(said.String(), "read a pod's log") {
		t.Errorf("of what cannot be read: %q, said %q", got, said)
	}
}

// TestALogThatCannotBeWritten is told in the agent's own.
func TestALogThatCannotBeWritten(t *testing.T) {
	l, said := fresh(t)
	must(t, os.MkdirAll(filepath.Dir(l.root), 0o700))
	must(t, os.WriteFile(l.root, nil, 0o600))
	if l.System("p", "lost"); !strings.Contains(said.String(), "write a pod's system log") || !strings.Contains(said.String(), "make the pod's log folder") {
		t.Errorf("said %q", said)
	}
	said.Reset()
	if l.Leave("p"); !strings.Contains(said.String(), "list the logs of pods") {
		t.Errorf("said %q", said)
	}
}
