// Package console looks at the web console in a real browser, before a real gantry dev. It needs root. Screenshots go to the folder
// that GANTRY_SHOTS names, if it does.
package console

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"gantry/test/browser"
	"gantry/test/devtest"
)

// suite is what all tests share: a gantry dev with two hosts, and its keys.
var suite struct {
	site *devtest.Site
	dev  *devtest.Dev
	info devtest.Info
	dex  string // where tests may start a Dex, which the scheduler takes for its provider
}

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) (code int) {
	fail := func(err error) int { fmt.Fprintln(os.Stderr, "console:", err); return 1 }
	var err error
	if suite.site, err = devtest.NewSite(); err != nil {
		return fail(err)
	}
	defer func() {
		if err := suite.site.Remove(); err != nil {
			code = fail(err)
		}
	}()
	s3, err := freeAddress()
	if err != nil {
		return fail(err)
	}
	if suite.dex, err = freeAddress(); err != nil {
		return fail(err)
	}
	secret := filepath.Join(suite.site.Dir, "oidc-secret")
	if err := os.WriteFile(secret, []byte("hush"), 0o600); err != nil {
		return fail(err)
	}
	args := []string{"--agents", "2", "--gateways", "1", "--sample-worker", "--s3", s3}
	for _, arg := range []string{"issuer=http://" + suite.dex, "client-id=gantry", "client-secret-file=" + secret, "name=Dex"} {
		args = append(args, "--scheduler-arg=--oidc-"+arg)
	}
	if suite.dev, err = suite.site.Start(filepath.Join(suite.site.Dir, "dev"), args...); err != nil {
		return fail(err)
	}
	if suite.info, err = suite.dev.Info(); err != nil {
		return fail(err)
	}
	code = m.Run()
	if err := suite.dev.Stop(); err != nil {
		code = fail(err)
	}
	if code != 0 {
		suite.dev.PrintLogs(os.Stderr)
	}
	return code
}

// freeAddress returns an address of this machine at which nobody listens.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// ask sends a request to the API and decodes its answer.
func ask(t *testing.T, key, method, path string, body, out any) {
	t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	// Not the test's context: it has ended when things are removed.
	req, err := http.NewRequestWithContext(context.Background(), method, suite.info.API+path, bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+key)
	req.Header.Set("Content-Type", "application/json")
	resp, err := (&http.Client{Timeout: 2 * time.Minute}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= http.StatusBadRequest {
		err = fmt.Errorf("%s %s: %d %s", method, path, resp.StatusCode, answer)
	}
	if err == nil && out != nil {
		err = json.Unmarshal(answer, out)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// remove deletes something of the account.
func remove(t *testing.T, path string) {
	t.Helper()
	ask(t, suite.info.APIKey, http.MethodDelete, path, nil, nil)
}

type pod struct {
	ID, Name, Status, HostID string
}

// newPod creates a pod that runs a line of shell, waits until it does, and ends it with the test.
func newPod(t *testing.T, name, script string, change func(map[string]any)) pod {
	t.Helper()
	body := map[string]any{
		"name": name, "image": devtest.Image, "cpu": map[string]any{"id": "cpu3c", "vcpuCount": 2},
		"args": fmt.Sprintf(`{"entrypoint":["sh","-c"],"cmd":[%q]}`, script),
	}
	if change != nil {
		change(body)
	}
	var p pod
	ask(t, suite.info.APIKey, "POST", "/v2/pods", body, &p)
	t.Cleanup(func() { remove(t, "/v2/pods/"+p.ID) })
	err := devtest.Until(time.Minute, func() error {
		ask(t, suite.info.APIKey, "GET", "/v2/pods/"+p.ID, nil, &p)
		if p.Status != "RUNNING" {
			return fmt.Errorf("pod %s is %s", name, p.Status)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// open opens the console and signs in with a key.
func open(t *testing.T, base, key string) *browser.Browser {
	t.Helper()
	b := browser.Open(t)
	b.Look(1280, 900, "light")
	b.Visit(base + "/console")
	b.Fill("input[name=key]", key)
	b.Click("form button", "Sign in")
	b.Wait(`document.querySelector("header.page h1")`)
	return b
}

// visit shows a page of the console, without loading it anew.
func visit(b *browser.Browser, path string) {
	b.Eval(fmt.Sprintf(`window.left = document.querySelector("main"); history.pushState(null, "", "/console" + %q); dispatchEvent(new PopStateEvent("popstate")); 1`, path))
	b.Wait(`document.querySelector("main") !== window.left && document.querySelector("main h1") && !document.querySelector("main[aria-busy]") && !document.querySelector("main").innerText.includes("Reading…")`)
}

// quiet fails when the browser's console tells of faults.
func quiet(t *testing.T, b *browser.Browser) {
	t.Helper()
	for _, fault := range b.Faults {
		// A dialog whose first field was already focused when it was shown: the browser says so, and nothing is wrong.
		// An endpoint or cluster that was read just before it was deleted is asked for once more, and is not there.
		deleted := strings.Contains(fault, "404 (Not Found)") && (strings.Contains(fault, "/v2/serverless/") || strings.Contains(fault, "/v2/clusters/") || strings.Contains(fault, "/health"))
		// Two secrets in one form: the browser would rather have two forms.
		if !deleted && !strings.Contains(fault, "Autofocus processing was blocked") && !strings.Contains(fault, `"source":"recommendation"`) {
			t.Errorf("the browser's console says %s", fault)
		}
	}
	b.Faults = nil
}

var unfit = regexp.MustCompile(`[^a-z0-9]+`)

// shoot takes a screenshot where somebody wants to see it.
func shoot(b *browser.Browser, name string) {
	if dir := os.Getenv("GANTRY_SHOTS"); dir != "" {
		b.Wait(`!document.querySelector(".messages div")`)
		b.Screenshot(filepath.Join(dir, strings.Trim(unfit.ReplaceAllString(strings.ToLower(name), "-"), "-")+".png"))
	}
}
