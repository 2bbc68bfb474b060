package scheduler

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// patched is a pod with everything that a PATCH can change.
func patched() fleet.PodRequest {
	req := gpuPod(1)
	req.Args, req.DiskGB, req.Ports = "serve", 30, []fleet.Port{tcp(22), http(80)}
	req.Env = map[string]string{"A": "1"}
	req.Persistent = &fleet.PersistentMount{SizeGB: 20, Path: "/workspace"}
	return req
}

// lives are the states in which a PATCH can find a pod.
func lives() []string {
	return []string{"PROVISIONING", "STARTING", "RUNNING", "EXITED", "ERROR", "TERMINATED", "stopping", "locked"}
}

func (w *world) bring(id fleet.PodID, life string) {
	w.t.Helper()
	var err error
	act := func(a fleet.Trigger) { _, err = w.svc.ActPod(context.Background(), member(acme), id, a) }
	switch life {
	case "STARTING":
		w.report(id, fleet.EventStarting)
	case "RUNNING":
		w.report(id, fleet.EventRunning)
	case "EXITED":
		w.report(id, fleet.EventExited)
	case "ERROR":
		w.report(id, fleet.EventFailed)
	case "TERMINATED":
		act(fleet.ActionTerminate)
	case "stopping":
		w.report(id, fleet.EventRunning)
		act(fleet.ActionStop)
	case "locked":
		w.report(id, fleet.EventRunning)
		_, err = w.svc.UpdatePod(context.Background(), member(acme), id, fleet.PodUpdate{Locked: ptr(true)})
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

type patch struct {
	name    string
	change  fleet.PodUpdate
	want    func(s *fleet.PodSpec)
	restart bool
	unlocks bool
}

func patches() []patch {
	name := "renamed"
	return []patch{
		{"name", fleet.PodUpdate{Name: &name}, func(s *fleet.PodSpec) { s.Name = name }, false, false},
		{"registry", fleet.PodUpdate{Registry: ptr(fleet.RegistryID("ours"))}, func(s *fleet.PodSpec) { s.Registry = "ours" }, false, false},
		{"globalNetworking", fleet.PodUpdate{GlobalNetworking: ptr(true)}, func(s *fleet.PodSpec) { s.GlobalNetworking = true }, false, false},
		{"mount path", fleet.PodUpdate{Persistent: &fleet.PersistentMount{SizeGB: 20, Path: "/data"}}, func(s *fleet.PodSpec) {
			s.Persistent = &fleet.PersistentMount{SizeGB: 20, Path: "/data"}
		}, false, false},
		{"mount growth", fleet.PodUpdate{Persistent: &fleet.PersistentMount{SizeGB: 25, Path: "/workspace"}}, func(s *fleet.PodSpec) {
			s.Persistent = &fleet.PersistentMount{SizeGB: 25, Path: "/workspace"}
		}, false, false},
		{"same image", fleet.PodUpdate{Image: ptr("busybox:1"), Args: ptr("serve"), DiskGB: ptr(30)}, func(*fleet.PodSpec) {}, false, false},
		{"same ports in another order", fleet.PodUpdate{Ports: &[]fleet.Port{http(80), tcp(22)}}, func(s *fleet.PodSpec) {
			s.Ports = []fleet.Port{http(80), tcp(22)}
		}, false, false},
		{"same env", fleet.PodUpdate{Env: &map[string]string{"A": "1"}}, func(*fleet.PodSpec) {}, false, false},
		{"image", fleet.PodUpdate{Image: ptr("busybox:2")}, func(s *fleet.PodSpec) { s.Image = "busybox:2" }, true, false},
		{"args", fleet.PodUpdate{Args: ptr("")}, func(s *fleet.PodSpec) { s.Args = "" }, true, false},
		{"env", fleet.PodUpdate{Env: &map[string]string{"B": "2"}}, func(s *fleet.PodSpec) { s.Env = map[string]string{"B": "2"} }, true, false},
		{"ports", fleet.PodUpdate{Ports: &[]fleet.Port{tcp(22), tcp(23)}}, func(s *fleet.PodSpec) { s.Ports = []fleet.Port{tcp(22), tcp(23)} }, true, false},
		{"disk", fleet.PodUpdate{DiskGB: ptr(40)}, func(s *fleet.PodSpec) { s.DiskGB = 40 }, true, false},
		{"disk, unlocking", fleet.PodUpdate{DiskGB: ptr(40), Locked: ptr(false)}, func(s *fleet.PodSpec) { s.DiskGB = 40 }, true, true},
		{"template", fleet.PodUpdate{Template: "full", Args: ptr("own")}, func(s *fleet.PodSpec) {
			s.Image, s.Args, s.DiskGB, s.Ports, s.Registry = "full:1", "own", 15, []fleet.Port{http(8888)}, "ours"
			s.Env = map[string]string{"A": "template", "B": "template"}
		}, true, false},
	}
}

// TestPatchMatrix patches every field in every state of a pod's life.
func TestPatchMatrix(t *testing.T) {
	w := stocked(t)
	w.must(state.PutDataCenter{DataCenter: fleet.DataCenter{ID: "dc-1", Name: "one", GlobalNetwork: true}})
	w.addHost("host-p", "dc-1", h100, 1, publicPorts(30000, 30009), cuda("12.4"))
	for _, life := range lives() {
		for _, c := range patches() {
			t.Run(life+"/"+c.name, func(t *testing.T) { w.patchOnce(t, life, c) })
		}
	}
}

func (w *world) patchOnce(t *testing.T, life string, c patch) {
	before := w.create(patched())
	defer func() {
		if life != "TERMINATED" {
			if _, err := w.svc.ActPod(context.Background(), member(acme), before.ID, fleet.ActionTerminate); err != nil {
				t.Error(err)
			}
		}
		w.report(before.ID, state.ReportGone)
	}()
	w.bring(before.ID, life)
	before = w.pod(before.ID)
	view, err := w.svc.UpdatePod(context.Background(), member(acme), before.ID, c.change)
	switch {
	case life == "TERMINATED":
		refused(t, err, fleet.CodeNotAllowed, "terminated")
		return
	case life == "locked" && c.restart && !c.unlocks:
		refused(t, err, fleet.CodeNotAllowed, "locked")
		return
	case err != nil:
		t.Fatal(err)
	}
	want := before.Spec
	c.want(&want)
	after := w.pod(before.ID)
	if d := cmp.Diff(want, after.Spec, cmpopts.EquateEmpty()); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(after, *view.Pod, cmpopts.EquateEmpty()); d != "" {
		t.Errorf("answered otherwise than recorded: %s", d)
	}
	if after.Locked != (life == "locked" && !c.unlocks) {
		t.Errorf("locked: %v", after.Locked)
	}
	restarted := c.restart && before.Status.Active() && !before.Stopping()
	if got := after.Incarnation != before.Incarnation; got != restarted {
		t.Fatalf("restarted: %v, want %v", got, restarted)
	}
	grown := int64(want.Persistent.SizeGB - before.Spec.Persistent.SizeGB)
	if !restarted {
		if after.Status != before.Status || after.Need.DiskGB != before.Need.DiskGB+grown {
			t.Errorf("%s with %d GB, was %s with %d GB", after.Status, after.Need.DiskGB, before.Status, before.Need.DiskGB)
		}
		return
	}
	status := fleet.StatusProvisioning
	if before.Status == fleet.StatusRunning {
		status = fleet.StatusStarting
	}
	if after.Status != status || after.Need.DiskGB != diskOf(&want) || after.Need.MilliCPU != before.Need.MilliCPU || after.Host != before.Host {
		t.Errorf("after a restart it is %s with %+v on %s", after.Status, after.Need, after.Host)
	}
}

func TestPatchRules(t *testing.T) {
	w := stocked(t)
	w.addHost("host-eu", "EU-1", h100, 1)
	w.addBackend("nfs", "dc-1", fleet.VolumeStandard)
	w.addVolume("vol", acme)
	w.must(state.PutDataCenter{DataCenter: fleet.DataCenter{ID: "EU-1", Name: "one", GlobalNetwork: true}})
	plain, kept := w.create(gpuPod(1)), w.create(patched())
	withVolume := gpuPod(1)
	withVolume.Network = &fleet.NetworkMount{Volume: "vol", Path: "/w"}
	net, cpu := w.create(withVolume), w.create(cpuPod(2))
	persistent := &fleet.PersistentMount{SizeGB: 30, Path: "/w"}
	for _, c := range []struct {
		name   string
		pod    fleet.PodID
		change fleet.PodUpdate
		code   fleet.Code
		text   string
	}{
		{"unknown pod", "none", fleet.PodUpdate{}, fleet.CodeNotFound, "pod"},
		{"mount added", plain.ID, fleet.PodUpdate{Persistent: persistent}, fleet.CodeConflictRule, "kind of mount"},
		{"volume added", plain.ID, fleet.PodUpdate{Network: &fleet.NetworkMount{Volume: "vol", Path: "/w"}}, fleet.CodeConflictRule, "kind of mount"},
		{"mount on a volume", net.ID, fleet.PodUpdate{Persistent: persistent}, fleet.CodeConflictRule, "kind of mount"},
		{"volume on a mount", kept.ID, fleet.PodUpdate{Network: &fleet.NetworkMount{Volume: "vol", Path: "/w"}}, fleet.CodeConflictRule, "kind of mount"},
		{"another volume", net.ID, fleet.PodUpdate{Network: &fleet.NetworkMount{Volume: "vol-2", Path: "/w"}}, fleet.CodeConflictRule, "volumeId"},
		{"mount over the system", kept.ID, fleet.PodUpdate{Persistent: &fleet.PersistentMount{SizeGB: 20, Path: "/usr"}}, fleet.CodeConflictRule, "system path"},
		{"shrink", kept.ID, fleet.PodUpdate{Persistent: &fleet.PersistentMount{SizeGB: 19, Path: "/w"}}, fleet.CodeConflictRule, "grow only"},
		{"growth above the host", kept.ID, fleet.PodUpdate{Persistent: &fleet.PersistentMount{SizeGB: 5000, Path: "/w"}}, fleet.CodeNoCapacity, ""},
		{"disk above the host", kept.ID, fleet.PodUpdate{DiskGB: ptr(5000)}, fleet.CodeNoCapacity, ""},
		{"CPU disk", cpu.ID, fleet.PodUpdate{DiskGB: ptr(21)}, fleet.CodeInvalid, "$.disk"},
		{"credential", plain.ID, fleet.PodUpdate{Registry: ptr(fleet.RegistryID("theirs"))}, fleet.CodeNotFound, "$.registry"},
		{"template", plain.ID, fleet.PodUpdate{Template: "private"}, fleet.CodeNotFound, "$.templateId"},
		{"serverless template", plain.ID, fleet.PodUpdate{Template: "worker"}, fleet.CodeConflictRule, "serverless"},
		{"networking of a CPU pod", cpu.ID, fleet.PodUpdate{GlobalNetworking: ptr(true)}, fleet.CodeConflictRule, "NVIDIA"},
		{"networking away from its data", kept.ID, fleet.PodUpdate{GlobalNetworking: ptr(true)}, fleet.CodeConflictRule, "none that is allowed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := w.pod(c.pod)
			_, err := w.svc.UpdatePod(context.Background(), member(acme), c.pod, c.change)
			refused(t, err, c.code, c.text)
			if d := cmp.Diff(before, w.pod(c.pod), cmpopts.EquateEmpty()); d != "" {
				t.Error(d)
			}
		})
	}
	_, err := w.svc.UpdatePod(context.Background(), member(other), plain.ID, fleet.PodUpdate{Name: ptr("x")})
	refused(t, err, fleet.CodeNotFound, "pod")
	view, err := w.svc.UpdatePod(context.Background(), member(acme), net.ID, fleet.PodUpdate{Network: &fleet.NetworkMount{Volume: "vol", Path: "/new"}})
	if err != nil || view.Pod.Spec.Network.Path != "/new" {
		t.Errorf("another path of the volume: %v", err)
	}
}

// TestPatchKeepsMappings adds and removes tcp ports of a running pod.
func TestPatchKeepsMappings(t *testing.T) {
	w := newWorld(t)
	w.addHost("host-p", "dc-1", h100, 2, publicPorts(30000, 30003))
	req := gpuPod(1)
	req.Ports = []fleet.Port{tcp(22), tcp(23)}
	pod := w.create(req)
	ssh := pod.Mappings[0]
	change := func(ports ...fleet.Port) (fleet.Pod, error) {
		view, err := w.svc.UpdatePod(context.Background(), member(acme), pod.ID, fleet.PodUpdate{Ports: &ports})
		if err != nil {
			return fleet.Pod{}, err
		}
		return *view.Pod, nil
	}
	got, err := change(tcp(5000), tcp(22))
	if err != nil || len(got.Mappings) != 2 || got.Mappings[1] != ssh || got.Mappings[0].Private != 5000 || got.Mappings[0].Public == ssh.Public {
		t.Fatalf("%v, was %v: %v", got.Mappings, pod.Mappings, err)
	}
	if _, err := change(tcp(1), tcp(2), tcp(3), tcp(4), tcp(22)); fleet.CodeOf(err) != fleet.CodeNoCapacity {
		t.Errorf("five of four ports: %v", err)
	}
	w.report(pod.ID, fleet.EventRunning)
	view, err := w.svc.ActPod(context.Background(), member(acme), pod.ID, fleet.ActionRestart)
	if err != nil || !cmp.Equal(view.Pod.Mappings, got.Mappings) {
		t.Errorf("a restart made %v of %v: %v", view.Pod.Mappings, got.Mappings, err)
	}
	if got, err = change(http(80)); err != nil || len(got.Mappings) != 0 {
		t.Errorf("without tcp ports: %v %v", got.Mappings, err)
	}
}

// TestPatchOnOldView lets the pod change between the decision and the command.
func TestPatchOnOldView(t *testing.T) {
	w := newWorld(t)
	w.addHost("host-a", "dc-1", h100, 1)
	pod := w.create(gpuPod(1))
	w.before = func() { w.report(pod.ID, fleet.EventRunning) }
	view, err := w.svc.UpdatePod(context.Background(), member(acme), pod.ID, fleet.PodUpdate{Image: ptr("busybox:2")})
	if err != nil || view.Pod.Status != fleet.StatusStarting || view.Pod.Spec.Image != "busybox:2" {
		t.Errorf("%s %s: %v", view.Pod.Status, view.Pod.Spec.Image, err)
	}
}

func TestStartAgain(t *testing.T) {
	w := newWorld(t)
	w.addHost("host-a", "dc-1", h100, 2, total(16, 64, 130), publicPorts(30000, 30001))
	req := patched() // 30 GB of disk and 20 GB of data
	req.Persistent.SizeGB = 90
	pod := w.create(req)
	w.report(pod.ID, fleet.EventExited)
	w.addHost("host-b", "dc-1", h100, 8, total(64, 256, 2000))
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(w.svc.PutGPUType(context.Background(), fleet.GPUType{ID: h100, Name: "H100", Manufacturer: "NVIDIA", MemoryGB: 80, Secure: 7 * fleet.Dollar}))
	view, err := w.svc.ActPod(context.Background(), member(acme), pod.ID, fleet.ActionStart)
	must(err)
	got := *view.Pod
	if got.Host != "host-a" || got.Need.DiskGB != 120 || len(got.Mappings) != 1 || got.HourlyRate != 7*fleet.Dollar {
		t.Errorf("%s, %+v, %v, %d", got.Host, got.Need, got.Mappings, got.HourlyRate)
	}
	w.report(pod.ID, fleet.EventExited)
	// 40 GB are left beside its data. Another pod takes 15 of them, and the 30 that it needs are gone.
	small := gpuPod(1)
	small.DiskGB = 15
	beside := w.create(small)
	if beside.Host != "host-a" {
		t.Fatalf("the other pod went to %s", beside.Host)
	}
	_, err = w.svc.ActPod(context.Background(), member(acme), pod.ID, fleet.ActionStart)
	refused(t, err, fleet.CodeNoCapacity, "")
	_, err = w.svc.ActPod(context.Background(), member(acme), beside.ID, fleet.ActionTerminate)
	must(err)
	w.report(beside.ID, state.ReportGone)
	view, err = w.svc.ActPod(context.Background(), member(acme), pod.ID, fleet.ActionStart)
	if err != nil || view.Pod.Host != "host-a" {
		t.Errorf("its data is on host-a, and it went to %s: %v", view.Pod.Host, err)
	}
	// Without data it goes where there is room.
	w.addHost("host-c", "dc-1", h100, 8)
	loose := w.create(gpuPod(1))
	w.report(loose.ID, fleet.EventExited)
	w.must(state.SetHostState{Host: loose.Host, Epoch: 1, State: fleet.HostUnreachable, At: begin()})
	view, err = w.svc.ActPod(context.Background(), member(acme), loose.ID, fleet.ActionStart)
	if err != nil || view.Pod.Host == loose.Host {
		t.Errorf("started on %s again: %v", view.Pod.Host, err)
	}
}

func TestRunningOnly(t *testing.T) {
	w := newWorld(t)
	w.addHost("host-a", "dc-1", h100, 1)
	pod := w.create(gpuPod(1))
	ctx := context.Background()
	try := func(who fleet.Principal) []error {
		_, exec := w.svc.ExecPod(ctx, who, pod.ID, fleet.ExecRequest{Command: []string{"true"}})
		_, read := w.svc.ReadPodFiles(ctx, who, pod.ID, "/etc")
		return []error{exec, read, w.svc.WritePodFiles(ctx, who, pod.ID, "/tmp", nil)}
	}
	all := func(who fleet.Principal, code fleet.Code) {
		t.Helper()
		for i, err := range try(who) {
			if fleet.CodeOf(err) != code {
				t.Errorf("call %d: %v, want %s", i, err, code)
			}
		}
	}
	all(member(acme), fleet.CodeNotAllowed)
	w.report(pod.ID, fleet.EventRunning)
	all(member(other), fleet.CodeNotFound)
	if calls := w.reach.seen(); len(calls) != 0 {
		t.Errorf("hosts heard %v", calls)
	}
	all(member(acme), fleet.CodeInternal) // the edge's own error
	want := []string{}
	for _, call := range []string{"exec", "read", "write"} {
		want = append(want, fmt.Sprintf("%s host-a %s", call, pod.ID))
	}
	if d := cmp.Diff(want, w.reach.seen()); d != "" {
		t.Error(d)
	}
	if _, err := w.svc.ActPod(ctx, member(acme), pod.ID, fleet.ActionStop); err != nil {
		t.Fatal(err)
	}
	all(member(acme), fleet.CodeNotAllowed)
}
