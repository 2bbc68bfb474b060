package pod

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"gantry/fleet"
)

// TestATimeLineTellsDownloadFromUnpacking, and nothing of a try that failed.
func TestATimeLineTellsDownloadFromUnpacking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeHost(t)
		f.registry["web"] = &Error{Class: Retry, Sentence: "the registry broke off"}
		pods, _, _ := agentLife(t, f, boot1)
		pods.Set(f.order(assignment(1, fleet.GoalRun)))
		settle(5 * time.Second)
		f.mu.Lock()
		delete(f.registry, "web")
		f.mu.Unlock()
		settle(time.Minute)
		steps := f.last().Steps
		pulling, downloaded, pulled := steps[fleet.StepPulling], steps[fleet.StepDownloaded], steps[fleet.StepPulled]
		if downloaded.Sub(pulling) != 2*time.Second || pulled.Sub(downloaded) != time.Second {
			t.Errorf("pulling %v, downloaded %v, pulled %v", pulling, downloaded, pulled)
		}
	})
}

func TestPullUsesTheNewestCredential(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeHost(t)
		f.registry["web"] = &Error{Class: Retry, Sentence: "the registry is busy"}
		pods, _, _ := agentLife(t, f, boot1)
		a := assignment(1, fleet.GoalRun)
		a.Registry = &fleet.Credential{Username: "u", Password: "first"}
		pods.Set(f.order(a))
		settle(5 * time.Second)
		a.Registry = &fleet.Credential{Username: "u", Password: "second"} // of the same generation: the same order, sent again
		pods.Set(f.order(a))
		settle(time.Minute)
		f.mu.Lock()
		defer f.mu.Unlock()
		if n := len(f.auths); n < 2 || f.auths[0].Password != "first" || f.auths[n-1].Password != "second" {
			t.Errorf("%d pulls", len(f.auths))
		}
	})
}

// TestPullAfterARestartHasItsCredential starts an agent whose ledger knows the pod, which it does without
// the credential, and lets it hear a scheduler at moments around each other.
func TestPullAfterARestartHasItsCredential(t *testing.T) {
	for range 50 {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeHost(t)
			pods, deps, _ := agentLife(t, f, boot1)
			deps.Heard.Store(false)
			a := f.order(assignment(1, fleet.GoalRun))
			pods.Set(a)
			go pods.Poke()
			a.Registry = &fleet.Credential{Username: "u", Password: "p"}
			pods.Set(f.order(a))
			deps.Heard.Store(true)
			pods.Poke()
			settle(time.Minute)
			f.mu.Lock()
			defer f.mu.Unlock()
			if len(f.auths) != 1 || f.auths[0].Password != "p" {
				t.Errorf("pulls with %v", f.auths)
			}
		})
	}
}

// TestContainerIsMadeFromTheDigestThatWasPulled moves a tag between two starts, and while a start goes on.
func TestContainerIsMadeFromTheDigestThatWasPulled(t *testing.T) {
	for _, here := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeHost(t)
			f.images["web"] = here
			pods, _, _ := agentLife(t, f, boot1)
			want := []string{"sha256:web", "sha256:web-2"}
			for i := range want {
				f.mu.Lock()
				f.tagged = want[i][len(want[0]):]
				f.images["web"] = here
				f.mu.Unlock()
				pods.Set(f.order(assignment(uint64(i+1), fleet.GoalRun)))
				settle(4 * time.Second)
				f.mu.Lock()
				f.tagged = "-later"
				f.mu.Unlock()
				settle(time.Minute)
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			var got []string
			for _, s := range f.specs {
				got = append(got, s.Digest)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("image on the host %v (-want +got):\n%s", here, diff)
			}
		})
	}
}

func TestPersistentDataOutlivesAllButThePod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeHost(t)
		f.images["web"] = true
		order := func(inc uint64, goal fleet.Goal) Assignment {
			a := assignment(inc, goal)
			a.Persistent = &fleet.PersistentMount{SizeGB: 10, Path: "/workspace"}
			return f.order(a)
		}
		folder := filepath.Join(f.dir, "persistent", "p1")
		kept := func(when string) {
			t.Helper()
			if _, err := os.Stat(filepath.Join(folder, "note")); err != nil {
				t.Errorf("%s: %v", when, err)
			}
		}
		pods, _, stop := agentLife(t, f, boot1)
		pods.Set(order(1, fleet.GoalRun))
		settle(time.Second)
		if m := f.specs[0].Mounts; len(m) != 1 || m[0] != (Mount{Source: folder, Target: "/workspace"}) {
			t.Fatalf("mounts %+v", m)
		}
		must(t, os.WriteFile(filepath.Join(folder, "note"), nil, 0o600))
		pods.Set(order(1, fleet.GoalStop))
		settle(time.Second)
		kept("after a stop")
		pods.Set(order(2, fleet.GoalRun))
		settle(time.Second)
		kept("after a start")
		pods.Set(order(3, fleet.GoalRun))
		settle(time.Second)
		kept("after a restart")
		stop()
		kept("after the agent's death")
		pods, _, _ = agentLife(t, f, boot2)
		clear(f.nets)
		pods.Set(order(3, fleet.GoalRun))
		settle(time.Second)
		kept("after a reboot")

		f.mu.Lock()
		f.away = errAway // the container cannot be removed
		f.mu.Unlock()
		pods.Set(order(4, fleet.GoalGone))
		settle(time.Minute)
		kept("while the container is there")
		f.mu.Lock()
		f.away = nil
		f.mu.Unlock()
		settle(time.Minute)
		if f.last().Event != EventGone {
			t.Errorf("last report %+v", f.last())
		}
		if left, err := os.ReadDir(filepath.Dir(folder)); err != nil || len(left) != 0 {
			t.Errorf("left: %v, %v", left, err)
		}
	})
}

func TestGoneIsToldAfterTheDataIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeHost(t)
		pods, deps, _ := agentLife(t, f, boot1)
		folder, err := MakeData(deps.Data, "p1")
		must(t, err)
		must(t, os.Mkdir(filepath.Join(folder, "mnt"), 0o755))
		must(t, unix.Mount("tmpfs", filepath.Join(folder, "mnt"), "tmpfs", 0, "")) // keeps it from being removed
		a := assignment(1, fleet.GoalGone)
		pods.Set(f.order(a))
		settle(time.Minute)
		wantEvents(t, f)
		must(t, unix.Unmount(filepath.Join(deps.Data, removed+"p1", "mnt"), 0))
		settle(time.Minute)
		wantEvents(t, f, EventGone)
	})
}

func TestPublishedPortsOfAPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeHost(t)
		f.images["web"] = true
		pods, _, _ := agentLife(t, f, boot1)
		a := assignment(1, fleet.GoalRun)
		a.Mappings = []fleet.PortMapping{{Private: 22, Public: 30_001}, {Private: 9000, Public: 30_005}}
		pods.Set(f.order(a))
		settle(time.Second)
		if d := cmp.Diff(a.Mappings, f.ports["p1"]); d != "" {
			t.Error(d)
		}
		for _, prefix := range []string{"RUNPOD_", "GANTRY_"} {
			for name, want := range map[string]string{"PUBLIC_IP": "192.0.2.7", "TCP_PORT_22": "30001", "TCP_PORT_9000": "30005"} {
				if got := f.specs[0].Env[prefix+name]; got != want {
					t.Errorf("%s%s is %q", prefix, name, got)
				}
			}
		}
		// A restart with other ports, while the network of before is there.
		b := assignment(2, fleet.GoalRun)
		b.Mappings = []fleet.PortMapping{{Private: 22, Public: 30_007}}
		pods.Set(f.order(b))
		settle(time.Second)
		if d := cmp.Diff(b.Mappings, f.ports["p1"]); d != "" || f.starts[2] != 1 {
			t.Errorf("%s, starts %v", d, f.starts)
		}
		// The order to stop may name none any more; the network goes all the same.
		pods.Set(f.order(assignment(2, fleet.GoalStop)))
		settle(time.Second)
		if len(f.nets) != 0 || len(f.ports) != 0 {
			t.Errorf("after the stop: %v, %v", f.nets, f.ports)
		}
		pods.Set(f.order(assignment(3, fleet.GoalRun)))
		settle(time.Second)
		for name := range f.specs[2].Env {
			if strings.Contains(name, "PUBLIC_IP") || strings.Contains(name, "TCP_PORT") {
				t.Errorf("without ports there is %s", name)
			}
		}
	})
}
