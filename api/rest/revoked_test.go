package rest_test

import (
	"bufio"
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"gantry/api/rest"
	"gantry/fleet"
	"gantry/test/plane"
)

// doubtful cannot tell for a while who has a key.
type doubtful struct {
	rest.Service
	down  *atomic.Bool
	asked *atomic.Int64
}

func (d doubtful) Authenticate(ctx context.Context, key fleet.Secret) (fleet.Principal, error) {
	d.asked.Add(1)
	if d.down.Load() {
		return fleet.Principal{}, fleet.Unavailable("no leader", nil)
	}
	return d.Service.Authenticate(ctx, key)
}

// TestStreamsEndWithTheSession: a log that is followed and a program that runs end soon after a person's session, its role or its account
// has changed, or a key is gone, and not before.
func TestStreamsEndWithTheSession(t *testing.T) {
	for name, c := range map[string]struct {
		key, says string
		end       func(*testing.T, *plane.Plane, fleet.Principal)
	}{
		"session ended": {"", "unauthorized", func(t *testing.T, p *plane.Plane, who fleet.Principal) { must(t, p.SignOut(t.Context(), who)) }},
		"other account": {"", "forbidden", func(t *testing.T, p *plane.Plane, who fleet.Principal) {
			must(t, p.ChooseAccount(t.Context(), who, plane.Rival))
		}},
		"key may less": {plane.User, "forbidden", func(_ *testing.T, p *plane.Plane, _ fleet.Principal) {
			p.Restrict(plane.User, map[fleet.Group]fleet.Access{})
		}},
		"key deleted": {plane.User, "unauthorized", func(t *testing.T, p *plane.Plane, who fleet.Principal) {
			must(t, p.DeleteKey(t.Context(), who, who.Key))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var down atomic.Bool
			var asked atomic.Int64
			s := newSite(t, func(cfg *rest.Config) { cfg.Service = doubtful{cfg.Service, &down, &asked} }, rest.Limits{})
			s.api.SetAgain(5 * time.Millisecond)
			id := makePod(t, s.plane, fleet.EventRunning)
			ada(fleet.RoleOwner)(t, s.plane)
			key := s.plane.Meant("<session-1>")
			if c.key != "" {
				key = plane.KeyText(c.key).Reveal()
			}
			who, err := s.plane.Authenticate(t.Context(), fleet.Secret(key))
			must(t, err)
			resp := s.open(t, "GET", "/v2/pods/"+string(id)+"/logs", "", "", "Authorization", "Bearer "+key)
			defer func() { _ = resp.Body.Close() }()
			log := &feed{lines: bufio.NewReader(resp.Body)}
			sh := openShellAs(t, s, id, key, `{"command":["cat"],"stdin":true}`)
			waiting := openShellAs(t, s, id, key, "")

			down.Store(true)
			for n := asked.Load() + 20; asked.Load() < n; {
				<-time.After(time.Millisecond)
			}
			down.Store(false)
			for n := asked.Load() + 20; asked.Load() < n; {
				<-time.After(time.Millisecond)
			}
			s.plane.Log(id, "container", "still here")
			if _, data := event(t, log.lines); !strings.Contains(data, "still here") {
				t.Fatal(data)
			}
			sh.say(fleet.ExecStdin, "still here")
			sh.hear(fleet.ExecStdout, "still here")

			c.end(t, s.plane, who)
			log.ends(t, c.says)
			for _, sh := range []*shell{sh, waiting} {
				if how := sh.end(websocket.StatusNormalClosure); how.Code != -1 || how.Error == "" || strings.Contains(how.Error, "shuts down") {
					t.Errorf("%+v", how)
				}
			}
			noSessions(t, s.plane)
		})
	}
}

// TestStreamsAreCheckedInTime: what a session may end is asked for often enough.
func TestStreamsAreCheckedInTime(t *testing.T) {
	s := newSite(t, nil, rest.Limits{})
	lines, _ := follow(t, s, makePod(t, s.plane, fleet.EventRunning))
	begun := time.Now()
	s.plane.Restrict(plane.User, map[fleet.Group]fleet.Access{})
	(&feed{lines: lines}).ends(t, "forbidden")
	if took := time.Since(begun); took > 30*time.Second { // two, and the machine's time
		t.Errorf("the log went on for %s", took)
	}
}

func openShellAs(t *testing.T, s *site, id fleet.PodID, key, first string) *shell {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	conn, _, err := websocket.Dial(ctx, strings.Replace(s.base, "http", "ws", 1)+"/v2/pods/"+string(id)+"/exec", &websocket.DialOptions{ //nolint:bodyclose // it is hijacked
		HTTPClient: s.client, HTTPHeader: http.Header{"Authorization": {"Bearer " + key}},
	})
	must(t, err)
	t.Cleanup(func() { _ = conn.CloseNow() })
	sh := &shell{t: t, ctx: ctx, conn: conn}
	if first != "" {
		sh.text(first)
	}
	return sh
}
