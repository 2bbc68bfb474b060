package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
)

type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" placeholder:"SHELL" help:"bash, zsh or fish."`
}

// The scripts ask this program: what follows -- are the words of the command line up to the cursor.
const (
	bashCompletion = `# bash completion for gantry
_gantry() {
    local IFS=$'\n'
    COMPREPLY=($(gantry __complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
    [ ${#COMPREPLY[@]} -eq 0 ] && compopt -o default
}
complete -F _gantry gantry
`
	zshCompletion = `#compdef gantry
_gantry() {
    local -a found
    found=("${(@f)$(gantry __complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [ -n "${found[1]}" ]; then compadd -Q -a found; else _files; fi
}
if [ "$funcstack[1]" = _gantry ]; then _gantry "$@"; else compdef _gantry gantry; fi
`
	fishCompletion = `# fish completion for gantry
complete -c gantry -f -a '(set -l words (commandline -opc) (commandline -ct); gantry __complete -- $words[2..-1] 2>/dev/null; or __fish_complete_path (commandline -ct))'
`
)

// Run prints a script.
func (cmd completionCmd) Run(a *app) error {
	text := map[string]string{"bash": bashCompletion, "zsh": zshCompletion, "fish": fishCompletion}[cmd.Shell]
	_, err := a.out.Write([]byte(text))
	return err
}

// wordsCmd is what the scripts call.
type wordsCmd struct{}

// Run prints what the last word of the command line may become, a line each; status 1 when nothing is known of it.
func (wordsCmd) Run(ctx context.Context, a *app) error {
	if len(a.rest) == 0 {
		return nil
	}
	found := a.complete(ctx, a.rest[:len(a.rest)-1], a.rest[len(a.rest)-1])
	for _, word := range found {
		if _, err := fmt.Fprintln(a.out, printable(word)); err != nil {
			return err
		}
	}
	if len(found) == 0 {
		return processExit(exitFailed)
	}
	return nil
}

// complete returns what begins with the word after those before it.
func (a *app) complete(ctx context.Context, before []string, word string) []string {
	node, arguments := a.parser.Model.Node, 0
	flags := node.Flags
	var open *kong.Flag // whose value comes next
	for _, w := range before {
		switch {
		case open != nil:
			open = nil
		case w == "--":
			return nil
		case strings.HasPrefix(w, "-"):
			open = valueFlag(flags, w)
		default:
			if next := childOf(node, w); next != nil {
				node, flags = next, append(slices.Clone(flags), next.Flags...)
			} else {
				arguments++
			}
		}
	}
	var all []string
	switch name, value, given := strings.Cut(word, "="); {
	case open != nil:
		all = flagValues(open)
	case given && strings.HasPrefix(word, "--"):
		for _, v := range flagValues(flagOf(flags, name)) {
			all = append(all, name+"="+v)
		}
		_ = value
	case strings.HasPrefix(word, "-"):
		for _, f := range flags {
			if !f.Hidden {
				all = append(all, "--"+f.Name)
			}
		}
	default:
		all = a.argumentWords(ctx, node, arguments)
	}
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(s string) bool { return !strings.HasPrefix(s, word) })
}

func childOf(node *kong.Node, word string) *kong.Node {
	for _, child := range node.Children {
		if child.Name == word || slices.Contains(child.Aliases, word) {
			return child
		}
	}
	return nil
}

// flagOf finds the flag that a word is; nil when it is none, or several short ones.
func flagOf(flags []*kong.Flag, word string) *kong.Flag {
	for _, f := range flags {
		if word == "--"+f.Name || f.Short != 0 && word == "-"+string(f.Short) {
			return f
		}
	}
	return nil
}

// valueFlag is the flag of a word whose value is the next one.
func valueFlag(flags []*kong.Flag, word string) *kong.Flag {
	if f := flagOf(flags, word); f != nil && !f.IsBool() {
		return f
	}
	return nil
}

func flagValues(f *kong.Flag) []string {
	switch {
	case f == nil:
		return nil
	case f.Name == "output":
		return []string{formatTable, formatWide, formatJSON, formatYAML, formatName, formatJSONPath}
	}
	return enumOf(f.Value)
}

func enumOf(v *kong.Value) []string {
	var out []string
	for one := range v.EnumMap() {
		if one != "" { // what a value without an enum has
			out = append(out, one)
		}
	}
	return out
}

// argumentWords are the commands below a node, or what its next argument may be.
func (a *app) argumentWords(ctx context.Context, node *kong.Node, nth int) []string {
	var out []string
	for _, child := range node.Children {
		if !child.Hidden {
			out = append(out, child.Name)
		}
	}
	switch {
	case nth > 0 && len(out) > 0: // a command that is not there
		return nil
	case len(out) > 0 || len(node.Positional) == 0:
		return out
	}
	argument := node.Positional[min(nth, len(node.Positional)-1)]
	if nth >= len(node.Positional) && !argument.IsCumulative() {
		return nil
	}
	if values := enumOf(argument); len(values) > 0 {
		return values
	}
	return a.thingWords(ctx, node, strings.TrimSuffix(argument.Name, "s"))
}

const completeWithin = time.Second

// thingWords are the names, or ids, of the things of a kind.
func (a *app) thingWords(ctx context.Context, node *kong.Node, argument string) []string {
	if argument == "name" && node.Parent != nil && node.Parent.Name == "context" {
		all, _ := a.contexts()
		var out []string
		for _, r := range all.records() {
			out = append(out, r.Name)
		}
		return out
	}
	list := nounOf(node)
	if n, known := map[string]anyNoun{"pod": pods, "endpoint": endpoints, "volume": volumes, "template": templates, "host": hosts, "member": members, "account": accounts}[argument]; known {
		list = n
	}
	if list == nil {
		return nil
	}
	a.guessed = true // nobody reads it here
	c, _, err := a.connect(forOperators(node))
	if err != nil {
		return nil
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, completeWithin)
	defer cancel()
	all, err := list.things(ctx, c.Once())
	if err != nil {
		return nil
	}
	var out []string
	for _, t := range all {
		out = append(out, first(t.name, t.id))
	}
	return out
}
