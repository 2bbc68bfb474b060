package scheduler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// stock is a world with a host and with templates and credentials of both accounts.
func stocked(t *testing.T) *world {
	w := newWorld(t)
	w.addHost("host-a", "dc-1", h100, 4, cuda("12.4"))
	w.must(
		state.Put[fleet.Registry]{Record: fleet.Registry{ID: "ours", Account: acme, CreatedAt: begin()}},
		state.Put[fleet.Registry]{Record: fleet.Registry{ID: "ours-too", Account: acme, CreatedAt: begin()}},
		state.Put[fleet.Registry]{Record: fleet.Registry{ID: "theirs", Account: other, CreatedAt: begin()}},
		state.Put[fleet.Template]{Record: fullTemplate("full", acme, "ours")},
		state.Put[fleet.Template]{Record: fleet.Template{ID: "bare", Account: acme, Image: "bare:1", Category: fleet.CategoryNVIDIA}},
		state.Put[fleet.Template]{Record: fleet.Template{ID: "worker", Account: acme, Image: "worker:1", Serverless: true}},
		state.Put[fleet.Template]{Record: fullTemplate("private", other, "theirs")},
	)
	public := fullTemplate("public", other, "theirs")
	public.Public = true
	w.must(state.Put[fleet.Template]{Record: public})
	return w
}

func fullTemplate(id fleet.TemplateID, account fleet.AccountID, registry fleet.RegistryID) fleet.Template {
	return fleet.Template{
		ID: id, Account: account, Name: string(id), Image: "full:1", Args: "serve", DiskGB: 15, Ports: []fleet.Port{http(8888)},
		Env: map[string]string{"A": "template", "B": "template"}, Registry: registry, Category: fleet.CategoryNVIDIA,
		Persistent: &fleet.PersistentMount{SizeGB: 30, Path: "/workspace"}, AllowedCUDA: []string{"12.4"}, CreatedAt: begin(),
	}
}

type merging struct {
	name string
	req  fleet.PodRequest
	want func(s *fleet.PodSpec)
}

func mergings() []merging {
	from := func(id fleet.TemplateID, change func(r *fleet.PodRequest)) fleet.PodRequest {
		r := fleet.PodRequest{Name: "p", Template: id, GPU: &fleet.GPURequest{Type: h100, Count: 1}}
		change(&r)
		return r
	}
	return []merging{
		{"all of it", from("full", func(*fleet.PodRequest) {}), func(*fleet.PodSpec) {}},
		{"image", from("full", func(r *fleet.PodRequest) { r.Image = "own:2" }), func(s *fleet.PodSpec) { s.Image = "own:2" }},
		{"args", from("full", func(r *fleet.PodRequest) { r.Args = "own" }), func(s *fleet.PodSpec) { s.Args = "own" }},
		{"args empty", from("full", func(r *fleet.PodRequest) { r.ArgsSet = true }), func(s *fleet.PodSpec) { s.Args = "" }},
		{"disk", from("full", func(r *fleet.PodRequest) { r.DiskGB = 7 }), func(s *fleet.PodSpec) { s.DiskGB = 7 }},
		{"ports", from("full", func(r *fleet.PodRequest) { r.Ports = []fleet.Port{http(80)} }), func(s *fleet.PodSpec) { s.Ports = []fleet.Port{http(80)} }},
		{"ports empty", from("full", func(r *fleet.PodRequest) { r.PortsSet = true }), func(s *fleet.PodSpec) { s.Ports = nil }},
		{"env per key", from("full", func(r *fleet.PodRequest) { r.Env = map[string]string{"B": "", "C": "own"} }), func(s *fleet.PodSpec) {
			s.Env = map[string]string{"A": "template", "B": "", "C": "own"}
		}},
		{"registry", from("full", func(r *fleet.PodRequest) { r.Registry = ptr(fleet.RegistryID("ours-too")) }), func(s *fleet.PodSpec) { s.Registry = "ours-too" }},
		{"registry none", from("full", func(r *fleet.PodRequest) { r.Registry = ptr(fleet.RegistryID("")) }), func(s *fleet.PodSpec) { s.Registry = "" }},
		{"mount", from("full", func(r *fleet.PodRequest) { r.Persistent = &fleet.PersistentMount{SizeGB: 10, Path: "/d"} }), func(s *fleet.PodSpec) {
			s.Persistent = &fleet.PersistentMount{SizeGB: 10, Path: "/d"}
		}},
		{"any CUDA", from("full", func(r *fleet.PodRequest) { r.CUDA = &fleet.CUDARange{} }), func(s *fleet.PodSpec) { s.CUDA = nil }},
		{"CUDA floor", from("full", func(r *fleet.PodRequest) { r.CUDA = &fleet.CUDARange{Min: "12.0"} }), func(s *fleet.PodSpec) {
			s.CUDA = &fleet.CUDARange{Min: "12.0"}
		}},
		{"another account's", from("public", func(*fleet.PodRequest) {}), func(s *fleet.PodSpec) { s.Template, s.Registry = "public", "" }},
		{"CPU pod", from("full", func(r *fleet.PodRequest) { r.GPU, r.CPU = nil, &fleet.CPURequest{Flavor: cpu3, VCPU: 2} }), func(s *fleet.PodSpec) {
			s.GPU, s.CPU, s.Persistent, s.CUDA = nil, &fleet.CPURequest{Flavor: cpu3, VCPU: 2, MemoryGB: 8}, nil, nil
		}},
		{"bare, defaults", from("bare", func(*fleet.PodRequest) {}), func(s *fleet.PodSpec) {
			*s = fleet.PodSpec{Name: "p", Image: "bare:1", DiskGB: 20, GPU: s.GPU, Cloud: s.Cloud, Template: "bare"}
		}},
	}
}

func TestTemplateMerge(t *testing.T) {
	w := stocked(t)
	full := fleet.PodSpec{
		Name: "p", Image: "full:1", Args: "serve", DiskGB: 15, Ports: []fleet.Port{http(8888)}, Registry: "ours",
		Env: map[string]string{"A": "template", "B": "template"}, GPU: &fleet.GPURequest{Type: h100, Count: 1},
		Cloud: fleet.CloudSecure, Template: "full", Persistent: &fleet.PersistentMount{SizeGB: 30, Path: "/workspace"},
		CUDA: &fleet.CUDARange{Allowed: []string{"12.4"}},
	}
	for _, c := range mergings() {
		t.Run(c.name, func(t *testing.T) {
			want := full
			c.want(&want)
			view, err := w.svc.CreatePod(context.Background(), member(acme), c.req)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want, view.Pod.Spec, cmpopts.EquateEmpty()); d != "" {
				t.Error(d)
			}
			if _, err := w.svc.ActPod(context.Background(), member(acme), view.Pod.ID, fleet.ActionTerminate); err != nil {
				t.Fatal(err)
			}
			w.report(view.Pod.ID, state.ReportGone)
		})
	}
}

type refusal struct {
	name   string
	base   fleet.PodRequest
	change func(r *fleet.PodRequest)
	code   fleet.Code
	text   string
}

func refusals() []refusal {
	many := func(n int) map[string]string {
		env := map[string]string{}
		for i := range n {
			env[fmt.Sprintf("V%d", i)] = "x"
		}
		return env
	}
	network := func(id fleet.VolumeID) *fleet.NetworkMount { return &fleet.NetworkMount{Volume: id, Path: "/w"} }
	return []refusal{
		{"both", gpuPod(1), func(r *fleet.PodRequest) { r.CPU = cpuPod(2).CPU }, fleet.CodeConflictRule, "exclude each other"},
		{"mount over the system", gpuPod(1), func(r *fleet.PodRequest) {
			r.Persistent = &fleet.PersistentMount{SizeGB: 10, Path: "/etc/x"}
		}, fleet.CodeConflictRule, "mounts.persistent.path must not be a system path"},
		{"volume at no absolute path", gpuPod(1), func(r *fleet.PodRequest) {
			r.Network = &fleet.NetworkMount{Volume: "v", Path: "data"}
		}, fleet.CodeConflictRule, "mounts.network[0].path must be absolute"},
		{"neither", gpuPod(1), func(r *fleet.PodRequest) { r.GPU = nil }, fleet.CodeConflictRule, "exactly one"},
		{"networked without a GPU", cpuPod(2), func(r *fleet.PodRequest) { r.GlobalNetworking = true }, fleet.CodeConflictRule, "needs an NVIDIA GPU"},
		{"no image", gpuPod(1), func(r *fleet.PodRequest) { r.Image = "" }, fleet.CodeInvalid, "$: missing property 'image'"},
		{"GPU type", gpuPod(1), func(r *fleet.PodRequest) { r.GPU.Type = "none" }, fleet.CodeInvalid, "$.gpu.id"},
		{"flavor", cpuPod(2), func(r *fleet.PodRequest) { r.CPU.Flavor = "none" }, fleet.CodeInvalid, "$.cpu.id"},
		{"vcpus", cpuPod(64), func(*fleet.PodRequest) {}, fleet.CodeInvalid, "$.cpu.vcpuCount"},
		{"CPU disk", cpuPod(2), func(r *fleet.PodRequest) { r.DiskGB = 21 }, fleet.CodeInvalid, "$.disk"},
		{"center", gpuPod(1), func(r *fleet.PodRequest) { r.Centers = []fleet.DataCenterID{"none"} }, fleet.CodeInvalid, "$.dataCenterIds"},
		{"no template", gpuPod(1), func(r *fleet.PodRequest) { r.Template = "none" }, fleet.CodeNotFound, "$.templateId"},
		{"another's template", gpuPod(1), func(r *fleet.PodRequest) { r.Template = "private" }, fleet.CodeNotFound, "$.templateId"},
		{"serverless template", gpuPod(1), func(r *fleet.PodRequest) { r.Template = "worker" }, fleet.CodeConflictRule, "serverless"},
		{"no credential", gpuPod(1), func(r *fleet.PodRequest) { r.Registry = ptr(fleet.RegistryID("none")) }, fleet.CodeNotFound, "$.registry"},
		{"another's credential", gpuPod(1), func(r *fleet.PodRequest) { r.Registry = ptr(fleet.RegistryID("theirs")) }, fleet.CodeNotFound, "$.registry"},
		{"env", gpuPod(1), func(r *fleet.PodRequest) { r.Template, r.Env = "full", many(49) }, fleet.CodeInvalid, "$.env"},
		{"CUDA both", gpuPod(1), func(r *fleet.PodRequest) {
			r.CUDA = &fleet.CUDARange{Allowed: []string{"12.4"}, Min: "12.4"}
		}, fleet.CodeConflictRule, "exclude"},
		{"CPU mount", cpuPod(2), func(r *fleet.PodRequest) {
			r.Persistent = &fleet.PersistentMount{SizeGB: 10, Path: "/w"}
		}, fleet.CodeConflictRule, "CPU pods"},
		{"no volume", gpuPod(1), func(r *fleet.PodRequest) { r.Network = network("none") }, fleet.CodeNotFound, "$.mounts.network[0].volumeId"},
		{"a volume that is being deleted", gpuPod(1), func(r *fleet.PodRequest) { r.Network = network("vol-going") }, fleet.CodeNotFound, "$.mounts.network[0].volumeId"},
		{"another's volume", cpuPod(2), func(r *fleet.PodRequest) { r.Network = network("vol-theirs") }, fleet.CodeNotFound, "$.mounts.network[0].volumeId"},
		{"volume elsewhere", gpuPod(1), func(r *fleet.PodRequest) {
			r.Network, r.Centers = network("vol"), []fleet.DataCenterID{"EU-1"}
		}, fleet.CodeConflictRule, "none of the data centers"},
		{"volume in COMMUNITY", gpuPod(1), func(r *fleet.PodRequest) {
			r.Network, r.Cloud = network("vol"), fleet.CloudCommunity
		}, fleet.CodeConflictRule, "network volumes are of the SECURE cloud only"},
		{"room", gpuPod(5), func(*fleet.PodRequest) {}, fleet.CodeNoCapacity, "no longer any instances"},
	}
}

func TestCreateRefusals(t *testing.T) {
	w := stocked(t)
	w.addHost("host-eu", "EU-1", h100, 1)
	w.addBackend("nfs", "dc-1", fleet.VolumeStandard)
	w.addVolume("vol", acme)
	w.addVolume("vol-going", acme)
	w.addVolume("vol-theirs", other)
	w.must(state.DeleteVolume{Account: acme, Volume: "vol-going", At: begin()})
	for _, c := range refusals() {
		t.Run(c.name, func(t *testing.T) {
			c.change(&c.base)
			_, err := w.svc.CreatePod(context.Background(), member(acme), c.base)
			refused(t, err, c.code, c.text)
			_, err = w.svc.PlanPod(context.Background(), member(acme), c.base)
			refused(t, err, c.code, c.text)
		})
	}
	if pods, err := w.svc.Pods(context.Background(), member(acme)); err != nil || len(pods) != 0 {
		t.Errorf("a refused create left %d pods: %v", len(pods), err)
	}
	pod := w.create(fleet.PodRequest{Name: "p", Image: "i", Network: &fleet.NetworkMount{Volume: "vol", Path: "/w"}, GPU: &fleet.GPURequest{Type: h100, Count: 1}})
	if pod.DataCenter != "dc-1" {
		t.Errorf("a pod with a volume of dc-1 went to %s", pod.DataCenter)
	}
}

func TestInjections(t *testing.T) {
	w := stocked(t)
	who := member(acme)
	plan := func(req fleet.PodRequest) map[string]string {
		t.Helper()
		view, err := w.svc.PlanPod(context.Background(), who, req)
		if err != nil {
			t.Fatal(err)
		}
		return view.Pod.Spec.Env
	}
	ssh := gpuPod(1)
	ssh.StartSSH = ptr(true)
	if env := plan(ssh); len(env) != 0 {
		t.Errorf("an account without keys got %v", env)
	}
	if err := w.svc.SetSSHKeys(context.Background(), who, []string{"ssh-ed25519 AAAA one", " ssh-ed25519 AAAA one", "ssh-rsa BBBB two"}); err != nil {
		t.Fatal(err)
	}
	keys := "ssh-ed25519 AAAA one\nssh-rsa BBBB two"
	if env := plan(ssh); !maps.Equal(env, map[string]string{"PUBLIC_KEY": keys}) {
		t.Errorf("startSsh gave %v", env)
	}
	for _, name := range []string{"PUBLIC_KEY", "SSH_PUBLIC_KEY"} {
		own := ssh
		own.Env = map[string]string{name: ""}
		if env := plan(own); !maps.Equal(env, own.Env) {
			t.Errorf("over the user's %s: %v", name, env)
		}
	}
	if env := plan(gpuPod(1)); len(env) != 0 {
		t.Errorf("nothing asked for gave %v", env)
	}
	jupyter := gpuPod(1)
	jupyter.StartJupyter = ptr(true)
	one, two := plan(jupyter)["JUPYTER_PASSWORD"], plan(jupyter)["JUPYTER_PASSWORD"]
	if len(one) != 24 || one == two {
		t.Errorf("passwords %q and %q", one, two)
	}
	jupyter.Env = map[string]string{"JUPYTER_PASSWORD": "mine"}
	if env := plan(jupyter); env["JUPYTER_PASSWORD"] != "mine" {
		t.Errorf("over the user's password: %v", env)
	}
	both := fullTemplate("both", acme, "")
	both.StartSSH, both.StartJupyter = true, true
	w.must(state.Put[fleet.Template]{Record: both})
	byTemplate := gpuPod(1)
	byTemplate.Template = "both"
	if env := plan(byTemplate); env["PUBLIC_KEY"] != keys || len(env["JUPYTER_PASSWORD"]) != 24 {
		t.Errorf("the template's wish gave %v", slices.Sorted(maps.Keys(env)))
	}
	byTemplate.StartSSH, byTemplate.StartJupyter = ptr(false), ptr(false)
	if env := plan(byTemplate); len(env) != 2 {
		t.Errorf("against the template: %v", slices.Sorted(maps.Keys(env)))
	}
}

func TestDefaultsAndShares(t *testing.T) {
	w := newWorld(t)
	w.addHost("host-a", "dc-1", h100, 4, total(64, 256, 2000))
	req := gpuPod(1)
	pod := w.create(req)
	if pod.Spec.DiskGB != 20 || pod.Need != (fleet.Resources{MilliCPU: 16_000, MemoryMB: 64_000, DiskGB: 20}) {
		t.Errorf("GPU pod: disk %d, need %+v", pod.Spec.DiskGB, pod.Need)
	}
	req.Persistent = &fleet.PersistentMount{SizeGB: 100, Path: "/w"}
	if pod := w.create(req); pod.Need.DiskGB != 120 {
		t.Errorf("with a mount it holds %d GB", pod.Need.DiskGB)
	}
	req = gpuPod(1)
	req.MinRAMPerGPU, req.MinVCPUPerGPU = 100, 20
	if pod := w.create(req); pod.Need.MilliCPU != 20_000 || pod.Need.MemoryMB != 100_000 {
		t.Errorf("with floors it holds %+v", pod.Need)
	}
	req.MinRAMPerGPU = 300
	_, err := w.svc.CreatePod(context.Background(), member(acme), req)
	refused(t, err, fleet.CodeNoCapacity, "")
	w.addHost("host-cpu", "dc-1", "", 0)
	if pod := w.create(cpuPod(4)); pod.Spec.DiskGB != 10 || pod.Spec.CPU.MemoryGB != 16 || pod.HourlyRate != fleet.MoneyUSD(0.16) || pod.Host != "host-cpu" {
		t.Errorf("CPU pod: %+v on %s for %d", pod.Spec, pod.Host, pod.HourlyRate)
	}
}

func TestCUDA(t *testing.T) {
	w := newWorld(t)
	w.addHost("host-old", "dc-1", h100, 1, cuda("12.4"))
	w.addHost("host-new", "dc-1", h100, 1, cuda("12.10"))
	w.addHost("host-none", "dc-1", h100, 1)
	for _, c := range []struct {
		name string
		cuda *fleet.CUDARange
		host fleet.HostID // empty: none
	}{
		{"exactly", &fleet.CUDARange{Allowed: []string{"11.8", "12.4"}}, "host-old"},
		{"not there", &fleet.CUDARange{Allowed: []string{"12.5"}}, ""},
		{"number by number", &fleet.CUDARange{Min: "12.5"}, "host-new"},
		{"too new", &fleet.CUDARange{Min: "13.0"}, ""},
	} {
		req := gpuPod(1)
		req.CUDA = c.cuda
		view, err := w.svc.PlanPod(context.Background(), member(acme), req)
		if c.host == "" {
			refused(t, err, fleet.CodeNoCapacity, "")
		} else if err != nil || view.Pod.Host != c.host {
			t.Errorf("%s: %s, %v", c.name, view.Pod.Host, err)
		}
	}
	req := gpuPod(1)
	req.CUDA = &fleet.CUDARange{}
	for range 3 {
		w.create(req)
	}
}

func TestGlobalNetworking(t *testing.T) {
	w := newWorld(t)
	w.addHost("host-a", "dc-1", h100, 2)
	w.addHost("host-amd", "dc-2", mi300, 2)
	w.addHost("host-b", "dc-2", h100, 1)
	req := gpuPod(1)
	req.GlobalNetworking = true
	_, err := w.svc.PlanPod(context.Background(), member(acme), req)
	refused(t, err, fleet.CodeConflictRule, "none that is allowed")
	w.must(state.PutDataCenter{DataCenter: fleet.DataCenter{ID: "dc-2", Name: "two", GlobalNetwork: true}})
	req.Centers = []fleet.DataCenterID{"dc-1"}
	_, err = w.svc.PlanPod(context.Background(), member(acme), req)
	refused(t, err, fleet.CodeConflictRule, "none that is allowed")
	req.Centers = []fleet.DataCenterID{"dc-1", "dc-2"}
	if pod := w.create(req); pod.DataCenter != "dc-2" || !pod.Spec.GlobalNetworking || len(pod.Spec.Centers) != 2 {
		t.Errorf("it went to %s: %+v", pod.DataCenter, pod.Spec)
	}
	_, err = w.svc.CreatePod(context.Background(), member(acme), req)
	refused(t, err, fleet.CodeNoCapacity, "")
	req.GPU.Type = mi300
	_, err = w.svc.PlanPod(context.Background(), member(acme), req)
	refused(t, err, fleet.CodeConflictRule, "NVIDIA")
	cpu := cpuPod(2)
	cpu.GlobalNetworking = true
	_, err = w.svc.PlanPod(context.Background(), member(acme), cpu)
	refused(t, err, fleet.CodeConflictRule, "NVIDIA")
}

func TestPrepaid(t *testing.T) {
	w := newWorld(t)
	w.addHost("host-a", "dc-1", h100, 1)
	w.addHost("host-b", "dc-1", "NVIDIA Prototype", 1)
	w.must(state.PutAccount{Account: fleet.Account{ID: acme, Name: "Acme", CreatedAt: begin(), Prepaid: true}})
	for _, try := range []func(context.Context, fleet.Principal, fleet.PodRequest) (fleet.PodView, error){w.svc.PlanPod, w.svc.CreatePod} {
		_, err := try(context.Background(), member(acme), gpuPod(1))
		refused(t, err, fleet.CodeNoCredit, "Your account balance is too low to rent a pod")
		free := gpuPod(1)
		free.GPU.Type = "NVIDIA Prototype"
		_, err = try(context.Background(), member(acme), free)
		refused(t, err, fleet.CodeConflictRule, "no price")
	}
	if _, err := w.svc.CreatePod(context.Background(), member(other), gpuPod(1)); err != nil {
		t.Errorf("an account that is not prepaid: %v", err)
	}
}

func TestOnce(t *testing.T) {
	w := newWorld(t)
	w.addHost("host-a", "dc-1", h100, 1)
	req := gpuPod(1)
	req.Once = &fleet.Once{Key: "k", Fingerprint: []byte("one")}
	first, err := w.svc.CreatePod(context.Background(), member(acme), req)
	if err != nil || first.Replayed {
		t.Fatal(first.Replayed, err)
	}
	// The only GPU is taken by the first try: a retry must be answered as that was.
	again, err := w.svc.CreatePod(context.Background(), member(acme), req)
	if err != nil || !again.Replayed || again.Pod.ID != first.Pod.ID {
		t.Fatalf("%v %v %v", again.Pod.ID, again.Replayed, err)
	}
	req.Once = &fleet.Once{Key: "fresh", Fingerprint: []byte("one")}
	_, err = w.svc.CreatePod(context.Background(), member(acme), req)
	refused(t, err, fleet.CodeNoCapacity, "")
	if pods, err := w.svc.Pods(context.Background(), member(acme)); err != nil || len(pods) != 1 {
		t.Errorf("%d pods, %v", len(pods), err)
	}
	w.addHost("host-b", "dc-1", h100, 2)
	again, err = w.svc.CreatePod(context.Background(), member(acme), fleet.PodRequest{
		Name: "trainer", Image: "busybox:1", GPU: &fleet.GPURequest{Type: h100, Count: 1}, Once: &fleet.Once{Key: "k", Fingerprint: []byte("one")},
	})
	if err != nil || !again.Replayed || again.Pod.ID != first.Pod.ID {
		t.Errorf("%v %v %v", again.Pod.ID, again.Replayed, err)
	}
	req.Once = &fleet.Once{Key: "k", Fingerprint: []byte("two")}
	_, err = w.svc.CreatePod(context.Background(), member(acme), req)
	refused(t, err, fleet.CodeInvalid, "Idempotency-Key")
}

func TestPublicPorts(t *testing.T) {
	w := newWorld(t)
	w.addHost("host-a", "dc-1", h100, 8, publicPorts(30000, 30003))
	req := gpuPod(1)
	req.Ports = []fleet.Port{tcp(22), http(80), tcp(5000)}
	pod := w.create(req)
	taken := map[int]bool{}
	for i, private := range []int{22, 5000} {
		m := pod.Mappings[i]
		taken[m.Public] = true
		if m.Private != private || m.Public < 30000 || m.Public > 30003 {
			t.Errorf("mapping %+v", m)
		}
	}
	if len(pod.Mappings) != 2 || len(taken) != 2 {
		t.Fatalf("mappings %v", pod.Mappings)
	}
	view, err := w.svc.Pod(context.Background(), member(acme), pod.ID)
	if err != nil || view.PublicIP != "203.0.113.7" {
		t.Errorf("public address %q, %v", view.PublicIP, err)
	}
	second := w.create(req)
	for _, m := range second.Mappings {
		if taken[m.Public] {
			t.Errorf("%d is two pods'", m.Public)
		}
	}
	_, err = w.svc.CreatePod(context.Background(), member(acme), req)
	var e *fleet.Error
	if !errors.As(err, &e) || e.Code != fleet.CodeNoCapacity || !slices.Contains(e.Excluded, fleet.Exclusion{Reason: "public ports", Hosts: 1}) {
		t.Fatalf("without free ports: %v", err)
	}
	w.addHost("host-b", "dc-1", h100, 8, publicPorts(40000, 40100))
	if pod := w.create(req); pod.Host != "host-b" {
		t.Errorf("it went to %s", pod.Host)
	}
	w.addHost("host-c", "dc-2", h100, 1)
	req.Centers = []fleet.DataCenterID{"dc-2"}
	if pod := w.create(req); len(pod.Mappings) != 0 {
		t.Errorf("a host that publishes nothing gave %v", pod.Mappings)
	}
}

// TestConcurrentCreates fills a host from many sides at once: every pod gets GPUs and ports of its own.
func TestConcurrentCreates(t *testing.T) {
	const pods = 8
	w := newWorld(t)
	w.addHost("host-a", "dc-1", h100, pods, publicPorts(30000, 30000+pods-1))
	req := gpuPod(1)
	req.Ports = []fleet.Port{tcp(22)}
	made := make(chan fleet.Pod, pods)
	var group sync.WaitGroup
	for range pods {
		group.Go(func() {
			view, err := w.svc.CreatePod(context.Background(), member(acme), req)
			if err != nil {
				t.Error(err)
				return
			}
			made <- *view.Pod
		})
	}
	group.Wait()
	close(made)
	ports, gpus := map[int]bool{}, map[string]bool{}
	for p := range made {
		ports[p.Mappings[0].Public], gpus[p.GPUs[0]] = true, true
	}
	if len(ports) != pods || len(gpus) != pods {
		t.Errorf("%d ports and %d GPUs for %d pods", len(ports), len(gpus), pods)
	}
}

// TestStalePick takes what was picked between the decision and the command.
func TestStalePick(t *testing.T) {
	w := newWorld(t)
	w.addHost("host-a", "dc-1", h100, 1)
	w.addHost("host-b", "dc-1", h100, 1)
	w.before = func() { w.create(gpuPod(1)) }
	one := w.create(gpuPod(1))
	pods, err := w.svc.Pods(context.Background(), member(acme))
	if err != nil || len(pods) != 2 || pods[0].Pod.Host == pods[1].Pod.Host {
		t.Errorf("%v on %s: %v", pods, one.Host, err)
	}
}

func TestLogsTellNoSecrets(t *testing.T) {
	w := newWorld(t)
	w.addHost("host-a", "dc-1", h100, 1)
	req := gpuPod(1)
	req.Env = map[string]string{"TOKEN": "hunter2-env"}
	w.create(req)
	cred := fleet.Credential{Username: "hunter2-user", Password: "hunter2-password"}
	if _, _, err := w.svc.CreateRegistry(context.Background(), member(acme), "name", cred, nil); err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.svc.CreateAccountKey(context.Background(), acme, fleet.KeyRequest{Name: "k"}); err != nil {
		t.Fatal(err)
	}
	if text := w.logged(); !strings.Contains(text, "pod created") || strings.Contains(text, "hunter2") || strings.Contains(text, "gk_") {
		t.Errorf("the log: %s", text)
	}
}
