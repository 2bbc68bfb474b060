package main

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

var update = flag.Bool("update", false, "write the manual page anew")

// TestManualPageIsCurrent holds that the manual page of the Debian package tells of the commands and flags that there
// are. With -update it writes the page.
func TestManualPageIsCurrent(t *testing.T) {
	parser, err := newParser(&app{cli: &cli{}})
	if err != nil {
		t.Fatal(err)
	}
	hideAliases(parser.Model.Node)
	page, path := manualPage(parser.Model), filepath.Join("..", "..", "deploy", "deb", "man", "gantry.1")
	if *update {
		if err := os.WriteFile(path, []byte(page), 0o644); err != nil { //nolint:gosec // a page that all may read
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != page {
		t.Errorf("%s is not of this program: go test ./cmd/gantry -run TestManualPage -update", path)
	}
	for _, want := range []string{"gantry context use", "gantry completion", "gantry pod logs", `\-\-previous`, "GANTRY_CONTEXT", "GANTRY_ADMIN_KEY", "contexts.json"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page does not tell of %s", want)
		}
	}
}

// roff escapes text for a manual page.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "…", "...", "—", `\(em`).Replace(strings.TrimSpace(text))
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}

// manualPage writes the page of a program: its own words and those of every command.
func manualPage(app *kong.Application) string {
	words, rest, _ := strings.Cut(description, "\n\nExamples:\n")
	examples, rest, _ := strings.Cut(rest, "\n\nExit status:\n")
	statuses, more, _ := strings.Cut(rest, "\n\n")
	var out strings.Builder
	section := func(name, text string) { out.WriteString(".SH " + name + "\n" + text + "\n") }
	paragraphs := func(text string) string { return strings.ReplaceAll(roff(text), "\n\n", "\n.PP\n") }
	out.WriteString(".\\\" Written by go test ./cmd/gantry -run TestManualPage -update\n.TH GANTRY 1 \"\" \"Gantry\" \"User Commands\"\n")
	section("NAME", `gantry \- command line of the GPU compute service Gantry`)
	section("SYNOPSIS", ".B gantry\n.I command\n.RI [ flags ]\n.RI [ arguments ]")
	section("DESCRIPTION", paragraphs(words)+"\n.PP\n"+paragraphs(more)+"\n.PP\n.B \\-\\-help\nafter a command shows its flags with examples.")
	section("COMMANDS", manualCommands(app.Node))
	section("FLAGS OF ALL COMMANDS", manualFlags(app.Flags))
	section("EXAMPLES", ".nf\n"+roff(examples)+"\n.fi")
	section("EXIT STATUS", ".nf\n"+roff(statuses)+"\n.fi")
	section("ENVIRONMENT", `.TP
.B GANTRY_API
Address of the API; several of one cluster are separated by commas.
.TP
.B GANTRY_CONTEXT
Context that says where the API is and which keys it takes.
.TP
.B GANTRY_API_KEY
The key of an account.
.TP
.B GANTRY_ADMIN_KEY
The key of an operator, which operators' commands prefer.`)
	section("FILES", ".TP\n.I ~/.config/gantry/contexts.json\nThe contexts, with the keys that were given to them.")
	section("SEE ALSO", ".BR gantry\\-scheduler (8),\n.BR gantry\\-agent (8),\n.BR gantry\\-s3 (8)")
	return out.String()
}

// manualCommands writes every command with its flags, by group.
func manualCommands(root *kong.Node) string {
	var out strings.Builder
	for _, key := range []string{"pods", "account", "operators", "program"} {
		out.WriteString(".SS " + roff(strings.TrimSuffix(groups()[key], ":")) + "\n")
		for _, noun := range root.Children {
			if noun.Hidden || noun.Group == nil || noun.Group.Key != key {
				continue
			}
			for _, leaf := range noun.Leaves(true) {
				out.WriteString(manualCommand(leaf))
			}
			if noun.Leaf() {
				out.WriteString(manualCommand(noun))
			}
		}
	}
	return strings.TrimSpace(out.String())
}

func manualCommand(leaf *kong.Node) string {
	line := ".TP\n.B " + roff(leaf.FullPath()) + "\n"
	var arguments []string
	for _, p := range leaf.Positional {
		arguments = append(arguments, p.Summary())
	}
	words := commandWords(strings.TrimPrefix(leaf.FullPath(), "gantry "))
	if slices.Contains(takeRest(), words) {
		arguments = append(arguments, "[-- ARGUMENTS]")
	}
	if len(arguments) > 0 {
		line = ".TP\n" + `.BR "` + roff(leaf.FullPath()) + `" " ` + roff(strings.Join(arguments, " ")) + "\"\n"
	}
	if leaf.Help != "" {
		line += roff(leaf.Help) + "\n"
	}
	flags := slices.DeleteFunc(slices.Clone(leaf.Flags), func(f *kong.Flag) bool { return f.Hidden || f.Name == "help" })
	if len(flags) > 0 {
		line += ".RS\n" + manualFlags(flags) + "\n.RE\n"
	}
	return line
}

func manualFlags(flags []*kong.Flag) string {
	var out []string
	for _, f := range flags {
		if f.Hidden {
			continue
		}
		name := `\-\-` + roff(f.Name)
		if f.Short != 0 {
			name = `\-` + string(f.Short) + ", " + name
		}
		if !f.IsBool() && !f.IsCounter() {
			name += "=" + roff(f.FormatPlaceHolder())
		}
		text := ".TP\n.B " + name + "\n" + roff(f.Help)
		if f.Help == "" {
			text += `\&`
		}
		out = append(out, text)
	}
	return strings.Join(out, "\n")
}
