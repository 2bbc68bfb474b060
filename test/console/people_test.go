package console

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha1"
	"encoding/base32"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"gantry/api/oidc"
	"gantry/test/browser"
	"gantry/test/devtest"
)

// codeOf is the code of a secret half minutes from now (RFC 6238), apart from the program's own.
func codeOf(t *testing.T, secret string, off int64) string {
	t.Helper()
	key, err := base32.StdEncoding.DecodeString(secret)
	if err != nil {
		t.Fatal(err)
	}
	mac := hmac.New(sha1.New, key)
	_ = binary.Write(mac, binary.BigEndian, time.Now().Unix()/30+off)
	sum := mac.Sum(nil)
	at := sum[19] & 15
	return fmt.Sprintf("%06d", binary.BigEndian.Uint32(sum[at:])&0x7fffffff%1000000)
}

type made struct {
	Person   struct{ ID string }
	Password string
}

func newPerson(t *testing.T, login string, roles ...string) made {
	t.Helper()
	var in []map[string]string
	for i := 0; i < len(roles); i += 2 {
		in = append(in, map[string]string{"accountId": roles[i], "role": roles[i+1]})
	}
	var out made
	ask(t, suite.info.AdminKey, "POST", "/admin/v1/people", map[string]any{"login": login, "memberships": in}, &out)
	t.Cleanup(func() { ask(t, suite.info.AdminKey, "DELETE", "/admin/v1/people/"+out.Person.ID, nil, nil) })
	return out
}

func signIn(b *browser.Browser, login, password, code string) {
	b.Wait(`document.querySelector("form.card")`)
	b.Click("button", "Password")
	b.Fill("input[name=login]", login)
	b.Fill("input[name=password]", password)
	if code != "" {
		b.Fill("input[name=code]", code)
	}
	b.Click("form button", "Sign in")
}

// TestAPersonSignsIn chooses a password, has codes needed, switches accounts, may not create as a viewer, and lets a command line in.
func TestAPersonSignsIn(t *testing.T) {
	var own, other struct{ ID string }
	ask(t, suite.info.APIKey, "GET", "/v2/account", nil, &own)
	ask(t, suite.info.AdminKey, "POST", "/admin/v1/accounts", map[string]string{"name": "looked at"}, &other)
	p := newPerson(t, "ada@example.com", own.ID, "owner", other.ID, "viewer")
	b := browser.Open(t)
	b.Look(1280, 900, "light")
	b.Visit(suite.info.API + "/console")
	signIn(b, "ada@example.com", p.Password, "")
	b.Wait(`document.querySelector("input[name=newPassword]")`)
	shoot(b, "first password")
	const password = "correct horse battery"
	b.Fill("input[name=newPassword]", password)
	b.Click("form button", "Sign in")
	b.Wait(`document.querySelector("header.page h1")`)
	b.Faults = nil // the refusals
	visit(b, "/you")
	b.Wait(`document.querySelector("code.totp") && document.querySelector("svg.qr path")?.getAttribute("d").length > 1000`)
	var secret string
	if err := json.Unmarshal([]byte(b.Eval(`document.querySelector("code.totp").innerText`)), &secret); err != nil {
		t.Fatal(err)
	}
	b.Eval(`[...document.querySelectorAll("section.card")].at(-1).id = "codes"`)
	b.Fill("#codes input[name=password]", password)
	b.Fill("#codes input[name=code]", codeOf(t, secret, -1))
	shoot(b, "you")
	b.Click("#codes button", "Need codes")
	b.Wait(`document.body.innerText.includes("Signing in with the password takes a code")`)
	quiet(t, b)
	b.Click("header button", "Sign out")
	signIn(b, "ada@example.com", password, codeOf(t, secret, -1)) // used up
	b.Wait(`document.querySelector("[role=alert]")`)
	b.Faults = nil
	signIn(b, "ada@example.com", password, codeOf(t, secret, 0))
	b.Wait(`document.querySelector("header.page h1")`)
	b.Eval(fmt.Sprintf(`(() => { window.old = true; const s = document.querySelector("select.account"); s.value = %q; s.dispatchEvent(new Event("change", { bubbles: true })); return 1 })()`, other.ID))
	status := `fetch("/v2/templates", { method: "POST", headers: { "X-Gantry-Console": "1", "Content-Type": "application/json" }, body: JSON.stringify({ name: "x", image: "busybox", category: "CPU" }) }).then((r) => window.status = String(r.status))`
	b.Wait(`!window.old && document.querySelector("select.account")?.value === ` + fmt.Sprintf("%q", other.ID))
	b.Eval(`(() => { ` + status + `; return 1 })()`)
	b.Wait(`window.status === "403"`)
	b.Faults = nil

	letIn(t, b)
	var list struct {
		People []struct {
			ID       string
			Sessions int
		}
	}
	ask(t, suite.info.AdminKey, "POST", "/admin/v1/people/"+p.Person.ID+"/reset", map[string]any{}, nil)
	ask(t, suite.info.AdminKey, "GET", "/admin/v1/people", nil, &list)
	if len(list.People) != 1 || list.People[0].Sessions != 0 {
		t.Errorf("after the operator's reset: %+v", list)
	}
	visit(b, "/pods")
	b.Wait(`document.querySelector("form.card")`)
	b.Faults = nil
}

// letIn has the real command line log in and out.
func letIn(t *testing.T, b *browser.Browser) {
	t.Helper()
	home := t.TempDir()
	run := func(args ...string) (*exec.Cmd, *bytes.Buffer) {
		cmd := exec.CommandContext(t.Context(), suite.site.Binary("gantry"), args...)
		cmd.Env = []string{"HOME=" + home, "PATH=/usr/bin:/bin"}
		out := &bytes.Buffer{}
		cmd.Stdout = out
		return cmd, out
	}
	login, _ := run("login", suite.info.API, "--no-browser")
	said, err := login.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := login.Start(); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 4096)
	n, _ := said.Read(buffer)
	code := regexp.MustCompile(`[B-Z]{4}-[B-Z]{4}`).Find(buffer[:n])
	if code == nil {
		t.Fatalf("gantry login says %s", buffer[:n])
	}
	b.Visit(suite.info.API + "/console/device?code=" + string(code))
	b.Wait(`document.querySelector("h2")?.innerText === "Let it in?"`)
	shoot(b, "device")
	b.Click("form button", "Let it in")
	b.Wait(`document.body.innerText.includes("was let in")`)
	if err := login.Wait(); err != nil {
		t.Fatalf("gantry login: %v", err)
	}
	list, out := run("pod", "list")
	if err := list.Run(); err != nil {
		t.Errorf("with the key: %v %s", err, out)
	}
	create, _ := run("template", "create", "x", "busybox", "--category", "CPU")
	if err := create.Run(); err == nil {
		t.Error("a viewer's command line may create")
	}
	logout, _ := run("logout")
	if err := logout.Run(); err != nil {
		t.Errorf("gantry logout: %v", err)
	}
}

// startDex starts a real Dex with one person. It ends with the test.
func startDex(t *testing.T, listen, redirect string) {
	t.Helper()
	program, err := filepath.Abs("../../.bin/dex/dex")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	dex := exec.CommandContext(ctx, program, "-listen", listen, "-redirect", redirect, "-email", "ada@example.com", "-password", "correct horse", "-secret", "hush")
	if err := dex.Start(); err != nil {
		stop()
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(); _ = dex.Wait() })
}

// TestAPersonSignsInThroughDex goes from the console to a real Dex and back, as who an operator let in through the provider alone.
func TestAPersonSignsInThroughDex(t *testing.T) {
	startDex(t, suite.dex, suite.info.API+"/console/oidc/callback")
	var own struct{ ID string }
	ask(t, suite.info.APIKey, "GET", "/v2/account", nil, &own)
	b := browser.Open(t)
	b.Look(1280, 900, "light")
	through := func() {
		b.Visit(suite.info.API + "/console")
		b.Click("a.button", "Sign in with Dex")
		b.Wait(`document.querySelector("input[name=password]") && location.port !== new URL(` + fmt.Sprintf("%q", suite.info.API) + `).port`)
		if asks := b.Eval(`document.referrer.includes("code=") || location.search.includes("password")`); asks != "false" {
			t.Error("the address tells too much")
		}
		b.Fill("input[name=login]", "ada@example.com")
		b.Fill("input[name=password]", "correct horse")
		b.Click("button[type=submit]", "")
		b.Wait("location.origin === " + fmt.Sprintf("%q", suite.info.API))
	}
	if err := devtest.Until(20*time.Second, func() error {
		answer, err := http.Get("http://" + suite.dex + "/.well-known/openid-configuration") //nolint:noctx // it ends with Dex
		if err == nil {
			_ = answer.Body.Close()
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	through() // whom nobody has let in
	b.Wait(`document.querySelector("form.card") && document.querySelector("[role=alert]")`)
	b.Faults = nil
	var out made
	ask(t, suite.info.AdminKey, "POST", "/admin/v1/people", map[string]any{
		"login": "ada@example.com", "noPassword": true, "memberships": []map[string]string{{"accountId": own.ID, "role": "viewer"}},
	}, &out)
	t.Cleanup(func() { ask(t, suite.info.AdminKey, "DELETE", "/admin/v1/people/"+out.Person.ID, nil, nil) })
	through()
	b.Wait(`document.querySelector("header.page h1")`)
	b.Faults = nil // Dex's own page
	if cookie := b.Eval("document.cookie"); cookie != `""` {
		t.Errorf("scripts can read the session: %s", cookie)
	}
	visit(b, "/you")
	b.Wait(`document.querySelector("main").innerText.includes("ada@example.com") && document.querySelector("main").innerText.includes("bound") && document.querySelector("main").innerText.includes("viewer")`)
	shoot(b, "you through dex")
	quiet(t, b)
	b.Click("header button", "Sign out")
	b.Wait(`document.querySelector("form.card")`)
	if status := b.Eval(`fetch("/v2/account", { headers: { "X-Gantry-Console": "1" } }).then((r) => r.status)`); status != "401" {
		t.Errorf("after the sign-out: %s", status)
	}
	b.Faults = nil
}

// TestDexKnowsAPerson signs in at a real Dex and asks it who that was.
func TestDexKnowsAPerson(t *testing.T) {
	const redirect = "http://127.0.0.1:9/console/oidc/callback"
	listen, err := freeAddress()
	if err != nil {
		t.Fatal(err)
	}
	startDex(t, listen, redirect)
	provider := oidc.New(oidc.Config{Issuer: "http://" + listen, ClientID: "gantry", ClientSecret: "hush", Redirect: redirect})
	var to string
	if err := devtest.Until(20*time.Second, func() (err error) {
		to, err = provider.Begin(t.Context(), "state", "nonce", strings.Repeat("v", 43))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	code := func() string { return atDex(t, to) }
	if _, err := provider.Finish(t.Context(), code(), "another", strings.Repeat("v", 43)); err == nil {
		t.Error("another nonce is good")
	}
	if _, err := provider.Finish(t.Context(), code(), "nonce", strings.Repeat("w", 43)); err == nil {
		t.Error("another verifier is good")
	}
	good := code()
	got, err := provider.Finish(t.Context(), good, "nonce", strings.Repeat("v", 43))
	if err != nil || got.Email != "ada@example.com" || !strings.HasPrefix(got.Subject, "http://"+listen+" ") {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := provider.Finish(t.Context(), good, "nonce", strings.Repeat("v", 43)); err == nil {
		t.Error("a code is good twice")
	}
}

// atDex types the password into Dex's form and returns the code with which it sends the browser back.
func atDex(t *testing.T, to string) string {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	var back *url.URL
	c := &http.Client{Jar: jar, Timeout: 20 * time.Second, CheckRedirect: func(r *http.Request, _ []*http.Request) error {
		if strings.HasSuffix(r.URL.Path, "/callback") && r.URL.Query().Get("code") != "" {
			back = r.URL
			return http.ErrUseLastResponse
		}
		return nil
	}}
	page, err := c.Get(to) //nolint:noctx // has a timeout
	if err != nil {
		t.Fatal(err)
	}
	text, _ := io.ReadAll(page.Body)
	_ = page.Body.Close()
	form := regexp.MustCompile(`action="([^"]*)"`).FindSubmatch(text)
	if form == nil {
		t.Fatalf("Dex shows no form: %s", text)
	}
	action, err := page.Request.URL.Parse(html.UnescapeString(string(form[1])))
	if err != nil {
		t.Fatal(err)
	}
	answer, err := c.PostForm(action.String(), url.Values{"login": {"ada@example.com"}, "password": {"correct horse"}}) //nolint:noctx // has a timeout
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	if back == nil || back.Query().Get("state") != "state" {
		t.Fatalf("Dex leads to %s", answer.Request.URL)
	}
	return back.Query().Get("code")
}

// TestAPersonEndsAllSessions signs out everywhere.
func TestAPersonEndsAllSessions(t *testing.T) {
	var own struct{ ID string }
	ask(t, suite.info.APIKey, "GET", "/v2/account", nil, &own)
	p := newPerson(t, "eve@example.com", own.ID, "viewer")
	b := browser.Open(t)
	b.Visit(suite.info.API + "/console")
	signIn(b, "eve@example.com", p.Password, "")
	b.Fill("input[name=newPassword]", "correct horse battery")
	b.Click("form button", "Sign in")
	b.Wait(`document.querySelector("header.page h1")`)
	visit(b, "/you")
	sure("Sign out everywhere", "")(t, b)
	b.Wait(`document.querySelector("form.card")`)
	var list struct{ People []struct{ Sessions int } }
	if ask(t, suite.info.AdminKey, "GET", "/admin/v1/people", nil, &list); len(list.People) != 1 || list.People[0].Sessions != 0 {
		t.Errorf("%+v", list)
	}
}
