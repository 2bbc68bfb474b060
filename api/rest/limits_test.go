package rest_test

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"

	"gantry/api/limit"
	"gantry/api/problem"
	"gantry/api/rest"
	"gantry/client"
	"gantry/fleet"
	"gantry/test/plane"
)

func quotas(minute, hour, day int) func(*rest.Config) {
	return func(cfg *rest.Config) { cfg.Rates = limit.Quotas{Minute: minute, Hour: hour, Day: day} }
}

func limitRows() []row {
	list := func(name, rule string, before int, config func(*rest.Config)) row {
		return row{topic: "limits", name: name, rule: rule, method: "GET", path: "/v2/pods", key: plane.User, before: before, config: config}
	}
	guess := list("failures", "429 failed authentications", 2, func(cfg *rest.Config) { cfg.Failures = 2 })
	guess.key = "nobody"
	miss := list("unknown-paths", "429 unknown paths", 2, func(cfg *rest.Config) { cfg.Failures = 2 })
	miss.path, miss.key = "/v2/no/such/path", ""
	wander := list("unknown-paths-of-an-account", "429 unknown paths", 2, quotas(2, 3, 4))
	wander.path = "/v2/no/such/path"
	forbidden := list("forbidden-counts", "rate headers", 1, nil)
	forbidden.path = "/admin/v1/hosts"
	own := func(name, rule string, before int, q fleet.Quotas) row {
		r := list(name, rule, before, quotas(2, 3, 4))
		r.setup = func(_ *testing.T, p *plane.Plane) { p.SetQuotas(plane.User, q) }
		return r
	}
	late := list("window-of-minute", "429 quota of a window", 2, quotas(2, 3, 4))
	return []row{
		late, guess, forbidden, miss, wander,
		list("last", "rate headers", 1, quotas(2, 3, 4)),
		list("window-of-hour", "429 quota of a window", 2, quotas(0, 2, 4)),
		list("several-windows", "429 quota of a window", 2, quotas(2, 2, 2)),
		list("one-window", "rate headers", 0, quotas(100_000, 0, 0)),
		list("no-quota", "rate headers", 0, quotas(0, 0, 0)),
		own("own-more", "quotas of the account", 3, fleet.Quotas{Minute: 10, Hour: 20, Day: 30}), own("own-less", "429 quota of a window", 1, fleet.Quotas{Minute: 1}),
		own("own-only-day", "quotas of the account", 0, fleet.Quotas{Day: 5}), own("own-taken-away", "quotas of the account", 0, fleet.Quotas{}),
	}
}

// TestBurstNeverPassesQuota sends more requests at once than the minute's quota, in two windows.
func TestBurstNeverPassesQuota(t *testing.T) {
	const burst = 200
	s := newSite(t, nil, rest.Limits{})
	for range 2 {
		var passed, refusals atomic.Int64
		var wg sync.WaitGroup
		for range burst {
			wg.Go(func() {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.base+"/v2/pods", nil)
				if err != nil {
					t.Error(err)
					return
				}
				req.Header.Set("Authorization", "Bearer "+plane.KeyText(plane.User).Reveal())
				resp, err := s.client.Do(req)
				if err != nil {
					t.Error(err)
					return
				}
				_ = resp.Body.Close()
				switch resp.StatusCode {
				case http.StatusOK:
					passed.Add(1)
				case http.StatusTooManyRequests:
					refusals.Add(1)
				}
			})
		}
		wg.Wait()
		if quota := int64(limit.Default().Minute); passed.Load() != quota || refusals.Load() != burst-quota {
			t.Errorf("%d of %d passed, %d were refused", passed.Load(), burst, refusals.Load())
		}
		s.plane.Advance(time.Minute)
	}
}

func TestQuotaIsTheAccounts(t *testing.T) {
	s := newSite(t, quotas(2, 0, 0), rest.Limits{})
	for _, step := range []struct {
		key    string
		path   string
		status int
	}{
		{plane.User, "/v2/pods", 200},
		{plane.Reader, "/v2/pods/" + podID, 404}, // another key of the account, and a problem
		{plane.User, "/v2/pods", 429},
		{plane.Reader, "/v2/account/keys", 429},
		{plane.Other, "/v2/pods", 200},
		{plane.Operator, "/admin/v1/hosts", 200},
		{plane.Operator, "/v2/catalog/gpus", 200},
		{plane.Operator, "/admin/v1/hosts", 429},
		{plane.Other, "/admin/v1/hosts", 403},
		{plane.Other, "/admin/v1/hosts", 429}, // the quota comes before the permission
	} {
		if got := s.ask(t, "GET", step.path, step.key, ""); got.status != step.status {
			t.Errorf("%s %s: %d, want %d", step.key, step.path, got.status, step.status)
		}
	}
}

// TestRateHeaders reads the headers of every route's answer with a structured-field parser.
func TestRateHeaders(t *testing.T) {
	s := newSite(t, quotas(10_000, 20_000, 30_000), rest.Limits{})
	id := string(makePod(t, s.plane, fleet.EventRunning))
	used := int64(0)
	for _, rt := range s.api.Routes() {
		t.Run(rt.Method+" "+rt.Path, func(t *testing.T) {
			resp := s.open(t, rt.Method, concrete(rt.Path, id), plane.Operator, "") // the stream stays open
			defer resp.Body.Close()
			left, policy := resp.Header.Values("RateLimit"), resp.Header.Values("RateLimit-Policy")
			if rt.Limit == limit.Exempt {
				if len(left)+len(policy) > 0 {
					t.Errorf("%q %q", left, policy)
				}
				return
			}
			used++
			for i, want := range []struct {
				name      string
				q, length int64
			}{{"minute", 10_000, 60}, {"hour", 20_000, 3600}, {"day", 30_000, 86400}} {
				l, p := member(t, left, i), member(t, policy, i)
				if l.Value != want.name || number(l, "r") != want.q-used || number(l, "t") != want.length {
					t.Errorf("%s after %d: %q", want.name, used, left)
				}
				if p.Value != want.name || number(p, "q") != want.q || number(p, "w") != want.length {
					t.Errorf("%s: %q", want.name, policy)
				}
			}
		})
	}
	if s.ask(t, "GET", "/v2/pods", "nobody", "").header.Values("RateLimit") != nil {
		t.Error("an unknown key is told of quotas")
	}
}

// TestOwnQuotasHold gives one account quotas of its own while it is at work; the others keep theirs.
func TestOwnQuotasHold(t *testing.T) {
	s := newSite(t, quotas(2, 0, 0), rest.Limits{})
	policy := func(key string, status int) (quota, left int64) {
		t.Helper()
		got := s.ask(t, "GET", "/v2/pods", key, "")
		if got.status != status {
			t.Errorf("%s: %d, want %d", key, got.status, status)
		}
		return number(member(t, got.header.Values("RateLimit-Policy"), 0), "q"), number(member(t, got.header.Values("RateLimit"), 0), "r")
	}
	for i, want := range []struct {
		own         fleet.Quotas
		status      int
		quota, left int64
	}{
		{fleet.Quotas{}, 200, 2, 1},
		{fleet.Quotas{}, 200, 2, 0},
		{fleet.Quotas{}, 429, 2, 0},
		{fleet.Quotas{Minute: 4}, 200, 4, 1},
		{fleet.Quotas{Minute: 4}, 200, 4, 0},
		{fleet.Quotas{Minute: 1}, 429, 1, 0},
		{fleet.Quotas{Minute: 1_000_000_000}, 200, 1_000_000_000, 999_999_995},
		{fleet.Quotas{}, 429, 2, 0},
	} {
		s.plane.SetQuotas(plane.User, want.own)
		if quota, left := policy(plane.User, want.status); quota != want.quota || left != want.left {
			t.Errorf("step %d: %d of %d left, want %d of %d", i, left, quota, want.left, want.quota)
		}
	}
	if quota, left := policy(plane.Other, 200); quota != 2 || left != 1 {
		t.Errorf("another account has %d of %d left", left, quota)
	}
}

// TestStreamHasRateHeaders looks at the header of a log that is still open.
func TestStreamHasRateHeaders(t *testing.T) {
	s := newSite(t, nil, rest.Limits{})
	id := makePod(t, s.plane, fleet.EventRunning)
	resp := s.open(t, "GET", "/v2/pods/"+string(id)+"/logs", plane.User, "")
	defer resp.Body.Close()
	if kind := resp.Header.Get("Content-Type"); kind != "text/event-stream" || number(member(t, resp.Header.Values("RateLimit"), 0), "r") != 179 {
		t.Errorf("%s %v", kind, resp.Header)
	}
}

func member(t *testing.T, values []string, i int) httpsfv.Item {
	t.Helper()
	list, err := httpsfv.UnmarshalList(values)
	if err != nil || i >= len(list) {
		t.Fatalf("member %d of %q: %v", i, values, err)
	}
	return list[i].(httpsfv.Item)
}

// number returns an integer parameter, -1 when there is none.
func number(item httpsfv.Item, name string) int64 {
	if v, ok := item.Params.Get(name); ok {
		if n, ok := v.(int64); ok {
			return n
		}
	}
	return -1
}

// looked counts the keys that are looked up with the others.
type looked struct {
	rest.Service
	keys *atomic.Int64
}

func (l looked) Authenticate(ctx context.Context, key fleet.Secret) (fleet.Principal, error) {
	l.keys.Add(1)
	return l.Service.Authenticate(ctx, key)
}

func TestFailedRequestsOfAnAddressAreLimited(t *testing.T) {
	var keys atomic.Int64
	s := newSite(t, func(cfg *rest.Config) { cfg.Service, cfg.Failures = looked{cfg.Service, &keys}, 3 }, rest.Limits{})
	for range 10 {
		if got := s.ask(t, "GET", "/v2/pods", plane.User, ""); got.status != http.StatusOK {
			t.Fatal("good keys count as failures")
		}
	}
	s.plane.SetDown(true)
	for range 10 {
		refused(t, s.ask(t, "GET", "/v2/pods", plane.User, ""), http.StatusServiceUnavailable)
	}
	s.plane.SetDown(false)
	refused(t, s.ask(t, "GET", "/v2/pods", "", ""), http.StatusUnauthorized)
	refused(t, s.ask(t, "GET", "/v2/pods", "nobody", ""), http.StatusUnauthorized)
	refused(t, s.ask(t, "POST", "/v2/pods", plane.Expired, gpuBody), http.StatusUnauthorized)
	s.plane.Advance(20 * time.Second)
	before := keys.Load()
	for _, key := range []string{"nobody", "", plane.Expired} {
		got := s.ask(t, "GET", "/v2/pods", key, "")
		p := refused(t, got, http.StatusTooManyRequests)
		if p.Code != fleet.CodeLimited || got.header.Get("Retry-After") != "40" || got.header.Values("RateLimit") != nil || got.header.Values("WWW-Authenticate") != nil {
			t.Errorf("%s: %v %s", key, got.header, got.body)
		}
	}
	if keys.Load() != before {
		t.Error("other schedulers were asked of a bad key of such an address")
	}
	for _, key := range []string{plane.User, plane.Operator} {
		if got := s.ask(t, "GET", "/v2/pods", key, ""); got.status != http.StatusOK {
			t.Errorf("a good key of %s: %d", key, got.status)
		}
	}
	for _, path := range []string{"/healthz", "/v2/openapi.json"} {
		if got := s.ask(t, "GET", path, "", ""); got.status != http.StatusOK {
			t.Errorf("%s: %d", path, got.status)
		}
	}
	s.plane.Advance(40 * time.Second)
	if got := s.ask(t, "GET", "/v2/pods", plane.User, ""); got.status != http.StatusOK {
		t.Errorf("a minute later: %d", got.status)
	}
}

// TestClientReadsRetryAfter lets our own client run into the limit.
func TestClientReadsRetryAfter(t *testing.T) {
	s := newSite(t, quotas(1, 0, 0), rest.Limits{})
	c, err := client.New(s.base, plane.KeyText(plane.User), "test/1")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Pods(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.plane.Advance(18 * time.Second)
	_, err = c.Pods(t.Context())
	var p *client.Problem
	if !errors.As(err, &p) || p.Status != http.StatusTooManyRequests || p.RetryAfter != 42*time.Second || p.Detail != "rate limit exceeded for the minute window" {
		t.Errorf("%+v", err)
	}
}

func TestBadQuotasAreRefused(t *testing.T) {
	if _, err := rest.New(rest.Config{Service: plane.New(t), Log: quiet(), Rates: limit.Quotas{Minute: 2, Hour: 1}}); err == nil {
		t.Error("a quota that can never be used up was taken")
	}
}

// TestDocumentTellsLimits asks of every limited route its 429 and the headers of each answer.
func TestDocumentTellsLimits(t *testing.T) {
	s := newSite(t, nil, rest.Limits{})
	b := openBook(t, s.api)
	for _, rt := range b.routes {
		op := []string{"paths", rt.Path, strings.ToLower(rt.Method), "responses"}
		limited := rt.Limit == limit.PerAccount
		if has := b.at(append(op, "429", "headers", "Retry-After")...) != nil; has != limited {
			t.Errorf("%s %s: 429 with Retry-After in the document: %v", rt.Method, rt.Path, has)
		}
		for status := range b.at(op...).(map[string]any) {
			want := limited && status > "3" && status != strconv.Itoa(problem.Status(fleet.CodeUnauthorized))
			for _, name := range []string{"RateLimit", "RateLimit-Policy"} {
				if has := b.at(append(op, status, "headers", name)...) != nil; has != want {
					t.Errorf("%s %s %s: header %s in the document: %v", rt.Method, rt.Path, status, name, has)
				}
			}
		}
	}
}
