package main

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"gantry/client"
)

type podLogsCmd struct {
	podRef
	logFlags
	Previous bool `short:"p" help:"Only lines of the run before the newest one, such as of the process that crashed before a start."`
}

// Run shows a log.
func (cmd podLogsCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	if cmd.Previous && cmd.Follow {
		return usage("--previous and --follow: a run that has ended is not followed")
	}
	return cmd.read(a, func(q client.LogQuery, on client.LogEvents) error {
		q.Previous = cmd.Previous
		return pods.on(ctx, c, cmd.Pod, func(id string) error { return c.PodLogs(ctx, id, q, on) })
	})
}

// logFlags say which lines of a log to show, and how.
type logFlags struct {
	Follow     bool   `short:"f" help:"Stay and show new lines as they come, until what writes it is deleted, or Ctrl-C."`
	Tail       int    `default:"100" help:"Newest lines to begin with, 0 to 5000."`
	Since      string `placeholder:"TIME" help:"Only lines since then: RFC 3339, or a time ago such as 10m."`
	Source     string `enum:"all,container,system" default:"all" help:"Whose lines: container, system, or all."`
	Timestamps bool   `short:"t" help:"Begin each line with its time."`
	Raw        bool   `help:"Print control and escape sequences to a terminal as they are. Without it, only colors go through."`
}

// read shows what logs reads.
func (cmd logFlags) read(a *app, logs func(client.LogQuery, client.LogEvents) error) error {
	q := client.LogQuery{Tail: cmd.Tail, Follow: cmd.Follow}
	if cmd.Source != "all" {
		q.Source = cmd.Source
	}
	if cmd.Tail < 0 || cmd.Tail > 5000 {
		return usage("--tail must be from 0 to 5000")
	}
	if cmd.Since != "" {
		since, err := moment(cmd.Since, a.now())
		if err != nil {
			return usage("--since must be a time in RFC 3339, or a time ago such as 10m")
		}
		q.Since = since
	}
	if !a.forPeople() && a.cli.Output != formatJSON {
		return usage("a log is text, or with -o json a JSON object for each line")
	}
	on := client.LogEvents{
		Line: func(l client.LogLine) error { return cmd.print(a, l) },
		Lost: func(err error) { _, _ = fmt.Fprintf(a.err, "gantry: %s; trying again\n", printable(err.Error())) },
	}
	return logs(q, on)
}

func (cmd logFlags) print(a *app, l client.LogLine) error {
	if !a.forPeople() {
		_, err := fmt.Fprintf(a.out, "%s\n", l.Raw)
		return err
	}
	text := l.Line
	if a.screenWidth != nil && a.screenWidth() > 0 && !cmd.Raw {
		text = colorsOnly(text)
	}
	if l.Source == "system" && cmd.Source == "all" {
		text = "[system] " + text
	}
	if cmd.Timestamps {
		text = l.At.UTC().Format("2006-01-02T15:04:05.000Z ") + text
	}
	_, err := fmt.Fprintln(a.out, text)
	return err
}

// colorSequence sets colors and the like, and nothing else: ESC [ numbers m.
var colorSequence = regexp.MustCompile("^\x1b\\[[0-9;:]*m")

// colorsOnly takes out of a line what steers a terminal otherwise than by color, and ends colors with it.
func colorsOnly(line string) string {
	var out strings.Builder
	colored := false
	for line != "" {
		if color := colorSequence.FindString(line); color != "" {
			out.WriteString(color)
			line, colored = line[len(color):], true
			continue
		}
		r, size := utf8.DecodeRuneInString(line)
		if r == '\t' {
			out.WriteRune(r)
		} else {
			out.WriteString(printable(line[:size]))
		}
		line = line[size:]
	}
	if colored {
		out.WriteString("\x1b[0m")
	}
	return out.String()
}

// moment reads a time, or how long ago it was.
func moment(text string, now time.Time) (time.Time, error) {
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		return now.Add(-ago), nil
	}
	return time.Parse(time.RFC3339, text)
}
