package rest

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
)

// docsSnippet is a program that makes one call of an operation.
type docsSnippet struct{ Language, Code string }

// snippetCall is what the programs of an operation do.
type snippetCall struct {
	method string
	parts  []snippetPart // of the address, after GANTRY_API
	key    string        // name of the variable with the key; empty: none is sent
	kind   string        // content type of the body; empty: there is none
	body   string        // as JSON; empty: the file files.tar
	binary bool          // the answer is nothing to look at
}

// snippetPart is a piece of an address: text as it is, or a variable whose value is encoded.
type snippetPart struct{ text, variable string }

var pathParameter = regexp.MustCompile(`\{([^{}]*)\}`)

// describeSnippets writes the programs of an operation: none where it is a WebSocket.
func describeSnippets(op *huma.Operation) ([]docsSnippet, error) {
	if op.Responses["101"] != nil {
		return nil, nil
	}
	c := snippetCall{method: op.Method}
	if op.Security == nil {
		c.key = "GANTRY_API_KEY"
		if scope, _ := op.Extensions[scopeExtension].(string); strings.HasPrefix(scope, "admin:") {
			c.key = "GANTRY_ADMIN_KEY"
		}
	}
	c.address(op)
	if b := op.RequestBody; b != nil {
		for _, kind := range slices.Sorted(maps.Keys(b.Content)) {
			c.kind = kind
			if kind != "application/json" {
				continue
			}
			text, err := json.MarshalIndent(b.Content[kind].Example, "", "  ")
			if err != nil {
				return nil, fmt.Errorf("encode example: %w", err)
			}
			c.body = string(text)
		}
	}
	for status, answer := range op.Responses {
		if strings.HasPrefix(status, "2") && (answer.Content["application/x-tar"] != nil || answer.Content["application/octet-stream"] != nil) {
			c.binary = true
		}
	}
	return []docsSnippet{{"curl", c.curl()}, {"Python", c.python()}, {"JavaScript", c.javaScript()}}, nil
}

// address sets the parts of the call's address. A log is not followed, since a program would wait without end.
func (c *snippetCall) address(op *huma.Operation) {
	at := 0
	for _, m := range pathParameter.FindAllStringSubmatchIndex(op.Path, -1) {
		c.parts = append(c.parts, snippetPart{text: op.Path[at:m[0]]}, snippetPart{variable: variableName(op.Path[m[2]:m[3]])})
		at = m[1]
	}
	rest, separator := op.Path[at:], "?"
	for _, p := range op.Parameters {
		switch {
		case p.In == "query" && p.Required:
			c.parts = append(c.parts, snippetPart{text: rest + separator + p.Name + "="}, snippetPart{variable: variableName(p.Name)})
			rest, separator = "", "&"
		case p.In == "query" && p.Name == "follow":
			rest, separator = rest+separator+p.Name+"=false", "&"
		}
	}
	if rest != "" {
		c.parts = append(c.parts, snippetPart{text: rest})
	}
}

// variableName names the environment variable of a parameter. PATH has another meaning.
func variableName(parameter string) string {
	if parameter == "path" {
		return "FILE_PATH"
	}
	return strings.ToUpper(parameter)
}

func (c *snippetCall) curl() string {
	var out strings.Builder
	out.WriteString("curl -sS --fail-with-body -X " + c.method + ` "$GANTRY_API`)
	for _, p := range c.parts {
		if out.WriteString(p.text); p.variable != "" {
			out.WriteString("$" + p.variable)
		}
	}
	out.WriteString(`"`)
	if c.key != "" {
		out.WriteString(" \\\n  -H \"Authorization: Bearer $" + c.key + `"`)
	}
	if c.kind != "" {
		out.WriteString(" \\\n  -H \"Content-Type: " + c.kind + `"`)
		if c.body == "" {
			out.WriteString(" \\\n  --data-binary @files.tar")
		} else {
			out.WriteString(" \\\n  -d '" + strings.ReplaceAll(c.body, "'", `'\''`) + "'")
		}
	}
	if c.binary {
		out.WriteString(" \\\n  -o answer.bin")
	}
	return out.String() + "\n"
}

// joined writes the address as an expression of a language in which + joins texts.
func (c *snippetCall) joined(api string, encoded func(variable string) string) string {
	words := []string{api}
	for _, p := range c.parts {
		if p.text != "" {
			words = append(words, strconv.Quote(p.text))
		}
		if p.variable != "" {
			words = append(words, encoded(p.variable))
		}
	}
	return strings.Join(words, " + ")
}

func (c *snippetCall) python() string {
	env := func(name string) string { return `os.environ["` + name + `"]` }
	imports := "import os, shutil, sys, urllib.error, urllib.request\n\n"
	if slices.ContainsFunc(c.parts, func(p snippetPart) bool { return p.variable != "" }) {
		imports = "import os, shutil, sys, urllib.error, urllib.parse, urllib.request\n\n"
	}
	var out strings.Builder
	out.WriteString(imports + "request = urllib.request.Request(\n    ")
	out.WriteString(c.joined(env("GANTRY_API"), func(v string) string { return "urllib.parse.quote(" + env(v) + `, safe="")` }))
	out.WriteString(",\n    method=\"" + c.method + "\",\n")
	var headers []string
	if c.key != "" {
		headers = append(headers, `"Authorization": "Bearer " + `+env(c.key))
	}
	if c.kind != "" {
		headers = append(headers, `"Content-Type": "`+c.kind+`"`)
	}
	if len(headers) > 0 {
		out.WriteString("    headers={" + strings.Join(headers, ", ") + "},\n")
	}
	switch {
	case c.body != "":
		out.WriteString("    data=r\"\"\"" + c.body + "\"\"\".encode(),\n")
	case c.kind != "":
		out.WriteString("    data=open(\"files.tar\", \"rb\").read(),\n")
	}
	out.WriteString(`)
try:
    with urllib.request.urlopen(request) as answer:
        shutil.copyfileobj(answer, sys.stdout.buffer)
except urllib.error.HTTPError as problem:
    sys.exit(problem.read().decode())
`)
	return out.String()
}

func (c *snippetCall) javaScript() string {
	var out strings.Builder
	if c.kind != "" && c.body == "" {
		out.WriteString("import { readFile } from \"node:fs/promises\";\n\n")
	}
	out.WriteString("const answer = await fetch(")
	out.WriteString(c.joined("process.env.GANTRY_API", func(v string) string { return "encodeURIComponent(process.env." + v + ")" }))
	out.WriteString(", {\n  method: \"" + c.method + "\",\n")
	var headers []string
	if c.key != "" {
		headers = append(headers, `Authorization: "Bearer " + process.env.`+c.key)
	}
	if c.kind != "" {
		headers = append(headers, `"Content-Type": "`+c.kind+`"`)
	}
	if len(headers) > 0 {
		out.WriteString("  headers: { " + strings.Join(headers, ", ") + " },\n")
	}
	switch {
	case c.body != "":
		out.WriteString("  body: JSON.stringify(" + strings.ReplaceAll(c.body, "\n", "\n  ") + "),\n")
	case c.kind != "":
		out.WriteString("  body: await readFile(\"files.tar\"),\n")
	}
	out.WriteString("});\nprocess.stdout.write(Buffer.from(await answer.arrayBuffer()));\nif (!answer.ok) process.exitCode = 1;\n")
	return out.String()
}
