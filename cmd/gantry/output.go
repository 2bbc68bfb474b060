package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// show prints an answer: as the API said it, or as people gives it.
func (a *app) show(raw json.RawMessage, people func() string) error {
	if a.cli.Output == "json" {
		return a.showJSON(raw)
	}
	_, err := a.out.Write([]byte(people()))
	return err
}

// showJSON prints what the API said, indented and otherwise untouched; nothing when it said nothing.
func (a *app) showJSON(raw json.RawMessage) error {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 {
		return nil
	}
	var out bytes.Buffer
	if err := json.Indent(&out, raw, "", "  "); err != nil {
		return fmt.Errorf("the API's answer is not JSON: %w", err)
	}
	out.WriteByte('\n')
	_, err := a.out.Write(out.Bytes())
	return err
}

// table aligns rows of cells under a heading. Control characters are taken out: what the API passes on from a pod must
// not steer the terminal.
func table(heading []string, rows [][]string) string {
	all := append([][]string{heading}, rows...)
	var widths []int
	for _, row := range all {
		for i := range row {
			row[i] = printable(row[i])
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
	}
	out := &strings.Builder{}
	for _, row := range all {
		line := ""
		for i, cell := range row {
			line += cell + strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+2)
		}
		out.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return out.String()
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
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t' || r == '\r':
			return ' '
		case unicode.IsPrint(r):
			return r
		default:
			return '�'
		}
	}, s)
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
func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
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
func when(t *time.Time) string {
	if t == nil || t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05.000 UTC")
}

// dollars shows an amount of USD.
func dollars(d float64) string {
	if d < 0 {
		return "-" + dollars(-d)
	}
	return fmt.Sprintf("$%.3f", d)
}

// price shows a price; what has none is not offered.
func price(d *float64) string {
	if d == nil || *d == 0 {
		return "-"
	}
	return dollars(*d)
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
