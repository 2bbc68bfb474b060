package jobs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"unicode/utf8"

	"gantry/fleet"
	"gantry/serverless/webhook"
)

// Sizes of bodies (wire-facts.md, §2.3).
const (
	maxRun  = 10 * fleet.MB
	maxSync = 20 * fleet.MB
)

// Bounds of a job's policy in milliseconds (interface.md, "Job request").
const (
	leastExecution = 5_000
	leastLife      = 10_000
	longest        = 7 * 24 * 3600 * 1000
)

// readBody reads a body of at most so many bytes. Errors: invalid.
func readBody(w http.ResponseWriter, r *http.Request, most int64) ([]byte, error) {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != "application/json" {
		return nil, invalid("the content type must be application/json")
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, most))
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return nil, badJSON(most)
	}
	return body, err
}

// badJSON is the contract's sentence about a body that cannot be read.
func badJSON(most int64) error {
	return invalid(fmt.Sprintf("json is invalid; max size is %d MB", most/fleet.MB))
}

func invalid(text string) error {
	return &fleet.Error{Code: fleet.CodeInvalid, Msg: text, NothingDone: true}
}

// parseJob reads a job request. Members that are not known are left out.
func parseJob(body []byte, most int64) (req fleet.JobRequest, err error) {
	var in struct {
		Input    json.RawMessage `json:"input"`
		Webhook  json.RawMessage `json:"webhook"`
		Policy   json.RawMessage `json:"policy"`
		S3Config json.RawMessage `json:"s3Config"`
	}
	if !utf8.Valid(body) || json.Unmarshal(body, &in) != nil {
		return req, badJSON(most)
	}
	if !isObject(in.Input) {
		return req, invalid("input is required, and must be an object")
	}
	if req.Webhook, err = parseWebhook(in.Webhook); err != nil {
		return req, err
	}
	if err := parsePolicy(in.Policy, &req); err != nil {
		return req, err
	}
	if err := checkS3(in.S3Config); err != nil {
		return req, err
	}
	var out bytes.Buffer
	out.WriteString(`{"input":`)
	out.Write(in.Input)
	for _, member := range []struct {
		name  string
		value json.RawMessage
	}{{"webhook", in.Webhook}, {"policy", in.Policy}, {"s3Config", in.S3Config}} {
		if given(member.value) {
			fmt.Fprintf(&out, ",%q:%s", member.name, member.value)
		}
	}
	out.WriteByte('}')
	req.Body = out.Bytes()
	return req, nil
}

// given reports whether a member is there and not null.
func given(raw json.RawMessage) bool { return len(raw) > 0 && string(raw) != "null" }

func isObject(raw json.RawMessage) bool { return len(raw) > 0 && raw[0] == '{' }

// parseWebhook reports whether there is a webhook that can be called.
func parseWebhook(raw json.RawMessage) (bool, error) {
	if !given(raw) {
		return false, nil
	}
	var to string
	if json.Unmarshal(raw, &to) != nil {
		return false, invalid("webhook must be a string")
	}
	if to == "" { // as some clients send where there is none
		return false, nil
	}
	return true, webhook.CheckURL("webhook", to)
}

// parsePolicy reads a policy.
func parsePolicy(raw json.RawMessage, req *fleet.JobRequest) error {
	if !given(raw) {
		return nil
	}
	var in struct {
		Execution *int64 `json:"executionTimeout"`
		Life      *int64 `json:"ttl"`
		Low       *bool  `json:"lowPriority"`
	}
	if !isObject(raw) || json.Unmarshal(raw, &in) != nil {
		return invalid("policy must be an object with executionTimeout and ttl in whole milliseconds and lowPriority, true or false")
	}
	for _, f := range []struct {
		name  string
		value *int64
		least int64
		to    *int64
	}{
		{"executionTimeout", in.Execution, leastExecution, &req.Execution}, {"ttl", in.Life, leastLife, &req.Life},
	} {
		switch {
		case f.value == nil:
		case *f.value < f.least || *f.value > longest:
			return invalid(fmt.Sprintf("policy.%s must be %d to %d milliseconds", f.name, f.least, longest))
		default:
			*f.to = *f.value
		}
	}
	req.Low = in.Low != nil && *in.Low
	return nil
}

// checkS3 refuses what is no s3Config. It is passed on as it is, and never shown.
func checkS3(raw json.RawMessage) error {
	if !given(raw) {
		return nil
	}
	var in map[string]json.RawMessage
	if json.Unmarshal(raw, &in) != nil {
		return invalid("s3Config must be an object of strings")
	}
	for _, name := range []string{"accessId", "accessSecret", "bucketName", "endpointUrl", "objectPath"} {
		var text string
		if value := in[name]; given(value) && json.Unmarshal(value, &text) != nil {
			return invalid("s3Config." + name + " must be a string")
		}
	}
	return nil
}
