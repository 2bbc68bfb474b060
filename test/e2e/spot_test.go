package e2e

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"gantry/api/v2"
	"gantry/client"
	"gantry/fleet"
	"gantry/test/devtest"
)

// TestAnInterruptedPodIsToldHasItsTimeAndKeepsItsData: SIGTERM with the notice in its container, time to end, then the other pod runs. It
// needs all GPUs of the host, so it runs beside no other test.
func TestAnInterruptedPodIsToldHasItsTimeAndKeepsItsData(t *testing.T) {
	d := suite.dev
	script := `trap 'cat /run/gantry/interruption.json > /workspace/note; sleep 2; echo done > /workspace/grace; exit 0' TERM; echo ready; while :; do sleep 0.1; done`
	body := func(name string) v2.CreatePodRequest {
		return v2.CreatePodRequest{Name: name, GPU: &v2.CreateGPUConfig{ID: devtest.GPUType, Count: 8}, PodSettings: v2.PodSettings{
			Image: new(devtest.Image), Disk: new(1), Args: devtest.CPUPod("", script).Args,
		}}
	}
	cheap := body("cheap")
	cheap.Interruptible, cheap.Mounts = true, &v2.Mounts{Persistent: &v2.PersistentMount{Size: 10, Path: "/workspace"}}
	victim := create(t, d, cheap)
	running := reach(t, d, victim.ID, fleet.StatusRunning)
	if !running.Interruptible || running.BidPerGPU == nil || running.Cost != 8*(*running.BidPerGPU) {
		t.Errorf("it costs %v at a bid of %v", running.Cost, running.BidPerGPU)
	}
	logHas(t, d, victim.ID, "ready") // it catches SIGTERM
	other := create(t, d, body("sure"))
	told := must[client.Answer[v2.Pod]](t)(user(t, d).Pod(t.Context(), victim.ID)).Value
	if told.InterruptedAt == nil || told.Cost != 0 || !strings.HasPrefix(string(told.StatusReason), "interrupted") {
		t.Errorf("interrupted: %+v", told)
	}
	if ended := reach(t, d, victim.ID, fleet.StatusExited); !strings.HasPrefix(string(ended.StatusReason), "interrupted") {
		t.Errorf("ended: %q", ended.StatusReason)
	}
	reach(t, d, other.ID, fleet.StatusRunning)
	if err := user(t, d).DeletePod(t.Context(), other.ID); err != nil {
		t.Fatal(err)
	}
	await(t, func() error {
		_, err := user(t, d).StartPod(t.Context(), victim.ID, *running.BidPerGPU)
		return err
	})
	reach(t, d, victim.ID, fleet.StatusRunning)
	out, errs, code := cli(t, d, "pod", "exec", victim.ID, "--", "sh", "-c", "cat /workspace/note /workspace/grace; ls /run/gantry")
	note, grace, _ := strings.Cut(out, "\n")
	var said struct {
		Event      string
		At, KillAt time.Time
	}
	if err := json.Unmarshal([]byte(note), &said); err != nil || said.Event != "interrupted" || said.KillAt.Sub(said.At) != fleet.DefaultNotice {
		t.Errorf("the notice %q: %v", note, err)
	}
	if grace != "done\n" || code != 0 {
		t.Errorf("its time and the notices of its next start: %q, %d %s", grace, code, errs)
	}
}
