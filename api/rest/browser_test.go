package rest_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"gantry/api/rest"
	"gantry/test/browser"
)

// TestDocsAreSearchedInABrowser types into the page of documentation in a real browser.
func TestDocsAreSearchedInABrowser(t *testing.T) {
	s := newSite(t, nil, rest.Limits{})
	b := browser.Open(t)
	b.Visit(s.base + "/docs")
	ids := func(selector string) []string {
		var out []string
		text := b.Eval(`[...document.querySelectorAll("` + selector + `")].filter((e) => e.offsetParent !== null).map((e) => e.id || e.getAttribute("href"))`)
		if err := json.Unmarshal([]byte(text), &out); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		return out
	}
	all := len(listed(s.api))
	if got := ids("article > h3"); len(got) != all {
		t.Fatalf("%d operations are to be seen, of %d", len(got), all)
	}
	b.Eval(`document.getElementById("words").focus()`)
	b.Press("Drain  host")
	found, links := ids("article > h3"), ids("nav li a")
	if !slices.Contains(found, "op-drainHost") || slices.Contains(found, "op-createPod") || len(found) > 10 {
		t.Errorf("found %q", found)
	}
	if len(links) != len(found) || !slices.Contains(links, "#op-drainHost") {
		t.Errorf("links to %q", links)
	}
	if got, want := b.Eval(`document.getElementById("count").textContent`), fmt.Sprintf(`"%d of %d"`, len(found), all); got != want {
		t.Errorf("the page says %s, want %s", got, want)
	}
	if got := b.Eval(`document.querySelector("#op-drainHost").closest("article").querySelector("details:has(h4) pre").textContent.startsWith("curl ")`); got != "true" {
		t.Errorf("the operation that was found shows no snippets: %s", got)
	}
	b.Press("xyz")
	if got := ids("article > h3"); len(got) != 0 {
		t.Errorf("found %q of what is not there", got)
	}
	b.Eval(`words.value = ""; words.dispatchEvent(new Event("input"))`)
	if got := ids("article > h3"); len(got) != all {
		t.Errorf("%d operations are to be seen after the search, of %d", len(got), all)
	}
	if len(b.Faults) > 0 {
		t.Errorf("the console says %s", b.Faults)
	}
}

// TestABrowserTellsOfFaults shows that the test above hears of what goes wrong on a page.
func TestABrowserTellsOfFaults(t *testing.T) {
	b := browser.Open(t)
	b.Visit(`data:text/html,<meta http-equiv="Content-Security-Policy" content="default-src 'none'"><script>alert(1)</script>`)
	if b.Eval("1"); len(b.Faults) != 1 || !strings.Contains(b.Faults[0], "Content Security Policy") {
		t.Errorf("the console says %s", b.Faults)
	}
}
