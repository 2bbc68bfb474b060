package main

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/ohler55/ojg/jp"
	"github.com/ohler55/ojg/oj"
)

// piece is a part of a template: text, an expression, or a range with what is repeated for each of its values.
type piece struct {
	text  string
	expr  jp.Expr
	inner []piece // of a range
	loops bool
}

// pathText fills in a template as kubectl has it: text, {expressions}, {"\n"}, {range expression}…{end}.
func pathText(template string, raw json.RawMessage) (string, error) {
	pieces, err := parsePaths(template)
	if err != nil {
		return "", err
	}
	root, err := oj.Parse(raw)
	if err != nil {
		return "", notJSON(err)
	}
	out := &strings.Builder{}
	fillPieces(out, pieces, root)
	text := out.String()
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return text, nil
}

func fillPieces(out *strings.Builder, pieces []piece, at any) {
	for _, p := range pieces {
		if p.expr == nil {
			out.WriteString(p.text)
			continue
		}
		for i, value := range p.expr.Get(at) {
			if p.loops {
				fillPieces(out, p.inner, value)
				continue
			}
			if i > 0 {
				out.WriteByte(' ')
			}
			text, ok := value.(string)
			if !ok {
				text = oj.JSON(value, &oj.Options{Sort: true})
			}
			out.WriteString(printable(text))
		}
	}
}

// parsePaths reads a template.
func parsePaths(template string) ([]piece, error) {
	if !strings.Contains(template, "{") {
		template = "{" + template + "}" // a bare expression
	}
	pieces, rest, err := pathPieces(template, false)
	if err == nil && rest != "" {
		err = usage("-o jsonpath: {end} without {range}")
	}
	return pieces, err
}

// pathPieces reads up to the end, or within a range up to its {end}, and returns what follows.
func pathPieces(template string, within bool) (pieces []piece, rest string, err error) {
	for template != "" {
		text, after, found := strings.Cut(template, "{")
		if text != "" {
			pieces = append(pieces, piece{text: text})
		}
		if !found {
			template = ""
			break
		}
		inside, after, found := cutBrace(after)
		if !found {
			return nil, "", usage("-o jsonpath: a { is not closed")
		}
		template = after
		inside = strings.TrimSpace(inside)
		if inside == "end" {
			if within {
				return pieces, template, nil
			}
			return pieces, "{end}", nil
		}
		if literal, err := strconv.Unquote(inside); err == nil {
			pieces = append(pieces, piece{text: literal})
			continue
		}
		inside, loops := strings.CutPrefix(inside, "range ")
		p := piece{loops: loops}
		if p.expr, err = expression(inside); err != nil {
			return nil, "", err
		}
		if loops {
			if p.inner, template, err = pathPieces(template, true); err != nil {
				return nil, "", err
			}
		}
		pieces = append(pieces, p)
	}
	if within {
		return nil, "", usage("-o jsonpath: a {range} has no {end}")
	}
	return pieces, "", nil
}

// cutBrace cuts at the } that is in no quotes.
func cutBrace(text string) (inside, after string, found bool) {
	var quote byte
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quote != 0 && c == '\\':
			i++
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '"' || c == '\''):
			quote = c
		case quote == 0 && c == '}':
			return text[:i], text[i+1:], true
		}
	}
	return "", "", false
}

// expression reads one, which may begin with $, @, a dot or a name.
func expression(text string) (jp.Expr, error) {
	text = strings.TrimSpace(text)
	full := text
	switch {
	case text == "" || text == ".":
		full = "$"
	case strings.HasPrefix(text, "$"):
	case strings.HasPrefix(text, "@"):
		full = "$" + text[1:]
	case strings.HasPrefix(text, ".") || strings.HasPrefix(text, "["):
		full = "$" + text
	default:
		full = "$." + text
	}
	expr, err := jp.ParseString(full)
	if err != nil {
		return nil, usage("-o jsonpath: %s: %v", printable(text), fmt.Errorf("%w", err))
	}
	return expr, nil
}
