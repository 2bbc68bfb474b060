package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	goreg "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"gantry/agent/ctrd/ctrdtest"
	"gantry/fleet"
	"gantry/test/devtest"
)

// ask sends a request with the user's key, or with another one, and returns status and body.
func ask(t *testing.T, d *devtest.Dev, key, method, path, body string) (int, string) {
	t.Helper()
	info := must[devtest.Info](t)(d.Info())
	req := must[*http.Request](t)(http.NewRequestWithContext(t.Context(), method, info.API+path, strings.NewReader(body)))
	if key == "" {
		key = info.APIKey
	}
	req.Header.Set("Authorization", "Bearer "+key)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := (&http.Client{Timeout: reachTimeout}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text := must[[]byte](t)(io.ReadAll(resp.Body))
	return resp.StatusCode, string(text)
}

// done is ask for what must succeed; it decodes the answer into a new T.
func done[T any](t *testing.T, d *devtest.Dev, key, method, path, body string) T {
	t.Helper()
	status, text := ask(t, d, key, method, path, body)
	var out T
	if status < 200 || status > 299 {
		t.Fatalf("%s %s: %d %s", method, path, status, text)
	}
	if text != "" {
		if err := json.Unmarshal([]byte(text), &out); err != nil {
			t.Fatalf("%s %s: %q: %v", method, path, text, err)
		}
	}
	return out
}

type made struct{ ID string }

const (
	registryUser     = "robot"
	registryPassword = "pa55-of-the-registry"
)

// privateRegistry serves an image that only the registry's user may read, and counts who was let in.
func privateRegistry(t *testing.T, tag string) (ref string, admitted *atomic.Int64) {
	t.Helper()
	admitted = &atomic.Int64{}
	store := goreg.New(goreg.Logger(log.New(io.Discard, "", 0)))
	var open atomic.Bool
	open.Store(true)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, ok := r.BasicAuth()
		switch {
		case open.Load():
		case !ok || user != registryUser || password != registryPassword:
			w.Header().Set("WWW-Authenticate", `Basic realm="private"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		default:
			admitted.Add(1)
		}
		store.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	ref = strings.TrimPrefix(srv.URL, "http://") + "/private/app:" + tag
	img := ctrdtest.BusyboxImage(t, func(c *v1.Config) { c.Cmd = []string{"sh", "-c", "echo private; " + devtest.Sleeper} })
	if err := remote.Write(must[name.Reference](t)(name.ParseReference(ref)), img); err != nil {
		t.Fatal(err)
	}
	open.Store(false)
	return ref, admitted
}

// TestPrivateImage pulls with a stored credential, and is refused without one and with a wrong one.
func TestPrivateImage(t *testing.T) {
	t.Parallel()
	d := suite.dev
	ref, admitted := privateRegistry(t, "1")
	credential := func(name, password string) string {
		return done[made](t, d, "", "POST", "/v2/registries", fmt.Sprintf(`{"name":%q,"username":%q,"password":%q}`, name, registryUser, password)).ID
	}
	right, wrong := credential("right", registryPassword), credential("wrong", "other")
	body := func(registry string) string {
		return `{"name":"private","image":"` + ref + `","cpu":{"id":"cpu3c","vcpuCount":2}` + registry + `}`
	}
	start := func(registry string) string {
		id := done[made](t, d, "", "POST", "/v2/pods", body(registry)).ID
		cleanUp(t, d, id)
		return id
	}
	for _, registry := range []string{"", `,"registry":"` + wrong + `"`} {
		if got := reach(t, d, start(registry), fleet.StatusError); admitted.Load() != 0 || got.StatusReason == "" {
			t.Errorf("registry %q: %s, %d admitted", registry, got.StatusReason, admitted.Load())
		}
	}
	id := start(`,"registry":"` + right + `"`)
	reach(t, d, id, fleet.StatusRunning)
	logHas(t, d, id, "private")
	if status, text := ask(t, d, "", "DELETE", "/v2/registries/"+right, ""); status != http.StatusBadRequest {
		t.Errorf("a credential in use is deleted: %d %s", status, text)
	}
	for _, file := range []string{"ledger.db", "agent/ledger.db"} {
		data, err := os.ReadFile(filepath.Join(d.Dir, file))
		if err == nil && strings.Contains(string(data), registryPassword) {
			t.Errorf("%s holds the password", file)
		}
	}
	done[struct{}](t, d, "", "DELETE", "/v2/pods/"+id, "")
	await(t, func() error {
		if status, text := ask(t, d, "", "DELETE", "/v2/registries/"+right, ""); status != http.StatusNoContent {
			return fmt.Errorf("%d %s", status, text)
		}
		return nil
	})
}

// TestPersistentMountOutlivesContainers writes to a mount in each of three lives of a pod.
func TestPersistentMountOutlivesContainers(t *testing.T) {
	t.Parallel()
	d := suite.dev
	script := `echo life >> /data/lives; echo lives: $(wc -l < /data/lives), container: $(ls /tmp/mark 2>/dev/null | wc -l); touch /tmp/mark; ` + devtest.Sleeper
	id := done[made](t, d, "", "POST", "/v2/pods", `{"name":"keeper","image":"`+devtest.Image+`","gpu":{"id":"`+devtest.GPUType+`"},`+
		`"mounts":{"persistent":{"size":10,"path":"/data"}},"args":`+strconv.Quote(`{"entrypoint":["sh","-c"],"cmd":[`+strconv.Quote(script)+`]}`)+`}`).ID
	cleanUp(t, d, id)
	reach(t, d, id, fleet.StatusRunning)
	logHas(t, d, id, "lives: 1, container: 0")
	act(t, d, id, fleet.ActionRestart)
	logHas(t, d, id, "lives: 2, container: 0")
	reach(t, d, id, fleet.StatusRunning)
	act(t, d, id, fleet.ActionStop)
	reach(t, d, id, fleet.StatusExited)
	act(t, d, id, fleet.ActionStart)
	logHas(t, d, id, "lives: 3, container: 0")
	reach(t, d, id, fleet.StatusRunning)
	folders := must[[]string](t)(filepath.Glob(filepath.Join(d.Dir, "*", "persistent", id)))
	if len(folders) != 1 {
		t.Fatalf("folders of the mount: %q", folders)
	}
	done[struct{}](t, d, "", "DELETE", "/v2/pods/"+id, "")
	await(t, func() error {
		if _, err := os.Stat(folders[0]); !os.IsNotExist(err) {
			return fmt.Errorf("the data of a terminated pod is still there: %w", err)
		}
		return nil
	})
}

// TestPublicPort reaches a pod's tcp port at its host's address, and no other port there.
func TestPublicPort(t *testing.T) {
	t.Parallel()
	d := suite.dev
	body := devtest.CPUPod("echo", `nc -ll -p 7000 -e echo public $RUNPOD_TCP_PORT_7000 & nc -ll -p 7001 -e echo hidden & wait`)
	body.Ports = []string{"7000/tcp", "22/tcp"}
	id := create(t, d, body).ID
	reach(t, d, id, fleet.StatusRunning)
	type port struct {
		Private int
		Public  *int
		Type    string
		IP      *string
	}
	type record struct {
		Runtime struct{ Ports []port }
		SSH     struct {
			Direct *struct {
				Host     string
				Port     int
				Username string
			}
		}
	}
	got := done[record](t, d, "", "GET", "/v2/pods/"+id, "")
	if len(got.Runtime.Ports) != 2 || got.Runtime.Ports[0].Public == nil || got.Runtime.Ports[0].IP == nil || got.SSH.Direct == nil {
		t.Fatalf("runtime.ports %+v, ssh %+v", got.Runtime.Ports, got.SSH)
	}
	if got.SSH.Direct.Port != *got.Runtime.Ports[1].Public || got.SSH.Direct.Username != "root" {
		t.Errorf("ssh.direct: %+v", got.SSH.Direct)
	}
	address := net.JoinHostPort(*got.Runtime.Ports[0].IP, strconv.Itoa(*got.Runtime.Ports[0].Public))
	await(t, func() error {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		text, err := io.ReadAll(conn)
		if want := fmt.Sprintf("public %d\n", *got.Runtime.Ports[0].Public); string(text) != want {
			return fmt.Errorf("got %q, want %q: %w", text, want, err)
		}
		return nil
	})
	act(t, d, id, fleet.ActionStop)
	reach(t, d, id, fleet.StatusExited)
	await(t, func() error {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
			return fmt.Errorf("the port of a stopped pod is open")
		}
		return nil
	})
}

// TestPrepaidAccountRunsDry lets an account's credit end under a running pod.
func TestPrepaidAccountRunsDry(t *testing.T) {
	t.Parallel()
	d := suite.dev
	admin := must[devtest.Info](t)(d.Info()).AdminKey
	account := done[made](t, d, admin, "POST", "/admin/v1/accounts", `{"name":"prepaid"}`).ID
	base := "/admin/v1/accounts/" + account
	done[struct{}](t, d, admin, "PATCH", base, `{"prepaid":true}`)
	key := done[struct{ APIKey string }](t, d, admin, "POST", base+"/keys", `{"name":"k","preset":"all"}`).APIKey
	pod := `{"name":"dry","image":"` + devtest.Image + `","cpu":{"id":"cpu3c","vcpuCount":2},"args":"sleep 1000"}`
	if status, text := ask(t, d, key, "POST", "/v2/pods", pod); status != http.StatusPaymentRequired {
		t.Fatalf("without credit: %d %s", status, text)
	}
	done[struct{}](t, d, admin, "POST", base+"/credits", `{"amount":0.10}`)
	id := done[made](t, d, key, "POST", "/v2/pods", pod).ID
	done[struct{}](t, d, admin, "POST", base+"/credits", `{"amount":-0.0999}`)
	type record struct{ Status, StatusReason string }
	var got record
	await(t, func() error {
		got = done[record](t, d, key, "GET", "/v2/pods/"+id, "")
		if got.Status != string(fleet.StatusTerminated) {
			return fmt.Errorf("the pod is %s", got.Status)
		}
		return nil
	})
	if got.StatusReason == "" {
		t.Error("nothing says why")
	}
	money := done[struct{ Balance, HourlyRate float64 }](t, d, key, "GET", "/v2/account", "")
	spent := done[struct {
		Metadata struct{ Totals struct{ TotalAmount float64 } }
	}](t, d, key, "GET", "/v2/billing?bucketSize=hour", "").Metadata.Totals.TotalAmount
	if diff := 0.10 - 0.0999 - spent - money.Balance; diff > 1e-9 || diff < -1e-9 || money.HourlyRate != 0 || spent <= 0 {
		t.Errorf("balance %v after %v was spent, %v an hour", money.Balance, spent, money.HourlyRate)
	}
	if err := suite.site.NothingLeft(id); err != nil {
		await(t, func() error { return suite.site.NothingLeft(id) })
	}
}
