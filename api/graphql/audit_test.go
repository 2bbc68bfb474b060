package graphql_test

import (
	"regexp"
	"strings"
	"testing"

	"gantry/api/graphql"
	"gantry/fleet"
)

// fields returns the names of all mutations.
func fields(t *testing.T) map[string]bool {
	t.Helper()
	_, text, ok := strings.Cut(graphql.Schema, "type Mutation {")
	text, _, closed := strings.Cut(text, "\n}")
	out := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^  (\w+)[(:]`).FindAllStringSubmatch(text, -1) {
		out[m[1]] = true
	}
	if !ok || !closed || len(out) == 0 {
		t.Fatal("the schema has no mutations")
	}
	return out
}

// TestEveryMutationHasItsLine plays the table of golden answers: a request with mutations that succeed has a line for each, by its
// name, and one that is refused has none. Each mutation has to be among them, but for those that are always refused.
func TestEveryMutationHasItsLine(t *testing.T) {
	left := fields(t)
	delete(left, "updateEndpointTemplate") // changes nothing when it is not refused
	for _, topic := range topics() {
		s := newSite(t)
		if topic.setup != nil {
			topic.setup(t, s.plane)
		}
		before := 0
		for _, r := range topic.rows {
			shown := s.play(t, r)
			page, err := s.plane.Store.Audit(fleet.AuditQuery{Limit: 1000})
			if err != nil {
				t.Fatal(err)
			}
			lines := page.Lines[:len(page.Lines)-before]
			before = len(page.Lines)
			asked := map[string]bool{}
			for field := range fields(t) {
				asked[field] = regexp.MustCompile(`\b` + field + `\b`).MatchString(r.query)
			}
			for _, l := range lines {
				if !asked[l.Operation] || l.Face != "graphql" || l.Account == "" || l.Key == "" || l.Address == "" || l.Status != 200 {
					t.Errorf("%s/%s has the line %+v", topic.name, r.name, l)
				}
				delete(left, l.Operation)
			}
			for field, is := range asked {
				if is && field != "updateEndpointTemplate" && r.name != "settings without any" && len(lines) == 0 && strings.Contains(shown, `"`+field+`": `) && !strings.Contains(shown, `"errors"`) {
					t.Errorf("%s/%s: %s has no line", topic.name, r.name, field)
				}
			}
		}
	}
	for field := range left {
		t.Errorf("no row has the mutation %s succeed", field)
	}
}
