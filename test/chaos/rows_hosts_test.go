package chaos

import (
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"gantry/api/v2"
	"gantry/fleet"
)

var agents struct {
	once sync.Once
	err  error
}

// withAgents gives the shared cluster two hosts with real agents.
func withAgents(t *testing.T) (*cluster, []*agent) {
	t.Helper()
	c := shared(t)
	agents.once.Do(func() {
		for range 2 {
			_, err := c.addAgent()
			agents.err = errors.Join(agents.err, err)
		}
	})
	if agents.err != nil {
		t.Fatal("the agents did not start: ", agents.err)
	}
	t.Cleanup(func() {
		must(t, suite.lab.HealAll())
		for _, a := range c.agents {
			if !a.proc.Alive() {
				must(t, c.beginAgent(a))
			}
			must(t, c.hostBecomes(a.id, fleet.HostReady))
		}
	})
	return c, c.agents
}

// agentOf returns the agent of a pod's host.
func agentOf(t *testing.T, list []*agent, p v2.Pod) *agent {
	t.Helper()
	for _, a := range list {
		if a.id == string(p.HostID) {
			return a
		}
	}
	t.Fatalf("pod %s is on host %q, which is none of ours", p.ID, p.HostID)
	return nil
}

// dies waits until no process has the marker.
func dies(mark string) error {
	return until(upTime, func() error {
		if found := processes(mark); len(found) > 0 {
			return fmt.Errorf("processes %v of the pod are left", found)
		}
		return nil
	})
}

// drop terminates a pod and waits until its process has gone.
func (c *cluster) drop(t *testing.T, p v2.Pod, mark string) {
	t.Helper()
	if err := c.user(http.MethodDelete, "/v2/pods/"+p.ID, nil, nil); err != nil {
		t.Error(err)
	}
	if err := dies(mark); err != nil {
		t.Error(err)
	}
}

func TestRow14HostLostForGood(t *testing.T) {
	c, list := withAgents(t)
	p, mark, pid, err := c.startPod("lost")
	must(t, err)
	host := agentOf(t, list, p)

	// Nobody can tell a dead host from one whose network is dead: its container runs on.
	must(t, host.proc.Kill())
	must(t, host.place.Cut(places(c.members...)...))
	must(t, c.hostBecomes(host.id, fleet.HostUnreachable))
	shown, err := c.pod(p.ID)
	must(t, err)
	if string(shown.HostID) != host.id || shown.Incarnation != p.Incarnation || shown.Status != fleet.StatusRunning || shown.Runtime != nil {
		t.Errorf("the lost host's pod is %s on %s, incarnation %d, runtime %v; want RUNNING where it was, without runtime", shown.Status, shown.HostID, shown.Incarnation, shown.Runtime)
	}
	// Its GPUs are not given away: 3 of this host's and all of the lost one's are out of reach, 4 are left elsewhere.
	big := realPod("too-big", marker())
	big.GPU.Count = 4
	var first v2.Pod
	must(t, c.user(http.MethodPost, "/v2/pods", big, &first))
	if err := c.user(http.MethodPost, "/v2/pods", realPod("too-many", marker()), nil); err == nil {
		t.Error("a GPU of a lost host was given away")
	}
	must(t, c.user(http.MethodDelete, "/v2/pods/"+first.ID, nil, nil))

	must(t, c.admin(http.MethodPost, "/admin/v1/hosts/"+host.id+"/fence", nil, nil))
	must(t, c.hostBecomes(host.id, fleet.HostFenced))
	fenced, err := c.podBecomes(p.ID, fleet.StatusError)
	must(t, err)
	if !strings.Contains(string(fenced.StatusReason), "fenced") {
		t.Errorf("the reason is %q", fenced.StatusReason)
	}
	if now := processes(mark); len(now) != 1 || now[0] != pid {
		t.Errorf("the processes of the pod are %v, was %d: nobody could have ended it", now, pid)
	}

	// What an operator vouched for was wrong: the host returns, and takes away what it ran before it takes anything new.
	must(t, host.place.Heal())
	must(t, c.beginAgent(host))
	must(t, dies(mark))
	must(t, c.hostReturns(host.id))
	must(t, c.user(http.MethodDelete, "/v2/pods/"+p.ID, nil, nil))
}

// hostReturns opens a host again, which is refused until its agent has taken everything away.
func (c *cluster) hostReturns(id string) error {
	return until(upTime, func() error {
		leader, err := c.leader()
		if err != nil {
			return err
		}
		if err := c.adminAt(leader, http.MethodPost, "/admin/v1/hosts/"+id+"/uncordon", nil, nil); err != nil {
			return err
		}
		h, err := c.host(id)
		if err == nil && h.State != fleet.HostReady {
			err = fmt.Errorf("host %s is %s", h.Name, h.State)
		}
		return err
	})
}

func TestRow15HostCutOffAndBack(t *testing.T) {
	c, list := withAgents(t)
	stays, stayMark, stayPID, err := c.startPod("stays")
	must(t, err)
	host := agentOf(t, list, stays)
	var goes v2.Pod
	var goMark string
	for string(goes.HostID) != host.id { // until one is beside it
		if goes.ID != "" {
			c.drop(t, goes, goMark)
		}
		goes, goMark, _, err = c.startPod("goes")
		must(t, err)
	}
	must(t, host.place.Cut(places(c.members...)...))
	must(t, c.hostBecomes(host.id, fleet.HostUnreachable))
	must(t, c.user(http.MethodDelete, "/v2/pods/"+goes.ID, nil, nil))
	time.Sleep(pick(2*time.Second, 5*time.Minute)) // the outage itself is the fault
	for _, mark := range []string{stayMark, goMark} {
		if n := len(processes(mark)); n != 1 {
			t.Errorf("%d processes of a pod on a host that is cut off, want 1", n)
		}
	}
	must(t, host.place.Heal())
	must(t, c.hostBecomes(host.id, fleet.HostReady))
	must(t, dies(goMark))
	if now, err := runs(stayMark); err != nil || now != stayPID {
		t.Errorf("the process is %d, was %d: %v", now, stayPID, err)
	}
	after, err := c.podBecomes(stays.ID, fleet.StatusRunning)
	must(t, err)
	if after.Incarnation != stays.Incarnation {
		t.Errorf("incarnation %d, was %d", after.Incarnation, stays.Incarnation)
	}
	c.drop(t, stays, stayMark)
}

func TestRow16ClonedDisk(t *testing.T) {
	c, list := withAgents(t)
	p, mark, pid, err := c.startPod("mine")
	must(t, err)
	host := agentOf(t, list, p)

	// On the same machine, the lock of the ledger stops a second agent.
	twin := &agent{name: host.name + "-twin", place: host.place, data: host.data, log: host.log + ".twin"}
	must(t, c.beginAgent(twin))
	if code, err := twin.proc.Wait(upTime); err != nil || code == 0 {
		t.Errorf("a second agent on the same folder ended with %d, %v", code, err)
	}

	// On another machine, the session of the first one does.
	clone := &agent{name: host.name + "-clone", data: filepath.Join(suite.lab.Dir, "agent-"+host.name+"-clone")}
	clone.log = clone.data + ".log"
	if out, err := exec.Command("cp", "-a", host.data, clone.data).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	clone.place, err = suite.lab.Place(clone.name)
	must(t, err)
	must(t, c.beginAgent(clone))
	t.Cleanup(func() { c.removeClone(t, clone) })
	await(t, upTime, func() error {
		h, err := c.host(host.id)
		if err == nil && h.Alarm == nil {
			err = errors.New("no alarm")
		}
		return err
	})
	if h, err := c.host(host.id); err != nil || h.State != fleet.HostReady {
		t.Errorf("the host of the first agent is %s, %v", h.State, err)
	}
	if now := processes(mark); len(now) != 1 || now[0] != pid {
		t.Errorf("the processes of the pod are %v, was %d", now, pid)
	}
	// The first one still gets its orders.
	c.drop(t, p, mark)
}

// removeClone ends the second agent, and the alarm.
func (c *cluster) removeClone(t *testing.T, clone *agent) {
	t.Helper()
	if err := clone.proc.Kill(); err != nil {
		t.Error(err)
	}
	for _, a := range c.agents {
		if h, err := c.host(a.id); err == nil && h.Alarm != nil {
			must(t, c.admin(http.MethodPost, "/admin/v1/hosts/"+a.id+"/ack-alarm", nil, nil))
		}
	}
	// Its folder stays until the lab is cleared: by it, what it made in the kernel is found.
}

func TestRow34DependencyDeath(t *testing.T) {
	// The machines of the lab have no name server, no clock server and no registry at all: every other test here runs
	// without them. This one asks for what needs them.
	c, list := withAgents(t)
	body := realPod("no-registry", marker())
	body.Image = new("registry.invalid/none:1")
	var p v2.Pod
	must(t, c.user(http.MethodPost, "/v2/pods", body, &p))
	l := c.startLoad(t)
	from := l.h.Now()
	l.warm(t, 100)
	// The pod waits for its image, as one whose registry is away for a moment should; nothing else does.
	if shown, err := c.pod(p.ID); err != nil || shown.Status != fleet.StatusProvisioning {
		t.Errorf("the pod whose registry is away is %s (%s), %v", shown.Status, shown.StatusReason, err)
	}
	beside, mark, _, err := c.startPod("beside")
	must(t, err)
	for _, a := range list {
		must(t, c.hostBecomes(a.id, fleet.HostReady))
	}
	l.goesOn(t, from, resumes)
	must(t, c.user(http.MethodDelete, "/v2/pods/"+p.ID, nil, nil))
	must(t, c.user(http.MethodDelete, "/v2/pods/"+beside.ID, nil, nil))
	must(t, dies(mark))
	l.end(t, from, 100)
}
