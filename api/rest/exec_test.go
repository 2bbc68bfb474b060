package rest_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"gantry/api/rest"
	"gantry/fleet"
	"gantry/test/plane"
)

// shell is a client's end of an exec session.
type shell struct {
	t    *testing.T
	ctx  context.Context //nolint:containedctx // of one test
	conn *websocket.Conn
}

// openShell opens a session in a running pod and sends the first message, unless it is empty.
func openShell(t *testing.T, s *site, id fleet.PodID, first string) *shell {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	dial := func() (*websocket.Conn, *http.Response, error) {
		return websocket.Dial(ctx, strings.Replace(s.base, "http", "ws", 1)+"/v2/pods/"+string(id)+"/exec", &websocket.DialOptions{
			HTTPClient: s.client, HTTPHeader: http.Header{"Authorization": {"Bearer " + plane.KeyText(plane.User).Reveal()}},
		})
	}
	conn, resp, err := dial() //nolint:bodyclose // as above
	// The place of a session that has just ended is free a moment later.
	for err != nil && resp != nil && resp.StatusCode == http.StatusTooManyRequests && ctx.Err() == nil {
		<-time.After(5 * time.Millisecond)
		conn, resp, err = dial() //nolint:bodyclose // as above
	}
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusSwitchingProtocols || resp.Header.Get("RateLimit") == "" || resp.Header.Get("X-Request-Id") == "" {
		t.Errorf("%d %v", resp.StatusCode, resp.Header)
	}
	conn.SetReadLimit(2 << 20)
	t.Cleanup(func() { _ = conn.CloseNow() })
	sh := &shell{t: t, ctx: ctx, conn: conn}
	if first != "" {
		sh.text(first)
	}
	return sh
}

func (s *shell) text(msg string) {
	s.t.Helper()
	if err := s.conn.Write(s.ctx, websocket.MessageText, []byte(msg)); err != nil {
		s.t.Fatal(err)
	}
}

func (s *shell) say(on fleet.ExecChannel, data string) {
	s.t.Helper()
	if err := s.conn.Write(s.ctx, websocket.MessageBinary, append([]byte{byte(on)}, data...)); err != nil {
		s.t.Fatal(err)
	}
}

func (s *shell) hear(on fleet.ExecChannel, want string) {
	s.t.Helper()
	kind, data, err := s.conn.Read(s.ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	if kind != websocket.MessageBinary || len(data) == 0 || data[0] != byte(on) || string(data[1:]) != want {
		s.t.Fatalf("%s %.200q, want %d %.200q", kind, data, on, want)
	}
}

// end reads the last message and the close after it.
func (s *shell) end(status websocket.StatusCode) fleet.ExecResult {
	s.t.Helper()
	_, data, err := s.conn.Read(s.ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	var how fleet.ExecResult
	if data[0] != byte(fleet.ExecExit) || json.Unmarshal(data[1:], &how) != nil {
		s.t.Fatalf("the last message is %.200q", data)
	}
	if _, _, err := s.conn.Read(s.ctx); websocket.CloseStatus(err) != status {
		s.t.Errorf("closed with %v, want %d", err, status)
	}
	return how
}

// refusedWith reads the end of a session that was refused.
func (s *shell) refusedWith(text string) {
	s.t.Helper()
	if how := s.end(websocket.StatusNormalClosure); how.Code != -1 || !strings.Contains(how.Error, text) {
		s.t.Errorf("%+v, want %q", how, text)
	}
}

// noSessions waits until the hosts hold no session any more.
func noSessions(t *testing.T, p *plane.Plane) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); p.Sessions() > 0; {
		if time.Now().After(deadline) {
			t.Fatalf("%d sessions are still open", p.Sessions())
		}
		<-time.After(5 * time.Millisecond)
	}
}

func TestExec(t *testing.T) {
	limits := rest.Limits{Header: 100 * time.Millisecond, Read: 100 * time.Millisecond, Write: 100 * time.Millisecond, Idle: 100 * time.Millisecond}
	s := newSite(t, nil, limits)
	id := makePod(t, s.plane, fleet.EventRunning)

	sh := openShell(t, s, id, `{"command":["echo","a b","c"]}`)
	sh.hear(fleet.ExecStdout, "a b c\n")
	if how := sh.end(websocket.StatusNormalClosure); how != (fleet.ExecResult{}) {
		t.Errorf("%+v", how)
	}
	sh = openShell(t, s, id, `{"command":["fail"]}`)
	sh.hear(fleet.ExecStderr, "failed\n")
	if how := sh.end(websocket.StatusNormalClosure); how.Code != 3 || how.Error != "" {
		t.Errorf("%+v", how)
	}
	sh = openShell(t, s, id, `{"command":["cat"],"stdin":true}`)
	big := strings.Repeat("x", 1<<20-1)
	for _, text := range []string{"one", big, "after the server's limits"} {
		sh.say(fleet.ExecStdin, text)
		sh.hear(fleet.ExecStdout, text)
		<-time.After(2 * limits.Read)
	}
	sh.say(fleet.ExecStdin, "") // nothing, which is not the end
	sh.say(fleet.ExecStdinEnd, "")
	if how := sh.end(websocket.StatusNormalClosure); how != (fleet.ExecResult{}) {
		t.Errorf("%+v", how)
	}
	sh = openShell(t, s, id, `{"command":["size"],"tty":true,"cols":100,"rows":40,"term":"xterm-256color"}`)
	sh.hear(fleet.ExecStdout, `{"cols":100,"rows":40}`+"\n")
	sh.say(fleet.ExecResize, `{"cols":1,"rows":65535}`)
	sh.hear(fleet.ExecStdout, `{"cols":1,"rows":65535}`+"\n")
	if err := sh.conn.Close(websocket.StatusNormalClosure, ""); err != nil { // the process is killed
		t.Error(err)
	}
	noSessions(t, s.plane)
}

// TestExecRefusesMessages sends what a session does not take.
func TestExecRefusesMessages(t *testing.T) {
	s := newSite(t, nil, rest.Limits{})
	id := makePod(t, s.plane, fleet.EventRunning)
	for first, want := range map[string]string{
		`{`: "broken", `[]`: "object", `{}`: "missing property 'command'", `{"command":[]}`: "at least 1 item", `{"command":[""]}`: "$.command[0]: must not be empty",
		`{"command":["a\u0000"]}`: "NUL", `{"command":["a"],"env":{}}`: "'env' not allowed", `{"command":["a"],"command":["b"]}`: "twice", `{"command":["a"],"cols":0}`: "$.cols",
		`{"command":["a"],"term":"a b"}`: "$.term", `{"command":"ls"}`: "want array", `{"command":["no-such-program"]}`: "",
	} {
		sh := openShell(t, s, id, first)
		if want == "" {
			if how := sh.end(websocket.StatusNormalClosure); how.Code != 127 || how.Error == "" {
				t.Errorf("%+v", how)
			}
			continue
		}
		sh.refusedWith(want)
	}
	sh := openShell(t, s, id, "")
	sh.say(fleet.ExecStdin, "x")
	sh.refusedWith("must be text")
	const cat, hang = `{"command":["cat"],"stdin":true}`, `{"command":["hang"],"tty":true}`
	for _, c := range []struct {
		first, want string
		send        func(*shell)
	}{
		{cat, "must be binary", func(sh *shell) { sh.text("x") }},
		{cat, "no such channel", func(sh *shell) { sh.say(fleet.ExecStdout, "x") }},
		{cat, "no such channel", func(sh *shell) { sh.say(200, "x") }},
		{hang, "no input", func(sh *shell) { sh.say(fleet.ExecStdin, "x") }},
		{hang, "no input", func(sh *shell) { sh.say(fleet.ExecStdinEnd, "") }},
		{hang, "$.rows", func(sh *shell) { sh.say(fleet.ExecResize, `{"cols":80,"rows":0}`) }},
		{hang, "broken", func(sh *shell) { sh.say(fleet.ExecResize, `{`) }},
	} {
		sh := openShell(t, s, id, c.first)
		c.send(sh)
		sh.refusedWith(c.want)
	}
	s.plane.SetReachable(plane.Host, false)
	openShell(t, s, id, `{"command":["echo"]}`).refusedWith("cannot be reached")
	noSessions(t, s.plane)
}

func TestExecMessageIsBounded(t *testing.T) {
	s := newSite(t, nil, rest.Limits{})
	sh := openShell(t, s, makePod(t, s.plane, fleet.EventRunning), `{"command":["cat"],"stdin":true}`)
	_ = sh.conn.Write(sh.ctx, websocket.MessageBinary, make([]byte, 1<<20+1)) // may fail when the server closes first
	if _, _, err := sh.conn.Read(sh.ctx); err == nil {
		t.Error("a message of more than 1 MiB was taken")
	}
	noSessions(t, s.plane)
}

// TestExecEndsWithClient lets the client vanish without a word.
func TestExecEndsWithClient(t *testing.T) {
	s := newSite(t, nil, rest.Limits{})
	sh := openShell(t, s, makePod(t, s.plane, fleet.EventRunning), `{"command":["size"],"tty":true}`)
	sh.hear(fleet.ExecStdout, `{"cols":0,"rows":0}`+"\n")
	if err := sh.conn.CloseNow(); err != nil {
		t.Error(err)
	}
	noSessions(t, s.plane)
}

// TestExecEndsWithTheAPI closes the API while a program runs, and while a first message is waited for.
func TestExecEndsWithTheAPI(t *testing.T) {
	s := newSite(t, nil, rest.Limits{})
	id := makePod(t, s.plane, fleet.EventRunning)
	waiting := openShell(t, s, id, "")
	running := openShell(t, s, id, `{"command":["size"],"tty":true}`)
	running.hear(fleet.ExecStdout, `{"cols":0,"rows":0}`+"\n")
	s.api.Close()
	for _, sh := range []*shell{waiting, running} {
		if how := sh.end(websocket.StatusGoingAway); how.Error == "" {
			t.Errorf("%+v", how)
		}
	}
	noSessions(t, s.plane)
}

func TestExecSessionsAreLimited(t *testing.T) {
	s := newSite(t, nil, rest.Limits{})
	id := makePod(t, s.plane, fleet.EventRunning)
	var last *shell
	for range 64 {
		last = openShell(t, s, id, `{"command":["size"],"tty":true}`)
		last.hear(fleet.ExecStdout, `{"cols":0,"rows":0}`+"\n")
	}
	header := []string{"Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA=="}
	if p := refused(t, s.ask(t, "GET", "/v2/pods/"+string(id)+"/exec", plane.User, "", header...), http.StatusTooManyRequests); p.Code != fleet.CodeLimited {
		t.Error(p)
	}
	if err := last.conn.Close(websocket.StatusNormalClosure, ""); err != nil {
		t.Error(err)
	}
	openShell(t, s, id, `{"command":["echo","again"]}`).hear(fleet.ExecStdout, "again\n")
}

// lossy starts sessions that break.
type lossy struct{ rest.Service }

type brokenSession struct{ fleet.ExecSession }

func (brokenSession) Send(fleet.ExecFrame) error { return errors.New("read /var/lib/secret") }
func (brokenSession) Receive() (fleet.ExecFrame, error) {
	return fleet.ExecFrame{}, errors.New("read /var/lib/secret")
}
func (brokenSession) Close() error { return nil }

func (lossy) ExecPod(context.Context, fleet.Principal, fleet.PodID, fleet.ExecRequest) (fleet.ExecSession, error) {
	return brokenSession{}, nil
}

func TestExecHidesCauses(t *testing.T) {
	s := newSite(t, func(cfg *rest.Config) { cfg.Service = lossy{cfg.Service} }, rest.Limits{})
	how := openShell(t, s, makePod(t, s.plane, fleet.EventRunning), `{"command":["echo"]}`).end(websocket.StatusNormalClosure)
	if how.Error != "internal error" {
		t.Errorf("%+v", how)
	}
}
