package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gantry/api/v2"
	"gantry/fleet"
	"gantry/test/plane"
)

// feed runs a command line with an input and returns what it did.
func (s *site) feed(in, line string, rest ...string) result {
	s.t.Helper()
	env := map[string]string{"GANTRY_API": s.url, "GANTRY_API_KEY": plane.KeyText(plane.User).Reveal()}
	var out, errOut bytes.Buffer
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	code := run(ctx, append(strings.Fields(line), rest...), system{
		in: strings.NewReader(in), out: &out, err: &errOut, now: s.plane.Now, width: func() int { return 80 },
		env: func(name string) (string, bool) { v, ok := env[name]; return v, ok },
	})
	return result{code, out.String(), errOut.String()}
}

// record decodes what a command line answers as JSON.
func record[T any](s *site, line string, rest ...string) T {
	s.t.Helper()
	var out T
	if err := json.Unmarshal([]byte(s.good(line+" -o json", rest...)), &out); err != nil {
		s.t.Fatal(err)
	}
	return out
}

type idOnly struct {
	ID string `json:"id"`
}

func (s *site) running(line string, rest ...string) fleet.PodID {
	s.t.Helper()
	id := s.create(line, rest...)
	s.report(id, fleet.EventStarting, fleet.EventRunning)
	return id
}

func TestExecThroughTheRealFace(t *testing.T) {
	s := newSite(t)
	s.running("pod create web busybox --cpu cpu3g")
	tests := []struct {
		in, line string
		rest     []string
		want     result
	}{
		{"", "pod exec web", []string{"--", "echo", "hello", "-n"}, result{Out: "hello -n\n"}},
		{"one\ntwo\n", "pod exec -i web", []string{"--", "cat"}, result{Out: "one\ntwo\n"}},
		{strings.Repeat("0123456789", 50_000), "pod exec -i web", []string{"--", "cat"}, result{Out: strings.Repeat("0123456789", 50_000)}},
		{"", "pod exec web", []string{"--", "fail"}, result{Code: 3, Err: "failed\n"}},
		{"", "pod exec web", []string{"--", "nothing"}, result{Code: 127, Err: "gantry: there is no such program\n"}},
		{"", "pod exec other", []string{"--", "echo"}, result{Code: 3, Err: "gantry: no pod has the id or name other\n"}},
	}
	for _, tt := range tests {
		if diff := cmp.Diff(tt.want, s.feed(tt.in, tt.line, tt.rest...)); diff != "" {
			t.Errorf("gantry %s %q: %s", tt.line, tt.rest, diff)
		}
	}
	s.good("pod stop web")
	if got := s.feed("", "pod exec web", "--", "echo"); got.Code != exitRefused {
		t.Errorf("in a pod that does not run: %+v", got)
	}
}

// TestInterruptedExecKillsTheProgram waits for the session on the host's side to be gone.
func TestInterruptedExecKillsTheProgram(t *testing.T) {
	s := newSite(t)
	s.running("pod create web busybox --cpu cpu3g")
	ctx, interrupt := context.WithCancel(context.Background())
	ended := make(chan int, 1)
	go func() {
		code, _ := s.run(ctx, &bytes.Buffer{}, "pod exec web", "--", "hang")
		ended <- code
	}()
	s.await("the program runs", func() bool { return s.plane.Sessions() == 1 })
	interrupt()
	if code := <-ended; code != exitInterrupted {
		t.Errorf("status %d", code)
	}
	s.await("the program is killed", func() bool { return s.plane.Sessions() == 0 })
}

func (s *site) await(what string, is func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(time.Minute); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatal("waited in vain until " + what)
		}
	}
}

func TestCopyThroughTheRealFace(t *testing.T) {
	s, here := newSite(t), t.TempDir()
	id := s.running("pod create web busybox --cpu cpu3g")
	s.plane.PutFile(id, "/srv/site/index.html", "hello")
	s.plane.PutFile(id, "/srv/site/sub/a", "deep")
	if got := s.feed("", "pod cp web:/srv/site "+here); got.Code != 0 {
		t.Fatalf("%+v", got)
	}
	if diff := cmp.Diff([]string{"site/", "site/index.html", "site/sub/", "site/sub/a"}, found(t, here)); diff != "" {
		t.Error(diff)
	}
	if err := os.WriteFile(filepath.Join(here, "new"), []byte("new text"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := s.feed("", "pod cp "+here+"/new web:/srv/site"); got.Code != 0 {
		t.Errorf("%+v", got)
	}
	if got := s.feed("", "pod cp "+here+"/new web:/srv/other"); got.Code != 0 {
		t.Errorf("%+v", got)
	}
	for _, name := range []string{"/srv/site/new", "/srv/other"} {
		if text, ok := s.plane.File(id, name); !ok || text != "new text" {
			t.Errorf("%s: %q %v", name, text, ok)
		}
	}
	if got := s.feed("", "pod cp web:/no "+here); got.Code != exitNotFound || !strings.Contains(got.Err, "/no: no such file or folder in the pod") {
		t.Errorf("%+v", got)
	}
	if got := s.feed("no tar at all", "pod cp - web:/srv"); got.Code != exitUsage {
		t.Errorf("%+v", got)
	}
}

func TestSecretsThroughTheRealFace(t *testing.T) {
	s := newSite(t)
	if out := s.feed("hush\n", "secret set HF_TOKEN --from-file -"); out.Code != exitOK || strings.Contains(out.Out+out.Err, "hush") {
		t.Errorf("%+v", out)
	}
	if out := s.good("secret list"); !strings.Contains(out, "HF_TOKEN") || strings.Contains(out, "hush") {
		t.Errorf("list:\n%s", out)
	}
	const env = "--env=A={{GANTRY_SECRET_HF_TOKEN}}"
	pod := record[idOnly](s, "pod create web busybox --cpu cpu3g "+env)
	if out := s.good("pod get web -o json"); !strings.Contains(out, "{{GANTRY_SECRET_HF_TOKEN}}") || strings.Contains(out, "hush") {
		t.Errorf("get:\n%s", out)
	}
	record, _ := s.plane.Record(fleet.PodID(pod.ID))
	if got, err := s.plane.Environment(&record); err != nil || got["A"] != "hush" {
		t.Errorf("the host gets %q, %v", got, err)
	}
	s.bad(exitRefused, "secret delete HF_TOKEN") // a pod refers to it
	s.bad(exitNotFound, "pod create other busybox --cpu cpu3g --env=A={{RUNPOD_SECRET_none}}")
	s.good("pod delete web")
	s.good("secret delete HF_TOKEN")
	s.bad(exitNotFound, "secret delete HF_TOKEN")
}

func TestTemplatesAndRegistriesThroughTheRealFace(t *testing.T) {
	s, dir := newSite(t), t.TempDir()
	password := filepath.Join(dir, "password")
	if err := os.WriteFile(password, []byte("hush\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	reg := record[idOnly](s, "registry create team --username robot --password-file "+password)
	s.good("template create base busybox --registry team --env A=1 --env B=1 --port 8080 --disk 7 --category CPU --no-ssh --no-jupyter", "--", "httpd", "-f")
	if out := s.good("template list"); !strings.Contains(out, "base") || !strings.Contains(out, "8080/http") {
		t.Errorf("list:\n%s", out)
	}
	type podRecord struct {
		ID       fleet.PodID       `json:"id"`
		Env      map[string]string `json:"env"`
		Args     string            `json:"args"`
		Disk     int               `json:"disk"`
		Ports    []string          `json:"ports"`
		Registry string            `json:"registry"`
		Template string            `json:"template"`
	}
	pod := record[podRecord](s, "pod create web --template base --cpu cpu3g --env B=2")
	if diff := cmp.Diff(map[string]string{"A": "1", "B": "2"}, pod.Env); diff != "" || pod.Args != "httpd -f" || pod.Disk != 7 || pod.Registry != reg.ID || pod.Template == "" {
		t.Errorf("%s %+v", diff, pod)
	}
	own := record[podRecord](s, "pod create own --template base --cpu cpu3g --no-registry --no-ports --args=")
	if own.Args != "" || len(own.Ports) != 0 || own.Registry != "" {
		t.Errorf("%+v", own)
	}
	if text := s.bad(exitRefused, "registry delete team"); strings.Contains(text, "hush") {
		t.Error(text)
	}
	s.bad(exitRefused, "template delete base")
	s.good("template update base --no-registry --image busybox:2 --public")
	if out := s.good("template get base"); !strings.Contains(out, "Image:       busybox:2") || !strings.Contains(out, "Public:      yes") {
		t.Errorf("get:\n%s", out)
	}
	if out := s.good("template catalog --source community"); !strings.Contains(out, "base") {
		t.Errorf("catalog:\n%s", out)
	}
	s.good("admin template-source " + pod.Template + " official")
	if out := s.good("catalog templates"); !strings.Contains(out, "base") {
		t.Errorf("official:\n%s", out)
	}
	for _, id := range []fleet.PodID{pod.ID, own.ID} {
		s.good("pod delete " + string(id))
		s.report(id, "gone")
	}
	s.good("template delete base")
	s.good("registry delete " + reg.ID)
	if out := s.good("registry list"); out != "ID  NAME\n" {
		t.Errorf("list:\n%s", out)
	}
}

func TestUpdatesThroughTheRealFace(t *testing.T) {
	s := newSite(t)
	id := s.running("pod create web busybox --cpu cpu3g --env A=1 --env B=1 --port 80 --idempotency-key once")
	if got := s.feed("", "pod create web busybox --cpu cpu3g --env A=1 --env B=1 --port 80 --idempotency-key once"); got.Code != 0 ||
		!strings.Contains(got.Err, "had been made before") || !strings.Contains(got.Out, string(id)) {
		t.Errorf("again: %+v", got)
	}
	s.bad(exitUsage, "pod create other busybox --cpu cpu3g --idempotency-key once")
	s.good("pod update web --name site --locked")
	s.bad(exitRefused, "pod stop site")
	s.good("pod update site --no-locked --set-env B=2 --unset-env A")
	if pod, _ := s.plane.Record(id); pod.Status != fleet.StatusStarting || pod.Incarnation != 2 || len(pod.Spec.Env) != 1 || pod.Spec.Env["B"] != "2" {
		t.Errorf("%s, incarnation %d, %v", pod.Status, pod.Incarnation, pod.Spec.Env)
	}
	s.report(id, fleet.EventStarting, fleet.EventRunning)
	s.good("pod update site --no-env --no-ports --disk 3", "--", "sleep", "9")
	if out := s.good("pod get site"); !strings.Contains(out, "Args:         sleep 9") || !strings.Contains(out, "Disk:         3 GB") || strings.Contains(out, "Env:") {
		t.Errorf("get:\n%s", out)
	}
	for filter, want := range map[string]bool{
		"--name site": true, "--name web": false, "--status STARTING --status RUNNING": true, "--compute-type GPU": false,
		"--cpu cpu3g": true, "--data-center dev-2": false, "--id " + string(id): true, "--image busybox": true,
	} {
		if out := s.good("pod list " + filter); strings.Contains(out, string(id)) != want {
			t.Errorf("pod list %s:\n%s", filter, out)
		}
	}
	s.good("pod delete site")
	if out := s.good("pod list --include-terminated"); !strings.Contains(out, string(id)) {
		t.Errorf("terminated:\n%s", out)
	}
}

func TestGPUPodsThroughTheRealFace(t *testing.T) {
	s := newSite(t)
	gpu := []string{"--gpu", plane.SimGPU}
	id := s.running("pod create train busybox --count 2 --min-cuda 12.4 --min-ram-per-gpu 32 --min-vcpu-per-gpu 4 --persistent 50:/workspace --port 22/tcp", gpu...)
	if out := s.good("pod get train"); !strings.Contains(out, "50 GB of the host at /workspace") || !strings.Contains(out, "22/tcp at "+plane.PublicIP) {
		t.Errorf("get:\n%s", out)
	}
	if out := s.good("pod ssh train --print"); !strings.HasPrefix(out, "ssh root@"+plane.PublicIP+" -p 3") {
		t.Errorf("ssh: %s", out)
	}
	s.good("pod update train --persistent 60:/workspace")
	s.bad(exitUsage, "pod update train --persistent 40:/workspace")
	if pod, _ := s.plane.Record(id); pod.Spec.Persistent.SizeGB != 60 {
		t.Errorf("%+v", pod.Spec.Persistent)
	}
	s.bad(exitNoRoom, "pod create new busybox --cuda 99.9", gpu...)
	s.bad(exitUsage, "pod create new busybox --cuda 12.8 --min-cuda 12.4", gpu...)
	s.bad(exitNotFound, "pod create new busybox --network-volume zzzzzzzzzzzzzz:/data", gpu...)
	s.plane.Advance(2 * time.Hour)
	if out := s.good("account"); !strings.Contains(out, "Balance:  -$") {
		t.Errorf("account:\n%s", out)
	}
	for line, want := range map[string]string{
		"billing":                         "POD GPU",
		"billing pods --last 2":           string(id),
		"billing pods --id " + string(id): string(id),
		"billing volumes --bucket month":  "TOTAL",
		"billing clusters --start 24h":    "$0.000",
	} {
		if out := s.good(line); !strings.Contains(out, want) {
			t.Errorf("gantry %s: no %q in\n%s", line, want, out)
		}
	}
}

func TestAccountThroughTheRealFace(t *testing.T) {
	s, dir := newSite(t), t.TempDir()
	file := filepath.Join(dir, "keys")
	if err := os.WriteFile(file, []byte("# mine\n"+keyLine+"\n"+otherLine+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.good("ssh-key set " + file)
	s.good("ssh-key remove you@desk")
	s.good("ssh-key add " + file)
	if out := s.good("ssh-key list"); strings.Count(out, "SHA256:") != 2 || strings.Index(out, "me@laptop") > strings.Index(out, "you@desk") {
		t.Errorf("list:\n%s", out)
	}
	pod := record[struct{ Env map[string]string }](s, "pod create web busybox --cpu cpu3g --ssh --jupyter")
	if pod.Env["PUBLIC_KEY"] != keyLine+"\n"+otherLine || len(pod.Env["JUPYTER_PASSWORD"]) != 24 {
		t.Errorf("%v", pod.Env)
	}
	s.good("ssh-key set --none")

	if out := s.good("account set --spend-limit 0 --low-balance 50"); !strings.Contains(out, "Spend limit:  $0.000 per hour") {
		t.Errorf("set:\n%s", out)
	}
	if got := s.bad(exitRefused, "pod create web busybox --cpu cpu3g"); !strings.Contains(got, "its own spend limit of $0.000 per hour") {
		t.Errorf("refused:\n%s", got)
	}
	if own := record[v2.Account](s, "account set --spend-limit none --low-balance default"); own.SpendLimit != nil || own.LowBalance != nil {
		t.Errorf("%+v", own)
	}

	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("0123456789abcdef\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out := s.good("account set --webhook https://ops.example.com/gantry?t=x --webhook-kind pod --webhook-kind balance --webhook-secret-file " + secret)
	if !strings.Contains(out, "Webhook:  https://ops.example.com, balance pod, signed\n") {
		t.Errorf("set:\n%s", out)
	}
	if own := record[v2.Account](s, "account set --webhook https://ops.example.com --no-webhook-secret"); own.Webhook == nil || own.Webhook.Signed || len(own.Webhook.Kinds) < 10 {
		t.Errorf("%+v", own.Webhook)
	}
	if own := record[v2.Account](s, "account set --webhook none"); own.Webhook != nil {
		t.Errorf("%+v", own.Webhook)
	}
	s.bad(exitUsage, "account set --webhook ftp://example.com")
	for args, want := range map[string]string{
		"--webhook-kind pod": "need --webhook URL", "--webhook none --no-webhook-secret": "need --webhook URL",
		"--webhook https://x --no-webhook-secret --webhook-secret-file " + secret: "exclude each other", "": "say what to change",
	} {
		if got := s.bad(exitUsage, strings.TrimSpace("account set "+args)); !strings.Contains(got, want) {
			t.Errorf("account set %s: %s", args, got)
		}
	}

	made := record[struct{ Key idOnly }](s, "key create ci --preset restricted --permission pods=read --invoke all")
	if out := s.good("key get " + made.Key.ID); !strings.Contains(out, "Access to pods:            read") || !strings.Contains(out, "Invoke:                    all endpoints") {
		t.Errorf("get:\n%s", out)
	}
	if out := s.good("key update " + made.Key.ID + " --disable --name ci-2"); !strings.Contains(out, "ci-2") || !strings.Contains(out, " disabled ") {
		t.Errorf("update:\n%s", out)
	}
	s.good("key update " + made.Key.ID + " --enable")
	s.good("key delete " + made.Key.ID)
	s.bad(exitNotFound, "key get "+made.Key.ID)
}

func TestOperatorsThroughTheRealFace(t *testing.T) {
	s := newSite(t)
	account := record[idOnly](s, "account create lab").ID
	for line, want := range map[string]string{
		"account credit " + account + " 12.5 --idempotency-key one": "Balance: $12.500",
		"account update " + account + " --prepaid --rate-minute 60": "60 a minute",
		"account list": "lab",
		"host set-cloud " + string(plane.Host) + " COMMUNITY":              "COMMUNITY",
		"admin datacenter put dc-9 --name Nine --region ASIA --country JP": "JP",
		"admin cpu-flavor put cpu3g --secure-per-vcpu 0.08":                "$0.080",
		"admin storage-prices set --container-disk 0.2":                    "$0.2 per GB and month",
		"admin storage-prices get":                                         "Network volume",
		"admin gpu-type list":                                              plane.SimGPU,
		"admin cpu-flavor list":                                            "cpu3g",
		"admin datacenter list":                                            "dev-1",
	} {
		if out := s.good(line); !strings.Contains(out, want) {
			t.Errorf("gantry %s: no %q in\n%s", line, want, out)
		}
	}
	if out := s.good("account credit " + account + " 12.5 --idempotency-key one"); out != "Balance: $12.500\n" {
		t.Errorf("credit twice: %s", out)
	}
	if out := s.good("account credit " + account + " 2.5 --take"); out != "Balance: $10.000\n" {
		t.Errorf("credit taken: %s", out)
	}
	if out := s.good("account update " + account + " --rate-default --no-prepaid --name lab-2"); strings.Contains(out, "a minute") || !strings.Contains(out, "lab-2") {
		t.Errorf("update:\n%s", out)
	}
	if out := s.good("account get " + account); !strings.Contains(out, "lab-2") {
		t.Errorf("get:\n%s", out)
	}
	out := s.good("admin gpu-type put --name A1 --manufacturer UNKNOWN --memory 32 --secure 0.4", "ACME A1")
	if !strings.Contains(out, "$0.400") {
		t.Errorf("put:\n%s", out)
	}
	if out := s.good("admin gpu-type put --community 0.3", "ACME A1"); !strings.Contains(out, "$0.400") || !strings.Contains(out, "$0.300") {
		t.Errorf("put:\n%s", out)
	}
	s.good("admin gpu-type delete", "ACME A1")
	s.good("admin datacenter delete dc-9")
	s.bad(exitNotFound, "admin datacenter delete dc-9")
	s.good("admin cpu-flavor put big --name Big --group big --min-vcpu 2 --max-vcpu 64 --ram-per-vcpu 16 --disk-per-vcpu 20 --secure-per-vcpu 0.1")
	s.good("admin cpu-flavor delete big")
	s.bad(exitNotFound, "account get zzzzzzzzzzzzzz")
	s.bad(exitNotFound, "host set-cloud zzzzzzzzzzzzzz SECURE")
}
