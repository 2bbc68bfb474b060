package main

import (
	"context"
	"io"
	"os"
	"strings"

	"gantry/api/v2"
)

// hidden reads a text that nobody is to see from a file, from standard input for -, or from the terminal for no file. flag is
// that of the file, and what it is called is what, such as "password".
func (a *app) hidden(ctx context.Context, flag, path, what string, most int64) (v2.Hidden, error) {
	var text string
	var err error
	if path == "" {
		text, err = a.prompt(ctx, flag, strings.ToUpper(what[:1])+what[1:]+": ")
	} else {
		text, err = a.readFile(flag, path, most)
	}
	if err != nil {
		return "", err
	}
	text = strings.TrimSuffix(strings.TrimSuffix(text, "\n"), "\r") // an editor's, or echo's
	if text == "" {
		return "", usage("the %s is empty", what)
	}
	return v2.Hidden(text), nil
}

// prompt asks on the terminal, without showing what is typed. flag is what would spare the question.
func (a *app) prompt(ctx context.Context, flag, question string) (string, error) {
	in, ok := a.in.(*os.File)
	if !ok || !isTerminal(in) {
		return "", usage("there is no terminal to ask on: give %s", flag)
	}
	text, err := readHidden(ctx, in, func() { _, _ = io.WriteString(a.err, question) })
	_, _ = io.WriteString(a.err, "\n") // that of the person is not shown
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	return text, err
}

// readFile reads a small file; - is standard input.
func (a *app) readFile(flag, path string, most int64) (string, error) {
	in := a.in
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return "", usage("%s: %v", flag, err)
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, most+1))
	switch {
	case err != nil:
		return "", usage("%s: %v", flag, err)
	case int64(len(text)) > most:
		return "", usage("%s: more than %s", flag, bytesText(most))
	}
	return string(text), nil
}
