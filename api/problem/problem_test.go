package problem_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"gantry/api/problem"
	"gantry/api/v2"
	"gantry/fleet"
)

// TestStatusOfEveryCode is the table of decisions.md, "Which status".
func TestStatusOfEveryCode(t *testing.T) {
	for code, want := range map[fleet.Code]int{
		fleet.CodeInvalid: 422, fleet.CodeConflictRule: 400, fleet.CodeMalformed: 400, fleet.CodeUnauthorized: 401, fleet.CodeNoCredit: 402,
		fleet.CodeForbidden: 403, fleet.CodeQuota: 403, fleet.CodeNotFound: 404, fleet.CodeNotAllowed: 409, fleet.CodeNoCapacity: 400, fleet.CodeStale: 503,
		fleet.CodeExists: 409, fleet.CodeUnavailable: 503, fleet.CodeLimited: 429, fleet.CodeTooLarge: 413, fleet.CodeMediaType: 415,
		fleet.CodeMethod: 405, fleet.CodeInternal: 500, "unheard-of": 500, "": 500,
	} {
		if got := problem.Status(code); got != want {
			t.Errorf("%q: got %d, want %d", code, got, want)
		}
		p := problem.From(&fleet.Error{Code: code}, "r")
		if p.Status != want || p.Detail == "" || p.Title != http.StatusText(want) || p.Code == "" {
			t.Errorf("%q: %+v", code, p)
		}
	}
}

func TestFromHidesCauses(t *testing.T) {
	cause := errors.New("read /secret/path")
	for _, err := range []error{
		cause, fmt.Errorf("open store: %w", cause), &fleet.Error{Code: fleet.CodeInternal, Msg: "/secret/path", Details: []string{"/secret/path"}, Err: cause},
		fleet.Unavailable("there is no leader", cause), fmt.Errorf("/secret/path: %w", fleet.NotFound("pod")), fmt.Errorf("/secret/path: %w", context.DeadlineExceeded),
	} {
		text, _ := json.Marshal(problem.From(err, "r"))
		if strings.Contains(string(text), "secret") {
			t.Errorf("%v: %s", err, text)
		}
	}
}

func TestFromKeepsDetails(t *testing.T) {
	err := fmt.Errorf("create: %w", &fleet.Error{Code: fleet.CodeNoCapacity, Msg: "no room", Excluded: []fleet.Exclusion{{Reason: "GPU type", Hosts: 3}}})
	text, _ := json.Marshal(problem.From(err, "r"))
	want := `{"title":"Bad Request","status":400,"detail":"no room","code":"no_capacity","requestId":"r","excluded":[{"reason":"GPU type","hosts":3}]}`
	if string(text) != want {
		t.Errorf("got  %s\nwant %s", text, want)
	}
}

func TestAnswerLogsCauseWithRequestID(t *testing.T) {
	var log bytes.Buffer
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r = r.WithContext(problem.WithRequestID(r.Context(), "req-9"))
	w := httptest.NewRecorder()
	problem.Answer(w, r, slog.New(slog.NewTextHandler(&log, nil)), errors.New("disk on fire"))
	if w.Code != http.StatusInternalServerError || !strings.Contains(w.Body.String(), `"detail":"internal error"`) {
		t.Error(w.Code, w.Body)
	}
	if !strings.Contains(log.String(), "disk on fire") || !strings.Contains(log.String(), "req-9") {
		t.Error(log.String())
	}
	log.Reset()
	problem.Answer(httptest.NewRecorder(), r, slog.New(slog.NewTextHandler(&log, nil)), fleet.NotFound("pod"))
	if log.Len() > 0 {
		t.Errorf("a caller's mistake is logged: %s", log.String())
	}
}

func TestRetryAfterOfCallerStays(t *testing.T) {
	p := problem.From(&fleet.Error{Code: fleet.CodeLimited, Msg: "later"}, "r")
	for set, want := range map[string]string{"": "1", "58": "58"} {
		w := httptest.NewRecorder()
		if set != "" {
			w.Header().Set("Retry-After", set)
		}
		problem.Write(w, p)
		if got := w.Header().Values("Retry-After"); len(got) != 1 || got[0] != want {
			t.Errorf("set %q: %q", set, got)
		}
	}
}

// TestVersionOneReadsErrorAndMessage looks at the paths where problems have the two members that clients of version 1 read.
func TestVersionOneReadsErrorAndMessage(t *testing.T) {
	err := &fleet.Error{Code: fleet.CodeInvalid, Details: []string{"$.size: must be at least 10"}}
	want := problem.TextInvalid + "\n$.size: must be at least 10"
	for path, old := range map[string]bool{"/v1": true, "/v1/networkvolumes": true, "/v2/pods": false, "/v10": false, "/admin/v1/hosts": false, "/": false} {
		w := httptest.NewRecorder()
		problem.Answer(w, httptest.NewRequest(http.MethodGet, path, nil), slog.New(slog.DiscardHandler), err)
		var got v2.Problem
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		if (got.Error == want && got.Message == want) != old || (got.Error == "" && got.Message == "") == old {
			t.Errorf("%s: %s", path, w.Body)
		}
	}
}
