package console

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"gantry/test/browser"
	"gantry/test/devtest"
)

// upload gives a file to the page's upload button.
func upload(b *browser.Browser, name, text string) {
	b.Eval(fmt.Sprintf(`(() => {
		const input = document.querySelector("input[type=file]"), files = new DataTransfer()
		files.items.add(new File([%q], %q))
		input.files = files.files
		input.dispatchEvent(new Event("change", { bubbles: true }))
		return 1
	})()`, text, name))
}

// newVolume makes a network volume and waits until it can be used.
func newVolume(t *testing.T, name string) string {
	t.Helper()
	var v struct{ ID, Status string }
	ask(t, suite.info.APIKey, "POST", "/v2/network-volumes", map[string]any{"name": name, "size": 10, "dataCenter": suite.info.DataCenterID}, &v)
	t.Cleanup(func() { remove(t, "/v2/network-volumes/"+v.ID) })
	err := devtest.Until(time.Minute, func() error {
		if ask(t, suite.info.APIKey, "GET", "/v2/network-volumes/"+v.ID, nil, &v); v.Status != "READY" {
			return fmt.Errorf("the volume is %s", v.Status)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return v.ID
}

// TestFilesOfAVolume makes a folder, uploads, downloads and deletes over S3, from another origin than the page's.
func TestFilesOfAVolume(t *testing.T) {
	id := newVolume(t, "files")
	b := open(t, suite.info.API, suite.info.APIKey)
	visit(b, "/volumes")
	b.Click("td a", "files")
	b.Wait(`document.querySelector(".empty")?.innerText.includes("The folder is empty.")`)
	b.Click("main button", "New folder")
	b.Fill("dialog input[name=name]", "some data")
	b.Click("dialog footer button", "Make")
	b.Click("td button", "some data/")
	b.Wait(`location.search === "?path=some+data%2F" && document.querySelector(".empty")`)
	for _, name := range []string{"model.safetensors", "readme.md"} {
		upload(b, name, "a file")
		b.Wait(fmt.Sprintf(`[...document.querySelectorAll("td")].some((e) => e.innerText === %q)`, name))
	}
	shoot(b, "volume files")
	const hostile = "<img src=x onerror=window.pwned=1> +%&?#.txt"
	upload(b, hostile, "from the browser")
	b.Wait(fmt.Sprintf(`[...document.querySelectorAll("td")].some((e) => e.innerText === %q)`, hostile))
	if found := b.Eval(`[window.pwned ?? null, document.querySelector("main img")].every((x) => x === null)`); found != "true" {
		t.Error("the name of a file is more than text")
	}
	b.Eval(`(() => {
		const create = URL.createObjectURL
		URL.createObjectURL = (blob) => { blob.text().then((text) => window.saved = text); return create.call(URL, blob) }
		return 1
	})()`)
	b.Click("td button", "Download")
	b.Wait(`window.saved === "from the browser"`)
	b.Click("main nav button", "/")
	b.Wait(`[...document.querySelectorAll("td button")].some((e) => e.innerText === "some data/")`)
	b.Click("td button", "Delete")
	b.Click("dialog footer button", "Delete")
	b.Wait(`document.querySelector(".empty")?.innerText.includes("The folder is empty.")`)
	if elsewhere := b.Eval(`[...new Set(performance.getEntriesByType("resource").map((e) => new URL(e.name).origin))].filter((o) => o !== location.origin).length`); elsewhere != "1" {
		t.Errorf("the page asks %s other origins, not just the S3 server's", elsewhere)
	}
	quiet(t, b)
	b.Eval(`fetch("http://127.0.0.1:9/").then(() => 1, () => 1)`)
	if !strings.Contains(fmt.Sprint(b.Faults), "Content Security Policy") {
		t.Errorf("the page may ask anybody: %q", b.Faults)
	}
	b.Faults = nil
	t.Logf("the files of %s went through the page", id)
}
