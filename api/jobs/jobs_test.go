package jobs

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"gantry/fleet"
	"gantry/test/plane"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// site is an API over a real service, with a queue endpoint.
type site struct {
	*plane.Plane
	t        *testing.T
	api      *API
	server   *httptest.Server
	endpoint fleet.EndpointID
	workers  fleet.WorkerCounts
}

func newSite(t *testing.T) *site {
	t.Helper()
	p := plane.New(t)
	p.WithJobs()
	s := &site{Plane: p, t: t}
	s.api = New(Config{
		Service: p, Keys: p, Log: slog.New(slog.DiscardHandler), Now: p.Now, PerWorker: 100,
		Workers: func(fleet.EndpointID) fleet.WorkerCounts { return s.workers },
	})
	s.server = httptest.NewServer(s.api)
	t.Cleanup(func() { s.server.Close(); s.server.Client().CloseIdleConnections() })
	who, err := p.Authenticate(context.Background(), plane.KeyText(plane.User))
	if err != nil {
		t.Fatal(err)
	}
	made, _, err := p.CreateEndpoint(context.Background(), who, "", func(e *fleet.EndpointSpec) {
		e.Name, e.Image, e.CPU = "embed", "worker:1", []fleet.CPURequest{{Flavor: "cpu3c", VCPU: 2}}
		e.Scaler = fleet.Scaler{Type: fleet.ScaleByDelay, Value: 4}
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.endpoint = made.ID
	return s
}

// request makes a request of the endpoint's, under the first user's key.
func (s *site) request(method, path, body string) *http.Request {
	s.t.Helper()
	var in io.Reader
	if body != "" {
		in = strings.NewReader(body)
	}
	r, err := http.NewRequestWithContext(context.Background(), method, s.server.URL+"/v2/"+string(s.endpoint)+"/"+path, in)
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+plane.KeyText(plane.User).Reveal())
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	return r
}

// answer is what a request was answered with.
type answer struct {
	status int
	header http.Header
	body   string
}

func (s *site) send(r *http.Request) answer {
	s.t.Helper()
	got, err := s.server.Client().Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	body, err := io.ReadAll(got.Body)
	_ = got.Body.Close()
	if err != nil {
		s.t.Fatal(err)
	}
	return answer{got.StatusCode, got.Header, string(body)}
}

// do sends a request and wants an answer of a status, with a body that matches.
func (s *site) do(method, path, body string, status int, want string) string {
	s.t.Helper()
	got := s.send(s.request(method, path, body))
	if got.status != status || !regexp.MustCompile("(?s)^"+want+"$").MatchString(got.body) {
		s.t.Errorf("%s %s: %d %s, want %d %s", method, path, got.status, got.body, status, want)
	}
	if kind := got.header.Get("Content-Type"); kind != "application/json" {
		s.t.Errorf("%s %s is answered with %q", method, path, kind)
	}
	return got.body
}

// run submits a job and returns its id.
func (s *site) run(body string) string {
	s.t.Helper()
	var out struct{ ID string }
	if err := json.Unmarshal([]byte(s.do("POST", "run", body, 200, `{"id":".*","status":"IN_QUEUE"}`)), &out); err != nil {
		s.t.Fatal(err)
	}
	return out.ID
}

const uuid = `[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}-u1`

// TestAJobByHTTP from its submission to its result.
func TestAJobByHTTP(t *testing.T) {
	s := newSite(t)
	id := s.run(`{"input":{"a":1},"webhook":"https://example.com/hook","policy":{"ttl":60000},"s3Config":{"accessSecret":"s"},"other":1}`)
	if !regexp.MustCompile("^" + uuid + "$").MatchString(id) {
		t.Errorf("id %s", id)
	}
	s.do("GET", "status/"+id, "", 200, `{"id":"`+id+`","status":"IN_QUEUE"}`)
	s.do("GET", "status/"+id+"?input=true", "", 200, `{"id":"`+id+`","status":"IN_QUEUE","input":{"a":1}}`)
	from, body := s.TakeJob(s.endpoint)
	if want := `{"input":{"a":1},"webhook":"https://example.com/hook","policy":{"ttl":60000},"s3Config":{"accessSecret":"s"}}`; string(body) != want {
		t.Errorf("the worker gets %s", body)
	}
	s.Advance(1500 * time.Millisecond)
	s.do("POST", "status/"+id, "", 200, `{"id":"`+id+`","status":"IN_PROGRESS","delayTime":0,"executionTime":1500,"workerId":"worker00000001","attempts":1}`)
	from.At += 1500
	s.FinishJob(from, false, `{"b":[2]}`)
	record := `{"id":"` + id + `","status":"COMPLETED","delayTime":0,"executionTime":1500,"workerId":"worker00000001","output":{"b":\[2\]},"attempts":1}`
	s.do("GET", "status/"+id, "", 200, record)
	s.do("GET", "status-sync/"+id+"?wait=1000", "", 200, record)
	s.do("POST", "retry/"+id, "", 400, `{"error":".*COMPLETED"}`)
	s.do("POST", "cancel/"+id, "{}", 200, `{"id":"`+id+`","status":"COMPLETED","delayTime":0,"executionTime":1500}`)
	s.do("GET", "health", "", 200, `{"jobs":{"completed":1,"failed":0,"inProgress":0,"inQueue":0,"retried":0},`+
		`"workers":{"idle":0,"initializing":0,"ready":0,"running":0,"throttled":0,"unhealthy":0}}`)

	bad := s.run(`{"input":{}}`)
	from, _ = s.TakeJob(s.endpoint)
	s.FinishJob(from, true, `it "broke"`)
	s.do("GET", "status/"+bad, "", 200, `{"id":".*","status":"FAILED",.*"error":"it \\"broke\\"","attempts":1}`)
	s.do("GET", "status/"+bad+"?input=true", "", 200, `{"id":".*","status":"FAILED",.*"attempts":1,"input":{}}`)
	s.do("POST", "retry/"+bad, "", 200, `{"id":".*","status":"IN_QUEUE"}`)
	s.do("POST", "cancel/"+bad, "", 200, `{"id":".*","status":"CANCELLED"}`)
	s.do("GET", "status/"+bad+"?input=true", "", 200, `{"id":"`+bad+`","status":"CANCELLED"}`) // its input is not kept
	s.run(`{"input":{}}`)
	s.do("POST", "purge-queue", "", 200, `{"removed":1,"status":"completed"}`)
	s.Advance(time.Hour)
	s.do("GET", "status/"+id, "", 404, `{"error":"job not found"}`)
}

// TestALargeOutputIsWrittenAsItCame, among the other members of its record.
func TestALargeOutputIsWrittenAsItCame(t *testing.T) {
	s := newSite(t)
	id := s.run(`{"input":{}}`)
	from, _ := s.TakeJob(s.endpoint)
	output := `{ "\"output\":0": "` + strings.Repeat("<x>", largeOutput/3) + `" }`
	s.FinishJob(from, false, output)
	want := `{"id":"` + id + `","status":"COMPLETED","delayTime":0,"executionTime":0,"workerId":"worker00000001","output":` + output + `,"attempts":1}`
	if got := s.send(s.request("GET", "status/"+id, "")); got.status != 200 || got.body != want || got.header.Get("Content-Length") != strconv.Itoa(len(want)) {
		t.Errorf("%d, %d bytes: %.200s", got.status, len(got.body), got.body)
	}
}

// TestRunSync answers with the result, or in time without one.
func TestRunSync(t *testing.T) {
	s := newSite(t)
	s.do("POST", "runsync?wait=1000", `{"input":{}}`, 200, `{"id":"sync-`+uuid+`","status":"IN_QUEUE"}`)
	s.TakeJob(s.endpoint)
	answered := make(chan string, 1)
	go func() {
		answered <- s.send(s.request("POST", "runsync", `{"input":{"late":true}}`)).body
	}()
	s.until(func() bool { return s.waiting() > 0 })
	from, _ := s.TakeJob(s.endpoint)
	s.FinishJob(from, false, `"out"`)
	if got := <-answered; !strings.Contains(got, `"status":"COMPLETED"`) || !strings.Contains(got, `"output":"out"`) {
		t.Errorf("answered %s", got)
	}
}

// until waits for a condition.
func (s *site) until(is func() bool) {
	s.t.Helper()
	for !is() {
		select {
		case <-time.After(time.Millisecond):
		case <-s.t.Context().Done():
			s.t.Fatal("it did not become so")
		}
	}
}

// waiting is how many jobs wait.
func (s *site) waiting() int {
	s.t.Helper()
	var out struct{ Jobs struct{ InQueue int } }
	if err := json.Unmarshal([]byte(s.do("GET", "health", "", 200, ".*")), &out); err != nil {
		s.t.Fatal(err)
	}
	return out.Jobs.InQueue
}

// TestStream drains the chunks, and says that the job has ended when there are no more.
func TestStream(t *testing.T) {
	s := newSite(t)
	id := s.run(`{"input":{}}`)
	s.do("GET", "stream/"+id+"?wait=1000", "", 200, `{"status":"IN_QUEUE","stream":\[\]}`)
	from, _ := s.TakeJob(s.endpoint)
	s.Chunk(from, 1, `{"output":"a"}`)
	s.Chunk(from, 2, `{"output":{"b":1},"metrics":{}}`)
	s.do("POST", "stream/"+id, "", 200, `{"status":"IN_PROGRESS","stream":\[{"output":"a"},{"output":{"b":1},"metrics":{}}\]}`)
	for n := 3; n < 3+1001; n++ {
		s.Chunk(from, n, `{"output":0}`)
	}
	s.FinishJob(from, false, `[]`)
	s.do("GET", "stream/"+id, "", 200, `{"status":"IN_PROGRESS","stream":\[({"output":0},?){1000}\]}`)
	s.do("GET", "stream/"+id, "", 200, `{"status":"COMPLETED","stream":\[{"output":0}\]}`)
	s.do("GET", "stream/"+id, "", 200, `{"status":"COMPLETED","stream":\[\]}`)
}

// TestRequests pages through the jobs of an endpoint.
func TestRequests(t *testing.T) {
	s := newSite(t)
	var ids []string
	for range 3 {
		ids = append(ids, s.run(`{"input":{}}`))
		s.Advance(time.Second)
	}
	s.TakeJob(s.endpoint)
	s.do("GET", "requests?limit=2", "", 200, `{"requests":\[{"id":"`+ids[2]+`","status":"IN_QUEUE","createdAt":"2026-10-01T12:00:02Z"},{"id":"`+ids[1]+`".*\],"next":"2"}`)
	s.do("GET", "requests?limit=2&cursor=2", "", 200, `{"requests":\[{"id":"`+ids[0]+`".*\]}`)
	s.do("GET", "requests?status=IN_PROGRESS,FAILED", "", 200, `{"requests":\[{"id":"`+ids[0]+`".*\]}`)
	s.do("GET", "requests?from=2026-10-01T12:00:01Z&to=2026-10-01T12:00:02Z", "", 200, `{"requests":\[{"id":"`+ids[1]+`".*\]}`)
	for query, text := range map[string]string{
		"limit=0": "limit must be 1 to 1000", "limit=x": "limit must be", "limit=1001": "limit must be", "cursor=0": "cursor must be", "cursor=x": "cursor must be",
		"status=RUNNING": "status: must be one of IN_QUEUE", "from=today": "from must be a time", "to=1": "to must be a time",
	} {
		s.Advance(rateWindow)
		s.do("GET", "requests?"+query, "", 400, `{"error":"`+text+`.*"}`)
	}
}

// TestBadRequests are refused with a sentence, and change nothing.
func TestBadRequests(t *testing.T) {
	s := newSite(t)
	large := `{"input":{"a":"` + strings.Repeat("x", int(maxRun)) + `"}}`
	sync := `{"input":{"a":"` + strings.Repeat("x", int(maxSync)) + `"}}`
	deep := strings.Repeat(`{"a":`, 20_000) + "1" + strings.Repeat("}", 20_000)
	for name, row := range map[string]struct {
		method, path, body string
		status             int
		want               string
	}{
		"no JSON":         {"POST", "run", `{"input":`, 400, "json is invalid; max size is 10 MB"},
		"two":             {"POST", "run", `{"input":{}}{}`, 400, "json is invalid; max size is 10 MB"},
		"no object":       {"POST", "run", `[1]`, 400, "json is invalid; max size is 10 MB"},
		"no UTF-8":        {"POST", "run", "{\"input\":{\"a\":\"\xff\"}}", 400, "json is invalid; max size is 10 MB"},
		"too deep":        {"POST", "run", `{"input":` + deep + "}", 400, "json is invalid; max size is 10 MB"},
		"too large":       {"POST", "run", large, 400, "json is invalid; max size is 10 MB"},
		"too large, sync": {"POST", "runsync", sync, 400, "json is invalid; max size is 20 MB"},
		"list input":      {"POST", "run", `{"input":[1]}`, 400, "input is required, and must be an object"},
		"no input":        {"POST", "run", `{}`, 400, "input is required, and must be an object"},
		"null input":      {"POST", "run", `{"input":null}`, 400, "input is required, and must be an object"},
		"text input":      {"POST", "runsync", `{"input":"a"}`, 400, "input is required, and must be an object"},
		"webhook":         {"POST", "run", `{"input":{},"webhook":1}`, 400, "webhook must be a string"},
		"webhook host":    {"POST", "run", `{"input":{},"webhook":"https:///a"}`, 400, "webhook: .*"},
		"webhook path":    {"POST", "run", `{"input":{},"webhook":"/a"}`, 400, "webhook: must be an http or https URL"},
		"webhook URL":     {"POST", "run", `{"input":{},"webhook":"ftp://a"}`, 400, "webhook: must be an http or https URL"},
		"policy":          {"POST", "run", `{"input":{},"policy":[]}`, 400, "policy must be an object with .*"},
		"policy text":     {"POST", "run", `{"input":{},"policy":{"ttl":"1"}}`, 400, "policy must be an object with .*"},
		"policy half":     {"POST", "run", `{"input":{},"policy":{"ttl":10000.5}}`, 400, "policy must be an object with .*"},
		"ttl":             {"POST", "run", `{"input":{},"policy":{"ttl":9999}}`, 400, "policy.ttl must be 10000 to 604800000 milliseconds"},
		"ttl, long":       {"POST", "run", `{"input":{},"policy":{"ttl":604800001}}`, 400, "policy.ttl must be 10000 to 604800000 milliseconds"},
		"priority":        {"POST", "run", `{"input":{},"policy":{"lowPriority":1}}`, 400, "policy must be an object with .*"},
		"short":           {"POST", "run", `{"input":{},"policy":{"executionTimeout":4999}}`, 400, "policy.executionTimeout must be 5000 to 604800000 milliseconds"},
		"timeout":         {"POST", "run", `{"input":{},"policy":{"executionTimeout":604800001}}`, 400, "policy.executionTimeout must be 5000 to 604800000 milliseconds"},
		"s3Config":        {"POST", "run", `{"input":{},"s3Config":"a"}`, 400, "s3Config must be an object of strings"},
		"s3 member":       {"POST", "run", `{"input":{},"s3Config":{"accessId":1}}`, 400, "s3Config.accessId must be a string"},
		"wait":            {"POST", "runsync?wait=x", `{"input":{}}`, 400, "wait must be 1 to 604800000 milliseconds"},
		"ttl argument":    {"GET", "status/x?ttl=0", "", 400, "ttl must be 1 to 604800000 milliseconds"},
		"method":          {"GET", "run", "", 405, "method not allowed"},
		"path":            {"POST", "predict", `{}`, 404, "not allowed for QB API"},
		"no job":          {"GET", "status", "", 404, "not allowed for QB API"},
		"a job":           {"POST", "run/x", `{"input":{}}`, 404, "not allowed for QB API"},
		"two jobs":        {"GET", "status/x/y", "", 404, "not allowed for QB API"},
		"unknown job":     {"GET", "status/x", "", 404, "job not found"},
		"not synced":      {"GET", "status-sync/x", "", 404, "job not found"},
		"not streamed":    {"GET", "stream/x", "", 404, "job not found"},
		"not stopped":     {"POST", "cancel/x", "", 404, "job not found"},
		"not retried":     {"POST", "retry/x", "", 404, "job not found"},
		"long id":         {"GET", "status/" + strings.Repeat("x", 4000), "", 404, "job not found"},
		"purge":           {"GET", "purge-queue", "", 405, "method not allowed"},
		"cancel":          {"DELETE", "cancel/x", "", 405, "method not allowed"},
		"openai":          {"POST", "openai/v1/chat/completions", `[]`, 400, "json is invalid; max size is 20 MB"},
		"openai alone":    {"POST", "openai", `{}`, 404, "not allowed for QB API"},
	} {
		t.Run(name, func(t *testing.T) {
			s.t = t
			s.do(row.method, row.path, row.body, row.status, `{"error":"`+row.want+`"}`)
		})
	}
	s.t = t
	for name, change := range map[string]func(*http.Request){
		"no key":      func(r *http.Request) { r.Header.Del("Authorization") },
		"two keys":    func(r *http.Request) { r.Header.Add("Authorization", "x") },
		"no such key": func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+plane.KeyText("nobody").Reveal()) },
		"no key text": func(r *http.Request) { r.Header.Set("Authorization", "Bearer x") },
		"ended key":   func(r *http.Request) { r.Header.Set("Authorization", plane.KeyText(plane.Expired).Reveal()) },
		"reader":      func(r *http.Request) { r.Header.Set("Authorization", plane.KeyText(plane.Reader).Reveal()) },
	} {
		r := s.request("POST", "run", `{"input":{}}`)
		change(r)
		if got := s.send(r); got.status != 401 || !strings.HasPrefix(got.body, `{"error":"`) {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
	}
	for name, row := range map[string]struct {
		change func(*http.Request)
		status int
	}{
		"bare key":     {func(r *http.Request) { r.Header.Set("Authorization", plane.KeyText(plane.User).Reveal()) }, 200},
		"other's":      {func(r *http.Request) { r.Header.Set("Authorization", plane.KeyText(plane.Other).Reveal()) }, 404},
		"no endpoint":  {func(r *http.Request) { r.URL.Path = "/v2/" + fleet.NewID() + "/run" }, 404},
		"no id":        {func(r *http.Request) { r.URL.Path = "/v2/pods/run" }, 404},
		"content type": {func(r *http.Request) { r.Header.Set("Content-Type", "text/plain") }, 400},
		"charset":      {func(r *http.Request) { r.Header.Set("Content-Type", "application/json; charset=utf-8") }, 200},
		"empty key":    {func(r *http.Request) { r.Header.Set("Idempotency-Key", "") }, 400},
		"long key":     {func(r *http.Request) { r.Header.Set("Idempotency-Key", strings.Repeat("k", 256)) }, 400},
	} {
		r := s.request("POST", "run", `{"input":{}}`)
		row.change(r)
		if got := s.send(r); got.status != row.status {
			t.Errorf("%s: %d %s, want %d", name, got.status, got.body, row.status)
		}
	}
	if n := s.waiting(); n != 2 {
		t.Errorf("%d jobs wait, of 2 that were not refused", n)
	}
	if len(s.api.room.of) != 0 || s.api.room.all != 0 {
		t.Errorf("%+v is held by requests that are over", &s.api.room)
	}
	s.SetDown(true)
	if got := s.send(s.request("GET", "health", "")); got.status != 503 || got.header.Get("Retry-After") == "" {
		t.Errorf("without a leader: %d", got.status)
	}
}

// TestIdempotencyKey makes one job of two requests.
func TestIdempotencyKey(t *testing.T) {
	s := newSite(t)
	send := func(body string) (int, string) {
		r := s.request("POST", "run", body)
		r.Header.Set("Idempotency-Key", "k")
		got := s.send(r)
		return got.status, got.body
	}
	_, first := send(`{"input":{"a":1},"policy":{"ttl":60000},"s3Config":{}}`)
	if status, again := send(`{"s3Config":{},"policy":{"ttl":60000},"input":{"a":1}}`); status != 200 || again != first {
		t.Errorf("%s, then %d %s", first, status, again)
	}
	if status, body := send(`{"input":{"a":2}}`); status != 400 || !strings.Contains(body, "Idempotency-Key") {
		t.Errorf("another request under the key: %d %s", status, body)
	}
}

// TestWithoutCreditNoJobIsTaken, and one that waits says so.
func TestWithoutCreditNoJobIsTaken(t *testing.T) {
	s := newSite(t)
	id := s.run(`{"input":{}}`)
	s.SetBroke(plane.User, true)
	for _, op := range []string{"run", "runsync"} {
		s.do("POST", op, `{"input":{}}`, 402, `{"error":"[^"]*the balance is [^"]*"}`)
	}
	s.do("GET", "status/"+id, "", 200, `{"id":"`+id+`","status":"IN_QUEUE","reason":"the account's balance is too low to run jobs"}`)
	s.SetBroke(plane.User, false)
	s.do("GET", "status/"+id, "", 200, `{"id":"`+id+`","status":"IN_QUEUE"}`)
	s.run(`{"input":{}}`)
}

// TestRates bound requests in a window and at a time, and grow with the workers.
func TestRates(t *testing.T) {
	s := newSite(t)
	purge := func() (int, string) {
		got := s.send(s.request("POST", "purge-queue", ""))
		return got.status, got.header.Get("Retry-After")
	}
	for range 2 {
		if status, _ := purge(); status != 200 {
			t.Fatalf("refused with %d", status)
		}
	}
	s.Advance(4 * time.Second)
	if status, retry := purge(); status != 429 || retry != "6" {
		t.Errorf("the third: %d, again in %s s", status, retry)
	}
	s.workers.Running = 1
	if status, _ := purge(); status != 200 {
		t.Errorf("with a worker that runs: %d", status)
	}
	s.workers.Running = 0
	s.Advance(6 * time.Second)
	if status, _ := purge(); status != 200 {
		t.Errorf("in the next window: %d", status)
	}

	now := time.Unix(0, 0)
	c := &counters{now: func() time.Time { return now }, all: map[counterKey]*counter{}}
	key := counterKey{"acme", "ep", opList}
	one, _ := c.enter(key, 0)
	two, _ := c.enter(key, 0)
	if leave, wait := c.enter(key, 0); leave != nil || wait != time.Second {
		t.Error("three at a time")
	}
	if leave, _ := c.enter(counterKey{"other", "ep", opList}, 0); leave == nil {
		t.Error("one account is refused for another's requests")
	}
	one()
	one()
	if leave, _ := c.enter(key, 0); leave == nil {
		t.Error("one left, and none may come")
	}
	if leave, _ := c.enter(key, 0); leave != nil {
		t.Error("one left twice")
	}
	two()
	for i := len(c.all); i < maxCounters; i++ {
		c.all[counterKey{fleet.AccountID(fmt.Sprint(i)), "ep", opRun}] = &counter{began: now}
	}
	if leave, _ := c.enter(counterKey{"new", "ep", opRun}, 0); leave != nil {
		t.Error("more counters than may be")
	}
	now = now.Add(rateWindow)
	if leave, _ := c.enter(counterKey{"new", "ep", opRun}, 0); leave == nil || len(c.all) > 4 {
		t.Errorf("%d counters are left", len(c.all))
	}
}

// TestRoomForBodies is shared, and no account has all of it.
func TestRoomForBodies(t *testing.T) {
	r := room{of: map[fleet.AccountID]int64{}}
	var leaves []func()
	for i := range 4 {
		account := fleet.AccountID(fmt.Sprint(i))
		if leave := r.enter(account, maxAccountBodies); leave != nil {
			leaves = append(leaves, leave)
		}
		if r.enter(account, 1) != nil {
			t.Error("more than an account's part")
		}
	}
	if len(leaves) != 4 || r.enter("new", 1) != nil {
		t.Errorf("%d accounts have their parts, and there is more", len(leaves))
	}
	leaves[0]()
	leaves[0]()
	if r.enter("new", maxAccountBodies) == nil || r.enter("more", 1) != nil {
		t.Error("what is let go is not there once")
	}
}

// TestOpenAI makes jobs of requests, and answers of what workers say.
func TestOpenAI(t *testing.T) {
	s := newSite(t)
	ask := func(method, path, body string, play func(func(chunk string), func(failed bool, output string))) (got answer, input string) {
		t.Helper()
		done := make(chan answer, 1)
		go func() { done <- s.send(s.request(method, path, body)) }()
		for s.waiting() == 0 {
			select {
			case got := <-done:
				t.Fatalf("answered at once: %d %s", got.status, got.body)
			case <-time.After(time.Millisecond):
			}
		}
		from, taken := s.TakeJob(s.endpoint)
		n := 0
		play(func(chunk string) { n++; s.Chunk(from, n, chunk) }, func(failed bool, output string) { s.FinishJob(from, failed, output) })
		return <-done, string(taken)
	}
	got, input := ask("POST", "openai/v1/chat/completions", `{"model":"m"}`, func(chunk func(string), end func(bool, string)) {
		chunk(`{"output":{"choices":[]}}`)
		end(false, `[]`)
	})
	if got.status != 200 || got.body != `{"choices":[]}` || input != `{"input":{"openai_route":"/v1/chat/completions","openai_input":{"model":"m"}}}` {
		t.Errorf("%d %s of %s", got.status, got.body, input)
	}
	got, input = ask("GET", "openai/v1/models", "", func(_ func(string), end func(bool, string)) { end(false, `{"data":[]}`) })
	if got.status != 200 || got.body != `{"data":[]}` || input != `{"input":{"openai_route":"/v1/models"}}` {
		t.Errorf("%d %s of %s", got.status, got.body, input)
	}
	got, _ = ask("POST", "openai/v1/completions", `{"stream":true}`, func(chunk func(string), end func(bool, string)) {
		chunk(`{"output":"data: {\"a\":1}\n\n"}`)
		chunk(`{"output":"data: [DONE]"}`)
		end(false, `[]`)
	})
	if got.header.Get("Content-Type") != "text/event-stream" || got.body != "data: {\"a\":1}\n\ndata: [DONE]\n\n" {
		t.Errorf("%v %q", got.header, got.body)
	}
	got, _ = ask("POST", "openai/v1/completions", `{"stream":true}`, func(_ func(string), end func(bool, string)) { end(false, `{"a":1}`) })
	if got.status != 200 || got.body != "data: {\"a\":1}\n\n" {
		t.Errorf("a worker that does not stream: %d %q", got.status, got.body)
	}
	for name, row := range map[string]struct {
		failed bool
		output string
		status int
	}{
		"code":    {false, `{"object":"error","code":404,"message":"no model"}`, 404},
		"nested":  {false, `{"error":{"code":422}}`, 422},
		"no code": {false, `{"error":"x","code":7}`, 500},
		"failed":  {true, `it broke`, 500},
	} {
		for _, request := range []string{`{}`, `{"stream":true}`} {
			got, _ := ask("POST", "openai/v1/x", request, func(_ func(string), end func(bool, string)) { end(row.failed, row.output) })
			if request != "{}" && !row.failed {
				continue // an error inside a stream is the worker's to say
			}
			if got.status != row.status {
				t.Errorf("%s %s: %d %s", name, request, got.status, got.body)
			}
		}
	}

	ctx, cancel := context.WithCancel(context.Background())
	r := s.request("POST", "openai/v1/x", `{}`).WithContext(ctx)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		if answer, err := s.server.Client().Do(r); err == nil {
			_ = answer.Body.Close()
		}
	}()
	s.until(func() bool { return s.waiting() > 0 })
	cancel()
	<-gone
	s.until(func() bool { return s.waiting() == 0 }) // the job of a caller that is gone is cancelled
}

// TestOwns tells the paths of endpoints from others.
func TestOwns(t *testing.T) {
	for path, want := range map[string]bool{
		"/v2/abcdefghijklmn/run": true, "/v2/abcdefghijklmn": true, "/v2/pods": false, "/v2/pods/abcdefghijklmn": false, "/v1/abcdefghijklmn/run": false,
		"/v2/": false, "/v2/templates/x": false, "/v2/serverless/abcdefghijklmn": false,
	} {
		if Owns(path) != want {
			t.Errorf("%s: %v", path, !want)
		}
	}
}

func FuzzParseJob(f *testing.F) {
	for _, body := range []string{
		`{"input":{}}`, `{"input":{"a":1},"webhook":"https://a","policy":{"ttl":10000,"lowPriority":true},"s3Config":{"accessId":"a"}}`, `{"input":null,"policy":1}`,
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		req, err := parseJob(body, maxRun)
		if err != nil {
			return
		}
		again, err := parseJob(req.Body, maxRun)
		if err != nil || string(again.Body) != string(req.Body) || again.Low != req.Low || again.Life != req.Life || again.Execution != req.Execution {
			t.Errorf("%s became %s, and that %s: %v", body, req.Body, again.Body, err)
		}
	})
}
