package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"gantry/api/admin"
	"gantry/api/v2"
	"gantry/fleet"
	"gantry/test/plane"
)

// unpacked reads a bundle and checks it against its manifest.
func unpacked(t *testing.T, path string) (files map[string]string, missing map[string]string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if info, err := f.Stat(); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	files, missing = map[string]string{}, map[string]string{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[strings.TrimPrefix(h.Name, bundleFolder)] = string(text)
	}
	var parts []part
	if err := json.Unmarshal([]byte(files["manifest.json"]), &parts); err != nil {
		t.Fatal(err)
	}
	for _, p := range parts {
		text, ok := files[p.Name]
		sum := sha256.Sum256([]byte(text))
		switch {
		case p.Missing != "":
			missing[p.Name] = p.Missing
		case !ok || p.Bytes != len(text) || p.SHA256 != hex.EncodeToString(sum[:]):
			t.Errorf("the manifest is wrong about %+v", p)
		}
	}
	if len(parts) != len(files)-1+len(missing) {
		t.Errorf("%d parts in the manifest, %d files", len(parts), len(files))
	}
	return files, missing
}

func TestBundleThroughTheRealFace(t *testing.T) {
	s, path := newSite(t), filepath.Join(t.TempDir(), "a.tar.gz")
	s.bad(exitFailed, "debug bundle "+path+" --metrics "+s.url+"/no-metrics")
	files, missing := unpacked(t, path)
	for _, name := range []string{
		"README", "version.json", "health-1.json", "cluster.json", "hosts.json", "settings-datacenters.json", "settings-network.json",
		"events.json", "settings-volume-backends.json", "settings-gpu-types.json", "settings-models.json", "settings-object-storage.json", "settings-cpu-flavors.json",
	} {
		if files[name] == "" {
			t.Errorf("no %s: %s", name, missing[name])
		}
	}
	if !strings.Contains(files["cluster.json"], `"applied"`) || len(missing) != 1 || !strings.Contains(missing["metrics-1.txt"], "404") {
		t.Errorf("%s %v", files["cluster.json"], missing)
	}
	s.bad(exitUsage, "debug bundle "+path)
}

// TestNoSecretIsInABundle plants secrets wherever one could get in.
func TestNoSecretIsInABundle(t *testing.T) {
	planted := map[string]string{
		"the key of the call": "gk_user", "an API key": "gk_0aPLANTED1bcdefghijklmnopqrstuvwxyzABCDEFGHIJKLM", "an S3 key": "rps_PLANTED2abcdefgh", "a join token": "gj1_PLANTED3-abc_def",
		"by name": "PLANTED4hunter2", "an identity": "AGE-SECRET-KEY-1PLANTED5QQQ", "PEM": "PLANTED6MIGHAgEAMBMGByqGSM49", "a URL's": "PLANTED7pw", "a header's": "PLANTED8dXNlcjpwYXNz",
		"a variable's": "PLANTED9value", "a quoted one": "PLANTED10 with space", "cut PEM": "PLANTED11begins",
	}
	host := map[string]any{
		"id": drainedID, "name": "gpu-01", "state": "unreachable", "password": planted["by name"], "labels": map[string]string{"note": "uses " + planted["an API key"], "apiKey": planted["by name"]},
		"drain":      map[string]any{"since": "2026-11-01T00:00:00Z", "reason": "token: " + planted["by name"], "deadline": "2026-11-02T00:00:00Z"},
		"conditions": []map[string]any{{"code": "volume_backend_down", "text": "http://user:" + planted["a URL's"] + "@nas/", "severe": true}},
		"env":        map[string]string{"A": planted["a variable's"]}, "joinToken": planted["a join token"],
	}
	hosts, err := json.Marshal(map[string]any{"hosts": []any{host}})
	if err != nil {
		t.Fatal(err)
	}
	scraped := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "gantry_scheduler_leads 1\ngantry_x{y=\""+planted["an S3 key"]+"\"} 1\n")
	}))
	defer scraped.Close()
	log := filepath.Join(t.TempDir(), "scheduler.log")
	text := planted["cut PEM"] + "\n-----END PRIVATE KEY-----\n" +
		`{"level":"INFO","msg":"kept","request":"r1","password":"` + planted["a quoted one"] + `","authorization":"Bearer ` + planted["a header's"] + `"}` + "\n" +
		"Authorization: Basic " + planted["a header's"] + "\nseal_key = '" + planted["by name"] + "'\n" + planted["an identity"] + "\n" + planted["the key of the call"] + "\n" +
		"-----BEGIN EC PRIVATE KEY-----\n" + planted["PEM"] + "\n-----END EC PRIVATE KEY-----\nafter the key\n" +
		`{"nested":"{\"token\":\"` + planted["by name"] + `\"}"}` + "\n-----BEGIN PRIVATE KEY-----\n" + planted["PEM"] + "\n"
	if err := os.WriteFile(log, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "a.tar.gz")
	got, _ := gantry(t, setup{api: map[string][]string{
		"GET /admin/v1/hosts":                        {"200 " + string(hosts)},
		"GET /admin/v1/hosts/" + drainedID + "/pods": {`200 {"pods":[{"id":"k3n8w0zq5r7d2a","status":"RUNNING","steps":{"pulled":"2026-11-01T10:00:00.25Z"}}]}`},
		"GET /admin/v1/cluster":                      {`200 {"id":"c","members":[{"id":"m1","problem":"token=` + planted["by name"] + `"}]}`},
		"GET /admin/v1/volume-backends":              {`200 {"backends":[{"id":"ceph","key":"` + planted["by name"] + `","secret":"x"}]}`},
		"GET /healthz":                               {`503 {"status":"failing"}`},
	}}, "debug", "bundle", path, "--metrics", scraped.URL, "--metrics", "http://127.0.0.1:1/metrics", "--include", log, "--include", filepath.Join(t.TempDir(), "none"))
	if got.Code != exitFailed || !strings.Contains(got.Err, "is written, but lacks") || !strings.Contains(got.Err, "without metrics-2.txt: ") || !strings.Contains(got.Err, "without files/2-none: ") {
		t.Errorf("%+v", got)
	}
	files, _ := unpacked(t, path)
	for name, content := range files {
		for what, secret := range planted {
			if strings.Contains(content, secret) || strings.Contains(content, "PLANTED") {
				t.Errorf("%s has %s (or another):\n%s", name, what, content)
				break
			}
		}
	}
	for name, want := range map[string]string{
		"hosts.json": "volume_backend_down", "pods-" + drainedID + ".json": "RUNNING", "metrics-1.txt": "gantry_scheduler_leads 1", "files/1-scheduler.log": `"request":"r1"`,
		"health-1.json": "failing", "events.json": "its drain began: token: (left out)", "README": "which step of its start",
	} {
		if !strings.Contains(files[name], want) {
			t.Errorf("%s lacks %s:\n%s", name, want, files[name])
		}
	}
	if !strings.Contains(files["files/1-scheduler.log"], "after the key") {
		t.Errorf("what is between two keys is left out: %s", files["files/1-scheduler.log"])
	}
}

// TestNoStoredSecretIsInABundle plants what a real API stores: none of it comes back out.
func TestNoStoredSecretIsInABundle(t *testing.T) {
	s := newSite(t)
	dir := t.TempDir()
	password := filepath.Join(dir, "password")
	if err := os.WriteFile(password, []byte("planted-password\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := s.feed("planted-secret\n", "secret set HF_TOKEN --from-file -"); out.Code != exitOK {
		t.Fatalf("%+v", out)
	}
	s.good("registry create team --username robot --password-file " + password)
	pod := string(s.create("pod create web busybox --cpu cpu3g --env PLAIN=planted-env --env=HF={{GANTRY_SECRET_HF_TOKEN}}"))
	token := strings.TrimSpace(s.good("host token --data-center EU-RO-1 --ttl 10m"))
	var all struct{ Hosts []struct{ ID string } }
	if err := json.Unmarshal([]byte(s.good("host list -o json")), &all); err != nil {
		t.Fatal(err)
	}
	for _, h := range all.Hosts {
		s.good("host cordon " + h.ID) // those are not well, so their pods are asked for
	}
	path := filepath.Join(dir, "a.tar.gz")
	s.bad(exitFailed, "debug bundle "+path+" --metrics "+s.url+"/no-metrics")
	files, missing := unpacked(t, path)
	pods := ""
	for name, text := range files {
		if strings.HasPrefix(name, "pods-") {
			pods += text
		}
		for _, secret := range []string{"planted", token, plane.KeyText(plane.User).Reveal(), plane.KeyText(plane.Operator).Reveal()} {
			if strings.Contains(text, secret) {
				t.Errorf("%s has %q", name, secret)
			}
		}
	}
	if len(files) < 10 || len(missing) != 1 || !strings.Contains(pods, pod) {
		t.Errorf("%d files, without %v; pods:\n%s", len(files), missing, pods)
	}
}

// TestABundleOfADeadCluster: one that refuses and one that never answers cost no more than the time given, and the rest is there.
func TestABundleOfADeadCluster(t *testing.T) {
	hangs := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer hangs.Close()
	endless := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(bytes.Repeat([]byte("x 1\n"), bundleMetrics/4+1))
	}))
	defer endless.Close()
	dir := t.TempDir()
	path, log, pipe := filepath.Join(dir, "a.tar.gz"), filepath.Join(dir, "log"), filepath.Join(dir, "pipe")
	if err := os.WriteFile(log, []byte("the last words\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	got, _ := gantry(t, setup{env: map[string]string{"GANTRY_API": "http://127.0.0.1:1," + hangs.URL}},
		"debug", "bundle", path, "--within", "1s", "--metrics", endless.URL, "--metrics", hangs.URL, "--include", log, "--include", pipe)
	if took := time.Since(began); got.Code != exitFailed || took > time.Minute {
		t.Errorf("after %s: %+v", took, got)
	}
	files, missing := unpacked(t, path)
	if files["files/1-log"] != "the last words\n" || files["version.json"] == "" {
		t.Errorf("%v", files)
	}
	for name, why := range map[string]string{
		"health-1.json": "refused", "health-2.json": "deadline", "cluster.json": "", "hosts.json": "", "metrics-1.txt": "", "metrics-2.txt": "", "files/2-pipe": "it is not a file",
	} {
		if missing[name] == "" || !strings.Contains(missing[name], why) {
			t.Errorf("%s is missing because %q", name, missing[name])
		}
	}
}

func TestNoAnswerIsCutSilently(t *testing.T) {
	endless := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(bytes.Repeat([]byte("x 1\n"), bundleMetrics/4+1))
	}))
	defer endless.Close()
	if _, err := fetch(t.Context(), endless.URL, nil, nil); err == nil || !strings.Contains(err.Error(), "more than 16 MiB") {
		t.Errorf("got %v", err)
	}
	b := &bundle{tar: tar.NewWriter(io.Discard), scrub: newScrubber()}
	for range 5 {
		if err := b.add("part", make([]byte, bundleMost/4), nil); err != nil {
			t.Fatal(err)
		}
	}
	if b.parts[3].Missing != "" || b.parts[4].Missing == "" {
		t.Errorf("a bundle grows without end: %+v", b.parts)
	}
}

func TestOnlyTheEndOfAFileIsTaken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, append(bytes.Repeat([]byte("gk_half\n"), bundleLog/8), []byte("end\n")...), 0o600); err != nil {
		t.Fatal(err)
	}
	text, err := tail(path)
	if err != nil || len(text) > bundleLog || !strings.HasPrefix(text, "gk_half\n") || !strings.HasSuffix(text, "end\n") {
		t.Errorf("%d bytes, %v", len(text), err)
	}
}

func TestEventsOfABundleAreInTheOrderOfTime(t *testing.T) {
	var e events
	late, early := time.Date(2026, 5, 2, 0, 0, 0, 0, time.UTC), time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)
	e.members(&admin.Cluster{Members: []admin.Member{{ID: "m1", Name: "sched-1", JoinedAt: v2.At(late), RemovedAt: v2.AtOrNull(late)}}})
	e.host(&admin.Host{ID: "h1", Name: "gpu-01", JoinedAt: v2.At(early), Alarm: &admin.HostAlarm{Text: "two machines", At: v2.At(late)}, GoneGPUs: []admin.GoneGPU{{UUID: "GPU-1", Reason: "RMA", CordonedAt: v2.At(late)}}})
	e.pod(late, "h1", &admin.HostPod{ID: "p1", Status: "RUNNING", Waits: "it runs on"})
	e.pod(late, "h1", &admin.HostPod{ID: "p2", Status: "RUNNING", Steps: map[fleet.Step]v2.Time{
		fleet.StepStarted: v2.At(early.Add(time.Minute)), fleet.StepCreated: v2.At(early.Add(time.Second)),
	}})
	text, err := e.text()
	if err != nil {
		t.Fatal(err)
	}
	var got struct{ Events []event }
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	var said []string
	for _, x := range got.Events {
		said = append(said, x.ID+": "+x.Text)
	}
	want := "h1: joined|p2: its start on h1 is created|p2: its start on h1 is started|m1: joined|m1: was removed|h1: alarm: two machines|GPU-1: was cordoned, and is gone: RMA|p1: RUNNING on h1: it runs on"
	if strings.Join(said, "|") != want {
		t.Errorf("%q", said)
	}
	for range bundleEvents {
		e.add(late, "host", "h2", "", "more")
	}
	e.add(late, "host", "h3", "", "the newest")
	if text, err := e.text(); err != nil || strings.Contains(string(text), `"h1","name":"gpu-01","text":"joined"`) || !strings.Contains(string(text), "the newest") {
		t.Errorf("%d bytes, %v", len(text), err)
	}
}
