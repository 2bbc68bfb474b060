package sim

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gantry/agent/gpu"
	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/scheduler/state"
)

// gear is what an agent is told of its machine while it runs: the health of GPUs, and conditions. It implements
// agent.Accelerators.
type gear struct {
	gpu.Idle
	changed chan struct{}

	mu         sync.Mutex // guards the fields below
	gpus       []fleet.GPU
	conditions []fleet.Condition
}

func newGear(gpus []fleet.GPU) *gear {
	return &gear{changed: make(chan struct{}, 1), gpus: slices.Clone(gpus)}
}

// change changes it and tells the agent, if one runs.
func (g *gear) change(do func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.gpus = slices.Clone(g.gpus)
	do()
	select {
	case g.changed <- struct{}{}:
	default:
	}
}

// setSick says what is wrong with a GPU; nothing when sick is empty.
func (g *gear) setSick(uuid, sick string) {
	g.change(func() {
		g.gpus[slices.IndexFunc(g.gpus, func(x fleet.GPU) bool { return x.UUID == uuid })].Sick = sick
	})
}

// setUnfit gives the host a condition because of which it takes no pods, or takes that away.
func (g *gear) setUnfit(unfit bool) {
	g.change(func() {
		if g.conditions = nil; unfit {
			g.conditions = []fleet.Condition{{Code: "runc_old", Text: "the container runtime is not safe", Severe: true}}
		}
	})
}

// Found implements agent.Accelerators.
func (g *gear) Found() gpu.Found {
	g.mu.Lock()
	defer g.mu.Unlock()
	return gpu.Found{GPUs: g.gpus, CUDA: "12.8", Driver: "570.86.15", Conditions: g.conditions}
}

// Changed implements agent.Accelerators.
func (g *gear) Changed() <-chan struct{} { return g.changed }

// Devices implements agent.Accelerators.
func (g *gear) Devices(context.Context, []string) (pod.Devices, error) { return pod.Devices{}, nil }

// Busy implements agent.Accelerators.
func (g *gear) Busy(context.Context, []string) (string, error) { return "", nil }

func gpuSick(d *driver) (time.Duration, func()) {
	h := d.anyHost("GPU sick", func(h *host) bool { return len(h.gpus) > 0 })
	if h == nil {
		return 0, nil
	}
	uuid := h.gpus[d.rng.IntN(len(h.gpus))].UUID
	h.gear.setSick(uuid, "XID 79: the GPU has fallen off the bus")
	return d.between(5*time.Second, 30*time.Second), d.during("GPU sick", h, func() { h.gear.setSick(uuid, "") })
}

func hostUnfit(d *driver) (time.Duration, func()) {
	h := d.anyHost("host unfit", always)
	if h == nil {
		return 0, nil
	}
	h.gear.setUnfit(true)
	return d.between(5*time.Second, 20*time.Second), d.during("host unfit", h, func() { h.gear.setUnfit(false) })
}

// bound checks what a command gave to a pod, if anything: no host that takes none, no GPU that is out of service.
func bound(w *world, store *state.Store, index uint64, old, rec fleet.Pod) error {
	here := old.Held && old.Host == rec.Host
	if here && slices.Equal(old.GPUs, rec.GPUs) || !rec.Held || rec.Goal != fleet.GoalRun {
		return nil
	}
	return store.View(func(v *state.View) error {
		host, _ := v.Host(rec.Host)
		if old.Moving && (old.Host == rec.Host || old.Target != nil && old.Target.Host == rec.Host) {
			host.Eligibility = fleet.EligibilityOpen // a pod on the move has what it was promised, whatever became of the host since
		}
		if ok, why := host.Takes(); !ok && !here {
			w.broke("entry %d binds pod %s to host %s: %s", index, rec.ID, rec.Host, why)
		}
		for _, g := range host.Inventory.GPUs {
			if g.Sick != "" && slices.Contains(rec.GPUs, g.UUID) && (!here || !slices.Contains(old.GPUs, g.UUID)) {
				w.broke("entry %d gives pod %s GPU %s, which is out of service: %s", index, rec.ID, g.UUID, g.Sick)
			}
		}
		return nil
	})
}

// secretName is a secret that every account has, of another value each.
const secretName = "token"

func secretOf(account fleet.AccountID) string { return "the token of " + string(account) }

// useSecret has a request's environment name the account's secret.
func useSecret(req *fleet.PodRequest) {
	req.Env = map[string]string{"SECRET": "Bearer {{ RUNPOD_SECRET_" + secretName + " }}"}
}

// putSecrets gives every account its secret.
func (w *world) putSecrets() error {
	for _, account := range w.accounts {
		err := w.insists(time.Minute, func(ctx context.Context, p *process) error {
			_, err := p.service.PutSecret(ctx, principal(account), secretName, fleet.Secret(secretOf(account)))
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// checkEnv checks the environment that a process has: the secrets of its own account, and a key of its own. A restored
// state may not know the pod.
func (w *world) checkEnv(spec pod.ContainerSpec, rec fleet.Pod) {
	if got, asked := spec.Env["SECRET"]; asked && rec.ID != "" && got != "Bearer "+secretOf(rec.Account) {
		w.broke("I8: pod %s of %s starts with the secret %q", spec.Pod, rec.Account, got)
	}
	for _, name := range []string{"RUNPOD_API_KEY", "GANTRY_API_KEY"} {
		if key := spec.Env[name]; !strings.HasPrefix(key, "gk_"+string(spec.Pod)) {
			w.broke("I8: pod %s starts with %s=%q, which is not its own", spec.Pod, name, key)
		}
	}
}

// tagLife is how long a tag names the same image in the registry, for images that move.
const tagLife = 20 * time.Second

// digestOf is what an image's reference names in the registry now.
func digestOf(ref string) string {
	if behaviorOf(ref).kind == "moving" {
		ref += time.Now().Truncate(tagLife).UTC().String()
	}
	return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(ref)))
}

// inRegistry is the digest of what a reference, perhaps with a digest, names.
func inRegistry(ref string) (tag, digest string) {
	tag, digest, pinned := strings.Cut(ref, "@")
	if !pinned {
		digest = digestOf(tag)
	}
	return tag, digest
}

// sickIs waits until the state knows how a host's first GPU is.
func (s *scene) sickIs(h *host, want string) {
	s.Helper()
	s.soon("the state knows of the GPU", func() bool { return s.picture().hosts[h.id].Inventory.GPUs[0].Sick == want })
}

func TestAHostTellsOfSickGPUsAndConditionsWhileConnected(t *testing.T) {
	play(t, []int{1}, nil, func(s *scene) {
		h, uuid := s.hosts[0], s.hosts[0].gpus[0].UUID
		refused := func(when string, req fleet.PodRequest) {
			if _, err := s.create(s.account(), req); fleet.CodeOf(err) != fleet.CodeNoCapacity {
				s.Errorf("%s: %v", when, err)
			}
		}
		p := s.make(gpuPod(1, image("steady", 0, 0)))
		h.gear.setSick(uuid, "fell off the bus")
		s.sickIs(h, "fell off the bus")
		if runsOn(h, p.ID) != 1 {
			s.Error("the pod was ended when its GPU became sick")
		}
		s.do(p.ID, fleet.ActionTerminate)
		s.soon("the GPU is given back", func() bool { now, _ := s.pod(p.ID); return !now.Held })
		refused("a sick GPU", gpuPod(1, image("steady", 0, 0)))
		h.gear.setSick(uuid, "")
		s.sickIs(h, "")
		q := s.make(gpuPod(1, image("steady", 0, 0)))
		h.gear.setUnfit(true)
		s.soon("the state has the condition", func() bool { return len(s.picture().hosts[h.id].Inventory.Conditions) == 1 })
		refused("a severe condition", cpuPod(2, image("steady", 0, 0)))
		h.gear.setUnfit(false)
		s.soon("the condition is gone", func() bool { return len(s.picture().hosts[h.id].Inventory.Conditions) == 0 })
		s.do(q.ID, fleet.ActionTerminate)
		s.soon("the host is empty", func() bool { now, _ := s.pod(q.ID); return !now.Held })
		s.make(cpuPod(2, image("steady", 0, 0)))
		if epoch := s.picture().hosts[h.id].Epoch; epoch != 1 {
			s.Errorf("the session was begun anew: epoch %d", epoch)
		}
	})
}

func TestAPodStaysWithTheImageOfItsFirstStart(t *testing.T) {
	play(t, []int{0, 0}, nil, func(s *scene) {
		p := s.make(cpuPod(2, image("moving", 0, 0)))
		pinned := p.Digest
		s.stop(p.ID)
		time.Sleep(3 * tagLife)
		s.byHost[p.Host].kill(false) // so that the other one has to get it
		s.hostIs(s.byHost[p.Host], fleet.HostUnreachable)
		s.do(p.ID, fleet.ActionStart)
		now := s.podIs(p.ID, fleet.StatusRunning)
		if pinned == "" || now.Digest != pinned || now.Host == p.Host {
			s.Errorf("it runs %q on %s, and began with %q on %s", now.Digest, now.Host, pinned, p.Host)
		}
		if other := s.make(cpuPod(2, image("moving", 0, 0))); other.Digest == pinned {
			s.Error("the tag did not move: nothing is shown")
		}
	})
}
