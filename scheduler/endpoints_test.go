package scheduler

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"strings"
	"testing"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// onCPUs is the least that an endpoint has to say.
func onCPUs(s *fleet.EndpointSpec) {
	s.Name, s.Image = "embed", "worker:1"
	s.CPU, s.Scaler = []fleet.CPURequest{{Flavor: cpu3, VCPU: 2}}, fleet.Scaler{Type: fleet.ScaleByDelay, Value: 4}
}

func onGPUs(s *fleet.EndpointSpec) {
	onCPUs(s)
	s.CPU, s.GPU = nil, &fleet.EndpointGPU{Pools: []string{"HOPPER_80"}}
}

// pooled is stocked with two types of one pool.
func pooled(t *testing.T) *world {
	w := stocked(t)
	w.must(
		state.PutGPUType{Type: fleet.GPUType{ID: h100, Name: "H100", Pool: "HOPPER_80", Manufacturer: "NVIDIA", MemoryGB: 80, Serverless: 9}},
		state.PutGPUType{Type: fleet.GPUType{ID: "NVIDIA H100 PCIe", Name: "H100 PCIe", Pool: "HOPPER_80", Manufacturer: "NVIDIA", MemoryGB: 80, Serverless: 7}},
	)
	return w
}

// TestEndpoints are made with defaults, listed, changed and deleted.
func TestEndpoints(t *testing.T) {
	w := pooled(t)
	ctx, me := context.Background(), member(acme)
	once := &fleet.Once{Key: "k", Fingerprint: []byte("one")}
	made, replayed, err := w.svc.CreateEndpoint(ctx, me, "", onGPUs, once)
	if err != nil || replayed {
		t.Fatal(err)
	}
	s := made.Spec
	if made.Version() != 1 || made.Releases[0].By != me.Key || s.Workers != (fleet.WorkerBounds{Max: 3, Idle: 10}) || s.TimeoutMS != 300_000 ||
		s.FlashBoot != fleet.FlashBootOff || s.Retries != 1 || s.FailAfter != 600 || s.DiskGB != 20 || s.GPU.Count != 1 || s.Type != fleet.EndpointQueue {
		t.Errorf("made %+v", made)
	}
	again, replayed, err := w.svc.CreateEndpoint(ctx, me, "", onGPUs, once)
	if err != nil || !replayed || again.ID != made.ID {
		t.Errorf("%s %v %v", again.ID, replayed, err)
	}
	// What could not be made now was made before, under the same key.
	again, replayed, err = w.svc.CreateEndpoint(ctx, me, "no-such-template", onGPUs, once)
	if err != nil || !replayed || again.ID != made.ID {
		t.Errorf("%s %v %v", again.ID, replayed, err)
	}
	_, _, err = w.svc.CreateEndpoint(ctx, me, "no-such-template", onGPUs, &fleet.Once{Key: "new", Fingerprint: []byte("one")})
	refused(t, err, fleet.CodeNotFound, "$.templateId")
	list, err := w.svc.Endpoints(ctx, me)
	if err != nil || len(list) != 1 || list[0].ID != made.ID {
		t.Errorf("%+v %v", list, err)
	}

	got, err := w.svc.UpdateEndpoint(ctx, me, made.ID, func(s *fleet.EndpointSpec) { s.Name, s.Workers.Max = "other", 7 })
	if err != nil || got.Spec.Name != "other" || got.Version() != 1 {
		t.Errorf("%+v %v", got, err)
	}
	got, err = w.svc.UpdateEndpoint(ctx, me, made.ID, func(s *fleet.EndpointSpec) {
		s.Image, s.Env, s.Ports = "worker:2", map[string]string{"A": strings.Repeat("x", 5000)}, []fleet.Port{http(80)}
		s.GPU.Excluded, s.Models = []string{h100}, []string{"https://huggingface.co/o/n"}
	})
	want := []fleet.FieldChange{
		{Field: "image", Old: `"worker:1"`, New: `"worker:2"`},
		{Field: "ports", Old: "null", New: `["80/http"]`},
		{Field: "env", Old: "null"},
		{Field: "gpu.excludedTypes", Old: "null", New: `["` + h100 + `"]`},
		{Field: "modelReferences", Old: "null", New: `["https://huggingface.co/o/n"]`},
	}
	if err != nil || got.Version() != 2 || len(got.Releases) != 2 || len(got.Releases[1].Changes) != len(want) {
		t.Fatalf("%+v %v", got, err)
	}
	for i, c := range got.Releases[1].Changes {
		if c.Field == "env" {
			if len(c.New) > 1100 || !strings.HasSuffix(c.New, `…"`) {
				t.Errorf("a long value is shown with %d bytes", len(c.New))
			}
			c.New = ""
		}
		if c != want[i] {
			t.Errorf("change %+v, want %+v", c, want[i])
		}
	}
	for i := range fleet.MaxReleases + 5 {
		if got, err = w.svc.UpdateEndpoint(ctx, me, made.ID, func(s *fleet.EndpointSpec) { s.DiskGB = 30 + i }); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(got.Releases); n != fleet.MaxReleases || got.Version() != uint64(2+fleet.MaxReleases+5) {
		t.Errorf("%d releases, the newest is %d", n, got.Version())
	}
	for _, call := range []func() error{
		func() error { _, err := w.svc.Endpoint(ctx, member(other), made.ID); return err },
		func() error {
			_, err := w.svc.UpdateEndpoint(ctx, member(other), made.ID, func(*fleet.EndpointSpec) {})
			return err
		},
		func() error { return w.svc.DeleteEndpoint(ctx, member(other), made.ID) },
	} {
		refused(t, call(), fleet.CodeNotFound, "endpoint")
	}
	if err := w.svc.DeleteEndpoint(ctx, me, made.ID); err != nil {
		t.Fatal(err)
	}
	_, err = w.svc.Endpoint(ctx, me, made.ID)
	refused(t, err, fleet.CodeNotFound, "endpoint")
}

// TestAnEndpointOfATemplate has what its body does not say from a template for endpoints.
func TestAnEndpointOfATemplate(t *testing.T) {
	w := pooled(t)
	template := fullTemplate("serves", acme, "ours")
	template.Serverless = true
	w.must(state.Put[fleet.Template]{Record: template})
	least := func(s *fleet.EndpointSpec) {
		s.Name, s.CPU, s.Scaler = "embed", []fleet.CPURequest{{Flavor: cpu3, VCPU: 2}}, fleet.Scaler{Type: fleet.ScaleByRequests, Value: 2}
		s.Env["B"] = "own"
	}
	made, _, err := w.svc.CreateEndpoint(context.Background(), member(acme), "serves", least, nil)
	s := made.Spec
	if err != nil || s.Template != "serves" || s.Image != "full:1" || s.Args != "serve" || s.DiskGB != 15 || s.Registry != "ours" || s.Workers.Idle != 0 ||
		!slices.Equal(s.Ports, []fleet.Port{http(8888)}) || !maps.Equal(s.Env, map[string]string{"A": "template", "B": "own"}) || s.CPU[0].MemoryGB != 8 {
		t.Errorf("%+v %v", s, err)
	}
	if kept, err := w.svc.Template(context.Background(), member(acme), "serves"); err != nil || kept.Env["B"] != "template" {
		t.Errorf("the template became %+v: %v", kept, err)
	}
	_, _, err = w.svc.CreateEndpoint(context.Background(), member(acme), "full", least, nil)
	refused(t, err, fleet.CodeConflictRule, "not serverless")
	_, _, err = w.svc.CreateEndpoint(context.Background(), member(acme), "private", least, nil)
	refused(t, err, fleet.CodeNotFound, "$.templateId")
}

// TestBadEndpoints are refused with the field and the rule.
func TestBadEndpoints(t *testing.T) {
	w := pooled(t)
	ctx, me := context.Background(), member(acme)
	made, _, err := w.svc.CreateEndpoint(ctx, me, "", onGPUs, nil)
	if err != nil {
		t.Fatal(err)
	}
	env := map[string]string{}
	for i := range maxEnv + 1 {
		env["V"+string(rune('A'+i/26))+string(rune('A'+i%26))] = "x"
	}
	rows := []struct {
		name   string
		change func(*fleet.EndpointSpec)
		code   fleet.Code
		text   string
	}{
		{"image", func(s *fleet.EndpointSpec) { s.Image = "" }, fleet.CodeInvalid, "image"},
		{"both", func(s *fleet.EndpointSpec) { s.CPU = []fleet.CPURequest{{Flavor: cpu3, VCPU: 2}} }, fleet.CodeConflictRule, "exactly one"},
		{"none", func(s *fleet.EndpointSpec) { s.GPU = nil }, fleet.CodeConflictRule, "exactly one"},
		{"env", func(s *fleet.EndpointSpec) { s.Env = env }, fleet.CodeInvalid, "$.env"},
		{"min", func(s *fleet.EndpointSpec) { s.Workers.Min = 4 }, fleet.CodeConflictRule, "workers.min"},
		{"pool", func(s *fleet.EndpointSpec) { s.GPU.Pools = []string{"HOPPER_8"} }, fleet.CodeInvalid, "HOPPER_80"},
		{"empty pool", func(s *fleet.EndpointSpec) { s.GPU.Pools = []string{""} }, fleet.CodeInvalid, "$.gpu.pools"},
		{"type", func(s *fleet.EndpointSpec) { s.GPU.Excluded = []string{"none"} }, fleet.CodeInvalid, "$.gpu.excludedTypes"},
		{"nothing left", func(s *fleet.EndpointSpec) { s.GPU.Excluded = []string{h100, "NVIDIA H100 PCIe"} }, fleet.CodeConflictRule, "leaves no GPU type"},
		{"CUDA", func(s *fleet.EndpointSpec) { s.GPU.CUDA = &fleet.CUDARange{Allowed: []string{"12.4"}, Min: "12.0"} }, fleet.CodeConflictRule, "exclude"},
		{"flavor", func(s *fleet.EndpointSpec) { s.GPU, s.CPU = nil, []fleet.CPURequest{{Flavor: "none", VCPU: 2}} }, fleet.CodeInvalid, "$.cpu.id"},
		{"disk", func(s *fleet.EndpointSpec) { onCPUs(s); s.GPU, s.DiskGB = nil, 65536 }, fleet.CodeInvalid, "$.disk"},
		{"delay", func(s *fleet.EndpointSpec) { s.Scaler.Value = 0.4 }, fleet.CodeInvalid, "$.scaling.queueDelay"},
		{"count", func(s *fleet.EndpointSpec) {
			s.Scaler, s.Workers.Idle = fleet.Scaler{Type: fleet.ScaleByRequests, Value: 1.5}, 0
		}, fleet.CodeInvalid, "$.scaling.requestCount"},
		{"idle", func(s *fleet.EndpointSpec) {
			s.Scaler, s.Workers.Idle = fleet.Scaler{Type: fleet.ScaleByRequests, Value: 1}, 5
		}, fleet.CodeInvalid, "$.workers.idleTimeout"},
		{"center", func(s *fleet.EndpointSpec) { s.Centers = []fleet.DataCenterID{"none"} }, fleet.CodeInvalid, "$.dataCenterIds"},
		{"volume", func(s *fleet.EndpointSpec) { s.Volumes = []fleet.VolumeID{"none"} }, fleet.CodeNotFound, "$.networkVolumes"},
		{"model", func(s *fleet.EndpointSpec) {
			s.Models = []string{"https://huggingface.co/o/n", "https://example.com/o/n"}
		}, fleet.CodeInvalid, "$.modelReferences[1]"},
		{"registry", func(s *fleet.EndpointSpec) { s.Registry = "theirs" }, fleet.CodeNotFound, "$.registry"},
		{"secret", func(s *fleet.EndpointSpec) { s.Env = map[string]string{"A": "{{ GANTRY_SECRET_none }}"} }, fleet.CodeNotFound, "$.env"},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			_, _, err := w.svc.CreateEndpoint(ctx, me, "", func(s *fleet.EndpointSpec) { onGPUs(s); row.change(s) }, nil)
			refused(t, err, row.code, row.text)
			_, err = w.svc.UpdateEndpoint(ctx, me, made.ID, func(s *fleet.EndpointSpec) { row.change(s) })
			if row.name == "none" || row.name == "flavor" || row.name == "disk" {
				refused(t, err, fleet.CodeConflictRule, "CPU workers")
				return
			}
			refused(t, err, row.code, row.text)
		})
	}
	_, _, err = w.svc.CreateEndpoint(ctx, me, "", func(s *fleet.EndpointSpec) { onGPUs(s); s.Type = fleet.EndpointBalanced }, nil)
	refused(t, err, fleet.CodeInvalid, "$.scaling.type")
	_, err = w.svc.UpdateEndpoint(ctx, me, made.ID, func(s *fleet.EndpointSpec) { s.Type = fleet.EndpointBalanced })
	refused(t, err, fleet.CodeConflictRule, "type of an endpoint")
	if list, err := w.svc.Endpoints(ctx, me); err != nil || len(list) != 1 || list[0].Rev != made.Rev {
		t.Errorf("what was refused changed something: %+v %v", list, err)
	}
}

// TestAnEndpointsVolumes are one in a data center at most, where its workers may be.
func TestAnEndpointsVolumes(t *testing.T) {
	w := stored(t)
	ctx, me := context.Background(), member(acme)
	here, there, too := w.newVolume(wantVolume("dc-1", 10)).ID, w.newVolume(wantVolume("EU-1", 10)).ID, w.newVolume(wantVolume("EU-1", 10)).ID
	create := func(centers []fleet.DataCenterID, volumes ...fleet.VolumeID) error {
		_, _, err := w.svc.CreateEndpoint(ctx, me, "", func(s *fleet.EndpointSpec) {
			onCPUs(s)
			s.Centers, s.Volumes = centers, volumes
		}, nil)
		return err
	}
	refused(t, create(nil, there, too), fleet.CodeConflictRule, "more than one volume")
	refused(t, create([]fleet.DataCenterID{"dc-1"}, here, there), fleet.CodeConflictRule, "not one of dataCenterIds")
	if err := create([]fleet.DataCenterID{"dc-1", "EU-1"}, here, there); err != nil {
		t.Fatal(err)
	}
	refused(t, w.svc.DeleteVolume(ctx, me, here), fleet.CodeInUse, "endpoint")
	if err := w.svc.DeleteVolume(ctx, me, too); err != nil {
		t.Error(err)
	}
}

// TestTheSecretOfWebhooks is sealed for its endpoint, stays with other changes, and goes with an empty one.
func TestTheSecretOfWebhooks(t *testing.T) {
	w := newWorld(t)
	ctx, me := context.Background(), member(acme)
	const secret = "0123456789abcdef"
	made, _, err := w.svc.CreateEndpoint(ctx, me, "", func(s *fleet.EndpointSpec) { onCPUs(s); s.NewWebhookKey = new(fleet.Secret(secret)) }, nil)
	if err != nil || made.Spec.NewWebhookKey != nil || len(made.Spec.WebhookKey) == 0 || bytes.Contains(made.Spec.WebhookKey, []byte(secret)) {
		t.Fatalf("made %+v, %v", made, err)
	}
	key := func() fleet.Secret {
		t.Helper()
		key, err := w.svc.webhookKey(acme, made.ID)
		if err != nil {
			t.Fatal(err)
		}
		return key
	}
	if got := key(); got != secret {
		t.Errorf("opened as %q", got.Reveal())
	}
	for _, step := range []struct {
		change func(*fleet.EndpointSpec)
		want   fleet.Secret
	}{
		{func(s *fleet.EndpointSpec) { s.Name = "other" }, secret},
		{func(s *fleet.EndpointSpec) { s.NewWebhookKey = new(fleet.Secret("another-secret-1")) }, "another-secret-1"},
		{func(s *fleet.EndpointSpec) { s.NewWebhookKey = new(fleet.Secret("")) }, ""},
	} {
		if e, err := w.svc.UpdateEndpoint(ctx, me, made.ID, step.change); err != nil || key() != step.want || len(e.Releases) != 1 {
			t.Errorf("%q, %v, %d releases", key().Reveal(), err, len(e.Releases))
		}
	}
	planned, err := w.svc.PlanEndpointUpdate(ctx, me, made.ID, func(s *fleet.EndpointSpec) { s.NewWebhookKey = new(fleet.Secret(secret)) })
	if err != nil || len(planned.Spec.WebhookKey) == 0 || key() != "" {
		t.Errorf("planned %+v, %v", planned.Spec, err)
	}
}

// TestTheTypesOfPools are tried pool by pool, in each the cheapest first.
func TestTheTypesOfPools(t *testing.T) {
	cat := fleet.Catalog{GPUs: []fleet.GPUType{
		{ID: "a", Pool: "p", Serverless: 3}, {ID: "b", Pool: "q", Serverless: 1}, {ID: "c", Pool: "p", Serverless: 2}, {ID: "d", Pool: "p", Serverless: 2}, {ID: "e"},
	}}
	got := typesOf(cat, &fleet.EndpointGPU{Pools: []string{"p", "q"}, Excluded: []string{"d"}})
	if !slices.Equal(got, []string{"c", "a", "b"}) {
		t.Errorf("%v", got)
	}
}
