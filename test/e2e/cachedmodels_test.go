package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gantry/client"
	"gantry/fleet"
	"gantry/internal/sleep"
	"gantry/test/devtest"
	"gantry/test/modelhub"
)

// withModel makes an endpoint of an account whose worker serves, as /out, what it finds of a model.
func withModel(t *testing.T, key, repo, commit, more string) (id string) {
	t.Helper()
	at := "/runpod-volume/huggingface-cache/hub/models--" + strings.ReplaceAll(repo, "/", "--")
	script := "trap 'exit 0' TERM; mkdir /w; echo ok >/w/ping; cd " + at + "; (cat refs/main; echo; cat snapshots/" + commit + "/sub/config.json; " +
		"md5sum <snapshots/" + commit + "/weights; echo x >snapshots/" + commit + "/weights || echo read-only; touch new || echo no-new; " +
		"cmp weights /gantry-volume/huggingface-cache/hub/weights; ls -d ../*; id -u) >/w/out 2>&1; httpd -f -p $PORT -h /w & wait"
	id = done[made](t, suite.dev, key, "POST", "/v2/serverless", fmt.Sprintf(
		`{"name":"models","type":"LOAD_BALANCER","image":%q,"cpu":[{"id":"cpu3c","vcpuCount":2}],"scaling":{"type":"REQUEST_COUNT","requestCount":4},`+
			`"workers":{"max":1,"idleTimeout":1},"waitTimeout":2,"modelReferences":["https://huggingface.co/%s"],"env":{"PORT":"8080"%s},"args":%q}`,
		devtest.Image, repo, more, `{"entrypoint":["sh","-c"],"cmd":["`+script+`"]}`)).ID
	t.Cleanup(func() {
		c := user(t, suite.dev)
		if key != "" {
			c = must[*client.Client](t)(client.New(must[devtest.Info](t)(suite.dev.Info()).API, fleet.Secret(key), "e2e"))
			defer c.Close()
		}
		ctx, cancel := context.WithTimeout(context.Background(), reachTimeout)
		defer cancel()
		if err := c.DeleteEndpoint(ctx, id); err != nil {
			t.Error(err)
		}
	})
	return id
}

// found waits for what a worker found.
func found(t *testing.T, key, id string) (text string) {
	t.Helper()
	await(t, func() error {
		var code int
		if code, text = ask(t, suite.dev, key, "GET", "/v2/"+id+"/out", ""); code != http.StatusOK {
			// Within the endpoint's limit on requests.
			return errors.Join(fmt.Errorf("%d %s", code, text), sleep.For(t.Context(), 50*time.Millisecond))
		}
		return nil
	})
	return text
}

// reason waits for what an endpoint, and its worker where there is one, say of why there is no worker yet.
func reason(t *testing.T, id, want string) {
	t.Helper()
	await(t, func() error {
		ask(t, suite.dev, "", "GET", "/v2/"+id+"/ping", "") // wants a worker
		_, text := ask(t, suite.dev, "", "GET", "/v2/serverless/"+id, "")
		if !strings.Contains(text, want) {
			return errors.New(text)
		}
		return nil
	})
}

// TestWorkersFindTheirModels, in real containers: two accounts' workers read, and cannot change, one copy, which came once; one that is
// private comes with the endpoint's token alone; an agent that is killed while a model comes goes on where it was; and who names
// what is not there is told so.
func TestWorkersFindTheirModels(t *testing.T) {
	d, hub := suite.dev, suite.hub
	admin := must[devtest.Info](t)(d.Info()).AdminKey
	weights := bytes.Repeat([]byte("0123456789abcdef"), 1<<18)
	put := func(repo, commit string, access modelhub.Access) {
		m := modelhub.One(commit, map[string][]byte{"sub/config.json": []byte(`{"of":"` + repo + `"}`), "weights": weights})
		m.Access, m.Tokens = access, []string{"hub-token"}
		hub.Put(repo, m)
	}
	commit := func(digit string) string { return strings.Repeat(digit, 40) }
	account := done[made](t, d, admin, "POST", "/admin/v1/accounts", `{"name":"models"}`).ID
	other := done[struct{ APIKey string }](t, d, admin, "POST", "/admin/v1/accounts/"+account+"/keys", `{"name":"k","preset":"all"}`).APIKey

	put("org/shared", commit("1"), modelhub.Public)
	for _, key := range []string{"", other} {
		text := found(t, key, withModel(t, key, "org/shared", commit("1"), ""))
		for _, want := range []string{commit("1"), `{"of":"org/shared"}`, "read-only", "no-new", "../models--org--shared\n0\n"} {
			if !strings.Contains(text, want) {
				t.Errorf("no %q in %s", want, text)
			}
		}
	}
	if n := len(hub.Files()); n != 2 {
		t.Errorf("%d files were read", n)
	}
	await(t, func() error {
		if _, text := ask(t, d, admin, "GET", "/admin/v1/images", ""); !strings.Contains(text, "https://huggingface.co/org/shared:main") {
			return errors.New(text)
		}
		return nil
	})

	put("org/private", commit("2"), modelhub.Private)
	secret := `,"HF_TOKEN":"{{ GANTRY_SECRET_e2e_hub }}"`
	done[struct{}](t, d, "", "PUT", "/v2/secrets/e2e_hub", `{"value":"hub-token"}`)
	defer ask(t, d, "", "DELETE", "/v2/secrets/e2e_hub", "")
	if text := found(t, "", withModel(t, "", "org/private", commit("2"), secret)); !strings.Contains(text, `{"of":"org/private"}`) {
		t.Error(text)
	}
	reason(t, withModel(t, "", "org/private", commit("2"), ""), "set HF_TOKEN in the endpoint's environment")
	reason(t, withModel(t, "", "org/none", commit("2"), ""), "model org/none:main is not on the hub")

	put("org/broken", commit("3"), modelhub.Public)
	var asked atomic.Int64
	hold := make(chan struct{})
	hub.Handle(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, "/"+commit("3")+"/weights") || asked.Add(1) > 1 {
			return false
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(weights)))
		_, _ = w.Write(weights[:len(weights)/2])
		w.(http.Flusher).Flush() //nolint:forcetypeassert // net/http's is one
		select {
		case <-hold:
		case <-r.Context().Done():
		}
		return true
	})
	defer hub.Handle(nil)
	defer close(hold)
	id := withModel(t, "", "org/broken", commit("3"), "")
	reason(t, id, "fetching model org/broken 5") // 50 %
	if _, text := ask(t, d, "", "GET", "/v2/serverless/"+id+"/workers", ""); !strings.Contains(text, "fetching model org/broken 5") {
		t.Errorf("the worker says %s", text)
	}
	kill9(t, d, "agent")
	if text := found(t, "", id); !strings.Contains(text, `{"of":"org/broken"}`) {
		t.Error(text)
	}
	files := hub.Files()
	if last := files[len(files)-1]; !strings.HasPrefix(last.Range, "bytes=") || asked.Load() != 2 {
		t.Errorf("after its death it asked for %+v", files)
	}
}
