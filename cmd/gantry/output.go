package main

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"gantry/api/v2"
)

// show prints an answer in the format that was asked for. people returns it as text for people, made of table, sheet and
// lines whose values went through printable.
func (a *app) show(raw json.RawMessage, people func() string) error {
	if !a.forPeople() {
		return a.showRaw(raw)
	}
	return a.page(people())
}

// forPeople reports whether the output is a table or text rather than a format for programs.
func (a *app) forPeople() bool {
	return a.cli.Output == formatTable || a.cli.Output == formatWide
}

// done tells that something was done with the thing id, where the API answers nothing.
func (a *app) done(verb, id string) error {
	switch {
	case a.forPeople():
		_, err := fmt.Fprintf(a.out, "%s %s\n", verb, printable(id))
		return err
	case a.cli.Output == formatName:
		_, err := fmt.Fprintln(a.out, printable(id))
		return err
	}
	return nil
}

// page prints text for people: tables are sorted and laid out for the terminal.
func (a *app) page(text string) error {
	out := &strings.Builder{}
	var rows [][]string
	flush := func() error {
		err := a.layout(out, rows)
		rows = nil
		return err
	}
	for line := range strings.Lines(text) {
		begins := strings.HasPrefix(line, headMark)
		if begins || !strings.Contains(line, cellMark) {
			if err := flush(); err != nil {
				return err
			}
		}
		if !strings.Contains(line, cellMark) {
			out.WriteString(line)
			continue
		}
		line = strings.TrimSuffix(strings.TrimPrefix(line, headMark), cellMark+"\n")
		rows = append(rows, strings.Split(line, cellMark))
	}
	if err := flush(); err != nil {
		return err
	}
	_, err := a.out.Write([]byte(out.String()))
	return err
}

// Marks of a table before page lays it out. No value has them: printable takes control characters out.
const (
	headMark = "\x1e" // begins a heading
	cellMark = "\x1f" // ends a cell
)

// table makes rows of cells under a heading; page lays them out. A column whose heading begins with ~ is the first to go
// on a narrow terminal. Control characters are taken out: what the API passes on from a pod must not steer the terminal.
func table(heading []string, rows [][]string) string {
	out := &strings.Builder{}
	out.WriteString(headMark)
	for _, row := range append([][]string{heading}, rows...) {
		for _, cell := range row {
			out.WriteString(printable(cell) + cellMark)
		}
		out.WriteByte('\n')
	}
	return out.String()
}

// trimmed takes the columns off the end of a table, but the first keep, that say nothing.
func trimmed(head []string, rows [][]string, keep int) ([]string, [][]string) {
	for last := len(head) - 1; last >= keep; last-- {
		if slices.ContainsFunc(rows, func(row []string) bool { return row[last] != "-" }) {
			break
		}
		head = head[:last]
		for i := range rows {
			rows[i] = rows[i][:last]
		}
	}
	return head, rows
}

// layout aligns one table, whose first row is the heading.
func (a *app) layout(out *strings.Builder, rows [][]string) error {
	if len(rows) == 0 {
		return nil
	}
	if err := sortRows(rows, a.cli.SortBy); err != nil {
		return err
	}
	width := 0 // any
	if a.screenWidth != nil && a.cli.Output != formatWide {
		width = a.screenWidth()
	}
	rows, widths := fit(rows, width, a.cli.NoHeaders)
	for _, row := range rows {
		line := ""
		for i, cell := range row {
			cell = shorten(cell, widths[i])
			line += cell + strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+columnGap)
		}
		out.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return nil
}

const (
	columnGap = 2
	columnMin = 12 // columns are not shortened below this
)

// fit returns the rows, without the heading when that is bare, and the widths of their columns. When the table is wider than width (0: any), it drops columns
// marked with ~, the last one first, and then shortens the widest columns but the first.
func fit(rows [][]string, width int, bare bool) ([][]string, []int) {
	var minor []bool
	for i, name := range rows[0] {
		plain, is := strings.CutPrefix(name, "~")
		rows[0][i], minor = plain, append(minor, is)
	}
	widths := make([]int, len(minor))
	if bare {
		rows = rows[1:]
	}
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	over := func() int {
		sum := -columnGap
		for _, w := range widths {
			sum += w + columnGap
		}
		return sum - width
	}
	for i := len(minor) - 1; i > 0 && width > 0 && over() > 0; i-- {
		if !minor[i] {
			continue
		}
		widths = slices.Delete(widths, i, i+1)
		for r := range rows {
			rows[r] = slices.Delete(rows[r], i, i+1)
		}
	}
	for width > 0 && over() > 0 {
		widest := 0
		for i := 1; i < len(widths); i++ {
			if widest == 0 || widths[i] > widths[widest] {
				widest = i
			}
		}
		if widest == 0 || widths[widest] <= columnMin {
			break
		}
		widths[widest]--
	}
	return rows, widths
}

// shorten cuts text to width, with an ellipsis where something is missing.
func shorten(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	return strings.TrimRight(string([]rune(text)[:width-1]), " ") + "…"
}

// sheet shows one record: a name and a value in each line, lines without a value left out.
func sheet(fields [][2]string) string {
	width := 0
	for _, f := range fields {
		if f[1] != "" {
			width = max(width, utf8.RuneCountInString(f[0]))
		}
	}
	out := &strings.Builder{}
	for _, f := range fields {
		if f[1] == "" {
			continue
		}
		fmt.Fprintf(out, "%s:%s%s\n", f[0], strings.Repeat(" ", width-utf8.RuneCountInString(f[0])+2), printable(f[1]))
	}
	return out.String()
}

// printable replaces what would not print in one line.
func printable[T ~string](s T) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t' || r == '\r':
			return ' '
		case unicode.IsPrint(r):
			return r
		default:
			return '�'
		}
	}, string(s))
}

// printableLines is printable for text of several lines.
func printableLines(s string) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	for i := range lines {
		lines[i] = printable(lines[i])
	}
	return strings.Join(lines, "\n")
}

// yes shows whether something is so.
func yes(so bool) string {
	if so {
		return "yes"
	}
	return "no"
}

// orDash shows an empty cell.
func orDash[T ~string](s T) string {
	if s == "" {
		return "-"
	}
	return string(s)
}

// age shows how long ago something was, in two units at most.
func age(now, then time.Time) string {
	if then.IsZero() {
		return "-"
	}
	d := max(0, now.Sub(then))
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	default:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
}

// when shows a moment; empty when there is none.
func when(t *v2.Time) string {
	if t == nil || t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05.000 UTC")
}

// dollars shows an amount of USD.
func dollars(d float64) string {
	if d <= -0.0005 {
		return "-" + dollars(-d)
	}
	return fmt.Sprintf("$%.3f", math.Abs(d)) // no sign before what is shown as zero
}

// price shows a price; what has none is not offered.
func price(d float64) string {
	if d == 0 {
		return "-"
	}
	return dollars(d)
}

// bytesText shows an amount of bytes in units of 1000.
func bytesText(n int64) string {
	units := []string{"B", "kB", "MB", "GB", "TB"}
	v, i := float64(n), 0
	for ; v >= 1000 && i < len(units)-1; i++ {
		v /= 1000
	}
	if i == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", v, units[i])
}
