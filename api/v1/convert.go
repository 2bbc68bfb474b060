package v1

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"gantry/fleet"
)

// object is a JSON object.
type object = map[string]any

// treeOf returns a record of version 2 as its JSON.
func treeOf(record any) (out object, err error) {
	data, err := json.Marshal(record)
	if err == nil {
		err = json.Unmarshal(data, &out)
	}
	if err != nil {
		return nil, fmt.Errorf("read record: %w", err)
	}
	return out, nil
}

// get returns the member at a path of Name.V2; false: there is none.
func get(at object, path string) (any, bool) {
	name, rest, more := strings.Cut(path, ".")
	name, item := strings.CutSuffix(name, "[0]")
	v, ok := at[name]
	if item {
		list, _ := v.([]any)
		if ok = len(list) > 0; ok {
			v = list[0]
		}
	}
	if !more || !ok {
		return v, ok
	}
	below, _ := v.(object)
	return get(below, rest)
}

// put sets the member at a path of Name.V2.
func put(at object, path string, v any) {
	name, rest, more := strings.Cut(path, ".")
	name, item := strings.CutSuffix(name, "[0]")
	if more {
		below, _ := at[name].(object)
		if list, _ := at[name].([]any); item && len(list) > 0 {
			below, _ = list[0].(object)
		}
		if below == nil {
			below = object{}
		}
		put(below, rest, v)
		v = below
	}
	if item {
		v = []any{v}
	}
	at[name] = v
}

// body returns what a body of version 1 says in version 2, but for what a Noun's own code says. use is c or u.
// Errors: CodeInvalid.
func (n *Noun) body(use string, in object) (object, error) {
	out, wrong := object{}, []string(nil)
	for _, name := range n.Names {
		v, there := in[name.V1]
		if !there || !name.isOf(use) {
			continue
		}
		if name.in != nil && v != nil {
			v = name.in(v)
		}
		switch {
		case name.V2 == "" && name.in == nil && !zero(v):
			wrong = append(wrong, "$."+name.V1+": is not supported: leave it out")
		case v != nil || name.V2 == "registry": // null: none
			put(out, name.V2, v)
		}
	}
	delete(out, "")
	if len(wrong) > 0 {
		return nil, &fleet.Error{Code: fleet.CodeInvalid, Msg: "Request validation failed.", Details: wrong}
	}
	return out, nil
}

// record returns a record of version 2 as version 1 has it, but for what a Noun's own code says.
func (n *Noun) record(in object) object {
	out := object{}
	for _, name := range n.Names {
		if !name.isOf("r") {
			continue
		}
		v, ok := get(in, name.V2)
		if name.out != nil {
			v = name.out(v)
			ok = v != nil
		}
		if ok {
			out[name.V1] = v
		}
	}
	return out
}

// isOf reports whether the member is in bodies or records of a use: c, u or r.
func (name *Name) isOf(use string) bool { return strings.Contains(strings.ToLower(name.Of), use) }

// defaults sets what a create leaves out, but for some members.
func (n *Noun) defaults(in object, but ...string) {
	for _, name := range n.Names {
		if in[name.V1] == nil && name.Default != nil && name.isOf("c") && !slices.Contains(but, name.V1) {
			in[name.V1] = name.Default
		}
	}
}

// renamed says of an error of version 2 where in a body of version 1 it is.
func (n *Noun) renamed(err error) error {
	var e *fleet.Error
	if !errors.As(err, &e) || len(e.Details) == 0 {
		return err
	}
	out := *e
	out.Details = nil
	for _, detail := range e.Details {
		out.Details = append(out.Details, n.renamedDetail(detail))
	}
	return &out
}

const missing = ": missing property '"

func (n *Noun) renamedDetail(detail string) string {
	path, text, _ := strings.Cut(detail, ": ")
	at, ok := strings.CutPrefix(path, "$")
	if !ok {
		return detail
	}
	at = strings.TrimPrefix(at, ".")
	if name, found := strings.CutPrefix(": "+text, missing); found {
		name = strings.TrimSuffix(name, "'")
		if at != "" {
			name = at + "." + name
		}
		if v1, rest := n.longest(name); v1 != "" && rest == "" {
			return "$" + missing + v1 + "'"
		}
	}
	if v1, rest := n.longest(at); v1 != "" {
		return "$." + v1 + rest + ": " + text
	}
	return detail
}

// longest returns the name of the member of which a path of version 2 is, and what the path has below it.
func (n *Noun) longest(path string) (v1, rest string) {
	best := 0
	for _, name := range n.Names {
		below, ok := strings.CutPrefix(path, name.V2)
		if len(name.V2) > best && ok && (below == "" || strings.ContainsRune(".[", rune(below[0]))) {
			best, v1, rest = len(name.V2), name.V1, below
		}
	}
	return v1, rest
}

// zero reports whether a value says nothing.
func zero(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case bool:
		return !v
	case float64:
		return v == 0
	case string:
		return v == ""
	case []any:
		return len(v) == 0
	}
	return false
}

// drop leaves a value to the Noun's own code.
func drop(any) any { return nil }

func unlessZero(v any) any {
	if zero(v) {
		return nil
	}
	return v
}

func orZero(v any) any {
	if v == nil {
		return 0
	}
	return v
}

func equals(word string) func(any) any { return func(v any) any { return v == word } }

func flash(v any) any {
	if v == true {
		return string(fleet.FlashBootOn)
	}
	return string(fleet.FlashBootOff)
}

func flashes(v any) any { return v != string(fleet.FlashBootOff) }

// desired is what a pod of a status is to be.
func desired(v any) any {
	switch status, _ := v.(string); fleet.PodStatus(status) {
	case fleet.StatusTerminated:
		return status
	case fleet.StatusExited, fleet.StatusError:
		return string(fleet.StatusExited)
	}
	return string(fleet.StatusRunning)
}

// command returns a part of args: 0 what replaces the image's entrypoint, 1 its command.
func command(part int) func(any) any {
	return func(v any) any {
		text, _ := v.(string)
		args, err := fleet.ParseArgs(text)
		if err != nil { // no pod has such
			return []string{}
		}
		return append([]string{}, [][]string{args.Entrypoint, args.Cmd}[part]...)
	}
}

// setArgs joins dockerEntrypoint and dockerStartCmd of a body to args; what one of them leaves out is that of the args of before.
func setArgs(in, out object, before string) error {
	if in["dockerEntrypoint"] == nil && in["dockerStartCmd"] == nil {
		return nil
	}
	args := object{} // an empty list keeps the image's own
	for part, name := range []string{"dockerEntrypoint", "dockerStartCmd"} {
		words, given := in[name].([]any)
		if !given {
			for _, word := range command(part)(before).([]string) {
				words = append(words, word)
			}
		}
		if len(words) > 0 {
			args[[]string{"entrypoint", "cmd"}[part]] = words
		}
	}
	out["args"] = ""
	if len(args) > 0 {
		text, err := json.Marshal(args)
		if err != nil {
			return fmt.Errorf("write args: %w", err)
		}
		out["args"] = string(text)
	}
	return nil
}

// mappings returns the published ports of a pod by those in the container.
func mappings(v any) any {
	ports, _ := v.([]any)
	out := object{}
	for _, p := range ports {
		port, _ := p.(object)
		if port["public"] != nil {
			out[fmt.Sprint(port["private"])] = port["public"]
		}
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

// instances names CPU flavors as version 1 does, such as cpu3g-4-16.
func instances(v any) any {
	all, _ := v.([]any)
	out := []string{}
	for _, c := range all {
		cpu, _ := c.(object)
		out = append(out, fmt.Sprintf("%v-%v-%v", cpu["id"], cpu["vcpuCount"], cpu["memory"]))
	}
	return out
}
