package rest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"strings"
	"unicode/utf8"

	"gantry/fleet"
)

const (
	maxBodyBytes = 1 << 20 // of every JSON request
	maxDepth     = 64      // of nested arrays and objects
)

// readBody reads the JSON body of r into v, which is a pointer to a struct. Errors:
// CodeMediaType, CodeTooLarge, CodeMalformed when the text is not one JSON object without duplicate
// keys in UTF-8, CodeInvalid when it breaks the rule or what checkShape asks of v.
func readBody(w http.ResponseWriter, r *http.Request, limit int64, body *rule, v any) error {
	if err := checkMediaType(r); err != nil {
		return err
	}
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	var over *http.MaxBytesError
	switch {
	case errors.As(err, &over):
		return tooLarge(limit)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return malformed("the request body did not arrive in time")
	case err != nil:
		return malformed("the request body could not be read")
	}
	return decode(data, body, v)
}

func checkMediaType(r *http.Request) error {
	wrong := &fleet.Error{Code: fleet.CodeMediaType, Msg: "the content type must be application/json"}
	kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != "application/json" {
		return wrong
	}
	if set := params["charset"]; set != "" && !strings.EqualFold(set, "utf-8") {
		return &fleet.Error{Code: fleet.CodeMediaType, Msg: "the charset must be utf-8"}
	}
	if enc := r.Header.Get("Content-Encoding"); enc != "" && !strings.EqualFold(enc, "identity") {
		return &fleet.Error{Code: fleet.CodeMediaType, Msg: "the content must not be encoded"}
	}
	return nil
}

// decode reads one JSON object from data into v after checking it against body.
func decode(data []byte, body *rule, v any) error {
	switch {
	case len(bytes.TrimSpace(data)) == 0:
		return malformed("the request body is empty")
	case !utf8.Valid(data):
		return malformed("the request body is not valid UTF-8")
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	tree, err := (&reader{Decoder: dec, body: body}).value(0)
	if err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return malformed("the request body has more than one JSON value")
	}
	if kindOf(tree) != "object" {
		return malformed("the request body must be a JSON object")
	}
	c := &checking{}
	tree = c.check(body, "$", tree)
	if len(c.failures) > 0 {
		return invalid(c.failures)
	}
	if c.rewritten {
		if data, err = json.Marshal(tree); err != nil {
			return fmt.Errorf("encode checked body: %w", err)
		}
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("decode checked body: %w", err) // the rule let pass what the type does not take
	}
	if failures := checkShape(v); len(failures) > 0 {
		return invalid(failures[:min(len(failures), maxFailures)])
	}
	return nil
}

// reader reads a request's body. Of names it repeats those alone that the API has.
type reader struct {
	*json.Decoder
	body *rule
	at   []string // names of the properties that it is in
}

// path tells where it is.
func (dec *reader) path() string {
	path := "$"
	for _, name := range dec.at {
		if dec.body.apiHas(name) {
			path = join(path, name)
		} else {
			path += ".*"
		}
	}
	return path
}

// twice refuses a property that is given twice.
func (dec *reader) twice(name string) error {
	told := "a property"
	if dec.body.apiHas(name) {
		told = "property " + quoteName(name)
	}
	return &fleet.Error{Code: fleet.CodeMalformed, Msg: "the JSON has a property twice", Details: []string{dec.path() + ": " + told + " is given twice"}}
}

// value reads one value, token by token: json.Unmarshal would take duplicate keys and has a
// depth limit of its own that is far too high.
func (dec *reader) value(depth int) (any, error) {
	if depth > maxDepth {
		return nil, malformed(fmt.Sprintf("the JSON is nested deeper than %d levels", maxDepth))
	}
	tok, err := dec.Token()
	if err != nil {
		return nil, malformed(fmt.Sprintf("the JSON is broken near byte %d", dec.InputOffset()))
	}
	switch tok {
	case json.Delim('['):
		list := []any{}
		for dec.More() {
			item, err := dec.value(depth + 1)
			if err != nil {
				return nil, err
			}
			list = append(list, item)
		}
		return list, dec.end()
	case json.Delim('{'):
		return dec.object(depth)
	}
	return tok, nil
}

func (dec *reader) object(depth int) (any, error) {
	object := map[string]any{}
	for dec.More() {
		tok, err := dec.Token()
		name, ok := tok.(string)
		if err != nil || !ok {
			return nil, malformed(fmt.Sprintf("the JSON is broken near byte %d", dec.InputOffset()))
		}
		if _, twice := object[name]; twice {
			return nil, dec.twice(name)
		}
		dec.at = append(dec.at, name)
		object[name], err = dec.value(depth + 1)
		dec.at = dec.at[:len(dec.at)-1]
		if err != nil {
			return nil, err
		}
	}
	return object, dec.end()
}

func (dec *reader) end() error {
	if _, err := dec.Token(); err != nil {
		return malformed(fmt.Sprintf("the JSON is broken near byte %d", dec.InputOffset()))
	}
	return nil
}

func tooLarge(most int64) error {
	return &fleet.Error{Code: fleet.CodeTooLarge, Msg: fmt.Sprintf("the request body is larger than %d bytes", most)}
}

func malformed(msg string) error { return &fleet.Error{Code: fleet.CodeMalformed, Msg: msg} }

func invalid(failures []string) error {
	return &fleet.Error{Code: fleet.CodeInvalid, Msg: "Request validation failed.", Details: failures}
}
