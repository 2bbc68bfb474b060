package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"gantry/api/v2"
	"gantry/client"
	"gantry/fleet"
	"gantry/test/devtest"
)

// TestALeaderKilledWhileItMakesAClusterMakesAllOrNothing has three schedulers and three hosts, of which a cluster takes all GPUs: what a
// creation left behind would refuse the next one. The leader is killed at moments from before the request comes to after pods run.
func TestALeaderKilledWhileItMakesAClusterMakesAllOrNothing(t *testing.T) {
	t.Parallel()
	d := must[*devtest.Dev](t)(suite.site.Start(filepath.Join(t.TempDir(), "gang"), "--schedulers", "3", "--agents", "3"))
	t.Cleanup(func() {
		if err := d.Stop(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			d.PrintLogs(testWriter{t})
		}
	})
	unknown, before := 0, 0
	const ms = time.Millisecond
	moments := []time.Duration{0, ms, 2 * ms, 3 * ms, 4 * ms, 8 * ms, 30 * ms, 300 * ms}
	for i, moment := range moments {
		leader, followers := leads(t, d)
		body := v2.CreateClusterRequest{
			Name: fmt.Sprintf("gang-%d", i), Type: string(fleet.ClusterTraining), Image: new(devtest.Image), Args: new("sh -c '" + devtest.Sleeper + "'"),
			Compute: v2.ClusterCompute{GPUTypeID: devtest.GPUType, GPUCountPerPod: 8, PodCount: 3},
		}
		await(t, func() error { // all GPUs are free
			_, err := at(t, d, leader).PlanCluster(t.Context(), body)
			return err
		})
		via := []devtest.Process{leader, followers[0]}[i%2]
		first := make(chan client.Answer[v2.InstantCluster], 1)
		c := at(t, d, via).Once().Keyed(body.Name)
		go func() {
			got, err := c.CreateCluster(t.Context(), body)
			if err != nil {
				t.Logf("killed %v after the request: %v", moment, err)
			}
			first <- got
		}()
		time.Sleep(moment) // of the kill
		if err := syscall.Kill(leader.PID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		answer := <-first
		if answer.Value.ID == "" {
			unknown++
		}
		if !allOrNothing(t, at(t, d, followers[1])) {
			before++
		}
		made := sameAnswer(t, d, body, answer, append(followers, leader)) // which comes again
		_, pods := whole(t, d, made.ID)
		if err := at(t, d, followers[0]).DeleteCluster(t.Context(), made.ID); err != nil {
			t.Fatal(err)
		}
		for _, p := range pods {
			await(t, func() error { return suite.site.NothingLeft(p.ID) })
		}
	}
	t.Logf("%d requests had no answer, %d of %d clusters were not made before the leader was killed", unknown, before, len(moments))
	if unknown == 0 || before == 0 || before == len(moments) {
		t.Error("the leader was never killed in the midst of a creation")
	}
}

// leads waits until three schedulers are whole, and returns the one that leads by its own word and the others. That dev.json names a leader
// may be news of before a kill.
func leads(t *testing.T, d *devtest.Dev) (leader devtest.Process, followers []devtest.Process) {
	t.Helper()
	await(t, func() error {
		info, err := d.Info()
		if err != nil {
			return err
		}
		list, err := operator(t, d).Cluster(t.Context())
		if err != nil {
			return err
		}
		lead, well := "", 0
		for _, m := range list.Value.Members {
			if m.Leader {
				lead = m.ID
			}
			if m.Voter && m.Reachable {
				well++
			}
		}
		leader, followers = devtest.Process{}, nil
		for _, p := range info.Processes {
			switch {
			case p.Role != "scheduler":
			case p.ID == lead:
				leader = p
			default:
				followers = append(followers, p)
			}
		}
		if leader.PID == 0 || len(followers) != 2 || well != 3 {
			return fmt.Errorf("leader %q is %+v, with %d followers; %d of all are well", lead, leader, len(followers), well)
		}
		return nil
	})
	return leader, followers
}

// allOrNothing reports whether there is a cluster, which then has all of its pods; without one there are none.
func allOrNothing(t *testing.T, c *client.Client) bool {
	t.Helper()
	list := must[client.Answer[v2.ClusterList]](t)(c.InstantClusters(t.Context())).Value.Clusters
	pods := must[client.Answer[v2.PodList]](t)(c.PodsWhere(t.Context(), client.PodFilter{IncludeClusterMembers: true})).Value.Pods
	if len(list) > 1 || len(pods) != 3*len(list) {
		t.Errorf("%d clusters have %d pods", len(list), len(pods))
	}
	return len(list) == 1
}

// sameAnswer repeats a creation at all schedulers: each answers with one cluster, that of the first answer if there was one.
func sameAnswer(t *testing.T, d *devtest.Dev, body v2.CreateClusterRequest, first client.Answer[v2.InstantCluster], schedulers []devtest.Process) v2.InstantCluster {
	t.Helper()
	want := first.Value
	for _, s := range schedulers {
		var got client.Answer[v2.InstantCluster]
		await(t, func() (err error) {
			got, err = at(t, d, s).Keyed(body.Name).CreateCluster(t.Context(), body)
			return err
		})
		if want.ID == "" {
			want = got.Value
		} else if !got.Replayed {
			t.Errorf("%s at %s made it anew", body.Name, s.ID)
		}
		if d := cmp.Diff(want, got.Value, cmpopts.IgnoreFields(v2.InstantCluster{}, "Status", "Pods", "Primary", "Faults")); d != "" || got.Value.Primary.PodID != want.Primary.PodID {
			t.Errorf("%s at %s: %s", body.Name, s.ID, d)
		}
	}
	if !allOrNothing(t, user(t, d)) {
		t.Errorf("%s is not there", body.Name)
	}
	return want
}

// whole waits until all pods of a cluster run, each with all GPUs of a host of its own.
func whole(t *testing.T, d *devtest.Dev, id string) (v2.InstantCluster, []v2.Pod) {
	t.Helper()
	got, pods := running(t, d, id)
	var hosts []string
	for _, p := range pods {
		if !strings.Contains(strings.Join(hosts, " "), string(p.HostID)) {
			hosts = append(hosts, string(p.HostID))
		}
	}
	if len(pods) != 3 || len(hosts) != 3 {
		t.Errorf("%d pods of cluster %s are on %v", len(pods), id, hosts)
	}
	return got, pods
}
