package jobs

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"gantry/api/v2"
	"gantry/fleet"
)

// cancelTimeout bounds the end of a job whose caller is gone.
const cancelTimeout = 5 * time.Second

// openAI makes a job of a request of OpenAI's API, and an answer of what its worker says (wire-facts.md, §1.9).
func (c *call) openAI() (err error) {
	in := struct {
		Route string          `json:"openai_route"`
		Input json.RawMessage `json:"openai_input,omitempty"`
	}{Route: "/" + c.id}
	leave := func() {}
	var wants struct {
		Stream bool `json:"stream"`
	}
	if c.r.Method == http.MethodPost {
		if in.Input, leave, err = c.body(maxSync); err != nil {
			return err
		}
		if json.Unmarshal(in.Input, &wants) != nil || !isObject(in.Input) {
			leave()
			return badJSON(maxSync)
		}
	}
	defer leave()
	body, err := json.Marshal(map[string]any{"input": in})
	if err != nil {
		return badJSON(maxSync)
	}
	v, err := c.cfg.Service.SubmitJob(c.r.Context(), c.who, c.endpoint, fleet.JobRequest{Body: body, Sync: true})
	if err != nil {
		return err
	}
	leave()
	c.id = v.ID
	defer func() {
		if c.r.Context().Err() != nil { // nobody waits for it any more
			ctx, cancel := context.WithTimeout(context.WithoutCancel(c.r.Context()), cancelTimeout)
			defer cancel()
			_, _ = c.cfg.Service.CancelJob(ctx, c.who, c.endpoint, c.id)
		}
	}()
	if wants.Stream {
		return c.passStream()
	}
	return c.passWhole()
}

// next returns what of the job's stream nobody has been given, and whether that was all.
func (c *call) next() (v fleet.JobView, chunks [][]byte, ended bool, err error) {
	v, chunks, more, err := c.cfg.Service.StreamJob(c.r.Context(), c.who, c.endpoint, c.id, openAIWait)
	return v, chunks, err == nil && v.Ended && !more, err
}

// outputOf takes the output out of a chunk.
func outputOf(chunk []byte) json.RawMessage {
	var in struct {
		Output json.RawMessage `json:"output"`
	}
	if json.Unmarshal(chunk, &in) != nil || len(in.Output) == 0 {
		return chunk
	}
	return in.Output
}

// passWhole answers with the first chunk, or the result of a worker that sends none.
func (c *call) passWhole() error {
	for {
		v, chunks, ended, err := c.next()
		switch {
		case err != nil:
			return err
		case len(chunks) > 0:
			c.answer(outputOf(chunks[0]))
			return nil
		case ended && v.Error != "":
			c.write(http.StatusInternalServerError, v2.JobProblem{Error: v.Error})
			return nil
		case ended && v.Status != "COMPLETED":
			c.write(http.StatusInternalServerError, v2.JobProblem{Error: "the job is " + v.Status})
			return nil
		case ended:
			c.answer(v.Output)
			return nil
		}
	}
}

// answer writes what a worker says, with the status that it says.
func (c *call) answer(output json.RawMessage) {
	var in struct {
		Code   int `json:"code"`
		Object any `json:"object"`
		Error  any `json:"error"`
	}
	status := http.StatusOK
	if json.Unmarshal(output, &in) == nil && (in.Object == "error" || in.Error != nil) {
		status = http.StatusInternalServerError
		if nested, ok := in.Error.(map[string]any); ok && in.Code == 0 {
			code, _ := nested["code"].(float64)
			in.Code = int(code)
		}
		if in.Code >= 400 && in.Code < 600 {
			status = in.Code
		}
	}
	if len(output) == 0 {
		output = json.RawMessage("null")
	}
	c.write(status, output)
}

// passStream answers with the chunks as they come, which are server-sent events already.
func (c *call) passStream() error {
	flush := http.NewResponseController(c.w)
	begun, wrote := false, false
	for {
		v, chunks, ended, err := c.next()
		if err != nil && !begun {
			return err
		}
		if !begun && (len(chunks) > 0 || ended) {
			if len(chunks) == 0 && v.Status != "COMPLETED" {
				c.write(http.StatusInternalServerError, v2.JobProblem{Error: v.Error})
				return nil
			}
			begun = true
			c.w.Header().Set("Content-Type", "text/event-stream")
			c.w.Header().Set("Cache-Control", "no-store")
			c.w.WriteHeader(http.StatusOK)
		}
		if err != nil { // the status has been sent: an answer that ends without [DONE] says it
			return nil
		}
		if ended && len(chunks) == 0 && len(v.Output) > 0 && string(v.Output) != "[]" && !wrote { // the worker sends no chunks
			chunks = append(chunks, v.Output)
		}
		for _, chunk := range chunks {
			wrote = true
			if _, err := c.w.Write(event(outputOf(chunk))); err != nil {
				return nil
			}
		}
		if err := flush.Flush(); err != nil || ended {
			return nil
		}
	}
}

// event is a chunk as an event: a text goes as it is, anything else as data.
func event(output json.RawMessage) []byte {
	var text string
	if json.Unmarshal(output, &text) != nil {
		return []byte("data: " + string(output) + "\n\n")
	}
	if !strings.HasSuffix(text, "\n\n") {
		text = strings.TrimRight(text, "\n") + "\n\n"
	}
	return []byte(text)
}
