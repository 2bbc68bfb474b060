package e2e

import (
	"fmt"
	"io"
	"net"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"gantry/fleet"
	"gantry/test/devtest"
)

// inside runs a command in a pod, which must succeed, and returns what it printed.
func inside(t *testing.T, d *devtest.Dev, id string, command ...string) string {
	t.Helper()
	out, errs, code := cli(t, d, append([]string{"pod", "exec", id, "--"}, command...)...)
	if code != 0 {
		t.Fatalf("%q in the pod: exit code %d: %s", command, code, errs)
	}
	return out
}

// TestRootInAPodIsNobodyOnTheHost looks at a pod's process from both sides.
func TestRootInAPodIsNobodyOnTheHost(t *testing.T) {
	t.Parallel()
	d := suite.dev
	id := create(t, d, devtest.CPUPod("ids", "echo begun > /etc/mine; "+devtest.Sleeper)).ID
	reach(t, d, id, fleet.StatusRunning)
	maps := inside(t, d, id, "cat", "/proc/self/uid_map")
	m := regexp.MustCompile(`^\s*0\s+(\d+)\s+65536\s*$`).FindStringSubmatch(maps)
	if m == nil || m[1] == "0" {
		t.Fatalf("the pod's ids: %q", maps)
	}
	if out := inside(t, d, id, "sh", "-c", "id -u; stat -c %u /bin/busybox /etc/mine"); out != "0\n0\n0\n" {
		t.Errorf("ids in the pod: %q", out)
	}
	if out := inside(t, d, id, "sh", "-c", "echo x > /proc/sys/kernel/hostname; mount -t tmpfs x /mnt; echo ended"); out != "ended\n" {
		t.Errorf("%q", out)
	}
}

// TestContainerDiskEnds fills a pod's disk, which is wiped by a restart.
func TestContainerDiskEnds(t *testing.T) {
	t.Parallel()
	d := suite.dev
	body := devtest.CPUPod("disk", "ls /big; "+devtest.Sleeper)
	body.Disk = new(1)
	id := create(t, d, body).ID
	reach(t, d, id, fleet.StatusRunning)
	out := inside(t, d, id, "sh", "-c", "dd if=/dev/zero of=/big bs=1M count=2000 2>&1; wc -c < /big")
	lines := strings.Fields(out)
	n, err := strconv.ParseInt(lines[len(lines)-1], 10, 64)
	if err != nil || n < 1e9 || n > 12e8 || !strings.Contains(out, "No space left") {
		t.Errorf("2 GB onto a disk of 1: %q", out)
	}
	act(t, d, id, fleet.ActionRestart)
	reach(t, d, id, fleet.StatusRunning)
	await(t, func() error {
		if out, _, code := cli(t, d, "pod", "exec", id, "--", "sh", "-c", "ls /big 2>&1"); code == 0 || !strings.Contains(out, "No such file") {
			return fmt.Errorf("after the restart: %d %q", code, out)
		}
		return nil
	})
}

// TestPersistentMountHasASize fills one, grows it by PATCH, and finds its data.
func TestPersistentMountHasASize(t *testing.T) {
	t.Parallel()
	d := suite.dev
	id := done[made](t, d, "", "POST", "/v2/pods", `{"name":"sized","image":"`+devtest.Image+`","gpu":{"id":"`+devtest.GPUType+`"},`+
		`"mounts":{"persistent":{"size":10,"path":"/data"}},"args":`+strconv.Quote(`{"entrypoint":["sh","-c"],"cmd":[`+strconv.Quote(devtest.Sleeper)+`]}`)+`}`).ID
	cleanUp(t, d, id)
	reach(t, d, id, fleet.StatusRunning)
	size := func() int64 {
		fields := strings.Fields(inside(t, d, id, "sh", "-c", "stat -f -c '%b %S' /data"))
		blocks, err1 := strconv.ParseInt(fields[0], 10, 64)
		block, err2 := strconv.ParseInt(fields[1], 10, 64)
		if err1 != nil || err2 != nil {
			t.Fatal(fields)
		}
		return blocks * block
	}
	if n := size(); n < 10e9 || n > 12e9 {
		t.Errorf("a mount of 10 GB has %d bytes", n)
	}
	inside(t, d, id, "sh", "-c", "echo kept > /data/file")
	done[struct{}](t, d, "", "PATCH", "/v2/pods/"+id, `{"mounts":{"persistent":{"size":14,"path":"/data"}}}`)
	act(t, d, id, fleet.ActionRestart) // from its next start on
	await(t, func() error {
		if out, _, code := cli(t, d, "pod", "exec", id, "--", "sh", "-c", "cat /data/file"); code != 0 || out != "kept\n" {
			return fmt.Errorf("the data: %d %q", code, out)
		}
		if n := size(); n < 14e9 || n > 17e9 {
			return fmt.Errorf("a mount of 14 GB has %d bytes", n)
		}
		return nil
	})
}

// TestSymmetricalPort reaches a port that has one number inside and outside.
func TestSymmetricalPort(t *testing.T) {
	t.Parallel()
	d := suite.dev
	body := devtest.CPUPod("same", `nc -ll -p $RUNPOD_TCP_PORT_70001 -e echo same $GANTRY_TCP_PORT_70001`)
	body.Ports = []string{"70001/tcp"}
	id := create(t, d, body).ID
	reach(t, d, id, fleet.StatusRunning)
	type record struct {
		Runtime struct {
			Ports []struct {
				Private, Public int
				IP              string
			}
		}
	}
	got := done[record](t, d, "", "GET", "/v2/pods/"+id, "").Runtime.Ports
	if len(got) != 1 || got[0].Public == 0 || got[0].Private != got[0].Public {
		t.Fatalf("runtime.ports: %+v", got)
	}
	await(t, func() error {
		conn, err := net.Dial("tcp", net.JoinHostPort(got[0].IP, strconv.Itoa(got[0].Public)))
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		text, err := io.ReadAll(conn)
		if want := fmt.Sprintf("same %d\n", got[0].Public); string(text) != want {
			return fmt.Errorf("got %q, want %q: %w", text, want, err)
		}
		return nil
	})
}

// TestSecretsAndThePodsOwnKey opens a secret for a pod alone, and lets the pod's own key do what it may.
func TestSecretsAndThePodsOwnKey(t *testing.T) {
	t.Parallel()
	d := suite.dev
	done[any](t, d, "", "PUT", "/v2/secrets/token", `{"value":"s3cr3t of the pod"}`)
	body := devtest.CPUPod("secret", devtest.Sleeper)
	body.Env = map[string]string{"TOKEN": "<{{ RUNPOD_SECRET_token }}>", "QUOTED": `it's "$HOME"`}
	id := create(t, d, body).ID
	reach(t, d, id, fleet.StatusRunning)
	if out := inside(t, d, id, "sh", "-c", `echo "$TOKEN"`); out != "<s3cr3t of the pod>\n" {
		t.Errorf("the secret in the pod: %q", out)
	}
	if out := inside(t, d, id, "env", "-i", "sh", "-c", `. /etc/profile.d/00-gantry.sh; echo "$TOKEN $QUOTED $RUNPOD_POD_ID"`); out != "<s3cr3t of the pod> it's \"$HOME\" "+id+"\n" {
		t.Errorf("in a login shell: %q", out)
	}
	if _, text := ask(t, d, "", "GET", "/v2/pods/"+id, ""); strings.Contains(text, "s3cr3t") {
		t.Errorf("the record has the secret: %s", text)
	}
	key := strings.TrimSpace(inside(t, d, id, "sh", "-c", `echo "$RUNPOD_API_KEY"`))
	if !fleet.ValidAPIKey(key) {
		t.Fatalf("the pod's own key: %q", key)
	}
	for _, c := range []struct {
		method, path string
		want         int
	}{
		{"GET", "/v2/pods/" + id, 200},
		{"GET", "/v2/pods", 403},
		{"PATCH", "/v2/pods/" + id, 403},
		{"GET", "/v2/secrets", 403},
		{"GET", "/v2/pods/abcdefghijklmn", 404},
		{"POST", "/v2/pods/" + id + "/action", 200},
	} {
		text := map[string]string{"PATCH": `{"name":"other"}`, "POST": `{"action":"stop"}`}[c.method]
		if status, answer := ask(t, d, key, c.method, c.path, text); status != c.want {
			t.Errorf("%s %s with the pod's own key: %d %s, want %d", c.method, c.path, status, answer, c.want)
		}
	}
	reach(t, d, id, fleet.StatusExited)
}
