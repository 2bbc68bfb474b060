package graphql_test

import (
	"encoding/json"
	"testing"
	"time"

	"gantry/test/plane"
)

// FuzzRequest sends documents and variables: each is answered in time, with a status that is meant, and with JSON.
func FuzzRequest(f *testing.F) {
	s := newSite(f)
	for _, topic := range topics() {
		for _, r := range topic.rows {
			f.Add(r.query, r.variables)
		}
	}
	for _, c := range hostile() {
		if len(c.query) < 20_000 && c.name != "introspection that multiplies" {
			f.Add(c.query, "")
		}
	}
	f.Add(introspection, "{}")
	f.Fuzz(func(t *testing.T, query, variables string) {
		if len(query)+len(variables) > 100_000 {
			return
		}
		data, err := json.Marshal(query)
		if err != nil {
			t.Fatal(err)
		}
		sent := `{"query":` + string(data)
		if json.Valid([]byte(variables)) {
			sent += `,"variables":` + variables
		}
		start := time.Now()
		got := s.send(plane.User, sent+"}")
		switch got.status {
		case 200, 400:
		default:
			t.Errorf("%d %.300s", got.status, got.body)
		}
		var out struct {
			Errors []struct{ Message string }
			Data   any
		}
		if err := json.Unmarshal([]byte(got.body), &out); err != nil {
			t.Errorf("%v: %.300s", err, got.body)
		}
		if got.status == 400 && (len(out.Errors) == 0 || out.Data != nil) {
			t.Errorf("%.300s", got.body)
		}
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("it took %s", took)
		}
	})
}
