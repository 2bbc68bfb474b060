package dev

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// files reads an archive.
func files(t *testing.T, archive []byte) map[string]string {
	t.Helper()
	out := map[string]string{}
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		head, err := r.Next()
		if err == io.EOF {
			return out
		}
		text, readErr := io.ReadAll(r)
		if err != nil || readErr != nil {
			t.Fatal(err, readErr)
		}
		out[head.Name] = string(text)
	}
}

func TestTheSampleImageHoldsTheProgram(t *testing.T) {
	dir := t.TempDir()
	program, path := filepath.Join(dir, "program"), filepath.Join(dir, "sample.tar")
	if err := os.WriteFile(program, []byte("a program"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := writeSample(path, program); err != nil {
		t.Fatal(err)
	}
	archive, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	all := files(t, archive)
	if !strings.Contains(all["manifest.json"], `"RepoTags":["`+SampleImage+`"]`) || !strings.Contains(all["config.json"], `["/gantry","`+SampleCommand+`"]`) {
		t.Errorf("%q", all)
	}
	if layer := files(t, []byte(all["layer.tar"])); layer["gantry"] != "a program" {
		t.Errorf("%q", layer)
	}
	if err := writeSample(path, filepath.Join(dir, "nothing")); err == nil || !strings.Contains(err.Error(), "make the sample worker") {
		t.Errorf("a program that is not there: %v", err)
	}
}

// TestTheSampleWorkerAnswersJobs: each job once, with what its input asks for; an answer that is none is asked for again, at once and
// without a word, also that which a worker gets that was frozen.
func TestTheSampleWorkerAnswersJobs(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var mu sync.Mutex
	inputs := []string{"", "frozen", `{"name":"you","parts":2}`, `{"prompt":"a cat","width":16,"height":16}`, `{"fail":"no"}`}
	var told []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		switch body, _ := io.ReadAll(r.Body); {
		case r.Header.Get("Authorization") != "key" || !strings.Contains(r.RequestURI, "?gpu=&"):
			t.Errorf("%s %q", r.RequestURI, r.Header)
		case strings.HasPrefix(r.URL.Path, "/take/worker"):
			if len(inputs) == 0 {
				stop()
				w.WriteHeader(http.StatusNoContent)
				return
			}
			switch inputs[0] {
			case "":
				w.WriteHeader(http.StatusNoContent)
			case "frozen":
				w.WriteHeader(http.StatusBadRequest)
			default:
				_ = json.NewEncoder(w).Encode(map[string]any{"id": "j", "input": json.RawMessage(inputs[0])})
			}
			inputs = inputs[1:]
		default:
			told = append(told, r.URL.Path+" "+r.URL.Query().Get("isStream")+" "+string(body))
		}
	}))
	defer srv.Close()
	env := map[string]string{
		"RUNPOD_WEBHOOK_GET_JOB": srv.URL + "/take/$ID?gpu=", "RUNPOD_WEBHOOK_POST_OUTPUT": srv.URL + "/done/$RUNPOD_POD_ID/$ID?gpu=",
		"RUNPOD_WEBHOOK_POST_STREAM": srv.URL + "/stream/$RUNPOD_POD_ID/$ID?gpu=", "RUNPOD_POD_ID": "worker", "RUNPOD_AI_API_KEY": "key",
	}
	var log strings.Builder
	if err := RunSampleWorker(ctx, func(name string) string { return env[name] }, &log); err != nil {
		t.Fatal(err)
	}
	if got := log.String(); got != "ready for jobs\njob j\njob j\njob j\n" {
		t.Errorf("it said %q", got)
	}
	picture, err := draw("a cat", 16, 16)
	if err != nil {
		t.Fatal(err)
	}
	drawn, err := json.Marshal(map[string]any{"output": picture})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		`/stream/worker/j true {"output":"part 1 of 2"}`, `/stream/worker/j true {"output":"part 2 of 2"}`,
		`/done/worker/j true {"output":{"greeting":"Hello, you!","worker":"worker"}}`, "/done/worker/j false " + string(drawn), `/done/worker/j false {"error":"no"}`,
	}
	if got := strings.Join(told, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("%s", got)
	}
	if err := RunSampleWorker(ctx, func(string) string { return "" }, io.Discard); err == nil {
		t.Error("a worker runs without addresses")
	}
}
