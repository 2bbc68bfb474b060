package console

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gantry/test/browser"
	"gantry/test/devtest"
)

// action is something that a page lets one do: how, and the operation of the API that must have answered well.
type action struct {
	operation string
	operator  bool
	page      string
	do        func(t *testing.T, b *browser.Browser)
}

// field fills the field of a form that has a label.
func field(b *browser.Browser, label, value string) {
	find := fmt.Sprintf(`[...document.querySelectorAll("dialog[open] label"), ...document.querySelectorAll("main label")].find((l) => (l.querySelector("span") ?? l).innerText.trim() === %q)?.querySelector("input,select,textarea")`, label)
	b.Wait(find)
	b.Eval(fmt.Sprintf(`(() => {
		const e = %s, value = %q
		if (["checkbox", "radio"].includes(e.type)) { e.click(); return 1 }
		Object.getOwnPropertyDescriptor(Object.getPrototypeOf(e), "value").set.call(e, value)
		for (const kind of ["input", "change"]) e.dispatchEvent(new Event(kind, { bubbles: true }))
		return 1
	})()`, find, value))
}

// click waits for an element and clicks it at once: a list that is read again takes it away for a moment.
func click(b *browser.Browser, find string) {
	b.Wait(`(() => { const e = ` + find + `; e?.click(); return e })()`)
}

// press presses buttons by their words: of the open dialog, if there is one, else of the page.
func press(b *browser.Browser, words ...string) {
	for _, word := range words {
		click(b, fmt.Sprintf(`[...(document.querySelector("dialog[open]") ?? document.querySelector("main")).querySelectorAll("button:not([disabled])")].find((e) => e.innerText.trim() === %q)`, word))
	}
}

// fields fills fields, given as labels and values, and presses a button.
func fields(button string, pairs ...string) func(*testing.T, *browser.Browser) {
	return func(_ *testing.T, b *browser.Browser) {
		for i := 0; i < len(pairs); i += 2 {
			field(b, pairs[i], pairs[i+1])
		}
		press(b, button)
	}
}

// opened presses a button that opens a form, and then does as fields.
func opened(opens, button string, pairs ...string) func(*testing.T, *browser.Browser) {
	return func(t *testing.T, b *browser.Browser) {
		t.Helper()
		press(b, opens)
		if opens != "As a form" {
			b.Wait(`document.querySelector("dialog[open]")`)
		}
		fields(button, pairs...)(t, b)
	}
}

// pressed presses buttons one after the other.
func pressed(words ...string) func(*testing.T, *browser.Browser) {
	return func(_ *testing.T, b *browser.Browser) { press(b, words...) }
}

// sure presses a button and, in the dialog that asks, the same again, after a word if it wants one.
func sure(button, word string) func(*testing.T, *browser.Browser) {
	return func(_ *testing.T, b *browser.Browser) {
		press(b, button)
		b.Wait(`document.querySelector("dialog[open]")`)
		if word != "" {
			b.Fill("dialog[open] input", word)
		}
		press(b, button)
	}
}

// inRow presses a button of the row of a list whose first cell says name, and waits for what it opens.
func inRow(b *browser.Browser, name, button string) {
	atOnce(b, name, button)
	b.Wait(`document.querySelector("dialog[open]")`)
}

// atOnce presses a button of a row that opens nothing.
func atOnce(b *browser.Browser, name, button string) {
	click(b, fmt.Sprintf(`[...([...document.querySelectorAll("tr")].find((r) => r.querySelector("td")?.innerText.trim() === %q)?.querySelectorAll("button") ?? [])].find((e) => e.innerText === %q)`, name, button))
}

// deletes deletes what the row of a list is about.
func deletes(name string) func(*testing.T, *browser.Browser) {
	return func(_ *testing.T, b *browser.Browser) {
		inRow(b, name, "Delete")
		press(b, "Delete")
	}
}

// join has a host and a gateway join, as which no process runs, and returns the id of the host.
func join(t *testing.T) string {
	t.Helper()
	var cluster struct{ Members []struct{ Address string } }
	ask(t, suite.info.AdminKey, "GET", "/admin/v1/cluster", nil, &cluster)
	run := func(tokens, name, program string, args ...string) {
		var made struct{ Token string }
		ask(t, suite.info.AdminKey, "POST", tokens, map[string]string{"dataCenterId": suite.info.DataCenterID}, &made)
		file := filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(file, []byte(made.Token), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--data-dir", filepath.Join(t.TempDir(), name), "--scheduler", cluster.Members[0].Address, "--name", name, "--token-file", file)
		if text, err := exec.CommandContext(t.Context(), suite.site.Binary(program), args...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", name, err, text)
		}
	}
	run("/admin/v1/hosts/tokens", "made-host", "gantry-agent", "join")
	run("/admin/v1/gateways/tokens", "made-gateway", "gantry-scheduler", "gateway", "join", "--address", "127.0.0.1:9")
	var list struct {
		Hosts []struct{ ID, Name string }
	}
	ask(t, suite.info.AdminKey, "GET", "/admin/v1/hosts", nil, &list)
	for _, h := range list.Hosts {
		if h.Name == "made-host" {
			return h.ID
		}
	}
	t.Fatalf("the host is not among %+v", list.Hosts)
	return ""
}

// newEndpoint makes a queue endpoint of the sample worker.
func newEndpoint(t *testing.T, name string) string {
	t.Helper()
	var made struct{ ID string }
	ask(t, suite.info.APIKey, "POST", "/v2/serverless", map[string]any{
		"name": name, "image": "localhost/hello-worker:1", "type": "QUEUE", "cpu": []map[string]any{{"id": "cpu3c", "vcpuCount": 2}},
		"scaling": map[string]any{"type": "QUEUE_DELAY", "queueDelay": 4},
	}, &made)
	return made.ID
}

// notHere are the operations that need what this test has not, with the test that shows them instead, or why there is none.
var notHere = map[string]string{
	"POST /v2/pods":                              "TestAJourney",
	"POST /v2/{id}/cancel/{job}":                 "TestJobsAreLookedInto",
	"POST /v2/{id}/retry/{job}":                  "TestJobsAreLookedInto",
	"POST /v2/pods/{id}/action":                  "TestAJourney",
	"POST /admin/v1/hosts/{id}/drain":            "TestAnOperatorDrainsAHost",
	"POST /admin/v1/hosts/{id}/uncordon":         "TestAnOperatorDrainsAHost",
	"POST /admin/v1/hosts/{id}/ack-alarm":        "TestAFleetThatFails",
	"POST /admin/v1/hosts/{id}/gpus/{gpu}/clear": "TestAFleetThatFails",
	"POST /admin/v1/cluster/transfer":            "TestAFleetThatFails",
	"PUT /v2/me/totp":                            "TestAPersonSignsIn",
	"PUT /v2/me/password":                        "TestAPersonSignsIn",
	"PUT /v2/me/account":                         "TestAPersonSignsIn",
	"POST /v2/me/devices/{id}":                   "TestAPersonSignsIn",
	"DELETE /v2/me/sessions":                     "TestAPersonEndsAllSessions",
}

// sites are the calls whose path is made while they are sent, and what they are.
var sites = map[string]string{
	"DELETE address(`${n.url}/{id}`":                                "DELETE /v2/secrets/{id}",
	"PATCH `/admin/v1/accounts/${encodeURIComponent(a.id)}`":        "PATCH /admin/v1/accounts/{id}",
	"PATCH `/admin/v1/volume-backends/${encodeURIComponent(b.id)}`": "PATCH /admin/v1/volume-backends/{id}",
	"POST job(e.id, 'purge-queue'":                                  "POST /v2/{id}/purge-queue",
	"POST job(e.id, 'runsync'":                                      "POST /v2/{id}/runsync",
	"POST job(e.id, `cancel":                                        "POST /v2/{id}/cancel/{job}",
	"POST job(e.id, `retry":                                         "POST /v2/{id}/retry/{job}",
	"PUT '/admin/v1/storage-prices'":                                "PUT /admin/v1/storage-prices",
	"PUT '/v2/account/ssh-keys'":                                    "PUT /v2/account/ssh-keys",
	"PUT '/v2/me/totp'":                                             "PUT /v2/me/totp",
	"PUT '/v2/me/password'":                                         "PUT /v2/me/password",
	"PUT '/v2/me/account'":                                          "PUT /v2/me/account",
	"DELETE '/v2/me/sessions'":                                      "DELETE /v2/me/sessions",
	"POST address('/v2/me/devices/":                                 "POST /v2/me/devices/{id}",
	"POST one(p":                                                    "POST /admin/v1/people/{id}/reset",
	"PATCH one(p":                                                   "PATCH /admin/v1/people/{id}",
	"DELETE one(p":                                                  "DELETE /admin/v1/people/{id}",
	"DELETE '/console/session'":                                     "", // TestAJourney
	"POST '/console/session'":                                       "", // each
}

var (
	callForm = regexp.MustCompile(`call\('(post|patch|put|delete)', '([^']+)'`)
	jsonForm = regexp.MustCompile(`json(?:<[^>]*>)?\('(POST|PATCH|PUT|DELETE)', (?:(job\(e\.id, [^/)]+)|([^,]+?)(?:, |\)[,;)]|\)\.))`)
)

// offered reads from the page's source which operations it has.
func offered(t *testing.T) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir("../../console/src", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.Contains(path, ".ts") || strings.HasSuffix(path, "/api.ts") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range callForm.FindAllStringSubmatch(string(text), -1) {
			out = append(out, strings.ToUpper(m[1])+" "+m[2])
		}
		for _, m := range jsonForm.FindAllStringSubmatch(string(text), -1) {
			site, known := m[1]+" "+m[2]+m[3], false
			for start, operation := range sites {
				if strings.HasPrefix(site, start) {
					out, known = append(out, operation), true
				}
			}
			if !known {
				t.Errorf("%s has an action that no test knows: %s", path, site)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(out)
	return slices.DeleteFunc(slices.Compact(out), func(s string) bool { return s == "" })
}

func actions(pod, volume, endpoint, served, host, account, joined string) []action {
	return []action{
		{"PATCH /v2/pods/{id}", false, "/pods/" + pod, opened("Change", "Change", "Name", "acted on")},
		{"PATCH /v2/network-volumes/{id}", false, "/volumes/" + volume, opened("Change", "Change", "Name", "grown", "Size, GB", "11")},
		{"POST /v2/network-volumes", false, "/volumes", opened("New volume", "Create", "Name", "made here", "Size, GB", "10")},
		{"POST /v2/templates", false, "/templates", opened("New template", "Create", "Name", "made", "Image", "busybox", "Category", "CPU")},
		{"PATCH /v2/templates/{id}", false, "/templates", opened("Change", "Change", "Name", "changed", "Environment", "A=1", "Public: every account may use it, and read its environment", "")},
		{"PUT /v2/secrets/{id}", false, "/secrets", opened("New secret", "Create", "Name", "made", "Value", "of no worth")},
		{"DELETE /v2/secrets/{id}", false, "/secrets", sure("Delete", "")},
		{"POST /v2/registries", false, "/registries", opened("New credential", "Create", "Name", "made", "User", "me", "Password or token", "none")},
		{"POST /v2/s3-keys", false, "/s3-keys", func(t *testing.T, b *browser.Browser) {
			opened("New S3 key", "Create", "Name", "made", "Ends after days", "1")(t, b)
			b.Wait(`document.querySelector("dialog .cli code")`)
			var all struct {
				S3Keys []struct{ Name, ExpiresAt string }
			}
			ask(t, suite.info.APIKey, "GET", "/v2/s3-keys", nil, &all)
			if !slices.ContainsFunc(all.S3Keys, func(k struct{ Name, ExpiresAt string }) bool { return k.Name == "made" && k.ExpiresAt != "" }) {
				t.Errorf("the keys are %+v", all.S3Keys)
			}
		}},
		{"POST /v2/account/keys", false, "/keys", func(t *testing.T, b *browser.Browser) {
			opened("New key", "Create", "Name", "made", "Ends after days", "1", "May do", "restricted", "pods", "read", "Runs jobs of", "all endpoints")(t, b)
			b.Wait(`document.querySelector("dialog .cli code")?.innerText.startsWith("gk_")`)
			var all struct {
				Keys []struct {
					Name, Permissions any
					ExpiresAt         string
				}
			}
			ask(t, suite.info.APIKey, "GET", "/v2/account/keys", nil, &all)
			if text := fmt.Sprint(all.Keys); !strings.Contains(text, "pods:read") || !strings.Contains(text, "serverless:none") {
				t.Errorf("the keys are %s", text)
			}
		}},
		{"PATCH /v2/account/keys/{id}", false, "/keys", func(_ *testing.T, b *browser.Browser) {
			row := `[...document.querySelectorAll("tr")].find((r) => r.querySelector("td")?.innerText.trim() === "made")`
			b.Wait(row)
			b.Eval(`[...` + row + `.querySelectorAll("button")].find((e) => e.innerText === "Disable").click(); 1`)
		}},
		{"PATCH /v2/account", false, "/account", func(_ *testing.T, b *browser.Browser) {
			field(b, "URL", suite.info.API+"/nobody-listens")
			field(b, "Kinds of events", "low-balance")
			press(b, "Create")
			b.Wait(`document.querySelector("main").innerText.includes("Nothing has been sent yet.")`)
			sure("Delete the webhook", "")(nil, b)
		}},
		{"PUT /v2/account/ssh-keys", false, "/account", func(_ *testing.T, b *browser.Browser) {
			field(b, "Public keys", "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ1H9lYf4n3v0sSgVh4uKQ7Vn3dJQX0m5T5p1m4bVw8E me")
			b.Eval(`[...document.querySelectorAll("main form")].at(-1).requestSubmit(); 1`)
		}},
		{"POST /v2/serverless", false, "/endpoints/new", fields("Create", "Name", "planned", "Image", "localhost/hello-worker:1", "Only see whether it could be created", "")},
		{"PATCH /v2/serverless/{id}", false, "/endpoints/" + endpoint, opened("Change", "Change", "Name", "renamed")},
		{"POST /v2/{id}/purge-queue", false, "/endpoints/" + endpoint + "?tab=Jobs", sure("Purge the queue", "")},
		{"POST /v2/{id}/runsync", false, "/endpoints/" + endpoint + "?tab=Try%20it", func(t *testing.T, b *browser.Browser) {
			b.Wait(`document.querySelector("textarea.code")`)
			b.Fill("textarea.code", `{"name": "form", "n": 1, "b": true, "o": {"x": 1}}`)
			opened("As a form", "Run", "name", "a field", "n", "2", "b", "")(t, b)
			b.Wait(`document.querySelector("main pre")?.innerText.includes("a field")`)
		}},
		{"POST /v2/network/check", false, "/networks", func(_ *testing.T, b *browser.Browser) {
			press(b, "Check who reaches whom")
			b.Wait(`[...document.querySelectorAll("h2")].some((e) => e.innerText === "Who reaches whom")`)
		}},
		{"POST /v2/clusters", false, "/clusters", func(t *testing.T, b *browser.Browser) {
			press(b, "New cluster")
			b.Wait(`document.querySelector("dialog[open] select[name=gpu] option")`)
			fields("Create", "Name", "made", "GPUs of each", "1", "Image", devtest.Image, "Arguments", fmt.Sprintf(`{"entrypoint":["sh","-c"],"cmd":[%q]}`, devtest.Sleeper))(t, b)
			b.Wait(`[...document.querySelectorAll("td a")].some((e) => e.innerText === "made")`)
		}},
		{"PATCH /v2/clusters/{id}", false, "/clusters", func(t *testing.T, b *browser.Browser) {
			b.Click("td a", "made")
			opened("Rename", "Rename", "Name", "renamed")(t, b)
		}},
		{"POST /v2/clusters/{id}/restart", false, "/clusters", func(t *testing.T, b *browser.Browser) {
			b.Click("td a", "renamed")
			b.Wait(`document.querySelector("header.page .badge")?.innerText === "ready"`)
			sure("Restart", "")(t, b)
		}},
		{"DELETE /v2/clusters/{id}", false, "/clusters", func(t *testing.T, b *browser.Browser) {
			b.Click("td a", "renamed")
			sure("Delete", "renamed")(t, b)
		}},
		{"DELETE /v2/serverless/{id}", false, "/endpoints/" + endpoint, sure("Delete", "renamed")},
		{"POST /admin/v1/hosts/{id}/cordon", true, "/hosts/" + host, func(_ *testing.T, b *browser.Browser) {
			sure("Cordon", "")(nil, b)
			b.Click("header.page button", "Uncordon")
			b.Wait(`[...document.querySelectorAll("header.page button")].some((e) => e.innerText === "Cordon")`)
		}},
		{"POST /admin/v1/hosts/{id}/gpus/{gpu}/cordon", true, "/hosts/" + host, func(_ *testing.T, b *browser.Browser) { b.Click("td button", "Cordon") }},
		{"POST /admin/v1/hosts/{id}/gpus/{gpu}/uncordon", true, "/hosts/" + host, func(_ *testing.T, b *browser.Browser) { b.Click("td button", "Uncordon") }},
		{"POST /admin/v1/accounts", true, "/accounts", opened("New account", "Create", "Name", "made here")},
		{"POST /admin/v1/accounts/{id}/credits", true, "/accounts/" + account, fields("Add", "USD", "10")},
		{"POST /admin/v1/accounts/{id}/keys", true, "/accounts/" + account, fields("Make a key", "Name", "made")},
		{"PATCH /admin/v1/accounts/{id}", true, "/accounts/" + account, fields("Save", "running pods", "9")},
		{"POST /admin/v1/accounts/{id}/suspend", true, "/accounts/" + account, sure("Suspend", "acted on")},
		{"POST /admin/v1/accounts/{id}/resume", true, "/accounts/" + account, pressed("Resume")},
		{"PUT /admin/v1/gpu-types/{id}", true, "/prices", opened("Change", "Save", "secure", "9")},
		{"PUT /admin/v1/cpu-flavors/{id}", true, "/prices?tab=CPUs", opened("New flavor", "Save", "Id", "cpu9x", "Name", "Made", "Group", "cpu9", "USD per vCPU and hour", "0.1", "of workers", "0.2")},
		{"DELETE /admin/v1/cpu-flavors/{id}", true, "/prices?tab=CPUs", func(_ *testing.T, b *browser.Browser) {
			row := `[...document.querySelectorAll("tr")].find((r) => r.querySelector("td")?.innerText.trim() === "cpu9x")`
			b.Wait(row)
			b.Eval(`[...` + row + `.querySelectorAll("button")].find((e) => e.innerText === "Delete").click(); 1`)
			b.Wait(`document.querySelector("dialog[open]")`)
			b.Fill("dialog[open] input", "cpu9x")
			press(b, "Delete")
		}},
		{"PUT /admin/v1/storage-prices", true, "/prices?tab=Storage", pressed("Save")},
		{"PATCH /admin/v1/volume-backends/{id}", true, "/backends", func(_ *testing.T, b *browser.Browser) {
			press(b, "Keep away", "Let in")
			b.Wait(`[...document.querySelectorAll("td button")].some((e) => e.innerText === "Keep away")`)
		}},
		{"POST /admin/v1/gateways/tokens", true, "/gateways", opened("New gateway", "Make a token")},
		{"PUT /admin/v1/datacenters/{id}", true, "/data-centers", func(t *testing.T, b *browser.Browser) {
			opened("New data center", "Create", "Id", "made-1", "Name", "Made", "Region", "EUROPE", "Country", "DE")(t, b)
			inRow(b, "made-1", "Change")
			fields("Change", "Name", "Changed")(t, b)
			b.Wait(`document.querySelector("main").innerText.includes("Changed")`)
		}},
		{"POST /admin/v1/volume-backends", true, "/backends", func(t *testing.T, b *browser.Browser) {
			press(b, "New backend")
			b.Wait(`document.querySelector("dialog[open] select[name=center] option[value='made-1']")`)
			fields("Create", "Id", "made", "Data center", "made-1", "Server", "192.0.2.1", "Export", "/made")(t, b)
		}},
		{"DELETE /admin/v1/volume-backends/{id}", true, "/backends", deletes("made")},
		{"DELETE /admin/v1/datacenters/{id}", true, "/data-centers", deletes("made-1")},
		{"PUT /admin/v1/models/{id}", true, "/models", opened("New model", "Create", "Id", "made", "Endpoint", served, "USD per job", "0.01", "JSON Schema of the input", `{"type": "object"}`)},
		{"DELETE /admin/v1/models/{id}", true, "/models", deletes("made")},
		{"PUT /admin/v1/templates/{id}/source", true, "/public-templates", pressed("as verified")},
		{"POST /admin/v1/people", true, "/people", func(t *testing.T, b *browser.Browser) {
			press(b, "New person")
			b.Wait(fmt.Sprintf(`document.querySelector("dialog[open] option[value='%s']")`, account))
			fields("Create", "E-mail address or name", "made@example.com", "Account", account, "Role", "viewer")(t, b)
			b.Wait(`document.querySelector("dialog[open] .cli code")`)
		}},
		{"POST /admin/v1/people/{id}/reset", true, "/people", sure("Reset", "")},
		{"PATCH /admin/v1/people/{id}", true, "/people", pressed("Disable")},
		{"DELETE /admin/v1/people/{id}", true, "/people", deletes("made@example.com")},
		{"POST /admin/v1/hosts/{id}/fence", true, "/hosts/" + joined, sure("Fence", "made-host")},
		{"DELETE /admin/v1/hosts/{id}", true, "/hosts/" + joined, sure("Remove", "made-host")},
		{"DELETE /admin/v1/gateways/{id}", true, "/gateways", func(_ *testing.T, b *browser.Browser) {
			inRow(b, "made-gateway", "Remove")
			b.Fill("dialog[open] input", "made-gateway")
			press(b, "Remove")
		}},
		{"POST /admin/v1/gateways/{id}/drain", true, "/gateways", sure("Drain", "")},
		{"POST /admin/v1/gateways/{id}/undrain", true, "/gateways", pressed("Undrain")},
	}
}

// TestEveryActionDoesIt does all that the pages offer, and fails when they offer something that it does not know.
func TestEveryActionDoesIt(t *testing.T) {
	p := newPod(t, "acted", devtest.Sleeper, nil)
	volume := newVolume(t, "acted")
	for _, name := range []string{"one", "two"} {
		newPod(t, name, devtest.Sleeper, func(body map[string]any) {
			delete(body, "cpu")
			body["gpu"], body["globalNetworking"] = map[string]any{"id": devtest.GPUType, "count": 1}, true
		})
	}
	var account struct{ ID string }
	served := newEndpoint(t, "served")
	t.Cleanup(func() { remove(t, "/v2/serverless/"+served) })
	ask(t, suite.info.AdminKey, "POST", "/admin/v1/accounts", map[string]any{"name": "acted on"}, &account)
	t.Cleanup(func() { clean(t, volume) })
	rows := actions(p.ID, volume, newEndpoint(t, "acted"), served, p.HostID, account.ID, join(t))
	done := map[string]bool{}
	for _, operator := range []bool{false, true} {
		key := suite.info.APIKey
		if operator {
			key = suite.info.AdminKey
		}
		b := open(t, suite.info.API, key)
		b.Eval(`(() => {
			const send = window.fetch
			window.fetch = async (url, init) => {
				const answer = await send(url, init)
				if (answer.ok) (window.sent ??= []).push((init?.method ?? "GET") + " " + new URL(url, location.href).pathname)
				return answer
			}
			return 1
		})()`)
		for _, row := range rows {
			if row.operator != operator {
				continue
			}
			t.Run(row.operation, func(t *testing.T) {
				b.Eval(`window.sent = []; for (const d of document.querySelectorAll("dialog[open]")) d.close(); 1`)
				visit(b, row.page)
				row.do(t, b)
				path := strings.NewReplacer("{id}", "[^/]+", "{gpu}", "[^/]+", "/", `\/`).Replace(row.operation)
				b.Wait(`window.sent.some((s) => /^` + path + `$/.test(s))`)
				done[row.operation] = true
				quiet(t, b)
			})
		}
	}
	for _, operation := range offered(t) {
		if !done[operation] && notHere[operation] == "" {
			t.Errorf("nothing presses what sends %s", operation)
		}
	}
}

// clean removes what the actions have made.
func clean(t *testing.T, keep string) {
	t.Helper()
	for path, list := range map[string]string{"/v2/network-volumes": "networkVolumes", "/v2/templates": "templates", "/v2/registries": "registries", "/v2/s3-keys": "s3Keys", "/v2/account/keys": "keys"} {
		var all map[string]json.RawMessage
		ask(t, suite.info.APIKey, "GET", path, nil, &all)
		var records []struct{ ID, Name string }
		if err := json.Unmarshal(all[list], &records); err != nil {
			t.Fatal(err)
		}
		for _, one := range records {
			if one.ID != keep && slices.Contains([]string{"made", "made here", "changed"}, one.Name) {
				remove(t, path+"/"+one.ID)
			}
		}
	}
}
