package console

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// attack is text that does something wherever it is taken for more than text.
const attack = `<img src=x onerror=window.pwned=1><script>window.pwned=1</script><svg onload=window.pwned=1>`

// TestHostileTextStaysText feeds what strangers may write into each page that shows it, and looks at the document.
func TestHostileTextStaysText(t *testing.T) {
	// Escapes that name the window, write to the clipboard, make a link, and draw over what was there.
	noise := `\033]0;pwned\007\033]52;c;cHduZWQ=\007\033]8;;javascript:window.pwned=1\007link\033]8;;\007\033[31mred\033[0m`
	script := fmt.Sprintf(`mkdir -p "/tmp/<img src=x onerror=window.pwned=1>" && touch "/tmp/<script>window.pwned=1<" && printf '%s\n%s\n'; %s`, noise, strings.ReplaceAll(attack, "%", "%%"), "sleep 1000")
	p := newPod(t, attack[:34]+" name", script, func(body map[string]any) { body["env"] = map[string]string{"EVIL": attack} })
	ask(t, suite.info.APIKey, "POST", "/v2/templates", map[string]any{"name": attack[:34], "image": "busybox", "category": "CPU", "env": map[string]string{"A": attack}}, nil)
	var made struct{ Templates []struct{ ID string } }
	ask(t, suite.info.APIKey, "GET", "/v2/templates", nil, &made)
	t.Cleanup(func() {
		for _, one := range made.Templates {
			remove(t, "/v2/templates/"+one.ID)
		}
	})
	var endpoint struct{ ID string }
	ask(t, suite.info.APIKey, "POST", "/v2/serverless", map[string]any{
		"name": attack[:34], "image": "localhost/hello-worker:1", "type": "QUEUE", "cpu": []map[string]any{{"id": "cpu3c", "vcpuCount": 2}},
		"scaling": map[string]any{"type": "QUEUE_DELAY", "queueDelay": 4},
	}, &endpoint)
	t.Cleanup(func() { remove(t, "/v2/serverless/"+endpoint.ID) })
	var job struct{ ID string }
	ask(t, suite.info.APIKey, "POST", "/v2/"+endpoint.ID+"/runsync", map[string]any{"input": map[string]any{"name": attack}}, &job)

	b := open(t, suite.info.API, suite.info.APIKey)
	of, at := "/pods/"+p.ID, "/endpoints/"+endpoint.ID
	for _, row := range []struct{ page, shows string }{
		{"/", attack[:34]},
		{"/pods", attack[:34]},
		{of, attack},
		{of + "?tab=Logs", attack},
		{of + "?tab=Files&path=/tmp", "<img src=x onerror=window.pwned=1>/"},
		{of + "?tab=Terminal", "#"},
		{"/templates", attack[:34]},
		{"/endpoints", attack[:34]},
		{at, attack[:34]},
		{at + "?tab=Jobs", job.ID},
		{"/pods/new", attack[:34]},
		{"/activity?tab=Audit", "createPod"},
		{"/pods/" + strings.NewReplacer("<", "%3C", ">", "%3E", " ", "%20").Replace("<img src=x onerror=window.pwned=1>"), ""},
	} {
		visit(b, row.page)
		b.Wait(fmt.Sprintf("document.body.innerText.includes(%q)", row.shows))
		if strings.HasSuffix(row.page, "Terminal") {
			b.Wait(`document.querySelector(".xterm-rows")?.textContent.includes("#")`)
			b.Eval(`document.querySelector(".xterm-helper-textarea").focus()`)
			b.Press("printf '" + noise + "\\n'; echo at the end\r")
			b.Wait(`[...document.querySelectorAll(".xterm-rows > div")].some((row) => row.textContent.trim() === "at the end")`)
		}
		if strings.HasSuffix(row.page, "Jobs") {
			b.Click("td button.mono", "")
			b.Wait(fmt.Sprintf("document.querySelector('dialog pre')?.innerText.includes(%q)", "onerror=window.pwned"))
		}
		if strings.HasSuffix(row.page, "Logs") {
			if got := b.Eval(`[...document.querySelectorAll(".log div")].some((e) => e.innerText === "linkred")`); got != "true" {
				t.Errorf("escapes of the log: %s", b.Eval(`document.querySelector(".log").innerText`))
			}
		}
		onlyText(t, b, row.page)
	}
	var faults []string
	for _, fault := range b.Faults { // of the page of a pod that there is not
		if !strings.Contains(fault, "the server responded with a status of 404") {
			faults = append(faults, fault)
		}
	}
	if b.Faults = faults; len(faults) > 0 {
		quiet(t, b)
	}
}

// TestTheFirstViewIsSmall measures what a browser loads until the first page is there, and how long that takes.
func TestTheFirstViewIsSmall(t *testing.T) {
	const most, within = 300_000, 5 * time.Second // bytes; here and now it is a tenth of that, and under a second
	b := open(t, suite.info.API, suite.info.APIKey)
	b.Call("Network.enable", nil)
	b.Call("Network.setCacheDisabled", map[string]any{"cacheDisabled": true})
	begun := time.Now()
	b.Visit(suite.info.API + "/console/pods")
	b.Wait(`document.querySelector("header.page h1")?.innerText === "Pods"`)
	took := time.Since(begun)
	files := b.Eval(`[...performance.getEntriesByType("resource"), ...performance.getEntriesByType("navigation")].filter((e) => new URL(e.name).pathname.startsWith("/console"))
		.map((e) => e.transferSize).reduce((a, b) => a + b, 0)`)
	var bytes int
	if _, err := fmt.Sscan(files, &bytes); err != nil || bytes == 0 || bytes > most {
		t.Errorf("the first view loads %s bytes, of at most %d (%v)", files, most, err)
	}
	if took > within {
		t.Errorf("the first view took %s", took)
	}
	t.Logf("the first view: %d bytes, %s", bytes, took.Round(time.Millisecond))
	if outside := b.Eval(`performance.getEntriesByType("resource").map((e) => new URL(e.name).origin).filter((o) => o !== location.origin)`); outside != "[]" {
		t.Errorf("it loads from elsewhere: %s", outside)
	}
}
