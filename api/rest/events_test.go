package rest_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"gantry/api/rest"
	"gantry/api/v2"
	"gantry/fleet"
	"gantry/test/plane"
)

// feed is an open stream of events.
type feed struct {
	t     *testing.T
	lines *bufio.Reader
	leave func()
}

// watch opens a stream of events and reads its first, which is of the type.
func watch(t *testing.T, s *site, path, key string, first fleet.EventType, header ...string) *feed {
	t.Helper()
	resp := s.open(t, "GET", path, key, "", header...) //nolint:bodyclose // leave closes it
	f := &feed{t, bufio.NewReader(resp.Body), func() { _ = resp.Body.Close() }}
	t.Cleanup(f.leave)
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatal(resp.Status)
	}
	if e := f.next(); e.Type != string(first) {
		t.Fatalf("the first event is %+v, want %s", e, first)
	}
	return f
}

// next returns the next event.
func (f *feed) next() v2.Event {
	f.t.Helper()
	id, data := event(f.t, f.lines)
	var e v2.Event
	if err := json.Unmarshal([]byte(data), &e); err != nil || e.EventID != id {
		f.t.Fatalf("%v: %s: %s", err, id, data)
	}
	return e
}

// said is an event in words.
func said(e v2.Event) string {
	return strings.TrimSpace(fmt.Sprint(e.Kind, " ", e.ID, " ", e.Type, " ", string(e.Status)))
}

// has returns a member of an event's record.
func has(e v2.Event, name string) any {
	record, _ := e.Record.(map[string]any)
	return record[name]
}

func TestEventsTellALifeAndGoOnBehindTheLast(t *testing.T) {
	s := newSite(t, nil, rest.Limits{})
	f := watch(t, s, "/v2/events", plane.User, fleet.EventReady)
	id := makePod(t, s.plane, fleet.EventRunning)
	var last string
	for _, want := range []string{"pod " + string(id) + " created PROVISIONING", "pod " + string(id) + " changed RUNNING"} {
		e := f.next()
		if said(e) != want || has(e, "id") != string(id) || e.At == nil || e.At.Time != s.plane.Now() {
			t.Fatalf("%+v, want %s", e, want)
		}
		if last == "" {
			last = e.EventID
		}
	}
	must(t, second(s.plane.ActPod(t.Context(), s.plane.Who(plane.User), id, fleet.ActionTerminate)))
	ended := f.next()
	if said(ended) != "pod "+string(id)+" changed TERMINATED" || has(ended, "status") != "TERMINATED" {
		t.Fatalf("%+v", ended)
	}
	f.leave()
	again := watch(t, s, "/v2/events?kind=pod,volume&id="+string(id), plane.User, fleet.EventReady, "Last-Event-ID", last)
	if e := again.next(); said(e) != "pod "+string(id)+" changed RUNNING" || has(e, "status") != "TERMINATED" {
		t.Errorf("behind %s comes %+v", last, e)
	}
	if e := again.next(); e.EventID != ended.EventID {
		t.Errorf("then comes %+v, want %s", e, ended.EventID)
	}
}

func second[T any](_ T, err error) error { return err }

// TestEveryNounHasEvents changes one thing of each kind and wants its events, no secret in any, and none for another account.
func TestEveryNounHasEvents(t *testing.T) {
	s := newSite(t, unhindered, rest.Limits{})
	must(t, s.plane.PutDataCenter(t.Context(), fleet.DataCenter{ID: "dev-1", Name: "Development 1", Region: "EUROPE", Country: "RO", GlobalNetwork: true}))
	f := watch(t, s, "/v2/events", plane.User, fleet.EventReady)
	stranger := watch(t, s, "/v2/events", plane.Other, fleet.EventReady)
	ctx, who := t.Context(), s.plane.Who(plane.User)
	const hidden = "s3cret-value"
	request(t, s.plane, networked("trainer"))
	registry := makeRegistry(t, s.plane)
	makeTemplate(t, s.plane, nil)
	makeEndpoint(t, s.plane, func(*fleet.EndpointSpec) {})
	must(t, second(s.plane.PutSecret(ctx, who, "TOKEN", hidden)))
	must(t, s.plane.DeleteSecret(ctx, who, "TOKEN"))
	must(t, s.plane.SetSSHKeys(ctx, who, []string{sshKey}))
	key, text, err := s.plane.CreateS3Key(ctx, who, fleet.S3KeyRequest{Name: "laptop"})
	must(t, err)
	made := s.ask(t, "POST", "/v2/account/keys", plane.User, `{"name":"ci"}`)
	if made.status != http.StatusCreated {
		t.Fatal(made.body)
	}
	must(t, s.plane.DeleteRegistry(ctx, who, registry))
	want := []string{
		"pod", "network", "registry", "template", "endpoint", "secret TOKEN created", "secret TOKEN deleted", "ssh-keys", "s3-key " + key.ID, "key",
		"registry " + string(registry) + " deleted",
	}
	var all []v2.Event
	for len(want) > 0 {
		e := f.next()
		all = append(all, e)
		raw, err := json.Marshal(e)
		must(t, err)
		for _, secret := range []string{hidden, text.Reveal(), "robot:"} {
			if strings.Contains(string(raw), secret) {
				t.Errorf("an event holds a secret: %s", raw)
			}
		}
		want = slices.DeleteFunc(want, func(w string) bool { return strings.HasPrefix(said(e), w) })
	}
	for _, e := range all {
		switch e.Kind {
		case "registry", "template", "endpoint", "key":
			if e.Type == "created" && e.ID != string(registry) && has(e, "id") != e.ID {
				t.Errorf("%s has the record %v", said(e), e.Record)
			}
		}
	}
	must(t, s.plane.SetSSHKeys(ctx, s.plane.Who(plane.Other), []string{sshKey}))
	if e := stranger.next(); e.Kind != "ssh-keys" || e.ID == string(plane.Research) {
		t.Errorf("another account sees %+v", e)
	}
}

func TestEventsNeedTheirPermission(t *testing.T) {
	s := newSite(t, nil, rest.Limits{})
	s.plane.Restrict(plane.User, map[fleet.Group]fleet.Access{fleet.GroupAccount: fleet.AccessRead, fleet.GroupTemplates: fleet.AccessRead})
	refused(t, s.ask(t, "GET", "/v2/events?kind=pod", plane.User, ""), http.StatusForbidden)
	refused(t, s.ask(t, "GET", "/v2/events?kind=template,pod", plane.User, ""), http.StatusForbidden)
	refused(t, s.ask(t, "GET", "/admin/v1/events", plane.User, ""), http.StatusForbidden)
	f := watch(t, s, "/v2/events", plane.User, fleet.EventReady)
	makePod(t, s.plane)
	template := makeTemplate(t, s.plane, nil)
	if e := f.next(); e.ID != string(template) {
		t.Errorf("a key that may read templates alone sees %+v", e)
	}
}

func TestEventsEndWithTheKey(t *testing.T) {
	s := newSite(t, nil, rest.Limits{})
	s.api.SetPing(10 * time.Millisecond)
	f := watch(t, s, "/v2/events", plane.User, fleet.EventReady)
	s.plane.Restrict(plane.User, map[fleet.Group]fleet.Access{fleet.GroupAccount: fleet.AccessRead})
	f.ends(t, "forbidden")
}

// TestEventsEndWithTheSession: of an account that the session left, nothing more is told.
func TestEventsEndWithTheSession(t *testing.T) {
	for name, tt := range map[string]struct {
		code string
		end  func(*plane.Plane, fleet.Principal) error
	}{
		"another account": {"forbidden", func(p *plane.Plane, who fleet.Principal) error { return p.ChooseAccount(t.Context(), who, plane.Rival) }},
		"signed out":      {"unauthorized", func(p *plane.Plane, who fleet.Principal) error { return p.SignOut(t.Context(), who) }},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, nil, rest.Limits{})
			s.api.SetPing(10 * time.Millisecond)
			ada(fleet.RoleViewer)(t, s.plane)
			session := s.plane.Meant("<session-1>")
			who, err := s.plane.Authenticate(t.Context(), fleet.Secret(session))
			must(t, err)
			f := watch(t, s, "/v2/events?kind=pod", "", fleet.EventReady, "Authorization", "Bearer "+session)
			must(t, tt.end(s.plane, who))
			f.ends(t, tt.code)
		})
	}
}

// ends waits for the event that ends a stream.
func (f *feed) ends(t *testing.T, code string) {
	t.Helper()
	for {
		line, err := f.lines.ReadString('\n')
		if err != nil {
			t.Fatal("the stream ended without an error event")
		}
		if line == "event: error\n" {
			break
		}
	}
	if data, err := f.lines.ReadString('\n'); err != nil || !strings.Contains(data, `"code":"`+code+`"`) {
		t.Errorf("%v: %s", err, data)
	}
}

// TestAnIdleStreamSaysWhereItIs: a client that reconnects much later misses nothing, and is not told to read all again.
func TestAnIdleStreamSaysWhereItIs(t *testing.T) {
	s := newSite(t, nil, rest.Limits{})
	s.api.SetPing(10 * time.Millisecond)
	f := watch(t, s, "/v2/events?kind=template", plane.User, fleet.EventReady)
	makePod(t, s.plane)
	var end fleet.EventPlace
	for want := s.plane.Place(); end != want; {
		line, err := f.lines.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if id, ok := strings.CutPrefix(line, "id: "); ok {
			end, _ = fleet.ParseEventPlace(strings.TrimSpace(id))
		}
	}
}

func TestEventsThatAreNotKnownAnyMore(t *testing.T) {
	s := newSite(t, nil, rest.Limits{})
	for name, id := range map[string]string{
		"of another lineage": "7-1-1", "of the future": "0-18446744073709551615-1", "before this member": "0-0-1",
	} {
		t.Run(name, func(t *testing.T) {
			f := watch(t, s, "/v2/events", plane.User, fleet.EventReset, "Last-Event-ID", id)
			makeTemplate(t, s.plane, nil)
			if e := f.next(); e.Kind != "template" {
				t.Errorf("%+v", e)
			}
		})
	}
}

func TestEventStreamsAreLimited(t *testing.T) {
	s := newSite(t, unhindered, rest.Limits{})
	for range 32 {
		watch(t, s, "/v2/events", plane.User, fleet.EventReady)
	}
	if p := refused(t, s.ask(t, "GET", "/v2/events", plane.User, ""), http.StatusTooManyRequests); p.Code != fleet.CodeLimited {
		t.Error(p)
	}
	watch(t, s, "/v2/events", plane.Other, fleet.EventReady)
	got := s.ask(t, "HEAD", "/v2/events", plane.Other, "")
	if got.status != http.StatusOK || got.body != "" {
		t.Error(got)
	}
}

func TestOperatorsSeeTheFleet(t *testing.T) {
	s := newSite(t, nil, rest.Limits{})
	f := watch(t, s, "/admin/v1/events", plane.Operator, fleet.EventReady)
	only := watch(t, s, "/admin/v1/events?kind=account", plane.Operator, fleet.EventReady)
	makePod(t, s.plane)
	host := s.plane.HostIDs(t)[0]
	if got := s.ask(t, "POST", "/admin/v1/hosts/"+host+"/cordon", plane.Operator, ""); got.status/100 != 2 {
		t.Fatal(got.body)
	}
	if e := f.next(); e.Kind != "host" || e.ID != host || has(e, "id") != host {
		t.Errorf("%+v", e)
	}
	if got := s.ask(t, "PATCH", "/admin/v1/accounts/"+string(plane.Research), plane.Operator, `{"name":"renamed"}`); got.status != http.StatusOK {
		t.Fatal(got.body)
	}
	if e := only.next(); e.Kind != "account" || has(e, "name") != "renamed" {
		t.Errorf("%+v", e)
	}
}

func eventRows() []row {
	v := func(name, rule, query string, header ...string) row {
		return row{topic: "events", name: name, rule: rule, method: "GET", path: "/v2/events?" + query, key: plane.User, header: header}
	}
	ids := strings.TrimSuffix(strings.Repeat("a,", 101), ",")
	return []row{
		v("kind-unknown", "422 enum", "kind=job"),
		v("kind-operators", "422 enum", "kind=host"),
		v("ids-many", "422 bound", "id="+ids),
		v("after-text", "422 pattern", "", "Last-Event-ID", "x"),
		v("after-negative", "422 pattern", "", "Last-Event-ID", "-1-2-3"),
		v("after-huge", "422 pattern", "", "Last-Event-ID", "1-999999999999999999999-1"),
		v("after-twice", "422 pattern", "", "Last-Event-ID", "1-2-3\n1-2-4"),
		{topic: "events", name: "operator-kind", rule: "422 enum", method: "GET", path: "/admin/v1/events?kind=pod", key: plane.Operator},
		{topic: "events", name: "operator-only", rule: "403 key without the permission", method: "GET", path: "/admin/v1/events", key: plane.User},
	}
}
