package scheduler_test

import (
	"testing"

	"gantry/fleet"
	"gantry/test/plane"
)

// TestAWorkerGoesWhereItsModelIs: of hosts that are as good as each other, whichever comes first otherwise.
func TestAWorkerGoesWhereItsModelIs(t *testing.T) {
	p := plane.New(t)
	p.WithJobs()
	const model = "https://huggingface.co/o/n"
	made, _, err := p.CreateEndpoint(t.Context(), p.Who(plane.User), "", func(e *fleet.EndpointSpec) {
		e.Name, e.Image, e.Workers.Max, e.Workers.Idle, e.Models = "embed", "worker:1", 4, 10, []string{model}
		e.Scaler = fleet.Scaler{Type: fleet.ScaleByDelay, Value: 4}
		e.CPU, e.Centers = []fleet.CPURequest{{Flavor: "cpu3c", VCPU: 2}}, []fleet.DataCenterID{"dev-1"}
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	ref, err := fleet.ParseModelRef(model)
	if err != nil {
		t.Fatal(err)
	}
	p.AddHost("host0000000009")
	for _, has := range []fleet.HostID{"host0000000009", plane.Host, "host0000000009"} {
		for _, host := range []fleet.HostID{plane.Host, "host0000000009"} {
			p.Restock(host, func(i *fleet.Inventory) {
				if i.Models = nil; host == has {
					i.Models = []string{ref.String()}
				}
			})
		}
		pod, err := p.StartWorker(t.Context(), made.ID)
		if err != nil || pod.Host != has {
			t.Errorf("on %s, %v; the model is on %s", pod.Host, err, has)
		}
		if err := p.EndWorker(t.Context(), &pod); err != nil {
			t.Fatal(err)
		}
	}
}
