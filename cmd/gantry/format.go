package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf16"

	"go.yaml.in/yaml/v3"
)

// Output formats of -o.
const (
	formatTable    = "table"
	formatWide     = "wide"
	formatJSON     = "json"
	formatYAML     = "yaml"
	formatName     = "name"
	formatJSONPath = "jsonpath="
)

// checkFormat applies -q and refuses formats that do not exist, and flags for tables with any other.
func (a *app) checkFormat() error {
	c := a.cli
	if c.Quiet {
		if c.Output != formatTable && c.Output != formatName {
			return usage("-q is -o name: it excludes other formats")
		}
		c.Output = formatName
	}
	if template, ok := strings.CutPrefix(c.Output, formatJSONPath); ok {
		_, err := parsePaths(template)
		return err
	}
	if !slices.Contains([]string{formatTable, formatWide, formatJSON, formatYAML, formatName}, c.Output) {
		return usage("-o must be table, wide, json, yaml, name or jsonpath=TEMPLATE")
	}
	if !a.forPeople() && (c.SortBy != "" || c.NoHeaders) {
		return usage("--sort-by and --no-headers are for tables")
	}
	return nil
}

// showRaw prints what the API said in a format for programs; nothing when it said nothing.
func (a *app) showRaw(raw json.RawMessage) error {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 {
		return nil
	}
	var text string
	var err error
	switch format := a.cli.Output; format {
	case formatYAML:
		text, err = yamlText(raw)
	case formatName:
		text, err = names(raw)
	default:
		if template, ok := strings.CutPrefix(format, formatJSONPath); ok {
			text, err = pathText(template, raw)
		} else {
			text, err = jsonText(raw)
		}
	}
	if err != nil {
		return err
	}
	_, err = a.out.Write([]byte(text))
	return err
}

// jsonText indents JSON. Characters that could steer a terminal are escaped, as JSON allows in any string.
func jsonText(raw json.RawMessage) (string, error) {
	var out bytes.Buffer
	if err := json.Indent(&out, raw, "", "  "); err != nil {
		return "", notJSON(err)
	}
	return escape(out.String(), func(r rune) string {
		text := ""
		for _, unit := range utf16.AppendRune(nil, r) {
			text += fmt.Sprintf("\\u%04x", unit)
		}
		return text
	}) + "\n", nil
}

func notJSON(err error) error { return fmt.Errorf("the API's answer is not JSON: %w", err) }

// escape replaces what does not print: C1 controls, marks of direction, and the like. Line breaks stay.
func escape(text string, how func(rune) string) string {
	var out strings.Builder
	for _, r := range text {
		if unicode.IsPrint(r) || r == '\n' {
			out.WriteRune(r)
		} else {
			out.WriteString(how(r))
		}
	}
	return out.String()
}

// yamlText writes JSON as YAML, with the members in the same order.
func yamlText(raw json.RawMessage) (string, error) {
	in := json.NewDecoder(bytes.NewReader(raw))
	in.UseNumber()
	node, err := yamlNode(in)
	if err != nil {
		return "", notJSON(err)
	}
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	if err := errors.Join(enc.Encode(node), enc.Close()); err != nil {
		return "", fmt.Errorf("write YAML: %w", err)
	}
	return escape(out.String(), func(r rune) string { return fmt.Sprintf("\\U%08x", r) }), nil
}

// wordsOfBool are texts that YAML 1.1 takes for truth values.
var wordsOfBool = regexp.MustCompile(`^(?i:y|n|yes|no|on|off)$`)

// yamlNode reads the next JSON value.
func yamlNode(in *json.Decoder) (*yaml.Node, error) {
	token, err := in.Token()
	if err != nil {
		return nil, err
	}
	scalar := func(tag, value string) (*yaml.Node, error) {
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: value}, nil
	}
	switch v := token.(type) {
	case json.Delim:
		return yamlMembers(in, v)
	case string:
		node := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: v}
		if strings.ContainsFunc(v, func(r rune) bool { return !unicode.IsPrint(r) && r != '\n' }) || wordsOfBool.MatchString(v) {
			node.Style = yaml.DoubleQuotedStyle // where characters can be escaped
		}
		return node, nil
	case json.Number:
		if strings.ContainsAny(v.String(), ".eE") {
			return scalar("!!float", v.String())
		}
		return scalar("!!int", v.String())
	case bool:
		return scalar("!!bool", fmt.Sprint(v))
	}
	return scalar("!!null", "null")
}

func yamlMembers(in *json.Decoder, open json.Delim) (*yaml.Node, error) {
	node := &yaml.Node{Kind: yaml.SequenceNode}
	if open == '{' {
		node.Kind = yaml.MappingNode
	}
	for in.More() { // keys are strings, so that they come as values do
		child, err := yamlNode(in)
		if err != nil {
			return nil, err
		}
		node.Content = append(node.Content, child)
	}
	if len(node.Content) == 0 {
		node.Style = yaml.FlowStyle
	}
	_, err := in.Token()
	return node, err
}

// names returns the id of each record of an answer, or its name where it has no id, a line each.
func names(raw json.RawMessage) (string, error) {
	values, err := memberValues(raw)
	if err != nil {
		return "", notJSON(err)
	}
	var record struct{ ID, Name, Status any }
	if json.Unmarshal(raw, &record) == nil && record.ID != nil && (record.Name != nil || record.Status != nil) { // not a list with an id of its own
		return printable(fmt.Sprint(record.ID)) + "\n", nil
	}
	for _, value := range values { // a list of records
		if text, ok := namesOf(value); ok && strings.Contains(string(value), "{") {
			return text, nil
		}
	}
	if name := nameOf(raw); name != "" {
		return printable(name) + "\n", nil
	}
	for _, value := range values {
		if text, ok := namesOf(value); ok { // a list of texts, or an empty one
			return text, nil
		}
		if name := nameOf(value); name != "" { // a record in an envelope: {"key": {"id": …}}
			return printable(name) + "\n", nil
		}
	}
	return "", errors.New("-o name: the answer has no id and no name")
}

// memberValues returns the values of an object in their order.
func memberValues(raw json.RawMessage) ([]json.RawMessage, error) {
	in := json.NewDecoder(bytes.NewReader(raw))
	if open, err := in.Token(); err != nil || open != json.Delim('{') {
		return nil, errors.Join(err, errors.New("it is not a JSON object"))
	}
	var out []json.RawMessage
	for in.More() {
		if _, err := in.Token(); err != nil {
			return nil, err
		}
		var value json.RawMessage
		if err := in.Decode(&value); err != nil {
			return nil, err
		}
		out = append(out, value)
	}
	return out, nil
}

// namesOf returns the names of a list, of which each element has one.
func namesOf(value json.RawMessage) (string, bool) {
	var list []json.RawMessage
	if json.Unmarshal(value, &list) != nil || list == nil {
		return "", false
	}
	text := ""
	for _, one := range list {
		name := nameOf(one)
		if name == "" {
			return "", false
		}
		text += printable(name) + "\n"
	}
	return text, true
}

// nameOf returns the id of a record, else its name, or the text that it is; else "".
func nameOf(raw json.RawMessage) string {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text
	}
	var record struct {
		ID   any    `json:"id"`
		Name string `json:"name"`
	}
	if json.Unmarshal(raw, &record) != nil {
		return ""
	}
	if record.ID != nil {
		return fmt.Sprint(record.ID)
	}
	return record.Name
}
