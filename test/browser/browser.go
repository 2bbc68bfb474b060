// Package browser steers a real Chromium in tests.
package browser

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"
)

const (
	lifetime = 8 * time.Minute
	patience = 30 * time.Second // for what Wait waits for
)

// Browser is a page of a real Chromium, steered by its DevTools protocol. One goroutine uses it.
type Browser struct {
	t      *testing.T
	ctx    context.Context
	conn   *websocket.Conn
	calls  int
	Faults []string // what went to the console as an error
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

// Open starts Chromium, which ends with the test.
func Open(t *testing.T) *Browser {
	t.Helper()
	dir, err := os.MkdirTemp("", "chromium") // not below the test's own folder: Chromium writes into it until it is gone
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), lifetime)
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
	b := &Browser{t: t, ctx: ctx}
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
func (b *Browser) connect(path string) {
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
	resp, err := (&http.Client{Timeout: patience}).Do(req)
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
		b.Call(domain+".enable", nil)
	}
}

// Call makes one call and returns its result.
func (b *Browser) Call(method string, params map[string]any) json.RawMessage {
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
func (b *Browser) next() message {
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
		b.Faults = append(b.Faults, string(m.Params))
	case "Runtime.consoleAPICalled":
		b.Faults = append(b.Faults, string(m.Params))
	}
	return m
}

// Visit loads a page.
func (b *Browser) Visit(address string) {
	b.t.Helper()
	b.loaded = false
	b.Call("Page.navigate", map[string]any{"url": address})
	for !b.loaded {
		b.next()
	}
}

// Eval returns what an expression comes to on the page, as JSON.
func (b *Browser) Eval(expression string) string {
	b.t.Helper()
	var got struct {
		Result struct {
			Value json.RawMessage `json:"value"`
		} `json:"result"`
		Exception json.RawMessage `json:"exceptionDetails"`
	}
	result := b.Call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true})
	if err := json.Unmarshal(result, &got); err != nil || got.Exception != nil {
		b.t.Fatalf("%s: %v %s", expression, err, got.Exception)
	}
	return string(got.Result.Value)
}

// Press types text where the focus is, a key at a time.
func (b *Browser) Press(text string) {
	b.t.Helper()
	for _, char := range text {
		key, code := string(char), 0
		if char == '\r' {
			key, code = "Enter", 13
		}
		for _, kind := range []string{"keyDown", "keyUp"} {
			b.Call("Input.dispatchKeyEvent", map[string]any{"type": kind, "text": string(char), "key": key, "windowsVirtualKeyCode": code})
		}
	}
}

// Wait waits until an expression comes to true on the page. One that throws is not true yet.
func (b *Browser) Wait(expression string) {
	b.t.Helper()
	for end := time.Now().Add(patience); b.Eval("(() => { try { return Boolean("+expression+") } catch { return false } })()") != "true"; {
		if time.Now().After(end) {
			b.t.Fatalf("never true: %s\nthe page shows: %s", expression, b.Eval(`document.body.innerText.slice(0, 1500)`))
		}
		<-time.After(50 * time.Millisecond)
	}
}

// Fill has the field that a selector finds take a text, as if it had been typed.
func (b *Browser) Fill(selector, text string) {
	b.t.Helper()
	b.Wait(find(selector) + ".offsetParent !== null")
	b.Eval("(() => { const field = " + find(selector) + `; field.focus(); field.select(); return 1 })()`)
	b.Call("Input.insertText", map[string]any{"text": text})
}

// Click presses the middle of the element that a selector finds, and whose text is as given unless that is empty.
func (b *Browser) Click(selector, text string) {
	b.t.Helper()
	found := "[...document.querySelectorAll(" + quote(selector) + ")].find((e) => !e.disabled && e.offsetParent !== null && (" + quote(text) +
		` === "" || e.textContent.trim() === ` + quote(text) + "))"
	b.Wait(found)
	var at struct{ X, Y float64 }
	where := b.Eval("(() => { const e = " + found + `; e.scrollIntoView({ block: "center" }); const r = e.getBoundingClientRect();
		return { x: r.x + r.width / 2, y: r.y + r.height / 2 } })()`)
	if err := json.Unmarshal([]byte(where), &at); err != nil {
		b.t.Fatalf("%s: %v", where, err)
	}
	for _, kind := range []string{"mousePressed", "mouseReleased"} {
		b.Call("Input.dispatchMouseEvent", map[string]any{"type": kind, "x": at.X, "y": at.Y, "button": "left", "clickCount": 1})
	}
}

func find(selector string) string { return "document.querySelector(" + quote(selector) + ")" }

// quote writes a text as JavaScript does.
func quote(text string) string {
	out, err := json.Marshal(text)
	if err != nil { // cannot happen: it is a text
		return `""`
	}
	return string(out)
}

// Look sets the size of the page in pixels, and its colours: light or dark.
func (b *Browser) Look(width, height int, colours string) {
	b.t.Helper()
	b.Call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false})
	b.Call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": colours}}})
}

// Screenshot writes what is seen of the page into a PNG file.
func (b *Browser) Screenshot(path string) {
	b.t.Helper()
	var shot struct{ Data []byte }
	err := json.Unmarshal(b.Call("Page.captureScreenshot", nil), &shot)
	if err == nil {
		err = os.WriteFile(path, shot.Data, 0o600)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}
