package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// What a template makes of the variables is what the daemon reads: Jinja has other rules for text in a template than in a playbook.
func TestSettingsOfAScheduler(t *testing.T) {
	t.Parallel()
	to := filepath.Join(t.TempDir(), "scheduler.toml")
	with, err := json.Marshal(vars{
		"scheduler_listen": "0.0.0.0:443", "scheduler_link_listen": "0.0.0.0:8443", "scheduler_address": "10.0.0.11:8443",
		"scheduler_tls": []vars{{"name": "api"}, {"name": "pods"}}, "scheduler_settings": vars{"proxy-domain": "pods.example.com"},
	})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "ansible", "localhost", "-i", "localhost,", "-c", "local", "-m", "template",
		"-a", "src=roles/scheduler/templates/scheduler.toml.j2 dest="+to, "-e", string(with))
	cmd.Dir = filepath.Join("..", "..", "deploy", "ansible")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	text, err := os.ReadFile(to)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`tls-cert = ["/etc/gantry/tls/api.crt", "/etc/gantry/tls/pods.crt"]`, `tls-key = ["/etc/gantry/tls/api.key", "/etc/gantry/tls/pods.key"]`,
		`listen = "0.0.0.0:443"`, `proxy-domain = "pods.example.com"`,
	} {
		if !strings.Contains(string(text), "\n"+want+"\n") {
			t.Errorf("%s is not in\n%s", want, text)
		}
	}
}

// Every block of the documents that is marked as a step is executed, and every step that is executed is there.
func TestTheDocumentsAreExecuted(t *testing.T) {
	l := &lab{root: filepath.Join("..", "..")}
	sources, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var code bytes.Buffer
	for _, source := range sources {
		text, err := os.ReadFile(source)
		if err != nil {
			t.Fatal(err)
		}
		code.Write(text)
	}
	for _, doc := range []string{"install.md", "upgrade.md"} {
		text, err := os.ReadFile(filepath.Join(l.root, "docs", doc))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`<!-- step: (\S+) -->`).FindAllStringSubmatch(string(text), -1) {
			if _, err := l.documented(doc, m[1]); err != nil {
				t.Error(err)
			}
			if !strings.HasPrefix(m[1], "checkout-") && !strings.Contains(code.String(), fmt.Sprintf("%q", m[1])) {
				t.Errorf("docs/%s: the lab does not execute %s", doc, m[1])
			}
		}
	}
	for _, m := range regexp.MustCompile(`"((?:install|upgrade)\.md)", "([a-z-]+)"`).FindAllStringSubmatch(code.String(), -1) {
		if _, err := l.documented(m[1], m[2]); err != nil {
			t.Error(err)
		}
	}
}

func TestAPlayThatChangesSomethingIsNoticed(t *testing.T) {
	const recap = "PLAY RECAP ***\ncontrol-1  : ok=75   changed=0    unreachable=0\ngpu-01     : ok=46   changed=%d    unreachable=0\n"
	for changed, want := range map[int]string{0: "", 3: "gpu-01: changed=3"} {
		err := unchanged(fmt.Sprintf(recap, changed), 2)
		if got := fmt.Sprint(err); want == "" && err != nil || want != "" && got != want {
			t.Errorf("changed=%d: %v", changed, err)
		}
	}
	if unchanged(fmt.Sprintf(recap, 0), 3) == nil {
		t.Error("a machine that the play did not reach is not missed")
	}
}

func TestSilenceIsHeard(t *testing.T) {
	lines := func(lost, gap int) (all []string) {
		at := 1000
		for i := range 40 {
			answer := "yes"
			if i < lost {
				answer = "no"
			}
			if at++; i == 20 {
				at += gap
			}
			all = append(all, fmt.Sprint(at, " ", answer))
		}
		return all
	}
	for _, c := range []struct {
		lines []string
		fault bool
	}{
		{lines(0, 0), false},
		{lines(maxLost, 5), false},
		{lines(maxLost+1, 0), true},
		{lines(0, 60), true},
		{lines(0, 0)[:3], true},
		{append(lines(0, 0), "yes"), true},
	} {
		if err := unheard(c.lines); (err != nil) != c.fault {
			t.Errorf("%v of %d lines", err, len(c.lines))
		}
	}
}

func TestWhatIsLeftIsFound(t *testing.T) {
	before := traces{"files": {"/etc/passwd"}, "links": {"lo", "eth0"}, "packages": {"bash"}}
	after := traces{
		"files": {"/etc/passwd", "/usr/bin/runc", "/var/lib/containerd", "/var/lib/gantry"}, "owned": {"/usr/bin/runc"},
		"links": {"eth0", "lo", "gw56f8"}, "packages": {"bash", "containerd"},
	}
	err := after.beyond(before)
	for _, want := range []string{"files: /var/lib/gantry", "links: gw56f8"} {
		if !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%s is not told: %v", want, err)
		}
	}
	if n := strings.Count(fmt.Sprint(err), "\n"); n != 1 {
		t.Errorf("not two faults: %v", err)
	}
}

func TestTasksAreTimed(t *testing.T) {
	var out bytes.Buffer
	s := &stamps{to: &out, began: time.Now().Add(-time.Second)}
	for _, piece := range []string{"TASK [a : one] ***\nok: [x]", "\n\nTASK [a : two] *", "**\nok: [x]\n"} {
		if _, err := s.Write([]byte(piece)); err != nil {
			t.Fatal(err)
		}
	}
	if !regexp.MustCompile(`(?m)^ +\d\.\d  TASK \[a : two\] \*\*\*$`).Match(out.Bytes()) || len(s.slowest(8)) != 2 {
		t.Errorf("%s%q", out.String(), s.slowest(8))
	}
}

func TestATaskThatAPlaySkipsIsNoticed(t *testing.T) {
	const wait = "gateway : Wait until it is heard again"
	for out, want := range map[string]bool{
		"TASK [" + wait + "] ***\nincluded: /a/heard.yml for edge-1\n":                                 true,
		"TASK [" + wait + "] ***\nskipping: [edge-1]\nok: [edge-2]\n":                                  true,
		"TASK [" + wait + "] ***\nskipping: [edge-1]\n\nTASK [gateway : Drain it] ***\nok: [edge-1]\n": false,
		"TASK [gateway : Drain it] ***\nok: [edge-1]\n":                                                false,
	} {
		if err := awaited(out, wait); (err == nil) != want {
			t.Errorf("%q: %v", out, err)
		}
	}
}
