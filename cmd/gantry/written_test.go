package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// writtenCommand finds a call of the program at the begin of a line or of a command in a script or a page.
var writtenCommand = regexp.MustCompile("(?m)(?:^[ \t]*(?:\\$ |# )?(?:sudo )?|[`\"(;|&] *|then |do |! )gantry ((?:[a-z-]|--[a-z]).*)")

// writtenWords splits what follows the program's name as a shell does, up to the end of the command.
func writtenWords(text string) []string {
	var words []string
	word, quote := "", rune(0)
	for _, r := range text + "\n" {
		switch {
		case quote != 0 && r != quote:
			word += string(r)
		case quote != 0:
			quote = 0
		case (r == '\'' || r == '"') && (word == "" || strings.HasSuffix(word, "=")):
			quote = r
		case r == ' ' || strings.ContainsRune("'\";|&<>)(`#\\\n", r):
			if word != "" && (r != '>' || word != "2") {
				words = append(words, word)
			}
			if word = ""; r != ' ' {
				return words
			}
		case r != '[' && r != ']': // they say that something may be left out
			word += string(r)
		}
	}
	return words
}

// TestWrittenCommandsAreOfThisProgram reads the pages, the playbooks and the scripts of the lab: every command and flag that
// they name is there. Values may be missing, or words for them.
func TestWrittenCommandsAreOfThisProgram(t *testing.T) {
	parser, err := newParser(&app{cli: &cli{}})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for _, pattern := range []string{
		"README.md", "docs/*.md", "test/lab/*", "deploy/ansible/*.yml", "deploy/ansible/roles/*/tasks/*.yml", "systemd/*", "deploy/deb/*/postinst",
	} {
		files, err := filepath.Glob(filepath.Join("..", "..", filepath.FromSlash(pattern)))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: no file, %v", pattern, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range writtenCommand.FindAllStringSubmatch(strings.ReplaceAll(string(text), "\\\n", " "), -1) {
				words := writtenWords(m[1])
				if at := slices.Index(words, "--"); at >= 0 {
					words = words[:at]
				}
				if len(words) == 0 || words[0] == "help" || slices.Contains(words, "--help") || slices.Contains(words, "--version") {
					continue
				}
				seen[filepath.Base(filepath.Dir(file))]++
				_, err := parser.Parse(words)
				if err != nil && (strings.Contains(err.Error(), "unexpected argument") || strings.Contains(err.Error(), "unknown flag")) {
					t.Errorf("%s: gantry %s: %v", file, strings.Join(words, " "), err)
				}
			}
		}
	}
	if seen["docs"] < 100 || seen["lab"] < 20 {
		t.Errorf("so many commands were found: %v", seen)
	}
}

func TestWrittenCommandsAreRead(t *testing.T) {
	const text = "Try `gantry pod list --nme=\"a b\" [-o json]`, or:\n\n    $ sudo gantry host drainn x; gantry version >out\nthe gantry pod\n"
	var got []string
	for _, m := range writtenCommand.FindAllStringSubmatch(text, -1) {
		got = append(got, strings.Join(writtenWords(m[1]), "|"))
	}
	if want := []string{"pod|list|--nme=a b|-o|json", "host|drainn|x"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
