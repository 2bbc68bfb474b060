package rest_test

import (
	"bufio"
	"net/http"
	"strings"
	"testing"
	"time"

	"gantry/api/rest"
	"gantry/fleet"
	"gantry/test/plane"
)

// TestMeasuresFollow reads measures of a pod for longer than the server's limits, until the pod is gone.
func TestMeasuresFollow(t *testing.T) {
	limits := rest.Limits{Header: 100 * time.Millisecond, Read: 100 * time.Millisecond, Write: 100 * time.Millisecond}
	s := newSite(t, nil, limits)
	s.api.SetMeasure(limits.Read)
	id := makePod(t, s.plane, fleet.EventRunning)
	resp := s.open(t, "GET", "/v2/pods/"+string(id)+"/metrics", plane.User, "")
	defer func() { _ = resp.Body.Close() }()
	lines := bufio.NewReader(resp.Body)
	for range 5 {
		if _, data := event(t, lines); !strings.HasPrefix(data, `{"at":"`) || !strings.Contains(data, `"runtime":`) {
			t.Fatalf("a measure is %s", data)
		}
	}
	s.plane.Restrict(plane.User, map[fleet.Group]fleet.Access{})
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if line == "event: error\n" {
			break
		}
	}
}

// TestMeasuresEndWithTheSession: a session that acts in another account follows no pod of the one before.
func TestMeasuresEndWithTheSession(t *testing.T) {
	s := newSite(t, nil, rest.Limits{})
	s.api.SetMeasure(10 * time.Millisecond)
	id := makePod(t, s.plane, fleet.EventRunning)
	ada(fleet.RoleViewer)(t, s.plane)
	session := s.plane.Meant("<session-1>")
	who, err := s.plane.Authenticate(t.Context(), fleet.Secret(session))
	must(t, err)
	resp := s.open(t, "GET", "/v2/pods/"+string(id)+"/metrics", "", "", "Authorization", "Bearer "+session)
	defer func() { _ = resp.Body.Close() }()
	f := &feed{lines: bufio.NewReader(resp.Body)}
	event(t, f.lines)
	must(t, s.plane.ChooseAccount(t.Context(), who, plane.Rival))
	f.ends(t, "forbidden")
}

func TestMeasuresAreBounded(t *testing.T) {
	s := newSite(t, nil, rest.Limits{})
	path := "/v2/pods/" + string(makePod(t, s.plane, fleet.EventRunning)) + "/metrics"
	for range 32 {
		resp := s.open(t, "GET", path, plane.User, "")
		defer func() { _ = resp.Body.Close() }()
		event(t, bufio.NewReader(resp.Body))
	}
	if p := refused(t, s.ask(t, "GET", path, plane.User, ""), http.StatusTooManyRequests); p.Code != fleet.CodeLimited {
		t.Errorf("the 33rd: %+v", p)
	}
}
