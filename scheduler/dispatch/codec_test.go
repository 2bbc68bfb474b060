package dispatch

import (
	"bytes"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/testing/protocmp"

	"gantry/fleet"
	"gantry/internal/agentrpc"
)

func TestAssignmentCarriesPortsAndMount(t *testing.T) {
	p := &fleet.Pod{
		ID: "p1", Goal: fleet.GoalRun,
		Spec: fleet.PodSpec{
			Ports:      []fleet.Port{{Number: 22, Protocol: "tcp"}, {Number: 22, Protocol: "http"}, {Number: 9000, Protocol: "tcp"}},
			Persistent: &fleet.PersistentMount{SizeGB: 20, Path: "/workspace"},
		},
		Mappings: []fleet.PortMapping{{Private: 22, Public: 30_001}},
	}
	got := encodeAssignment(p, time.Second)
	encodeStart(got, p, &fleet.Credential{Username: "u", Password: "p"})
	want := &agentrpc.Assignment{
		PodId: "p1", Goal: "run", GraceMs: 1000, Limits: &agentrpc.Resources{},
		Ports:        []*agentrpc.Port{{Number: 22, Protocol: "tcp", Public: 30_001}, {Number: 22, Protocol: "http"}, {Number: 9000, Protocol: "tcp"}},
		PersistentGb: 20, PersistentPath: "/workspace", Registry: &agentrpc.Credential{Username: "u", Password: "p"},
	}
	if d := cmp.Diff(want, got, protocmp.Transform()); d != "" {
		t.Error(d)
	}
	none := &agentrpc.Assignment{}
	if encodeStart(none, p, nil); none.Registry != nil {
		t.Error("a credential where there is none")
	}
}

// plainAddrs compares addresses, which hide what they are made of.
var plainAddrs = cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{})

func TestInventoryPorts(t *testing.T) {
	for _, c := range []struct {
		ip       string
		from, to int32
		want     fleet.Inventory
	}{
		{"203.0.113.7", 30_000, 39_999, fleet.Inventory{PublicIP: "203.0.113.7", PortFrom: 30_000, PortTo: 39_999}},
		{"203.0.113.7", 1, 65_535, fleet.Inventory{PublicIP: "203.0.113.7", PortFrom: 1, PortTo: 65_535}},
		{"", 30_000, 39_999, fleet.Inventory{}},
		{"<script>", 30_000, 39_999, fleet.Inventory{}},
		{"203.0.113.7", 0, 0, fleet.Inventory{}},
		{"203.0.113.7", 2, 1, fleet.Inventory{}},
		{"203.0.113.7", -5, 10, fleet.Inventory{}},
		{"203.0.113.7", 1, 65_536, fleet.Inventory{}},
	} {
		got := decodeInventory(&agentrpc.Inventory{PublicIp: c.ip, PortFrom: c.from, PortTo: c.to})
		if d := cmp.Diff(c.want, got, plainAddrs); d != "" {
			t.Errorf("%s %d-%d: %s", c.ip, c.from, c.to, d)
		}
	}
}

func TestCredentialGoesWithPodsThatAreToRun(t *testing.T) {
	var log bytes.Buffer
	asked := 0
	x := &session{server: &Server{Config: Config{
		Log: slog.New(slog.NewTextHandler(&log, nil)),
		Credentials: func(account fleet.AccountID, id fleet.RegistryID) (*fleet.Credential, error) {
			asked++
			if account != "a1" || id != "r1" {
				return nil, errors.New("no such registry")
			}
			return &fleet.Credential{Username: "robot", Password: "correct-horse"}, nil
		},
	}}}
	pod := func(account fleet.AccountID, registry fleet.RegistryID, goal fleet.Goal) *fleet.Pod {
		return &fleet.Pod{ID: "p1", Account: account, Goal: goal, Spec: fleet.PodSpec{Registry: registry}}
	}
	if c := x.credential(pod("a1", "r1", fleet.GoalRun)); c == nil || c.Username != "robot" || c.Password != "correct-horse" {
		t.Errorf("to run: %+v", c)
	}
	if log.Len() != 0 {
		t.Errorf("logged: %s", log.String())
	}
	for name, p := range map[string]*fleet.Pod{
		"to stop": pod("a1", "r1", fleet.GoalStop), "to go": pod("a1", "r1", fleet.GoalGone), "without registry": pod("a1", "", fleet.GoalRun),
	} {
		if c := x.order(p, nil).GetRegistry(); c != nil || asked != 1 {
			t.Errorf("%s: %+v, asked %d times", name, c, asked)
		}
	}
	if c := x.credential(pod("a2", "r1", fleet.GoalRun)); c != nil || !strings.Contains(log.String(), "registry=r1") {
		t.Errorf("one that cannot be opened: %+v, log %s", c, log.String())
	}
	x.server.Credentials = nil
	if c := x.credential(pod("a1", "r1", fleet.GoalRun)); c != nil {
		t.Errorf("without a source: %+v", c)
	}
}

func TestHeartbeatTellsGPUs(t *testing.T) {
	x := &session{}
	x.heartbeat(&agentrpc.Heartbeat{Pods: []*agentrpc.PodLive{
		{PodId: "p1", Gpus: []*agentrpc.GPUUse{{Util: 40, MemoryUtil: 50}, {}}}, {PodId: "p2"},
	}}, time.Now())
	if d := cmp.Diff([]fleet.GPUUse{{Util: 40, MemoryUtil: 50}, {}}, x.livePod("p1").GPUs); d != "" {
		t.Error(d)
	}
	if g := x.livePod("p2").GPUs; len(g) != 0 {
		t.Errorf("of a pod that was not measured: %v", g)
	}
}

// TestAHostsClockIsPutRight reads the end of a process by clocks that are right and wrong.
func TestAHostsClockIsPutRight(t *testing.T) {
	now := time.Date(2026, 10, 1, 12, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct{ sent, ended, want time.Time }{
		"right, a moment under way":   {now.Add(-time.Second), now.Add(-time.Minute), now.Add(-time.Minute)},
		"right, hours after its end":  {now, now.Add(-9 * time.Hour), now.Add(-9 * time.Hour)},
		"without a battery":           {time.Unix(90, 0), time.Unix(60, 0), now.Add(-30 * time.Second)},
		"two hours behind":            {now.Add(-2 * time.Hour), now.Add(-121 * time.Minute), now.Add(-time.Minute)},
		"an hour ahead":               {now.Add(time.Hour), now.Add(59 * time.Minute), now.Add(-time.Minute)},
		"of a host that does not say": {time.Time{}, now.Add(-time.Hour), now.Add(-time.Hour)},
	} {
		var sent int64
		if !c.sent.IsZero() {
			sent = c.sent.UnixNano()
		}
		got := decodeReports([]*agentrpc.PodReport{
			{PodId: "p", Event: "exited", AtNs: c.ended.UnixNano(), StepsNs: map[string]int64{"started": c.ended.UnixNano(), "made up": 1}}, {PodId: "q", Event: "gone"},
		}, clockError(sent, now))
		if !got[0].At.Equal(c.want) || !got[1].At.IsZero() {
			t.Errorf("%s: ended at %s, want %s; without a time: %s", name, got[0].At, c.want, got[1].At)
		}
		if steps := got[0].Steps; len(steps) != 1 || !steps[fleet.StepStarted].Equal(c.want) {
			t.Errorf("%s: the steps are %v", name, steps)
		}
	}
}
