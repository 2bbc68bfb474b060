package scheduler

import (
	"context"
	"slices"
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
		if last.Spec.GPU.Type != h100 || last.HourlyRate != 9 || last.Owner != e.ID.Owner() || last.Release != 1 || last.Account != acme || last.Spec.Image != "worker:1" || last.Spec.Movable {
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

// TestAPodTakesThePlaceOfFrozenWorkers where there is no room else: of as few as it needs, and last of those that pay for staying. The
// catalog counts their places as free.
func TestAPodTakesThePlaceOfFrozenWorkers(t *testing.T) {
	w, ctx, me := pooled(t), context.Background(), member(acme)
	endpoint := func(kind fleet.FlashBoot) fleet.EndpointID {
		e, _, err := w.svc.CreateEndpoint(ctx, me, "", func(s *fleet.EndpointSpec) { onGPUs(s); s.FlashBoot = kind }, nil)
		if err != nil {
			t.Fatal(err)
		}
		return e.ID
	}
	frozen := func(id fleet.EndpointID) fleet.PodID {
		p, err := w.svc.StartWorker(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		w.report(p.ID, fleet.EventRunning)                                     //nolint:contextcheck // the world has its own
		w.must(state.ReadyWorkers{Pods: []fleet.PodID{p.ID}, At: w.svc.Now()}) //nolint:contextcheck // likewise
		if err := w.svc.FreezeWorker(ctx, &p); err != nil {
			t.Fatal(err)
		}
		return p.ID
	}
	stock := func() fleet.Availability {
		c, err := w.svc.Catalog(ctx, fleet.CatalogQuery{Count: 1})
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range c.GPUs {
			if g.ID == h100 {
				return g.Stock
			}
		}
		return ""
	}
	lasting, quick := endpoint(fleet.FlashBootPriority), endpoint(fleet.FlashBootOn)
	first := frozen(lasting)
	second, third := frozen(quick), frozen(quick)
	busy, err := w.svc.StartWorker(ctx, quick)
	if err != nil {
		t.Fatal(err)
	}
	if stock() == fleet.AvailableNone {
		t.Error("the catalog has none")
	}
	status := func(id fleet.PodID) fleet.PodStatus { return w.pod(id).Status }
	for _, want := range []struct{ gone, stays fleet.PodID }{{second, third}, {third, first}, {first, busy.ID}} {
		p, err := w.svc.CreatePod(ctx, me, gpuPod(1))
		if err != nil {
			t.Fatal(err)
		}
		if status(want.gone) != fleet.StatusTerminated || status(want.stays) == fleet.StatusTerminated || len(p.Pod.GPUs) != 1 {
			t.Errorf("%s is %s, %s is %s", want.gone, status(want.gone), want.stays, status(want.stays))
		}
	}
	if stock() != fleet.AvailableNone {
		t.Error("the catalog has some")
	}
	_, err = w.svc.CreatePod(ctx, me, gpuPod(1))
	refused(t, err, fleet.CodeNoCapacity, "")
	w.report(busy.ID, fleet.EventRunning)
	w.must(state.ReadyWorkers{Pods: []fleet.PodID{busy.ID}, At: w.svc.Now()})
	if err := w.svc.FreezeWorker(ctx, &busy); err != nil {
		t.Fatal(err)
	}
	if err := w.svc.ThawWorker(ctx, &busy); err != nil {
		t.Fatal(err)
	}
	refused(t, w.svc.ThawWorker(ctx, &busy), fleet.CodeNotAllowed, "")
	_, err = w.svc.CreatePod(ctx, me, gpuPod(1))
	refused(t, err, fleet.CodeNoCapacity, "")
}

// TestTheImageOfWorkersIsFetchedBeforehand on the hosts that the next ones would get, on fewer where there is room on fewer.
func TestTheImageOfWorkersIsFetchedBeforehand(t *testing.T) {
	w, ctx, me := pooled(t), context.Background(), member(acme)
	e, _, err := w.svc.CreateEndpoint(ctx, me, "", onGPUs, nil)
	if err != nil {
		t.Fatal(err)
	}
	asked := func(hosts int) []string {
		t.Helper()
		before := len(w.reach.seen())
		if err := w.svc.PrefetchWorkers(ctx, e.ID, hosts); err != nil {
			t.Fatal(err)
		}
		return w.reach.seen()[before:]
	}
	for _, hosts := range []int{1, 2, 9} {
		got := asked(hosts)
		if len(got) == 0 || len(got) > hosts || !strings.Contains(got[0], "prefetch docker.io/library/worker:1") {
			t.Errorf("%d hosts: %q", hosts, got)
		}
	}
	refused(t, w.svc.PrefetchWorkers(ctx, "no-such-endpoint", 1), fleet.CodeNotFound, "")
	const model = "https://huggingface.co/org/name"
	cred, _, err := w.svc.CreateRegistry(ctx, me, "hub", fleet.Credential{Username: "u", Password: "p"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for image, change := range map[string]func(s *fleet.EndpointSpec){
		"docker.io/library/worker:1": func(s *fleet.EndpointSpec) { s.Models = []string{model} },
		"":                           func(s *fleet.EndpointSpec) { s.Registry, s.Models = cred.ID, []string{model} }, // which needs a credential
	} {
		if _, err := w.svc.UpdateEndpoint(ctx, me, e.ID, change); err != nil {
			t.Fatal(err)
		}
		if got := asked(1); len(got) != 1 || !strings.Contains(got[0], "prefetch "+image+" "+model) {
			t.Errorf("asked for %q", got)
		}
		if _, err := w.svc.UpdateEndpoint(ctx, me, e.ID, func(s *fleet.EndpointSpec) { s.Registry = "" }); err != nil {
			t.Fatal(err)
		}
	}
	worker, err := w.svc.StartWorker(ctx, e.ID)
	if err != nil || !slices.Equal(worker.Spec.Models, []string{model}) {
		t.Errorf("%+v, %v", worker.Spec, err)
	}
	for range 3 {
		if _, err := w.svc.StartWorker(ctx, e.ID); err != nil {
			t.Fatal(err)
		}
	}
	refused(t, w.svc.PrefetchWorkers(ctx, e.ID, 2), fleet.CodeNoCapacity, "")
}
