package console

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gantry/api/console"
	"gantry/fleet"
	"gantry/internal/pki"
	"gantry/test/browser"
)

// record is an object of an answer.
type record = map[string]any

// sickFleet answers as the API of a fleet in which all that can be wrong is, and every text is an attack.
// TestAFleetThatFails has a real one. It notes what is changed: method, path and body.
type sickFleet struct {
	mu   sync.Mutex
	sent []string
}

const at = "2026-10-01T12:00:00.000Z"

// hostileName is an attack as the name of a file: on a page, on a terminal, and on a shell into which a command line is copied.
const hostileName = attack + "\x1b]0;pwned\x07\u202e'; touch pwned; '"

// answers are those to GET, by path.
func answers() map[string]any {
	limit := record{"limit": 1, "used": 1}
	host := record{
		"id": "host1", "name": attack, "state": "unreachable", "eligibility": "open", "dataCenterId": attack, "cloud": "SECURE", "agentVersion": attack, "kernel": attack, "runtime": attack,
		"driver": attack, "cuda": attack, "publicIp": attack, "takesNoPods": attack, "alarm": record{"at": at, "text": attack}, "joinedAt": at, "stateSince": at,
		"conditions": []any{record{"code": attack, "severe": true, "text": attack}}, "labels": record{"rack": attack, attack: attack}, "roles": []any{attack}, "volumes": []any{attack}, "pods": 1,
		"gpus":     []any{record{"uuid": attack, "type": attack, "sick": attack, "numa": 0}, record{"uuid": "well", "type": attack, "cordoned": attack, "numa": 0}},
		"goneGpus": []any{record{"uuid": attack + "gone", "type": attack, "reason": attack}},
		"total":    record{"milliCpu": 1, "memoryMb": 1, "diskGb": 1}, "used": record{"milliCpu": 1, "memoryMb": 1, "diskGb": 1}, "usedGpus": 1,
	}
	member := func(id string, leads bool) record {
		return record{"id": id, "name": attack, "address": attack, "leader": leads, "voter": true, "reachable": true, "problem": attack, "version": attack, "applied": 1, "lag": 0, "clockMs": 1, "silentMs": 0}
	}
	account := record{
		"id": "account1", "name": attack, "balance": 1, "hourlyRate": 1, "limits": record{"gpus": limit, "pods": limit}, "createdAt": at, "egress": attack, "prepaid": false,
		"suspended": record{"at": at, "reason": attack}, "webhook": record{"address": attack, "at": at, "error": attack, "kinds": []any{attack}, "signed": true}, "spendLimit": 1, "lowBalance": 1,
	}
	cluster := record{
		"id": "cluster1", "name": attack, "status": "DEGRADED", "type": attack, "cost": 1, "dataCenterId": attack, "createdAt": at, "restarts": 1, "onFailure": attack,
		"compute": record{"podCount": 2, "gpuCountPerPod": 1, "gpuTypeId": attack}, "network": record{"cidr": attack}, "primary": record{"sshEndpoint": attack},
		"faults": []any{record{"podId": "pod1", "rank": 0, "reason": attack, "logTail": attack}},
	}
	endpoint := record{
		"id": "endpoint1", "name": attack, "image": attack, "args": attack, "type": "QUEUE", "reason": attack, "cpu": []any{record{"id": attack, "vcpuCount": 2}}, "version": 2, "createdAt": at,
		"workers": record{"min": 0, "max": 1, "idleTimeout": 5}, "scaling": record{"type": "QUEUE_DELAY", "queueDelay": 4}, "timeout": 1, "flashboot": attack, "dataCenterIds": []any{attack},
	}
	release := record{"id": attack, "version": 2, "createdAt": at, "workerCount": 1, "diff": []any{record{"field": attack, "old": attack, "new": record{attack: attack}}}}
	flavor := record{"id": attack, "name": attack, "group": attack, "vcpu": record{"min": 1, "max": 2}, "ramGbPerVcpu": 1, "diskGbPerVcpu": 1, "price": record{"securePerVcpu": 1, "serverlessPerVcpu": 1}}
	volume := record{"id": "vol1", "name": attack, "status": "READY", "statusReason": attack, "dataCenter": attack, "type": attack, "size": 10, "used": 1, "createdAt": at}
	billing := record{
		"records":  []any{record{"startTime": at, "endTime": attack, "totalAmount": 1}, record{"startTime": "2026-10-02T12:00:00.000Z", "endTime": "=1+1", "totalAmount": 1}},
		"metadata": record{"query": record{"startTime": attack, "endTime": attack, "bucketSize": attack}, "totals": record{"totalAmount": 2}},
	}
	audit := record{"lines": []any{record{"at": at, "operation": attack, "objectId": attack, "keyId": attack, "keyName": attack, "address": attack, "face": attack, "status": 200, "operator": true}}}
	return map[string]any{
		"/v2/account": account, "/v2/account/ssh-keys": record{"keys": []any{attack}}, "/v2/audit": audit, "/admin/v1/audit": audit,
		"/v2/clusters": record{"clusters": []any{cluster}}, "/v2/clusters/cluster1": cluster, "/v2/clusters/cluster1/pods": record{"pods": []any{}},
		"/v2/network":         record{"networks": []any{record{"id": "net1", "cidr": attack, "suffix": attack, "members": []any{record{"podId": "pod1", "name": attack, "internalDns": attack, "ip": attack}}}}},
		"/v2/secrets":         record{"secrets": []any{record{"name": attack, "createdAt": at, "updatedAt": at}}},
		"/v2/registries":      record{"registries": []any{record{"id": "reg1", "name": attack}}},
		"/v2/s3-keys":         record{"s3Keys": []any{record{"id": "s3", "name": attack, "createdAt": at}}},
		"/v2/account/keys":    record{"keys": []any{record{"id": "key1", "name": attack, "hint": attack, "permissions": record{"pods": attack}}}},
		"/v2/network-volumes": record{"networkVolumes": []any{volume}}, "/v2/network-volumes/vol1": volume,
		"/v2/catalog/datacenters":  record{"dataCenters": []any{record{"id": attack, "name": attack, "region": attack, "networkVolumeTypes": []any{attack}}}},
		"/v2/catalog/templates":    record{"templates": []any{record{"id": "template1", "name": attack, "image": attack, "category": attack, "ports": []any{attack}, "env": record{"A": attack}}}},
		"/v2/serverless/endpoint1": endpoint, "/v2/serverless/endpoint1/releases": record{"releases": []any{release}}, "/v2/billing": billing,
		"/v2/me/devices/" + attack: record{"name": attack, "address": attack, "expiresAt": at},
		"/admin/v1/hosts":          record{"hosts": []any{host}}, "/admin/v1/hosts/host1": host,
		"/admin/v1/hosts/host1/drain": record{"pods": []any{}},
		"/admin/v1/hosts/host1/pods":  record{"pods": []any{record{"id": "pod1", "accountId": attack, "status": attack, "gpus": 1, "waits": attack}}},
		"/admin/v1/cluster":           record{"id": attack, "level": 1, "clock": record{"held": attack}, "members": []any{member("member1", true), member("member2", false)}},
		"/admin/v1/ca":                record{"cas": []any{record{"digest": attack, "state": attack, "notAfter": at}}, "step": attack, "waiting": 1, "total": 1},
		"/admin/v1/capacity":          record{"gpus": []any{}, "stranded": []any{record{"hostId": "host1", "name": attack, "gpus": 1, "gpuTypeId": attack, "short": attack}}},
		"/admin/v1/gateways":          record{"gateways": []any{record{"id": "gateway1", "name": attack, "state": "silent", "address": attack, "dataCenterId": attack, "requests": 1, "hosts": 1, "version": attack, "heardAt": at, "joinedAt": at}}},
		"/admin/v1/accounts":          record{"accounts": []any{account}}, "/admin/v1/accounts/account1": account,
		"/admin/v1/people":          record{"people": []any{record{"id": "person1", "login": attack, "memberships": []any{record{"accountId": "account1", "name": attack, "role": attack}}, "password": attack, "sessions": 1}}},
		"/admin/v1/volume-backends": record{"backends": []any{record{"id": attack, "kind": attack, "dataCenterId": attack, "type": attack, "quota": attack, "problem": attack, "volumes": 1, "sizeGb": 1}}},
		"/admin/v1/datacenters":     record{"dataCenters": []any{record{"id": attack, "name": attack, "region": attack, "country": attack, "underlay": attack, "compliance": []any{attack}}}},
		"/admin/v1/models":          record{"models": []any{record{"id": attack, "endpointId": attack, "accountId": attack, "description": attack, "jobs": 1, "price": record{"request": 1, "counted": attack, "unit": 1}, "limits": record{"jobs": 1}}}},
		"/admin/v1/cpu-flavors":     record{"cpuFlavors": []any{flavor}}, "/admin/v1/storage-prices": record{attack: 1},
		"/admin/v1/gpu-types": record{"gpuTypes": []any{record{"id": attack, "name": attack, "manufacturer": attack, "pool": attack, "memory": 1, "price": record{"secure": 1, "community": 1, "serverless": 1}}}},
	}
}

func (f *sickFleet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		body, _ := io.ReadAll(r.Body) // what is cut off is told by the test
		f.mu.Lock()
		defer f.mu.Unlock()
		f.sent = append(f.sent, strings.TrimSpace(r.Method+" "+r.URL.EscapedPath()+" "+string(body)))
		w.WriteHeader(http.StatusNoContent)
		return
	}
	if strings.HasSuffix(r.URL.Path, "/events") {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = fmt.Fprint(w, "id: 0-1-1\nevent: ready\ndata: {}\n\n")
		data, _ := json.Marshal(record{"kind": attack, "id": attack, "type": attack, "status": attack, "reason": attack, "at": at})
		for n := 2; ; n++ {
			_, _ = fmt.Fprintf(w, "id: 0-%d-1\ndata: %s\n\n", n, data)
			_ = http.NewResponseController(w).Flush()
			select {
			case <-r.Context().Done():
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	}
	switch r.URL.Path {
	case "/v2/network-volumes/vol1/link":
		_ = json.NewEncoder(w).Encode(record{"method": "GET", "url": "http://" + r.Host + "/s3?prefix=" + url.QueryEscape(r.URL.Query().Get("key"))})
		return
	case "/s3":
		name := url.QueryEscape(r.URL.Query().Get("prefix") + hostileName)
		_, _ = fmt.Fprintf(w, "<ListBucketResult><CommonPrefixes><Prefix>%s%%2F</Prefix></CommonPrefixes><Contents><Key>%s</Key><Size>1</Size><LastModified>%s</LastModified></Contents></ListBucketResult>", name, name, at)
		return
	}
	out, ok := answers()[r.URL.Path]
	if !ok {
		w.WriteHeader(http.StatusNotFound)
		out = record{"detail": attack}
	}
	_ = json.NewEncoder(w).Encode(out)
}

// onlyText fails when a page holds more than text.
func onlyText(t *testing.T, b *browser.Browser, page string) {
	t.Helper()
	found := b.Eval(`[window.pwned ?? null, document.title.includes("pwned") && !document.title.includes("onerror") ? document.title : null,
		...[...document.body.querySelectorAll("img, svg[onload], iframe, object, embed, script, a[href^='javascript:'], .xterm a")].map((e) => e.outerHTML),
		...[...document.querySelectorAll("*")].flatMap((e) => e.getAttributeNames().filter((n) => n.startsWith("on")))].filter((x) => x !== null)`)
	if found != "[]" {
		t.Errorf("%s holds what is more than text: %s", page, found)
	}
}

// TestASickFleetIsNoHTML looks at every page of operators, and those of accounts with texts of others, and does what only a sick fleet offers.
func TestASickFleetIsNoHTML(t *testing.T) {
	path := filepath.Join(t.TempDir(), "seal.key")
	if err := pki.NewSealKeyFile(path); err != nil {
		t.Fatal(err)
	}
	sealer, err := pki.LoadSealer(path)
	if err != nil {
		t.Fatal(err)
	}
	f := &sickFleet{}
	s := httptest.NewServer(console.New(console.Config{Sealer: sealer, Ours: func(*http.Request) bool { return true }, Now: time.Now}).Wrap(f))
	t.Cleanup(s.Close)
	key := fleet.NewAPIKey()
	b := open(t, s.URL, key.Reveal())
	for _, page := range []string{
		"/clusters", "/clusters/cluster1", "/endpoints/endpoint1", "/endpoints/endpoint1?tab=Releases", "/volumes", "/volumes/vol1", "/device?code=" + url.QueryEscape(attack), "/networks", "/secrets", "/registries", "/s3-keys", "/keys", "/account", "/activity", "/activity?tab=Audit", "/fleet", "/hosts", "/hosts/host1", "/schedulers",
		"/gateways", "/versions", "/alerts", "/accounts", "/accounts/account1", "/people", "/prices", "/prices?tab=CPUs", "/prices?tab=Storage", "/backends", "/data-centers", "/models", "/public-templates", "/fleet-activity", "/fleet-activity?tab=Audit",
	} {
		visit(b, page)
		b.Wait(`document.querySelector("main").innerText.includes("onerror=window.pwned=1")`)
		onlyText(t, b, page)
		shoot(b, "sick "+page)
	}
	for _, page := range []string{"/models", "/prices?tab=CPUs"} {
		visit(b, page)
		press(b, "Change")
		b.Wait(`document.querySelector("dialog[open]")`)
		onlyText(t, b, "the form of "+page)
		b.Eval(`document.querySelector("dialog[open]").close(); 1`)
	}
	hostileCharges(t, b)
	hostileFiles(t, b)
	visit(b, "/hosts/host1")
	pressAndHear(b, "Acknowledge", "The alarm was acknowledged.")
	press(b, "Clear")
	b.Wait(`document.querySelector("dialog[open]")`)
	pressAndHear(b, "Clear", "The GPU was forgotten.")
	press(b, "Drain…")
	b.Wait(`document.querySelector("dialog[open] .cli code")`)
	var lines []string
	if err := json.Unmarshal([]byte(b.Eval(`[...document.querySelectorAll(".cli code")].map((e) => e.innerText)`)), &lines); err != nil {
		t.Fatal(err)
	}
	if want := []string{"gantry host get '" + attack + "'", "gantry host drain '" + attack + "'"}; !slices.Equal(lines, want) {
		t.Errorf("the command lines are %q, not %q", lines, want)
	}
	b.Eval(`document.querySelector("dialog[open]").close(); 1`)
	visit(b, "/schedulers")
	press(b, "Make it lead")
	b.Wait(`document.querySelector("dialog[open]")`)
	pressAndHear(b, "Make it lead", "Leadership was handed over.")
	f.mu.Lock()
	defer f.mu.Unlock()
	gpu := strings.ReplaceAll(url.QueryEscape(attack+"gone"), "+", "%20")
	if want := []string{"POST /admin/v1/hosts/host1/ack-alarm", "POST /admin/v1/hosts/host1/gpus/" + gpu + "/clear", `POST /admin/v1/cluster/transfer {"memberId":"member2"}`}; !slices.Equal(f.sent, want) {
		t.Errorf("the page sent %q, not %q", f.sent, want)
	}
}

// pressAndHear presses a button and waits until the page says what that did.
func pressAndHear(b *browser.Browser, button, says string) {
	press(b, button)
	b.Wait(fmt.Sprintf(`document.querySelector(".messages").innerText.includes(%q)`, says))
}

// hostileCharges looks at charges, whose texts reach a file that a spreadsheet opens.
func hostileCharges(t *testing.T, b *browser.Browser) {
	t.Helper()
	visit(b, "/billing")
	b.Wait(`document.querySelector("a[download]")`)
	onlyText(t, b, "/billing")
	var file string
	if err := json.Unmarshal([]byte(b.Eval(`decodeURIComponent(document.querySelector("a[download]").href)`)), &file); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(file, `"`+attack+`"`) || !strings.Contains(file, `"'=1+1"`) {
		t.Errorf("the file holds %q", file)
	}
}

// hostileFiles looks at a volume whose files and folders have names that attack.
func hostileFiles(t *testing.T, b *browser.Browser) {
	t.Helper()
	visit(b, "/volumes/vol1")
	b.Wait(`document.querySelectorAll("tbody tr").length === 2`)
	b.Eval(`document.querySelector("td button.quiet").click(); 1`)
	b.Wait(`document.querySelectorAll("main nav button").length > 1 && document.querySelectorAll("tbody tr").length === 2`)
	press(b, "Delete")
	b.Wait(`document.querySelector("dialog[open]")`)
	onlyText(t, b, "the files of a volume")
	if found := b.Eval(`/[\u0000-\u0008\u001b\u202e]/.test(document.body.innerText)`); found != "false" {
		t.Error("names of files hold characters that terminals obey")
	}
	var line string
	if err := json.Unmarshal([]byte(b.Eval(`[...document.querySelectorAll("main .cli code")].at(-1).innerText`)), &line); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(line, "aws s3 ls 's3://vol1/<img ") || !strings.Contains(line, `'\''; touch pwned; '\''`) {
		t.Errorf("the command line is %s", line)
	}
	b.Eval(`document.querySelector("dialog[open]").close(); 1`)
}
