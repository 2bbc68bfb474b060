// Package result makes of what a worker of a public model answers what its caller gets. It is pure.
package result

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"math"
	"mime"
	"strings"

	"gantry/fleet"
)

// Members that are ours.
const (
	costMember  = "cost"
	otherMember = "result"
)

// Priced returns a worker's output with what it costs in its member cost, in USD. An output that is no object becomes the member
// result of one. Errors: invalid (the member that counts units is no number of 0 or more).
func Priced(output []byte, price fleet.ModelPrice) ([]byte, fleet.Money, error) {
	members := map[string]json.RawMessage{}
	if json.Unmarshal(output, &members) != nil || members == nil {
		members = map[string]json.RawMessage{otherMember: bytes.TrimSpace(output)}
		if len(members[otherMember]) == 0 {
			members[otherMember] = json.RawMessage("null")
		}
	}
	units := int64(0)
	if price.Counted != "" {
		var n *float64
		if json.Unmarshal(members[price.Counted], &n) != nil || n == nil || *n < 0 {
			return nil, 0, fleet.Invalid("$.output."+price.Counted, "must be a number of 0 or more, by which the job is priced")
		}
		units = int64(math.Ceil(min(*n, float64(price.MaxUnits))))
	}
	cost := price.Of(units)
	usd, err := json.Marshal(cost.USD())
	if err != nil {
		return nil, 0, err
	}
	members[costMember] = usd
	out, err := json.Marshal(members)
	return out, cost, err
}

// MaxFiles is how many files one output may have.
const MaxFiles = 64

// File is a file that an output has as a data URL, in base64, as existing image workers answer.
type File struct {
	Type string // media type
	Data []byte
}

// WithFiles replaces the files of an output, which are the members that are data URLs, or lists of them, by what keep returns for them
// all, in their order: their addresses. An output without any is returned as it is. Errors: invalid (more than MaxFiles, or base64 that is
// none), and those of keep.
func WithFiles(output []byte, keep func([]File) ([]string, error)) ([]byte, error) {
	if !bytes.Contains(output, []byte(scheme)) {
		return output, nil
	}
	members := map[string]any{}
	decoder := json.NewDecoder(bytes.NewReader(output))
	decoder.UseNumber()
	if decoder.Decode(&members) != nil {
		return output, nil // it is no object
	}
	var files []File
	var places []func(address string)
	find := func(value any, put func(string)) error {
		text, _ := value.(string)
		if !strings.HasPrefix(text, scheme) {
			return nil
		}
		f, err := fileOf(text)
		if err == nil && len(files) == MaxFiles {
			err = fleet.Invalid("$.output", "must have at most 64 files")
		}
		files, places = append(files, f), append(places, put)
		return err
	}
	for name, value := range members {
		if err := find(value, func(a string) { members[name] = a }); err != nil {
			return nil, err
		}
		list, _ := value.([]any)
		for i := range list {
			if err := find(list[i], func(a string) { list[i] = a }); err != nil {
				return nil, err
			}
		}
	}
	if len(files) == 0 {
		return output, nil
	}
	addresses, err := keep(files)
	if err != nil {
		return nil, err
	}
	for i, put := range places {
		put(addresses[i])
	}
	return json.Marshal(members)
}

const scheme = "data:"

// fileOf reads a data URL.
func fileOf(text string) (File, error) {
	head, data, ok := strings.Cut(strings.TrimPrefix(text, scheme), ",")
	kind, coded := strings.CutSuffix(head, ";base64")
	if !ok || !coded {
		return File{}, fleet.Invalid("$.output", "must have its files as data URLs in base64")
	}
	bytes, err := base64.StdEncoding.DecodeString(data)
	if err != nil {
		return File{}, fleet.Invalid("$.output", "must have its files as data URLs in base64")
	}
	if kind, _, err = mime.ParseMediaType(kind); err != nil {
		kind = "application/octet-stream"
	}
	return File{kind, bytes}, nil
}
