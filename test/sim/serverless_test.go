package sim

import (
	"context"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/serverless/queue"
)

func endpoints(w *world) { w.serverless = true }

// endpoint makes an endpoint with GPU workers.
func (s *scene) endpoint(gpus int, change func(*fleet.EndpointSpec)) fleet.EndpointID {
	s.Helper()
	price := fleet.Dollar
	s.insist("price", func(ctx context.Context, p *process) error {
		return p.service.PutGPUType(ctx, fleet.GPUType{
			ID: gpuType, Name: "H100 SXM", Manufacturer: "NVIDIA", MemoryGB: 80, Pool: gpuPool, Secure: price, Community: price, Serverless: price,
		})
	})
	var made fleet.EndpointView
	s.insist("endpoint", func(ctx context.Context, p *process) (err error) {
		made, _, err = p.service.CreateEndpoint(ctx, principal(s.account()), "", func(e *fleet.EndpointSpec) {
			e.Name, e.Image, e.GPU = "endpoint", image("serves", 0, 0), &fleet.EndpointGPU{Pools: []string{gpuPool}, Count: gpus}
			e.Scaler, e.Workers = fleet.Scaler{Type: fleet.ScaleByRequests, Value: 1}, fleet.WorkerBounds{Max: 1}
			change(e)
		}, nil)
		return err
	})
	return made.ID
}

// job has a job done.
func (s *scene) job(id fleet.EndpointID) {
	s.Helper()
	s.insist("job", func(ctx context.Context, p *process) error {
		_, err := p.service.SubmitJob(ctx, principal(s.account()), id, fleet.JobRequest{Body: []byte(`{"input":{"do":"echo"}}`), Life: time.Hour.Milliseconds()})
		return err
	})
	s.soon("the job is completed", func() bool {
		for _, j := range s.jobsNow().jobs {
			if j.endpoint == id && j.Status != queue.Completed {
				return false
			}
		}
		return true
	})
}

// workers are those of an endpoint that are not gone: how many hold GPUs, and how many of these are frozen.
func (s *scene) workers() (held, frozen int) {
	for _, p := range s.picture().pods {
		if p.Owner.Kind != fleet.OwnerEndpoint || !p.Held {
			continue
		}
		if held++; !p.Frozen.IsZero() {
			frozen++
		}
	}
	return held, frozen
}

// TestAnEndpointGoesToZeroAndBack: without jobs it has no worker, and a job brings one.
func TestAnEndpointGoesToZeroAndBack(t *testing.T) {
	play(t, []int{1}, endpoints, func(s *scene) {
		id := s.endpoint(1, func(*fleet.EndpointSpec) {})
		for range 3 {
			s.job(id)
			s.soon("it has no worker", func() bool { held, _ := s.workers(); return held == 0 })
		}
	})
}

// TestAFrozenWorkerGivesItsGPUsToAPod, and comes back as another one when the pod has gone.
func TestAFrozenWorkerGivesItsGPUsToAPod(t *testing.T) {
	play(t, []int{2}, endpoints, func(s *scene) {
		id := s.endpoint(2, func(e *fleet.EndpointSpec) { e.FlashBoot = fleet.FlashBootPriority })
		for range 2 { // it thaws
			s.job(id)
			s.soon("its worker is frozen", func() bool { held, frozen := s.workers(); return held == 1 && frozen == 1 })
		}
		if n := s.lines.count("process began"); n != 1 {
			s.Errorf("%d processes began; the worker was to be thawed", n)
		}
		rec, err := s.create(s.account(), gpuPod(1, image("steady", 0, 0)))
		if err != nil {
			s.Fatal(err)
		}
		s.soon("the pod runs, and the worker is gone", func() bool {
			p, _ := s.pod(rec.ID)
			held, _ := s.workers()
			return p.Status == fleet.StatusRunning && held == 0
		})
		if _, err := s.act(s.account(), rec.ID, fleet.ActionTerminate); err != nil {
			s.Fatal(err)
		}
		s.job(id)
	})
}
