package scheduler

import (
	"context"
	"strings"
	"testing"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// TestWorkersOfAnEndpoint get the first of its GPU types that there is room for, and leave when they are ended; no account sees them
// among its pods.
func TestWorkersOfAnEndpoint(t *testing.T) {
	w, ctx, me := pooled(t), context.Background(), member(acme)
	e, _, err := w.svc.CreateEndpoint(ctx, me, "", onGPUs, nil)
	if err != nil {
		t.Fatal(err)
	}
	var last fleet.Pod
	for range 4 { // the cheaper type is on no host
		if last, err = w.svc.StartWorker(ctx, e.ID); err != nil {
			t.Fatal(err)
		}
		if last.Spec.GPU.Type != h100 || last.Owner != e.ID.Owner() || last.Release != 1 || last.Account != acme || last.Spec.Image != "worker:1" || last.Spec.Movable {
			t.Errorf("%+v", last)
		}
	}
	_, err = w.svc.StartWorker(ctx, e.ID)
	refused(t, err, fleet.CodeNoCapacity, "")
	_, err = w.svc.StartWorker(ctx, "no-such-endpoint")
	refused(t, err, fleet.CodeNotFound, "")
	if pods, err := w.svc.Pods(ctx, me); err != nil || len(pods) != 0 {
		t.Errorf("%d pods are shown, %v", len(pods), err)
	}
	for range 2 {
		if err := w.svc.EndWorker(ctx, &last); err != nil {
			t.Error(err)
		}
	}
	w.view(func(v *state.View) {
		if got := v.WorkersOf(e.ID); len(got) != 3 {
			t.Errorf("%d workers are left", len(got))
		}
	})
}

// TestTheEnvironmentOfAWorker is what worker images expect; an owner changes what may be his, and nothing of the protocol.
func TestTheEnvironmentOfAWorker(t *testing.T) {
	w := newWorld(t)
	p := &fleet.Pod{ID: "worker00000001", Account: acme, Owner: fleet.EndpointID("endpoint000001").Owner(), Spec: fleet.PodSpec{
		GPU: &fleet.GPURequest{Type: "NVIDIA RTX A4000", Count: 1},
		Env: map[string]string{"A": "1", "RUNPOD_WEBHOOK_PING": "http://elsewhere", "RUNPOD_PING_INTERVAL": "5000"},
	}}
	got, err := w.svc.Environment(p)
	if err != nil {
		t.Fatal(err)
	}
	const at = "http://127.0.0.1:31271/v2/endpoint000001/"
	for name, want := range map[string]string{
		"A": "1", "RUNPOD_PING_INTERVAL": "5000", "RUNPOD_SKIP_AUTO_SYSTEM_CHECKS": "true", "RUNPOD_ENDPOINT_ID": "endpoint000001",
		"RUNPOD_WEBHOOK_GET_JOB":     at + "job-take/$ID?gpu=NVIDIA+RTX+A4000",
		"RUNPOD_WEBHOOK_POST_OUTPUT": at + "job-done/$RUNPOD_POD_ID/$ID?gpu=NVIDIA+RTX+A4000",
		"RUNPOD_WEBHOOK_POST_STREAM": at + "job-stream/$RUNPOD_POD_ID/$ID?gpu=NVIDIA+RTX+A4000",
		"RUNPOD_WEBHOOK_PING":        at + "ping/$RUNPOD_POD_ID?gpu=NVIDIA+RTX+A4000",
		"RUNPOD_POD_ID":              "worker00000001", "RUNPOD_AI_API_KEY": "worker00000001", "RUNPOD_GPU_TYPE_ID": "NVIDIA RTX A4000", "RUNPOD_SKIP_GPU_CHECK": "",
	} {
		if got[name] != want {
			t.Errorf("%s is %q, want %q", name, got[name], want)
		}
	}
	p.Spec.GPU, p.Spec.CPU = nil, &fleet.CPURequest{Flavor: cpu3, VCPU: 2}
	if got, err = w.svc.Environment(p); err != nil || got["RUNPOD_SKIP_GPU_CHECK"] != "true" || !strings.HasSuffix(got["RUNPOD_WEBHOOK_PING"], "?gpu=") {
		t.Errorf("%v, %v", got, err)
	}
	p.Owner = fleet.Owner{}
	if got, err = w.svc.Environment(p); err != nil || got["RUNPOD_ENDPOINT_ID"] != "" {
		t.Errorf("a pod: %v, %v", got, err)
	}
}
