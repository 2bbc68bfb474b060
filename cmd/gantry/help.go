package main

import (
	"embed"
	"fmt"
	"strings"

	"github.com/alecthomas/kong"
)

// helpFiles hold the text below the usage of each command: "== COMMAND, COMMAND" begins that of one or several.
//
//go:embed help
var helpFiles embed.FS

// addDetails gives the commands their texts. A text for a command that does not exist is an error.
func addDetails(root *kong.Node) error {
	files, err := helpFiles.ReadDir("help")
	if err != nil {
		return err
	}
	for _, f := range files {
		text, err := helpFiles.ReadFile("help/" + f.Name())
		if err != nil {
			return err
		}
		for section := range strings.SplitSeq("\n"+string(text), "\n== ") {
			commands, detail, _ := strings.Cut(section, "\n")
			if commands == "" {
				continue
			}
			for command := range strings.SplitSeq(commands, ", ") {
				node := root
				for word := range strings.FieldsSeq(command) {
					if node = childOf(node, word); node == nil {
						return fmt.Errorf("help/%s: there is no command %s", f.Name(), command)
					}
				}
				node.Detail = strings.TrimSpace(detail)
			}
		}
	}
	return nil
}
