package main

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gantry/fleet"
	"gantry/test/plane"
)

const drainedID = "h7d2k9s4f1g6j3"

func TestOperatorsTables(t *testing.T) {
	api := world()
	api["GET /admin/v1/hosts/"+drainedID] = []string{`200 {"id":"h7d2k9s4f1g6j3","name":"gpu-01","dataCenterId":"dev-1","cloud":"SECURE","state":"unreachable","eligibility":"draining",
		"keepRunning":true,"takesNoPods":"unreachable","labels":{"rack":"b4","a":"1"},"roles":["storage","s3"],"volumes":["cephfs","nfs"],"alarm":{"text":"Another machine used its certificate.","at":"2026-10-01T12:00:00.000Z"},
		"usedGpus":2,"gpus":[{"uuid":"MIG-1","type":"NVIDIA H100 MIG 1g.10gb","numa":0,"island":1,"sick":null,"pci":null,"parent":"GPU-1"},
		{"uuid":"GPU-2","type":"NVIDIA H100","numa":1,"island":1,"sick":"XID 79","pci":"0000:3b:00.0","parent":null}],"runtimeClass":"gvisor","images":7,
		"conditions":[{"code":"runc_old","text":"It is 1.1.5.","severe":true},{"code":"disk_unlimited","text":"The disk\u001b[31m has no limit.","severe":false}],
		"joinedAt":"2026-10-01T11:00:00.000Z"}`}
	api["GET /admin/v1/hosts/"+drainedID+"/pods"] = []string{`200 {"pods":[
		{"id":"k3n8w0zq5r7d2a","accountId":"a5f8k2m7q1w4z9","status":"RUNNING","gpus":2,"moving":true,"waits":null},
		{"id":"m3n8w0zq5r7d2a","accountId":"a5f8k2m7q1w4z9","status":"EXITED","gpus":0,"moving":false,"waits":"it keeps data\u001b[31m on the host"}]}`}
	api["GET /admin/v1/capacity"] = []string{`200 {"gpus":[
		{"gpuTypeId":"NVIDIA A40","total":8,"free":0,"mostOnOneHost":0,"fit":{"8":0,"4":0,"2":0,"1":0},"stranded":{"cpu":0,"memory":0,"disk":0}},
		{"gpuTypeId":"NVIDIA H100","total":16,"free":11,"mostOnOneHost":8,"fit":{"8":0,"4":1,"2":3,"1":6},"stranded":{"cpu":3,"memory":0,"disk":2}}],"stranded":[
		{"hostId":"h7d2k9s4f1g6j3","name":"gpu\u001b[31m01","gpuTypeId":"NVIDIA H100","gpus":3,"short":"cpu","podIds":["k3n8w0zq5r7d2a","m3n8w0zq5r7d2a"]},
		{"hostId":"h8d2k9s4f1g6j3","name":"gpu-02","gpuTypeId":"NVIDIA H100","gpus":2,"short":"disk","podIds":[]}]}`}
	tests := []struct {
		args string
		want result
	}{
		{"raft members", result{Out: `ID              NAME     ADDRESS         ROLE         REACHED      APPLIED  BEHIND  VERSION  PROBLEM
member00000001  sched-1  10.0.0.11:8443  leader       yes          1000     0       1.2.0    -
member00000002  sched-2  10.0.0.12:8443  voter        yes          1000     0       1.2.0    -
member00000003  sched-3  10.0.0.13:8443  voter        no, for 1m30s  900      100     -        It does not answer.
`}},
		{"raft clock show", result{Out: `Leader's clock: 2026-10-03T12:00:00Z
Log's time:     2026-10-01T12:00:00Z
ID              NAME     ROLE         CLOCK
member00000001  sched-1  leader       0s
member00000002  sched-2  voter        -48h0m0s
member00000003  sched-3  voter        -
member00000004  sched-4  non-voter    -
member00000005  sched-5  catching up  -
HELD BACK: the leader's clock is ahead of the log's time (+48h0m0s). No charge is settled, no pod ended for want of credit, and nothing old is purged.
See docs/operations.md, "Clocks".
`}},
		{"raft add", result{Out: "one-use\n", Err: `The token lets one scheduler join, until 2026-10-01 12:11:30.000 UTC. On its machine, before gantry-scheduler run:

    gantry-scheduler join --data-dir DIR --token-file FILE --address HOST:PORT --scheduler 10.0.0.11:8443 --scheduler 10.0.0.12:8443 --scheduler 10.0.0.14:8443 --scheduler 10.0.0.15:8443

`}},
		{"raft promote member00000002", result{Out: "promoted member00000002\n"}},
		{"raft transfer", result{Out: "leadership was handed on\n"}},
		{"raft transfer -o json", result{}},
		{"host pods " + drainedID, result{Out: `ID              ACCOUNT         STATUS   GPUS  MOVING  A DRAIN WAITS BECAUSE
k3n8w0zq5r7d2a  a5f8k2m7q1w4z9  RUNNING  2     yes     -
m3n8w0zq5r7d2a  a5f8k2m7q1w4z9  EXITED   0     no      it keeps data�[31m on the host
`}},
		{"host get " + drainedID, result{Out: `Id:              h7d2k9s4f1g6j3
Name:            gpu-01
Data center:     dev-1
Cloud:           SECURE
State:           unreachable, draining, pods that run are kept
Takes no pods:   unreachable
Alarm:           Another machine used its certificate. (2026-10-01 12:00:00.000 UTC)
Labels:          a=1, rack=b4
Roles:           storage, s3
Mounts volumes:  cephfs, nfs
Pods:            0
CPU:             0/0 cores
Memory:          0/0 GB
Disk:            0/0 GB
GPUs:            2/2 used: 1 × NVIDIA H100 (sick), 1 × NVIDIA H100 MIG 1g.10gb
Runtime class:   gvisor
Images:          7
Joined:          2026-10-01 11:00:00.000 UTC
Takes no pods: runc_old: It is 1.1.5.
Condition: disk_unlimited: The disk�[31m has no limit.
GPU GPU-2 takes no pods: XID 79
GPU    TYPE                     PCI           NUMA  ISLAND  HEALTH  SLICE OF
MIG-1  NVIDIA H100 MIG 1g.10gb  -             0     1       ok      GPU-1
GPU-2  NVIDIA H100              0000:3b:00.0  1     1       sick    -
`}},
		{"admin placement get", result{Out: "Kept for each free GPU:        50 % of its share of the host's cores and memory\n" +
			"Notice of interruptible pods:  30s\n"}},
		{"host capacity", result{Out: `TYPE         GPUS  FREE  MOST  8 GPUS  4 GPUS  2 GPUS  1 GPU  STRANDED
NVIDIA A40   8     0     0     0       0       0       0      0
NVIDIA H100  16    11    8     0       1       3       6      5 (cpu 3, disk 2)

HOST            NAME        TYPE         STRANDED  SHORT OF  HELD BY
h7d2k9s4f1g6j3  gpu�[31m01  NVIDIA H100  3         cpu       k3n8w0zq5r7d2a, m3n8w0zq5r7d2a
h8d2k9s4f1g6j3  gpu-02      NVIDIA H100  2         disk      -
`}},
		{"host cordon " + drainedID, result{Out: "h7d2k9s4f1g6j3 (gpu-01) is ready\n"}},
		{"host label " + drainedID + " x=1", result{Out: "h7d2k9s4f1g6j3 (gpu-01) has the labels: keep=x, owner=lab, rack=b4\n"}},
		{"host remove " + drainedID + " --yes", result{Out: "removed h7d2k9s4f1g6j3\n"}},
	}
	for _, tt := range tests {
		got, _ := gantry(t, setup{api: api}, strings.Fields(tt.args)...)
		if tt.args == "raft members" {
			if !strings.Contains(got.Out, "Cluster c4k8v2x7m1q5z9, feature level 4\nHELD BACK: ") || !strings.Contains(got.Out, "  -48h0m0s  ") || strings.Contains(got.Out, "removed") ||
				!strings.Contains(got.Out, "non-voter") || !strings.Contains(got.Out, "catching up") || !strings.Contains(got.Out, "no, for 1m30s") {
				t.Errorf("%s", got.Out)
			}
			continue
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("gantry %s: %s", tt.args, diff)
		}
	}
	if got, _ := gantry(t, setup{api: api}, "raft", "members", "--all"); !strings.Contains(got.Out, "removed") {
		t.Errorf("%s", got.Out)
	}
}

// TestDrainTellsWhatItWaitsFor plays a host that is emptied bit by bit.
func TestDrainTellsWhatItWaitsFor(t *testing.T) {
	host := func(eligibility string) string {
		return `200 {"id":"` + drainedID + `","name":"gpu-01","state":"` + eligibility + `","eligibility":"` + eligibility + `"}`
	}
	pods := func(list string) string { return `200 {"pods":[` + list + `]}` }
	const (
		moving = `{"id":"k3n8w0zq5r7d2a","status":"RUNNING","moving":true,"waits":null,"to":"h8d2k9s4f1g6j3"}`
		locked = `{"id":"m3n8w0zq5r7d2a","status":"RUNNING","moving":false,"waits":"it is locked"}`
		next   = `{"id":"p3n8w0zq5r7d2a","status":"RUNNING","moving":false,"waits":null,"to":"h8d2k9s4f1g6j3"}`
	)
	path := "/admin/v1/hosts/" + drainedID
	world := func(lists ...string) map[string][]string {
		return map[string][]string{"POST " + path + "/drain": {host("draining")}, "GET " + path: {host("draining")}, "GET " + path + "/pods": lists}
	}
	got, _ := gantry(t, setup{api: world(
		pods(moving+","+locked+","+next), pods(moving+","+locked+","+next), `503 {"status":503,"detail":"no leader","code":"unavailable"}`, pods(locked), pods(``),
	)}, "host", "drain", drainedID, "--wait")
	want := result{Out: drainedID + " (gpu-01) is drained\n", Err: `waiting for 3 pods
  k3n8w0zq5r7d2a  RUNNING  it is being moved to h8d2k9s4f1g6j3
  m3n8w0zq5r7d2a  RUNNING  it is locked
  p3n8w0zq5r7d2a  RUNNING  it is to be moved to h8d2k9s4f1g6j3
the API does not answer at the moment
waiting for 1 pod
  m3n8w0zq5r7d2a  RUNNING  it is locked
`}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	got, _ = gantry(t, setup{api: world(pods(locked))}, "host", "drain", drainedID, "--wait", "--timeout", "100ms")
	if got.Code != exitTimeout || !strings.Contains(got.Err, "it is locked") || !strings.Contains(got.Err, "gave up waiting for host "+drainedID+" after 100ms; its drain goes on") {
		t.Errorf("%+v", got)
	}
	stopped := world(pods(locked))
	stopped["GET "+path] = []string{host("draining"), `200 {"id":"` + drainedID + `","state":"ready","eligibility":"open"}`}
	if got, _ = gantry(t, setup{api: stopped}, "host", "drain", drainedID, "--wait"); got.Code != exitFailed || !strings.Contains(got.Err, "is no longer draining: it is ready") {
		t.Errorf("%+v", got)
	}
}

func TestDrainSaysWhatItWillDo(t *testing.T) {
	const list = `200 {"pods":[
		{"id":"k3n8w0zq5r7d2a","accountId":"a5f8k2m7q1w4z9","status":"RUNNING","gpus":2,"to":"h8d2k9s4f1g6j3"},
		{"id":"m3n8w0zq5r7d2a","accountId":"a5f8k2m7q1w4z9","status":"RUNNING","gpus":1,"stops":true,"waits":"it runs on: it is locked"},
		{"id":"p3n8w0zq5r7d2a","accountId":"a5f8k2m7q1w4z9","status":"EXITED","gpus":0,"waits":"it keeps data on this host"}]}`
	path := "/admin/v1/hosts/" + drainedID
	answer := `200 {"id":"` + drainedID + `","name":"gpu-01","state":"draining","eligibility":"draining"}`
	world := map[string][]string{"GET " + path + "/drain": {list}, "POST " + path + "/drain": {answer}}
	drain := func(args ...string) (result, *fakeAPI) {
		return gantry(t, setup{api: world}, append([]string{"host", "drain", drainedID}, args...)...)
	}
	got, api := drain("--dry-run")
	want := result{Out: `ID              ACCOUNT         STATUS   GPUS  WHAT HAPPENS
k3n8w0zq5r7d2a  a5f8k2m7q1w4z9  RUNNING  2     moves to h8d2k9s4f1g6j3
m3n8w0zq5r7d2a  a5f8k2m7q1w4z9  RUNNING  1     it runs on: it is locked; --force would stop it
p3n8w0zq5r7d2a  a5f8k2m7q1w4z9  EXITED   0     it keeps data on this host
`}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if slices.ContainsFunc(api.seen, func(r string) bool { return strings.HasPrefix(r, "POST") }) {
		t.Errorf("a dry run did something: %v", api.seen)
	}
	got, api = drain("--force")
	if got.Code != exitUsage || !strings.Contains(got.Err, "m3n8w0zq5r7d2a of account a5f8k2m7q1w4z9 is stopped; else it runs on: it is locked\n") ||
		strings.Contains(got.Err, "k3n8w0zq5r7d2a") || !strings.Contains(got.Err, "Stop 1 pod that h7d2k9s4f1g6j3 runs?") {
		t.Errorf("%+v", got)
	}
	if slices.ContainsFunc(api.seen, func(r string) bool { return strings.HasPrefix(r, "POST") }) {
		t.Errorf("it was not asked, and did something: %v", api.seen)
	}
	if got, _ = drain("--force", "--yes"); got.Code != exitOK || got.Out != drainedID+" (gpu-01) is draining\n" {
		t.Errorf("%+v", got)
	}
	for _, args := range [][]string{{"--force", "--deadline", "1h"}, {"--force", "--keep-running"}, {"--deadline", "soon"}, {"--deadline", "-1h"}} {
		if got, _ = drain(args...); got.Code != exitUsage {
			t.Errorf("%v: %+v", args, got)
		}
	}
}

// TestConfirmationOnATerminal types the answer.
func TestConfirmationOnATerminal(t *testing.T) {
	for answer, want := range map[string]int{"yes\n": exitOK, "no\n": exitRefused, "\n": exitRefused, "y\n": exitRefused, "\x04": exitRefused} {
		s := newSite(t)
		s.plane.SetReachable(plane.Host, false)
		code, said := s.typed(answer, plane.Operator, "host", "fence", string(plane.Host))
		if code != want || !strings.Contains(said, "Type yes to go on: ") {
			t.Errorf("%q: status %d: %s", answer, code, said)
		}
		host, err := s.plane.Host(context.Background(), plane.Host)
		if err != nil || (host.Host.State == fleet.HostFenced) != (want == exitOK) {
			t.Errorf("%q: the host is %s, %v", answer, host.Host.State, err)
		}
	}
}

// typed runs a command on a terminal on which somebody types the answer. It returns the status and what was said on stderr.
func (s *site) typed(answer, key string, args ...string) (int, string) {
	s.t.Helper()
	person, program := openPTY(s.t)
	typeIn(s.t, person, answer)
	env := map[string]string{"GANTRY_API": s.url, "GANTRY_API_KEY": plane.KeyText(key).Reveal(), "GANTRY_ADMIN_KEY": plane.KeyText(key).Reveal()}
	var out, errOut bytes.Buffer
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	code := run(ctx, args, system{
		in: program, out: &out, err: &errOut, now: s.plane.Now, width: func() int { return 80 },
		env: func(name string) (string, bool) { v, ok := env[name]; return v, ok },
	})
	return code, errOut.String()
}

// TestWhatGoesWithARecordIsAsked: what deletes more than a record asks on a terminal, and names what goes.
func TestWhatGoesWithARecordIsAsked(t *testing.T) {
	s := newSite(t)
	s.good("admin volume-backend add filer --data-center dev-1 --nfs filer.example:/srv/volumes")
	s.good("volume create datasets --size 20 --data-center dev-1")
	for _, typed := range []struct {
		answer string
		status int
	}{{"no\n", exitRefused}, {"yes\n", exitOK}} {
		code, said := s.typed(typed.answer, plane.User, "volume", "delete", "datasets")
		if code != typed.status || !strings.Contains(said, "Delete network volume datasets (") || !strings.Contains(said, ") with its contents?") {
			t.Errorf("%q: status %d: %s", typed.answer, code, said)
		}
	}
}

func TestHostsThroughTheRealFace(t *testing.T) {
	s := newSite(t)
	host := string(plane.Host)
	s.good("host label " + host + " rack=b4 owner=lab")
	s.good("host label " + host + " owner-")
	if out := s.good("host get " + host); !strings.Contains(out, "Labels:         rack=b4\n") && !strings.Contains(out, "rack=b4") || strings.Contains(out, "owner") {
		t.Errorf("%s", out)
	}
	if out := s.good("host list --label rack=b4 --state ready"); !strings.Contains(out, host) || strings.Contains(out, string(plane.CommunityHost)) {
		t.Errorf("%s", out)
	}
	s.bad(exitUsage, "host list --state lost")
	s.bad(exitUsage, "host label "+host, "a b=c")

	id := s.running("pod create web busybox --cpu cpu3g --data-center dev-1")
	s.good("pod update web --locked")
	if out := s.good("host cordon " + host); !strings.Contains(out, "is cordoned") {
		t.Errorf("%s", out)
	}
	if out := s.good("host drain " + host); !strings.Contains(out, "is draining") {
		t.Errorf("%s", out)
	}
	if out := s.good("host pods " + host); !strings.Contains(out, string(id)) || !strings.Contains(out, "its owner did not allow it") {
		t.Errorf("%s", out)
	}
	if text := s.bad(exitTimeout, "host drain "+host+" --wait --timeout 200ms"); !strings.Contains(text, string(id)) {
		t.Errorf("%s", text)
	}
	s.bad(exitRefused, "host fence "+host+" --yes")
	s.bad(exitUsage, "host remove "+host+" --yes")
	s.good("host uncordon of-dev-1")
	s.good("host drain of-dev-2 --wait")
	s.good("host ack-alarm of-dev-2")
	s.good("host remove of-dev-2 --yes")
	if out := s.good("host list"); strings.Contains(out, string(plane.CommunityHost)) {
		t.Errorf("%s", out)
	}
}

func TestGPUsThroughTheRealFace(t *testing.T) {
	s := newSite(t)
	if out := s.good("host gpu cordon " + string(plane.Host) + " 0 --reason fan"); !strings.Contains(out, "is cordoned: fan") || strings.Count(out, "  cordoned  ") != 1 {
		t.Errorf("%s", out)
	}
	s.bad(exitNotFound, "host gpu cordon "+string(plane.Host)+" 99 --reason fan")
	s.bad(exitUsage, "host gpu cordon "+string(plane.Host)+" 0")
	s.plane.Restock(plane.Host, func(inv *fleet.Inventory) { inv.GPUs = inv.GPUs[1:] })
	out := s.good("host get " + string(plane.Host))
	if !strings.Contains(out, "is cordoned and gone: fan") {
		t.Fatalf("%s", out)
	}
	_, after, _ := strings.Cut(out, "GPU GPU-")
	gpu, _, _ := strings.Cut("GPU-"+after, " ")
	s.bad(exitUsage, "host gpu uncordon "+string(plane.Host)+" "+gpu)
	if out := s.good("host gpu clear " + string(plane.Host) + " " + gpu); strings.Contains(out, "cordoned") {
		t.Errorf("%s", out)
	}
	s.good("host gpu cordon " + string(plane.Host) + " 0 --reason fan")
	if out := s.good("host gpu uncordon " + string(plane.Host) + " 0"); strings.Contains(out, "cordoned") {
		t.Errorf("%s", out)
	}
}

func TestSchedulersThroughTheRealFace(t *testing.T) {
	s := newSite(t)
	if out := s.good("raft members"); !strings.Contains(out, "leader") || !strings.Contains(out, "non-voter") {
		t.Errorf("%s", out)
	}
	if out := s.good("raft add --replaces sched-2"); strings.TrimSpace(out) == "" {
		t.Error("there is no token")
	}
	if out := s.good("raft clock show"); !strings.Contains(out, "The clocks are right.\n") {
		t.Errorf("%s", out)
	}
	if err := s.plane.Tick(); err != nil {
		t.Fatal(err)
	}
	s.plane.Advance(24 * time.Hour)
	if err := s.plane.Tick(); err != nil {
		t.Fatal(err)
	}
	if out := s.good("raft members"); !strings.Contains(out, "HELD BACK: ") || !strings.Contains(out, "(+24h0m0s)") {
		t.Errorf("%s", out)
	}
	if out := s.good("raft clock confirm --yes"); out != "The log's time is the leader's.\n" {
		t.Errorf("%s", out)
	}
	if out := s.good("raft clock show"); strings.Contains(out, "HELD BACK") {
		t.Errorf("%s", out)
	}
	s.good("raft promote sched-3")
	s.good("raft transfer sched-3")
	s.good("raft transfer")
	s.good("raft demote sched-3")
	s.plane.SetSilent(plane.Follower, true)
	s.bad(exitUsage, "raft remove member00000001 --yes")
	s.good("raft remove member00000001 --yes --force")
	s.bad(exitNotFound, "raft remove member00000001 --yes")
	s.bad(exitUsage, "raft transfer sched-3")
	if out := s.good("raft members --all"); !strings.Contains(out, "removed") {
		t.Errorf("%s", out)
	}
}
