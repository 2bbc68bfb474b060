package rest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"gantry/api/rest"
)

// browser is a page of a real Chromium, steered by its DevTools protocol. One goroutine uses it.
type browser struct {
	t      *testing.T
	ctx    context.Context
	conn   *websocket.Conn
	calls  int
	faults []string // what went to the console as an error
	loaded bool
}

// message is what comes from Chromium: the answer to a call, or an event.
type message struct {
	ID     int             `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  json.RawMessage `json:"error"`
}

// openBrowser starts Chromium, which ends with the test.
func openBrowser(t *testing.T) *browser {
	t.Helper()
	dir, err := os.MkdirTemp("", "chromium") // not below the test's own folder: Chromium writes into it until it is gone
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	cmd := exec.CommandContext(ctx, "chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
		"--no-first-run", "--disable-background-networking", "--disable-component-update", "--remote-debugging-port=0",
		"--user-data-dir="+dir, "about:blank")
	cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_CONFIG_HOME="+dir, "XDG_CACHE_HOME="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	if err := cmd.Start(); err != nil {
		cancel()
		t.Fatal(err)
	}
	b := &browser{t: t, ctx: ctx}
	t.Cleanup(func() {
		if b.conn != nil {
			_ = b.conn.CloseNow()
		}
		cancel()
		_ = cmd.Wait()
		for range 100 { // its helpers write on until they see that it is gone
			if err = os.RemoveAll(dir); err == nil {
				return
			}
			<-time.After(50 * time.Millisecond)
		}
		t.Error(err)
	})
	b.connect(filepath.Join(dir, "DevToolsActivePort"))
	return b
}

// connect waits until Chromium says where it listens, and takes a page of it.
func (b *browser) connect(path string) {
	b.t.Helper()
	port := ""
	for port == "" {
		if b.ctx.Err() != nil {
			b.t.Fatal("chromium does not listen")
		}
		if text, err := os.ReadFile(path); err == nil {
			port, _, _ = strings.Cut(string(text), "\n")
		}
		<-time.After(20 * time.Millisecond)
	}
	req, err := http.NewRequestWithContext(b.ctx, http.MethodPut, "http://127.0.0.1:"+port+"/json/new?about:blank", nil)
	if err != nil {
		b.t.Fatal(err)
	}
	resp, err := newClient(b.t).Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	var page struct {
		URL string `json:"webSocketDebuggerUrl"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&page); err != nil {
		b.t.Fatal(err)
	}
	if b.conn, _, err = websocket.Dial(b.ctx, page.URL, nil); err != nil { //nolint:bodyclose // of a WebSocket
		b.t.Fatal(err)
	}
	b.conn.SetReadLimit(16 << 20)
	for _, domain := range []string{"Page", "Runtime", "Log"} {
		b.call(domain+".enable", nil)
	}
}

// call makes one call and returns its result.
func (b *browser) call(method string, params map[string]any) json.RawMessage {
	b.t.Helper()
	b.calls++
	text, err := json.Marshal(map[string]any{"id": b.calls, "method": method, "params": params})
	if err == nil {
		err = b.conn.Write(b.ctx, websocket.MessageText, text)
	}
	if err != nil {
		b.t.Fatal(err)
	}
	for {
		if m := b.next(); m.ID == b.calls {
			if m.Error != nil {
				b.t.Fatalf("%s: %s", method, m.Error)
			}
			return m.Result
		}
	}
}

// next reads a message, and notes what it says of the page.
func (b *browser) next() message {
	b.t.Helper()
	_, text, err := b.conn.Read(b.ctx)
	if err != nil {
		b.t.Fatal(err)
	}
	var m message
	if err := json.Unmarshal(text, &m); err != nil {
		b.t.Fatal(err)
	}
	switch m.Method {
	case "Page.loadEventFired":
		b.loaded = true
	case "Runtime.exceptionThrown", "Log.entryAdded":
		b.faults = append(b.faults, string(m.Params))
	case "Runtime.consoleAPICalled":
		b.faults = append(b.faults, string(m.Params))
	}
	return m
}

// visit loads a page.
func (b *browser) visit(address string) {
	b.t.Helper()
	b.loaded = false
	b.call("Page.navigate", map[string]any{"url": address})
	for !b.loaded {
		b.next()
	}
}

// eval returns what an expression comes to on the page, as JSON.
func (b *browser) eval(expression string) string {
	b.t.Helper()
	var got struct {
		Result struct {
			Value json.RawMessage `json:"value"`
		} `json:"result"`
		Exception json.RawMessage `json:"exceptionDetails"`
	}
	result := b.call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true})
	if err := json.Unmarshal(result, &got); err != nil || got.Exception != nil {
		b.t.Fatalf("%s: %v %s", expression, err, got.Exception)
	}
	return string(got.Result.Value)
}

// press types text where the focus is, a key at a time.
func (b *browser) press(text string) {
	b.t.Helper()
	for _, key := range text {
		for _, kind := range []string{"keyDown", "keyUp"} {
			b.call("Input.dispatchKeyEvent", map[string]any{"type": kind, "text": string(key), "key": string(key)})
		}
	}
}

// TestDocsAreSearchedInABrowser types into the page of documentation in a real browser.
func TestDocsAreSearchedInABrowser(t *testing.T) {
	s := newSite(t, nil, rest.Limits{})
	b := openBrowser(t)
	b.visit(s.base + "/docs")
	ids := func(selector string) []string {
		var out []string
		text := b.eval(`[...document.querySelectorAll("` + selector + `")].filter((e) => e.offsetParent !== null).map((e) => e.id || e.getAttribute("href"))`)
		if err := json.Unmarshal([]byte(text), &out); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		return out
	}
	all := len(s.api.Routes())
	if got := ids("article > h3"); len(got) != all {
		t.Fatalf("%d operations are to be seen, of %d", len(got), all)
	}
	b.eval(`document.getElementById("words").focus()`)
	b.press("Drain  host")
	found, links := ids("article > h3"), ids("nav li a")
	if !slices.Contains(found, "op-drainHost") || slices.Contains(found, "op-createPod") || len(found) > 10 {
		t.Errorf("found %q", found)
	}
	if len(links) != len(found) || !slices.Contains(links, "#op-drainHost") {
		t.Errorf("links to %q", links)
	}
	if got, want := b.eval(`document.getElementById("count").textContent`), fmt.Sprintf(`"%d of %d"`, len(found), all); got != want {
		t.Errorf("the page says %s, want %s", got, want)
	}
	if got := b.eval(`document.querySelector("#op-drainHost").closest("article").querySelector("details:has(h4) pre").textContent.startsWith("curl ")`); got != "true" {
		t.Errorf("the operation that was found shows no snippets: %s", got)
	}
	b.press("xyz")
	if got := ids("article > h3"); len(got) != 0 {
		t.Errorf("found %q of what is not there", got)
	}
	b.eval(`words.value = ""; words.dispatchEvent(new Event("input"))`)
	if got := ids("article > h3"); len(got) != all {
		t.Errorf("%d operations are to be seen after the search, of %d", len(got), all)
	}
	if len(b.faults) > 0 {
		t.Errorf("the console says %s", b.faults)
	}
}

// TestABrowserTellsOfFaults shows that the test above hears of what goes wrong on a page.
func TestABrowserTellsOfFaults(t *testing.T) {
	b := openBrowser(t)
	b.visit(`data:text/html,<meta http-equiv="Content-Security-Policy" content="default-src 'none'"><script>alert(1)</script>`)
	if b.eval("1"); len(b.faults) != 1 || !strings.Contains(b.faults[0], "Content Security Policy") {
		t.Errorf("the console says %s", b.faults)
	}
}
