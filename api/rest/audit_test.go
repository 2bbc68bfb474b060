package rest_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"gantry/api/rest"
	"gantry/api/v2"
	"gantry/fleet"
	"gantry/test/plane"
)

// lines returns the audit log, newest first, also while there is no leader.
func (s *site) lines(t *testing.T) []fleet.AuditLine {
	t.Helper()
	page, err := s.plane.Store.Audit(fleet.AuditQuery{Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	return page.Lines
}

// TestEveryChangeHasItsLine plays the table of golden answers: a change has one line, and what is refused, or answered again, has none.
// Each route of each face that changes something has to be among them.
func TestEveryChangeHasItsLine(t *testing.T) {
	first, mux, left := newSite(t, nil, rest.Limits{}), http.NewServeMux(), map[string]bool{}
	faces := map[string]string{}
	for _, face := range first.faces() {
		for _, rt := range face.Routes() {
			if pattern := rt.Method + " " + rt.Path; rt.Method != http.MethodGet {
				mux.Handle(pattern, http.NotFoundHandler())
				left[pattern] = true
				faces[pattern] = strings.Split(rt.Path, "/")[1]
			}
		}
	}
	const files = "PUT /v2/pods/{id}/files" // changes no record, and schedulers that do not lead serve it
	for _, r := range allRows() {
		_, pattern := mux.Handler(httptest.NewRequest(r.method, strings.SplitN(r.path, "?", 2)[0], nil))
		if r.method == http.MethodGet || pattern == "" || strings.Contains(pattern, "/registries/delegations") { // which are always refused
			delete(left, pattern)
			continue
		}
		t.Run(r.topic+"/"+r.name, func(t *testing.T) {
			s, ask := prepare(t, r)
			before, who := len(s.lines(t)), s.signedIn(t, r)
			got := ask()
			lines := s.lines(t)
			lines = lines[:len(lines)-before]
			done := got.status < 300 && got.header.Get("Idempotent-Replayed") == "" && pattern != files && !strings.Contains(r.path, "dryRun=true")
			members := strings.Contains(pattern, " /admin/v1/cluster/members/") || strings.HasSuffix(pattern, "/cluster/transfer")
			if !done {
				if len(lines) != 0 && !members {
					t.Errorf("%s was answered with %d, and has lines: %+v", got.request, got.status, lines)
				}
				delete(left, files)
				return
			}
			delete(left, pattern)
			if len(lines) != 1 {
				t.Fatalf("%s was answered with %d, and has %d lines: %+v", got.request, got.status, len(lines), lines)
			}
			if r.key != "" {
				who = s.plane.Who(r.key)
			}
			l := lines[0]
			if l.Account != who.Account || l.Key != string(who.Key) && l.Key != string(who.Pod) && l.Key != string(who.Session) || l.Person != who.Person || l.Key == "" || l.Operation == "" ||
				l.Face != faces[pattern] || l.Operator != (l.Face == "admin") || l.Address != "127.0.0.1" || l.Status != got.status && got.status != http.StatusNoContent || !l.At.Equal(s.plane.Now()) {
				t.Errorf("%s %d: %+v", got.request, got.status, l)
			}
			path, err := url.PathUnescape(got.request)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(pattern, "{id}") && !strings.Contains(path, l.Object) || l.Object == "" && got.status == http.StatusCreated {
				t.Errorf("%s is about %q", got.request, l.Object)
			}
		})
	}
	for pattern := range left {
		t.Errorf("no row has %s succeed", pattern)
	}
}

// TestAuditIsReadByThoseWhoMay reads lines with keys of two accounts, with one that lacks the permission, and as an operator.
func TestAuditIsReadByThoseWhoMay(t *testing.T) {
	s := newSite(t, nil, rest.Limits{})
	for _, key := range []string{plane.User, plane.Other} {
		if got := s.ask(t, "PATCH", "/v2/account", key, `{"spendLimit":5}`); got.status != http.StatusOK {
			t.Fatal(got)
		}
	}
	read := func(path, key string) (accounts []string) {
		t.Helper()
		got := s.ask(t, "GET", path, key, "")
		var out v2.AuditLog
		if err := json.Unmarshal([]byte(got.body), &out); err != nil || got.status != http.StatusOK {
			t.Fatal(got, err)
		}
		for _, l := range out.Lines {
			accounts = append(accounts, l.AccountID)
		}
		return accounts
	}
	own, others := string(s.plane.Who(plane.User).Account), string(s.plane.Who(plane.Other).Account)
	for _, c := range []struct {
		path, key string
		want      []string
	}{
		{"/v2/audit", plane.User, []string{own}},
		{"/v2/audit", plane.Other, []string{others}},
		{"/v2/audit?accountId=" + others, plane.User, []string{own}},
		{"/v2/audit", plane.Operator, nil},
		{"/admin/v1/audit", plane.Operator, []string{others, own}},
		{"/admin/v1/audit?accountId=" + own, plane.Operator, []string{own}},
	} {
		if got := read(c.path, c.key); !slices.Equal(got, c.want) {
			t.Errorf("%s with the key of %s shows lines of %v, want %v", c.path, c.key, got, c.want)
		}
	}
	refused(t, s.ask(t, "GET", "/admin/v1/audit", plane.User, ""), http.StatusForbidden)
	s.plane.Restrict(plane.User, map[fleet.Group]fleet.Access{fleet.GroupPods: fleet.AccessWrite})
	refused(t, s.ask(t, "GET", "/v2/audit", plane.User, ""), http.StatusForbidden)
	if lines := s.lines(t); len(lines) != 2 {
		t.Errorf("reading left lines: %+v", lines)
	}
}

// TestAuditIsExported exports more lines than are read at a time.
func TestAuditIsExported(t *testing.T) {
	s := newSite(t, nil, rest.Limits{})
	who := s.plane.Who(plane.User)
	const lines = 2100
	for range lines {
		if err := s.plane.NoteAudit(fleet.WithAudit(t.Context(), fleet.AuditLine{Account: who.Account, Operation: "o", Face: "v2"})); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		query, accept string
		want          int
	}{{"?format=jsonl", "", lines}, {"", "application/x-ndjson", lines}, {"?limit=1500", "application/x-ndjson", 1500}, {"?format=jsonl&operation=none", "", 0}} {
		got := s.ask(t, "GET", "/v2/audit"+c.query, plane.User, "", "Accept", c.accept)
		n := strings.Count(got.body, "\n")
		if got.status != http.StatusOK || n != c.want || got.header.Get("Content-Type") != "application/x-ndjson" {
			t.Errorf("%+v: %d %v, %d lines", c, got.status, got.header, n)
		}
		for line := range strings.Lines(got.body) {
			if !json.Valid([]byte(line)) {
				t.Fatalf("%q is not JSON", line)
			}
		}
	}
}
