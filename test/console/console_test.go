package console

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"gantry/test/browser"
	"gantry/test/devtest"
)

// TestAJourney signs in, creates a pod, uses its terminal and its files, and ends it.
func TestAJourney(t *testing.T) {
	t.Cleanup(func() {
		var left struct{ Pods []pod }
		ask(t, suite.info.APIKey, "GET", "/v2/pods", nil, &left)
		for _, p := range left.Pods {
			remove(t, "/v2/pods/"+p.ID)
		}
	})
	b := browser.Open(t)
	b.Look(1280, 900, "light")
	b.Visit(suite.info.API + "/console/pods")
	b.Wait(`document.querySelector("input[name=key]")`)
	shoot(b, "login")
	b.Fill("input[name=key]", "gk_no")
	b.Click("form button", "Sign in")
	b.Wait(`document.querySelector("[role=alert]")`)
	b.Faults = nil // the refusal
	b.Fill("input[name=key]", suite.info.APIKey)
	b.Click("form button", "Sign in")
	b.Wait(`document.querySelector(".empty")`)
	if cookie := b.Eval("document.cookie"); cookie != `""` {
		t.Errorf("scripts can read the session: %s", cookie)
	}
	shoot(b, "no pods")

	b.Click("a.button", "New pod")
	b.Fill(`input[placeholder="web"]`, "journey")
	b.Fill(`input[placeholder="docker.io/library/nginx:alpine"]`, devtest.Image)
	b.Fill(`input[placeholder="python train.py"]`, "sh -c 'while :; do echo a line of the journey; sleep 1; done'")
	b.Fill(`input[placeholder="80/http"]`, "8080/http")
	b.Wait(`document.querySelector(".note.ok")`)
	b.Eval(`scrollTo(0, 0)`)
	shoot(b, "create")
	b.Click("button", "Create the pod")
	b.Wait(`document.querySelector("h1").innerText === "journey" && document.querySelector("header.page .badge").innerText === "running"`)
	b.Wait(`document.querySelector(".phases")`)
	shoot(b, "pod")

	b.Click("[role=tab]", "Logs")
	b.Wait(`document.querySelector(".log").innerText.includes("a line of the journey")`)
	b.Fill(`input[aria-label="Search the log"]`, "JOURNEY")
	b.Wait(`document.querySelector(".log mark")?.innerText === "journey" && location.search === "?tab=Logs&find=JOURNEY"`)
	shoot(b, "logs")

	b.Click("[role=tab]", "Terminal")
	screen := `document.querySelector(".xterm-rows")?.textContent ?? ""`
	b.Wait(`(` + screen + `).includes("#")`)
	b.Eval(`document.querySelector(".xterm-helper-textarea").focus()`)
	b.Press("echo sum-$((40+2)) > /tmp/made && cat /tmp/made\r")
	b.Wait(`[...document.querySelectorAll(".xterm-rows > div")].some((row) => row.textContent.trim() === "sum-42")`)
	shoot(b, "terminal")

	b.Click("[role=tab]", "Files")
	b.Click("td a", "tmp/")
	b.Wait(`[...document.querySelectorAll("td")].some((e) => e.innerText === "made")`)
	b.Eval(`(() => {
		const input = document.querySelector("input[type=file]"), files = new DataTransfer()
		files.items.add(new File(["from the browser"], "up load.txt"))
		files.items.add(new File(["long"], "n".repeat(150)))
		input.files = files.files
		input.dispatchEvent(new Event("change", { bubbles: true }))
		return 1
	})()`)
	b.Wait(`[...document.querySelectorAll("td")].some((e) => e.innerText === "up load.txt") && [...document.querySelectorAll("td")].some((e) => e.innerText === "n".repeat(150))`)
	b.Eval(`(() => {
		const create = URL.createObjectURL
		URL.createObjectURL = (blob) => { blob.text().then((text) => window.saved = text); return create.call(URL, blob) }
		return 1
	})()`)
	b.Click(`button[aria-label="Download up load.txt"]`, "")
	b.Wait(`window.saved === "from the browser"`)
	shoot(b, "files")

	b.Click("[role=tab]", "Metrics")
	b.Wait(`document.querySelector(".uplot canvas")`)
	shoot(b, "metrics")

	b.Click("header.page button", "Terminate")
	b.Fill("dialog input", "journey")
	b.Click("dialog footer button", "Terminate")
	b.Wait(`["terminated", ""].includes(document.querySelector("header.page .badge")?.innerText ?? "")`)
	b.Click("#nav a", "Pods")
	b.Wait(`document.querySelector(".empty")`)
	quiet(t, b)
	b.Click("header button", "Sign out")
	b.Wait(`document.querySelector("input[name=key]")`)
}

// TestAnOperatorDrainsAHost watches a pod move away.
func TestAnOperatorDrainsAHost(t *testing.T) {
	p := newPod(t, "mover", devtest.Sleeper, func(body map[string]any) { body["movable"] = true })
	b := open(t, suite.info.API, suite.info.AdminKey)
	visit(b, "/hosts/"+p.HostID)
	b.Click("header.page button", "Drain…")
	b.Wait(`document.querySelector("dialog td")?.innerText === "` + p.ID + `"`)
	shoot(b, "drain")
	b.Click("dialog footer button", "Drain")
	err := devtest.Until(time.Minute, func() error {
		was := p.HostID
		var now pod
		if ask(t, suite.info.APIKey, "GET", "/v2/pods/"+p.ID, nil, &now); now.HostID == was || now.Status != "RUNNING" {
			return fmt.Errorf("the pod is %s on %s", now.Status, now.HostID)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	b.Wait(`[...document.querySelectorAll("header.page .badge")].some((e) => e.innerText === "draining")`)
	shoot(b, "drained")
	b.Click("header.page button", "Uncordon")
	b.Wait(`[...document.querySelectorAll("header.page .badge")].some((e) => e.innerText === "open")`)
	quiet(t, b)
}

// pages lists all pages of the navigation, and those of what there is.
func pages(t *testing.T, b *browser.Browser, more ...string) []string {
	t.Helper()
	var out []string
	if err := json.Unmarshal([]byte(b.Eval(`[...document.querySelectorAll("#nav a")].map((a) => a.pathname.slice("/console".length) || "/")`)), &out); err != nil {
		t.Fatal(err)
	}
	return append(out, more...)
}

// TestEveryPageIsFitToBeUsed looks at each page for faults, what axe finds serious, and what does not fit a small screen.
func TestEveryPageIsFitToBeUsed(t *testing.T) {
	axe, err := os.ReadFile("../../console/node_modules/axe-core/axe.min.js")
	if err != nil {
		t.Fatal(err)
	}
	p := newPod(t, "seen", "while :; do echo tick; sleep 1; done", func(body map[string]any) {
		delete(body, "cpu")
		body["gpu"], body["ports"] = map[string]any{"id": devtest.GPUType, "count": 3}, []string{"80/http", "22/tcp"}
	})
	var endpoint struct{ ID string }
	ask(t, suite.info.APIKey, "POST", "/v2/serverless", map[string]any{
		"name": "hello", "image": "localhost/hello-worker:1", "type": "QUEUE", "cpu": []map[string]any{{"id": "cpu3c", "vcpuCount": 2}},
		"scaling": map[string]any{"type": "QUEUE_DELAY", "queueDelay": 4},
	}, &endpoint)
	t.Cleanup(func() { remove(t, "/v2/serverless/"+endpoint.ID) })
	ask(t, suite.info.APIKey, "POST", "/v2/"+endpoint.ID+"/runsync", map[string]any{"input": map[string]any{"name": "axe"}}, nil)
	of, at := "/pods/"+p.ID, "/endpoints/"+endpoint.ID
	for _, who := range []struct {
		name, key string
		more      []string
	}{
		{"renter", suite.info.APIKey, []string{
			"/pods/new", of, of + "?tab=Metrics", of + "?tab=Logs", of + "?tab=Terminal", of + "?tab=Files", "/endpoints/new", at, at + "?tab=Workers", at + "?tab=Jobs",
			at + "?tab=Try%20it", at + "?tab=Code", at + "?tab=Releases", "/activity?tab=Audit", "/nothing/here", "/volumes/" + newVolume(t, "looked at"),
		}},
		{"operator", suite.info.AdminKey, []string{"/hosts/" + p.HostID, "/fleet-activity?tab=Audit", "/prices?tab=CPUs", "/fleet?view=heat", "/prices?tab=Storage", "/runbooks", "/runbooks?alert=GantryGPUSick"}},
	} {
		b := open(t, suite.info.API, who.key)
		all := pages(t, b, who.more...)
		if len(all) < 15 {
			t.Errorf("only %d pages: %q", len(all), all)
		}
		b.Eval(string(axe))
		for _, page := range all {
			for _, colours := range []string{"light", "dark"} {
				b.Look(1280, 900, colours)
				visit(b, page)
				if strings.HasSuffix(page, "Metrics") {
					b.Wait(`document.querySelector(".uplot canvas")`)
				}
				found := b.Eval(`axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"] }).then((r) => r.violations
					.filter((v) => ["serious", "critical"].includes(v.impact)).map((v) => v.id + ": " + v.nodes.slice(0, 3).map((n) => n.html.slice(0, 160) + " " + (n.any[0]?.message ?? "")).join(" | ")))`)
				if found != "[]" {
					t.Errorf("%s, %s: axe finds %s", page, colours, found)
				}
				shoot(b, who.name+" "+page+" "+colours)
			}
			b.Look(400, 850, "light")
			b.Wait("innerWidth === 400")
			if wide := b.Eval(`[...document.querySelectorAll("main *")].filter((e) => e.getBoundingClientRect().right > 401 && !e.closest(".table, .scroll, .tabs, .chart, .terminal, pre"))
				.slice(0, 3).map((e) => e.outerHTML.slice(0, 120))`); wide != "[]" {
				t.Errorf("%s does not fit 400 pixels: %s", page, wide)
			}
			shoot(b, who.name+" "+page+" narrow")
			for _, fault := range b.Faults {
				t.Errorf("%s: the browser's console says %s", page, fault)
			}
			b.Faults = nil
		}
	}
}

// TestTheDocumentNamesEveryPage: what the navigation leads to is in docs/console.md.
func TestTheDocumentNamesEveryPage(t *testing.T) {
	source, err := os.ReadFile("../../console/src/places.ts")
	if err != nil {
		t.Fatal(err)
	}
	document, err := os.ReadFile("../../docs/console.md")
	if err != nil {
		t.Fatal(err)
	}
	var told []string
	for line := range strings.SplitSeq(string(document), "\n") {
		if row, ok := strings.CutPrefix(line, "| "); ok {
			names, _, _ := strings.Cut(row, " |")
			told = append(told, strings.Split(names, ", ")...)
		}
	}
	found := regexp.MustCompile(`place\('[^']+', '([^']+)'`).FindAllStringSubmatch(string(source), -1)
	if len(found) < 25 {
		t.Errorf("the source has only %d pages", len(found))
	}
	for _, page := range found {
		if !slices.Contains(told, page[1]) {
			t.Errorf("docs/console.md does not tell of the page %s", page[1])
		}
	}
}

// TestKeysLead uses the console without a mouse.
func TestKeysLead(t *testing.T) {
	newPod(t, "alpha", devtest.Sleeper, nil)
	newPod(t, "beta", devtest.Sleeper, nil)
	b := open(t, suite.info.API, suite.info.APIKey)
	b.Press("gp")
	b.Wait(`document.querySelector("h1").innerText === "Pods" && document.querySelectorAll("tbody tr").length === 2`)
	b.Press("/")
	b.Wait(`document.activeElement.matches("input.search")`)
	b.Press("alph")
	b.Wait(`document.querySelectorAll("tbody tr").length === 1 && location.search === "?q=alph"`)
	b.Eval(`document.activeElement.blur()`)
	b.Press("?")
	b.Wait(`document.querySelector("dialog[open]")`)
	quiet(t, b)
}
