package main

import (
	"encoding/json"
	"errors"
	"net/url"
	"time"

	"gantry/api/v2"
	"gantry/fleet"
)

// The largest requests.
const (
	maxRun     = 10 * fleet.MB
	maxRunSync = 20 * fleet.MB
)

// jobFlags are what a job is made of.
type jobFlags struct {
	Input            string        `placeholder:"JSON" help:"Input of the job, a JSON object, such as '{\"prompt\": \"hello\"}'; - reads it from standard input."`
	InputFile        string        `placeholder:"FILE" help:"File with the input; - is standard input."`
	Webhook          string        `placeholder:"URL" help:"Address that is told of the job's end."`
	ExecutionTimeout time.Duration `placeholder:"5m" help:"Longest execution, from 5s to 168h; the endpoint's when not given."`
	TTL              time.Duration `name:"ttl" placeholder:"24h" help:"The job is dropped this long after its submission, from 10s to 168h."`
	LowPriority      bool          `help:"Run it when no other job waits, and start no worker for it."`
	S3Config         string        `name:"s3-config-file" placeholder:"FILE" help:"File with the s3Config that the worker is given, a JSON object."`
	IdempotencyKey   string        `placeholder:"TEXT" help:"Idempotency key: run again with it, the command submits nothing new."`
}

// body makes the request of the command line. What it can tell without the API, it refuses.
func (f jobFlags) body(a *app, most int64) (out v2.JobRequest, err error) {
	if out.Input, err = f.input(a, most); err != nil {
		return out, err
	}
	if f.S3Config != "" {
		text, err := a.readFile("--s3-config-file", f.S3Config, fleet.MB)
		if err != nil {
			return out, err
		}
		if out.S3, err = jsonObject("--s3-config-file", text); err != nil {
			return out, err
		}
	}
	if f.Webhook != "" {
		to, err := url.Parse(f.Webhook)
		if err != nil || to.Scheme != "http" && to.Scheme != "https" || to.Host == "" {
			return out, usage("--webhook must be an address that begins with http:// or https://")
		}
		out.Webhook = f.Webhook
	}
	policy := v2.JobPolicy{}
	if policy.Execution, err = within("--execution-timeout", f.ExecutionTimeout, 5*time.Second); err != nil {
		return out, err
	}
	if policy.Life, err = within("--ttl", f.TTL, 10*time.Second); err != nil {
		return out, err
	}
	if f.LowPriority {
		policy.Low = new(true)
	}
	if policy != (v2.JobPolicy{}) {
		out.Policy = &policy
	}
	return out, nil
}

const longestJob = 7 * 24 * time.Hour

// within returns a time of at least least in milliseconds; nil when none was given.
func within(flag string, d, least time.Duration) (*int64, error) {
	switch {
	case d == 0:
		return nil, nil
	case d < least || d > longestJob:
		return nil, usage("%s must be from %v to 168h", flag, least)
	}
	return new(d.Milliseconds()), nil
}

func (f jobFlags) input(a *app, most int64) (json.RawMessage, error) {
	flag, text, file := "--input", f.Input, f.InputFile
	switch {
	case text != "" && file != "":
		return nil, usage("--input and --input-file exclude each other")
	case text == "" && file == "":
		return nil, usage("say the job's input: --input JSON or --input-file FILE; '{}' is an empty one")
	case file != "":
		flag = "--input-file"
	case text == "-":
		file = "-"
	}
	if file != "" {
		var err error
		if text, err = a.readFile(flag, file, most); err != nil {
			return nil, err
		}
	}
	if int64(len(text)) > most {
		return nil, usage("%s: more than %s", flag, bytesText(most))
	}
	return jsonObject(flag, text)
}

// jsonObject reads what must be a JSON object.
func jsonObject(flag, text string) (json.RawMessage, error) {
	var in map[string]json.RawMessage
	err := json.Unmarshal([]byte(text), &in)
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &syntax):
		return nil, usage("%s is not JSON, at byte %d: %v", flag, syntax.Offset, syntax)
	case err != nil || in == nil:
		return nil, usage("%s must be a JSON object, such as {\"prompt\": \"hello\"}", flag)
	}
	return json.RawMessage(text), nil
}
