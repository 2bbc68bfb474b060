package dev

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"gantry/internal/sleep"
)

// How long a worker waits for an answer, and between two tries.
const (
	takeTimeout = 90 * time.Second
	tellTimeout = 600 * time.Second
	workerPause = time.Second
)

// sampleWorker is a serverless worker: it asks for jobs, one at a time, at the addresses that its environment names.
type sampleWorker struct {
	env  func(string) string
	out  io.Writer
	http *http.Client
}

// sampleInput is what its jobs ask for.
type sampleInput struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"` // that it takes
	Parts   int     `json:"parts"`   // of a stream that come before the output
	Fail    string  `json:"fail"`    // the error that the job ends with
	// Prompt asks for a picture of Width and Height instead of a greeting.
	Prompt string `json:"prompt"`
	Width  int    `json:"width"`
	Height int    `json:"height"`
}

// RunSampleWorker answers jobs until ctx ends; env returns a variable of the environment, and out gets its log. It is what SampleImage
// runs, and an example of how little a worker needs.
func RunSampleWorker(ctx context.Context, env func(string) string, out io.Writer) error {
	w := &sampleWorker{env, out, &http.Client{Transport: &http.Transport{}, Timeout: tellTimeout}}
	defer w.http.CloseIdleConnections()
	if env("RUNPOD_WEBHOOK_GET_JOB") == "" {
		return errors.New("this is the program of a serverless worker: gantry dev makes an image of it")
	}
	w.say("ready for jobs")
	for ctx.Err() == nil {
		var job struct {
			ID    string      `json:"id"`
			Input sampleInput `json:"input"`
		}
		found, err := w.ask(ctx, http.MethodGet, "RUNPOD_WEBHOOK_GET_JOB", env("RUNPOD_POD_ID"), "&job_in_progress=0", nil, &job)
		if err == nil && found {
			err = w.work(ctx, job.ID, job.Input)
		}
		if err != nil && ctx.Err() == nil {
			w.say(err.Error())
			_ = sleep.For(ctx, workerPause)
		}
	}
	return nil
}

// work does one job and tells its result.
func (w *sampleWorker) work(ctx context.Context, id string, in sampleInput) error {
	w.say("job " + id)
	for n := range in.Parts {
		part := map[string]any{"output": fmt.Sprintf("part %d of %d", n+1, in.Parts)}
		if _, err := w.ask(ctx, http.MethodPost, "RUNPOD_WEBHOOK_POST_STREAM", id, "&isStream=true", part, nil); err != nil {
			return err
		}
	}
	if err := sleep.For(ctx, time.Duration(in.Seconds*float64(time.Second))); err != nil {
		return err
	}
	if in.Name == "" {
		in.Name = "world"
	}
	result := map[string]any{"output": map[string]string{"greeting": "Hello, " + in.Name + "!", "worker": w.env("RUNPOD_POD_ID")}}
	if in.Prompt != "" {
		picture, err := draw(in.Prompt, in.Width, in.Height)
		if err != nil {
			return err
		}
		result["output"] = picture
	}
	if in.Fail != "" {
		result = map[string]any{"error": in.Fail}
	}
	_, err := w.ask(ctx, http.MethodPost, "RUNPOD_WEBHOOK_POST_OUTPUT", id, fmt.Sprintf("&isStream=%t", in.Parts > 0), result, nil)
	return err
}

// ask makes a request at the address in a variable, in which id takes the place of $ID. It reads what is answered into to, and tells
// whether there was anything.
func (w *sampleWorker) ask(ctx context.Context, method, name, id, query string, body, to any) (bool, error) {
	limit := tellTimeout
	if method == http.MethodGet {
		limit = takeTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	text, err := json.Marshal(body)
	if err != nil {
		return false, err
	}
	url := strings.NewReplacer("$RUNPOD_POD_ID", w.env("RUNPOD_POD_ID"), "$ID", id).Replace(w.env(name)) + query
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(text))
	if err != nil {
		return false, err
	}
	req.Header.Set("Authorization", w.env("RUNPOD_AI_API_KEY"))
	res, err := w.http.Do(req)
	if err != nil {
		return false, err
	}
	defer func() { _ = res.Body.Close() }()
	switch {
	case res.StatusCode == http.StatusNoContent, method == http.MethodGet && res.StatusCode == http.StatusBadRequest:
		return false, nil // the second is how a worker that was frozen is told to ask anew
	case res.StatusCode != http.StatusOK:
		return false, fmt.Errorf("%s: the answer is %s", method, res.Status)
	case to == nil:
		return true, nil
	}
	return true, json.NewDecoder(res.Body).Decode(to)
}

func (w *sampleWorker) say(text string) { _, _ = fmt.Fprintln(w.out, text) }
