package sim

import (
	"context"
	"fmt"
	"strings"
	"time"

	"gantry/fleet"
	"gantry/scheduler/jobs"
	"gantry/serverless/queue"
)

const (
	mostEndpoints = 4 // at a time
	gpuPool       = "ADA_80_PRO"
	retireTime    = 3 * time.Minute
)

// endpoint is what users know of one.
type endpoint struct {
	id      fleet.EndpointID
	account fleet.AccountID
	kind    string // of its image
}

// submitted is a job that a user was told of.
type submitted struct {
	of endpoint
	id string
}

// invoker does what a user of serverless endpoints does now and then.
func (d *driver) invoker() {
	d.tally.Lock()
	defer d.tally.Unlock()
	if d.invoking >= maxCalls {
		return
	}
	call := d.invocation()
	d.invoking++
	d.calls.Go(func() {
		call()
		d.tally.Lock()
		defer d.tally.Unlock()
		d.invoking--
	})
}

// invocation decides on a call; tally is held.
func (d *driver) invocation() func() {
	n := d.rng.IntN(100)
	if len(d.endpoints) == 0 || n < 6 && len(d.endpoints) < mostEndpoints {
		account, kind, change := d.accounts[d.rng.IntN(len(d.accounts))], d.workerKind(), d.endpointChange()
		gpu := d.rng.IntN(4) == 0
		ref := image(kind, d.rng.IntN(20), d.rng.IntN(2))
		return func() { d.userMakesEndpoint(account, kind, ref, gpu, change) }
	}
	e := d.endpoints[d.rng.IntN(len(d.endpoints))]
	switch {
	case n < 13:
		change, ref := d.endpointChange(), ""
		if d.rng.IntN(3) == 0 { // of the same kind, so a rolling release
			ref = image(e.kind, d.rng.IntN(20), 2+d.rng.IntN(9))
		}
		return func() { d.userChangesEndpoint(e, ref, change) }
	case n < 15 && len(d.endpoints) > 1:
		return func() { d.userDeletesEndpoint(e, d.serves) }
	case n < 70 || len(d.submissions) == 0:
		req := d.jobRequest()
		return func() { d.userSubmits(e, req) }
	case n < 72:
		return func() { d.userPurges(e) }
	}
	j := d.submissions[len(d.submissions)-1-d.rng.IntN(min(len(d.submissions), 20))]
	switch {
	case n < 80:
		return func() { d.userTurns("cancel", j, (*driver).cancels) }
	case n < 88:
		return func() { d.userTurns("retry", j, (*driver).retries) }
	}
	return func() { d.userTurns("status", j, (*driver).reads) }
}

// workerKind is what the workers of an endpoint do.
func (d *driver) workerKind() string {
	return []string{"serves", "serves", "serves", "serves", "fail", "missing"}[d.rng.IntN(6)]
}

// endpointChange is what a user says of an endpoint; tally is held.
func (d *driver) endpointChange() func(*fleet.EndpointSpec) {
	bounds := fleet.WorkerBounds{Min: max(0, d.rng.IntN(4)-2), Max: 1 + d.rng.IntN(3)}
	scaler := fleet.Scaler{Type: fleet.ScaleByDelay, Value: float64(1 + d.rng.IntN(5))}
	if bounds.Idle = 1 + d.rng.IntN(20); d.rng.IntN(2) == 0 {
		scaler, bounds.Idle = fleet.Scaler{Type: fleet.ScaleByRequests, Value: float64(1 + d.rng.IntN(3))}, 0
	}
	bounds.Min = min(bounds.Min, bounds.Max)
	flash := []fleet.FlashBoot{fleet.FlashBootOff, fleet.FlashBootOn, fleet.FlashBootPriority}[d.rng.IntN(3)]
	retries, timeout := d.rng.IntN(4), int64(20_000+d.rng.IntN(40_000))
	return func(s *fleet.EndpointSpec) {
		s.Workers, s.Scaler, s.FlashBoot, s.Retries, s.TimeoutMS, s.FailAfter = bounds, scaler, flash, retries, timeout, 60
	}
}

// jobRequest is what a user submits; tally is held.
func (d *driver) jobRequest() fleet.JobRequest {
	do := []string{"sleep", "sleep", "sleep", "echo", "error", "crash", "stream", "progress", "refresh", "lie"}[d.rng.IntN(10)]
	twist := []string{"", "", "", "", twistLate, twistTwice, twistVanish}[d.rng.IntN(7)]
	pad := ""
	if d.rng.IntN(20) == 0 { // comes in parts
		pad = strings.Repeat("x", jobs.MaxInline)
	}
	req := fleet.JobRequest{Sync: d.rng.IntN(5) == 0, Low: d.rng.IntN(8) == 0, Webhook: d.rng.IntN(4) == 0, Life: int64(60_000 + d.rng.IntN(600_000))}
	req.Body = fmt.Appendf(nil, `{"input":{"do":%q,"seconds":%d,"twist":%q,"pad":%q}}`, do, d.rng.IntN(15), twist, pad)
	if d.rng.IntN(3) == 0 {
		d.numbers++
		key := fmt.Sprintf("job-%d", d.numbers)
		req.Once = &fleet.Once{Key: key, Fingerprint: []byte(key)}
	}
	return req
}

// serves calls the scheduler that leads, for a user of endpoints.
func (d *driver) serves(call func(context.Context, *process) error) error {
	_, err := d.ask(func(ctx context.Context, p *process) (fleet.PodView, error) { return fleet.PodView{}, call(ctx, p) })
	return err
}

func (d *driver) userMakesEndpoint(account fleet.AccountID, kind, ref string, gpu bool, change func(*fleet.EndpointSpec)) {
	var made fleet.EndpointView
	err := d.serves(func(ctx context.Context, p *process) (err error) {
		made, _, err = p.service.CreateEndpoint(ctx, principal(account), "", func(s *fleet.EndpointSpec) {
			s.Name, s.Image, s.CPU = "endpoint", ref, []fleet.CPURequest{{Flavor: cpuFlavor, VCPU: 2}}
			if gpu {
				s.CPU, s.GPU = nil, &fleet.EndpointGPU{Pools: []string{gpuPool}, Count: 1}
			}
			change(s)
		}, nil)
		return err
	})
	d.told("endpoint", err)
	if err == nil {
		d.tally.Lock()
		defer d.tally.Unlock()
		d.endpoints = append(d.endpoints, endpoint{made.ID, account, kind})
	}
}

func (d *driver) userChangesEndpoint(e endpoint, ref string, change func(*fleet.EndpointSpec)) {
	err := d.serves(func(ctx context.Context, p *process) error {
		_, err := p.service.UpdateEndpoint(ctx, principal(e.account), e.id, func(s *fleet.EndpointSpec) {
			if change(s); ref != "" {
				s.Image = ref
			}
		})
		return err
	})
	d.told("endpoint changed", err, fleet.CodeNotFound)
}

// insistently calls the scheduler that leads until there is an answer.
func (d *driver) insistently(call func(context.Context, *process) error) error {
	return d.insists(patience, call)
}

// userDeletesEndpoint deletes an endpoint; ask calls the scheduler.
func (d *driver) userDeletesEndpoint(e endpoint, ask func(func(context.Context, *process) error) error) {
	d.tally.Lock()
	d.deleted[e.id] = true // from now on it may be gone
	var rest []endpoint
	for _, other := range d.endpoints {
		if other.id != e.id {
			rest = append(rest, other)
		}
	}
	d.endpoints = rest
	d.tally.Unlock()
	err := ask(func(ctx context.Context, p *process) error {
		return p.service.DeleteEndpoint(ctx, principal(e.account), e.id)
	})
	d.told("endpoint deleted", err, fleet.CodeNotFound)
}

// userSubmits submits a job, half the time twice when there is a key: then it is the same one.
func (d *driver) userSubmits(e endpoint, req fleet.JobRequest) {
	var first string
	for range 2 {
		var view fleet.JobView
		err := d.serves(func(ctx context.Context, p *process) (err error) {
			view, err = p.service.SubmitJob(ctx, principal(e.account), e.id, req)
			return err
		})
		d.paid(e.account, err)
		d.told("job", err, fleet.CodeNotFound, fleet.CodeNoCredit, fleet.CodeLimited)
		if err != nil {
			return
		}
		d.tally.Lock()
		if first == "" {
			d.submissions = append(d.submissions, submitted{e, view.ID})
			d.ackedJobs[view.ID] = e.id
		} else if first != view.ID && !d.passed(first) {
			d.broke("jobs: one key made the jobs %s and %s", first, view.ID)
		}
		d.tally.Unlock()
		if first = view.ID; req.Once == nil {
			return
		}
	}
}

func (d *driver) userPurges(e endpoint) {
	err := d.serves(func(ctx context.Context, p *process) error {
		_, err := p.service.PurgeJobs(ctx, principal(e.account), e.id)
		return err
	})
	d.told("purge", err, fleet.CodeNotFound)
}

func (d *driver) userTurns(what string, j submitted, turn func(*driver, context.Context, *process, submitted) error) {
	err := d.serves(func(ctx context.Context, p *process) error { return turn(d, ctx, p, j) })
	d.told(what, err, fleet.CodeNotFound, fleet.CodeNotAllowed)
}

func (d *driver) cancels(ctx context.Context, p *process, j submitted) error {
	view, err := p.service.CancelJob(ctx, principal(j.of.account), j.of.id, j.id)
	if err == nil && !view.Ended {
		d.broke("jobs: %s was cancelled and is %s", j.id, view.Status)
	}
	return err
}

func (d *driver) retries(ctx context.Context, p *process, j submitted) error {
	d.noteOf(j.id, func(n *taskNote) { n.again++ }) // whatever the answer will be
	_, err := p.service.RetryJob(ctx, principal(j.of.account), j.of.id, j.id)
	return err
}

// reads reads a job, which is one of its account's alone.
func (d *driver) reads(ctx context.Context, p *process, j submitted) error {
	view, err := p.service.Job(ctx, principal(j.of.account), j.of.id, j.id, 0)
	if err == nil && view.ID != j.id {
		d.broke("jobs: %s is shown for %s", view.ID, j.id)
	}
	for _, other := range d.accounts {
		if other == j.of.account {
			continue
		}
		if _, err := p.service.Job(ctx, principal(other), j.of.id, j.id, 0); err == nil {
			d.broke("I8: %s sees job %s of another account", other, j.id)
		}
	}
	return err
}

// rejoin makes what a restored state says what users know of endpoints. It has no jobs.
func (d *driver) rejoin(now picture) {
	d.workload = newWorkload()
	d.regang(now)
	d.endpoints, d.submissions = nil, nil
	for _, e := range now.endpoints {
		d.endpoints = append(d.endpoints, endpoint{e.ID, e.Account, behaviorOf(e.Spec.Image).kind})
	}
}

// calmed is what users do when the faults are over: endpoints whose workers never work are deleted.
func (d *driver) calmed() {
	for _, e := range d.picture().endpoints {
		if behaviorOf(e.Spec.Image).kind != "serves" {
			d.userDeletesEndpoint(endpoint{id: e.ID, account: e.Account}, d.insistently)
		}
	}
}

// retire has every endpoint deleted: nothing of their workers and jobs is left soon.
func (d *driver) retire() {
	if !d.serverless || len(d.broken()) > 0 {
		return
	}
	for _, e := range d.picture().endpoints { // also those of which no user had an answer
		d.userDeletesEndpoint(endpoint{id: e.ID, account: e.Account}, d.insistently)
	}
	var left []string
	if until(retireTime, func() bool { left = d.workersLeft(); return len(left) == 0 }) != nil {
		d.broke("endpoints: %s after the last was deleted: %v", retireTime, left)
	}
}

// workersLeft lists workers that are not gone, and what is left of endpoints that are.
func (d *driver) workersLeft() (left []string) {
	now := d.picture()
	for id, p := range now.pods {
		if p.Owner.Kind == fleet.OwnerEndpoint && (p.Status != fleet.StatusTerminated || p.Held) {
			left = append(left, fmt.Sprintf("worker %s of %s is %s on %s, held %v, frozen %v", id, p.Owner.ID, p.Status, p.Host, p.Held, !p.Frozen.IsZero()))
		}
	}
	known := map[fleet.EndpointID]bool{}
	for _, e := range now.endpoints {
		known[e.ID] = true
	}
	for id, j := range d.jobsNow().jobs {
		switch {
		case !known[j.endpoint]:
			left = append(left, fmt.Sprintf("job %s of endpoint %s, which is deleted", jobs.IDText(id, false), j.endpoint))
		case j.Status == queue.InProgress:
			left = append(left, fmt.Sprintf("job %s is in progress", jobs.IDText(id, false)))
		}
	}
	return left
}
