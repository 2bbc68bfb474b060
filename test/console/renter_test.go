package console

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"gantry/test/devtest"
)

// job is one of the sample worker's.
type job struct {
	ID, Status string
	Input      any
}

// submit submits a job, and waits until it has a status.
func submit(t *testing.T, endpoint string, input map[string]any, status string) job {
	t.Helper()
	var j job
	ask(t, suite.info.APIKey, "POST", "/v2/"+endpoint+"/run", map[string]any{"input": input}, &j)
	err := devtest.Until(time.Minute, func() error {
		if ask(t, suite.info.APIKey, "GET", "/v2/"+endpoint+"/status/"+j.ID, nil, &j); j.Status != status {
			return fmt.Errorf("the job is %s", j.Status)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// TestJobsAreLookedInto shows what a job was given, said and took, retries one that failed and cancels one that runs.
func TestJobsAreLookedInto(t *testing.T) {
	endpoint := newEndpoint(t, "explored")
	t.Cleanup(func() { remove(t, "/v2/serverless/"+endpoint) })
	failed := submit(t, endpoint, map[string]any{"name": "ada", "fail": "no such model"}, "FAILED")
	b := open(t, suite.info.API, suite.info.APIKey)
	visit(b, "/endpoints/"+endpoint+"?tab=Jobs")
	b.Click("td button.mono", failed.ID)
	dialog := `(document.querySelector("dialog[open]")?.innerText ?? "")`
	b.Wait(`["no such model", '"name": "ada"', "waited from", "ran from"].every((text) => ` + dialog + `.includes(text))`)
	shoot(b, "job")
	if got := b.Eval(`location.search`); got != fmt.Sprintf("%q", "?tab=Jobs&job="+failed.ID) {
		t.Errorf("the link to the job is %s", got)
	}
	pressAndHear(b, "Retry", "The job waits again.")
	long := submit(t, endpoint, map[string]any{"seconds": 600}, "IN_PROGRESS")
	visit(b, "/endpoints/"+endpoint+"?tab=Jobs&job="+long.ID)
	b.Wait(dialog + `.includes('"seconds": 600')`)
	pressAndHear(b, "Cancel the job", "The job was cancelled.")
	b.Wait(dialog + `.includes("cancelled") && ` + dialog + `.includes("is not kept")`)
	quiet(t, b)
}

// TestTheCommandLineMakesTheSamePod fills the form of a pod, and has a shell run the line that the page shows.
func TestTheCommandLineMakesTheSamePod(t *testing.T) {
	volume := newVolume(t, "for a line")
	b := open(t, suite.info.API, suite.info.APIKey)
	b.Eval(`(() => {
		const send = window.fetch
		window.fetch = (url, init) => {
			if (String(url).includes("/v2/pods?dryRun=true")) window.planned = JSON.parse(init.body)
			return send(url, init)
		}
		return 1
	})()`)
	for _, pairs := range [][]string{
		{"Name", "it's; one", "Image", devtest.Image, "Arguments", `sh -c 'echo "$HOME"'`, "Container disk, GB", "7", "Network volume", volume, "Mounted at", "/data", "Ports", "80/http, 22/tcp", "Environment", "A=1 2\nB=$(id)", "Start an SSH server in it", ""},
		{"GPUs", "", "Name", "two", "Image", devtest.Image, "How many", "2", "Persistent mount, GB", "10", "Join the private network of the account", "", "Interruptible: cheaper, and gives its place to pods on demand", "", "Bid, USD per GPU and hour", "2.5"},
	} {
		visit(b, "/pods/new")
		b.Wait(`document.querySelector(".choice")`)
		b.Eval(`window.planned = undefined; 1`)
		for i := 0; i < len(pairs); i += 2 {
			field(b, pairs[i], pairs[i+1])
		}
		b.Wait(`window.planned && document.querySelector("aside .note.ok, aside .failure")`)
		if why := b.Eval(`document.querySelector("aside .failure")?.innerText ?? ""`); why != `""` {
			t.Fatalf("the pod cannot be created: %s", why)
		}
		var line string
		var planned map[string]any
		if err := errors.Join(json.Unmarshal([]byte(b.Eval(`document.querySelector("aside .cli code").innerText`)), &line), json.Unmarshal([]byte(b.Eval(`window.planned`)), &planned)); err != nil {
			t.Fatal(err)
		}
		if asked := askedBy(t, line); !reflect.DeepEqual(asked, planned) {
			t.Errorf("%s\nasks %v\nthe page asks %v", line, asked, planned)
		}
	}
	quiet(t, b)
}

// askedBy has a shell run a command line that creates a pod, and returns what that asks the API to create.
func askedBy(t *testing.T, line string) (asked map[string]any) {
	t.Helper()
	api, err := url.Parse(suite.info.API)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(api)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && r.URL.Path == "/v2/pods" {
			text, _ := io.ReadAll(r.Body) // what is missing is told by the test
			_ = json.Unmarshal(text, &asked)
			r.Body = io.NopCloser(bytes.NewReader(text))
		}
		proxy.ServeHTTP(w, r)
	}))
	defer s.Close()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", line+" --dry-run")
	cmd.Env = append(os.Environ(), "GANTRY_API="+s.URL, "GANTRY_API_KEY="+suite.info.APIKey, "PATH="+filepath.Dir(suite.site.Binary("gantry"))+":"+os.Getenv("PATH"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s: %v: %s", line, err, out)
	}
	return asked
}
