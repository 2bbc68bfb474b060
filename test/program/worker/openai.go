package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// Model is the one that the openai handler has.
const Model = "parrot"

// chosen is the handler that an input asks for.
func chosen(input json.RawMessage) string {
	var in struct {
		Do    string
		Route string `json:"openai_route"`
	}
	if _ = json.Unmarshal(input, &in); in.Route != "" {
		return "openai"
	}
	return in.Do
}

// openAI answers as the worker of a language model does, which repeats the last message: an object, or events that are text already.
func openAI(input json.RawMessage) []any {
	var in struct {
		Route string `json:"openai_route"`
		Input struct {
			Model    string
			Stream   bool
			Messages []struct{ Content any }
		} `json:"openai_input"`
	}
	_ = json.Unmarshal(input, &in)
	switch {
	case in.Route == "/v1/models":
		return []any{map[string]any{"object": "list", "data": []any{map[string]any{"id": Model, "object": "model", "created": 1, "owned_by": "test"}}}}
	case in.Input.Model != Model:
		return []any{map[string]any{"object": "error", "message": "The model does not exist.", "type": "NotFoundError", "param": nil, "code": 404}}
	}
	text := ""
	if n := len(in.Input.Messages); n > 0 {
		content, _ := json.Marshal(in.Input.Messages[n-1].Content)
		if text = string(content); json.Unmarshal(content, &text) != nil {
			text = string(content)
		}
	}
	usage := map[string]int{"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
	head := func(object string, choice map[string]any) map[string]any {
		choice["index"] = 0
		return map[string]any{"id": "chat-1", "object": object, "created": 1, "model": Model, "choices": []any{choice}, "usage": usage}
	}
	if !in.Input.Stream {
		return []any{head("chat.completion", map[string]any{"message": map[string]any{"role": "assistant", "content": text}, "finish_reason": "stop"})}
	}
	event := func(choice map[string]any) string {
		data, _ := json.Marshal(head("chat.completion.chunk", choice))
		return fmt.Sprintf("data: %s\n\n", data)
	}
	var out []any
	for _, word := range strings.SplitAfter(text, " ") {
		out = append(out, event(map[string]any{"delta": map[string]any{"role": "assistant", "content": word}, "finish_reason": nil}))
	}
	return append(out, event(map[string]any{"delta": map[string]any{}, "finish_reason": "stop"})+"data: [DONE]\n\n")
}

// Serve answers OpenAI's API itself, at the port that an endpoint that balances expects, until ctx ends.
func Serve(ctx context.Context, port string) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /ping", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/v1/", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		if err != nil {
			return
		}
		if len(body) == 0 {
			body = []byte("{}")
		}
		input, err := json.Marshal(map[string]any{"openai_route": r.URL.Path, "openai_input": json.RawMessage(body)})
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		flow := http.NewResponseController(w)
		for _, part := range openAI(input) {
			if text, event := part.(string); event {
				w.Header().Set("Content-Type", "text/event-stream")
				_, _ = io.WriteString(w, text) // a client that left is not told
				_ = flow.Flush()
				continue
			}
			w.Header().Set("Content-Type", "application/json")
			if object, _ := part.(map[string]any); object["object"] == "error" {
				w.WriteHeader(http.StatusNotFound)
			}
			_ = json.NewEncoder(w).Encode(part)
		}
	})
	s := &http.Server{Addr: ":" + port, Handler: mux, ReadHeaderTimeout: time.Minute}
	defer context.AfterFunc(ctx, func() { _ = s.Close() })()
	if err := s.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
