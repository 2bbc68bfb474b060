package dispatch

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/pki"
	"gantry/scheduler/state"
)

// Whatever a broken host says, what is proposed of it is bounded.
func TestWhatAHostSaysIsBoundedBeforeItIsProposed(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	many := map[string]int64{long: 1, "dance": 2}
	for i := range 1000 {
		many[fmt.Sprintf("step%d", i)] = 3
	}
	many["started"] = time.Now().UnixNano()
	reports := []*agentrpc.PodReport{
		{PodId: "p", Incarnation: 1, Event: "running", StepsNs: many, Digest: long, Reason: long, LogTail: long},
		{PodId: long, Event: "running"},
		{Event: "running"},
		{PodId: "q", Event: long},
		{PodId: "q", Event: "stop"},
		{PodId: "q"},
	}
	for range 10_000 {
		reports = append(reports, &agentrpc.PodReport{PodId: "r", Event: "exited"})
	}
	got := decodeReports(reports, 0)
	if len(got) != 1+maxReports-6 || len(got[0].Steps) != 1 || got[0].Pod != "p" || got[1].Pod != "r" {
		t.Errorf("%d reports, the first with %v", len(got), got[0].Steps)
	}
	bounded(t, "reports", state.ReportPods{Host: "h", Reports: got[:2]}, 30<<10)

	var gpus, images []string
	var ports []*agentrpc.Port
	var devices []*agentrpc.GPU
	for i := range 10_000 {
		gpus, images = append(gpus, fmt.Sprint("GPU-", i)), append(images, fmt.Sprintf("%0500d", i))
		ports = append(ports, &agentrpc.Port{Number: int32(i), Public: 70_000}, &agentrpc.Port{Number: -1, Public: 30_000})
		devices = append(devices, &agentrpc.GPU{Uuid: long, Type: long, Pci: long, Parent: long, Sick: long})
	}
	ledger := decodePods([]*agentrpc.LedgerPod{
		{PodId: long, Incarnation: 1},
		{Incarnation: 1},
		{PodId: "p", Incarnation: 1, Goal: long, Gpus: append([]string{long, ""}, gpus...), Ports: ports},
		{PodId: "q", Goal: "stop", Ports: []*agentrpc.Port{{Number: 22, Public: 30_022}}},
	})
	if len(ledger) != 2 || ledger[0].Goal != "" || len(ledger[0].GPUs) > maxGPUs || len(ledger[0].Mappings) != 0 ||
		ledger[1].Goal != fleet.GoalStop || len(ledger[1].Mappings) != 1 {
		t.Errorf("%d pods: %d GPUs, %v, %+v", len(ledger), len(ledger[0].GPUs), ledger[0].Mappings, ledger[1])
	}
	inv := decodeInventory(&agentrpc.Inventory{Images: images, Digest: long})
	if inv.Digest != "" || len(inv.Images) > maxImages {
		t.Errorf("%d images", len(inv.Images))
	}
	bounded(t, "images", state.UpdateInventory{Inventory: inv}, imageBytes+4<<10)
	bounded(t, "GPUs", state.UpdateInventory{Inventory: decodeInventory(&agentrpc.Inventory{Gpus: devices})}, (maxGPUs+1)*(4*(maxWord+8)+agentrpc.MaxSentence+64))
}

func bounded(t *testing.T, what string, cmd state.Command, most int) {
	t.Helper()
	data, err := state.Encode(cmd)
	check(t, err)
	if len(data) > most {
		t.Errorf("%s take %d bytes of the log, at most %d may", what, len(data), most)
	}
}

// A hello with ids that nobody has is none.
func TestAHelloHasIDsOfABoundedLength(t *testing.T) {
	y := newYard(t)
	g := y.join("h1")
	for name, change := range map[string]func(*agentrpc.Hello){
		"machine": func(h *agentrpc.Hello) { h.MachineId = strings.Repeat("m", 257) }, "boot": func(h *agentrpc.Hello) { h.BootId = strings.Repeat("b", 257) },
		"hardware": func(h *agentrpc.Hello) { h.Hardware = strings.Repeat("h", 257) }, "run": func(h *agentrpc.Hello) { h.Run = strings.Repeat("r", 65) },
	} {
		hello := g.hello()
		change(hello)
		stream, err := g.client.Session(y.ctx)
		check(t, err)
		_, err = agentrpc.Greet(y.ctx, stream, hello, func() {})
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A host without a name is told so.
func TestAHostJoinsWithAName(t *testing.T) {
	y := newYard(t)
	for name, in := range map[string]*agentrpc.JoinRequest{
		"no name": {MachineId: "m"}, "no machine": {Name: "n"}, "a long name": {MachineId: "m", Name: strings.Repeat("n", 254)},
	} {
		in.Token = y.token()
		if _, err := y.server.Join(y.ctx, in); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// token is the text of a token that nobody gave out.
func (y *yard) token() string {
	return pki.NewJoinToken(pki.DigestOf(y.ca.Cert())).Text()
}
