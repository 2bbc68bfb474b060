package scheduler

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"time"

	"gantry/fleet"
	"gantry/scheduler/jobs"
	"gantry/scheduler/state"
	"gantry/serverless/queue"
)

// What a job has where nobody says anything else, and what one account's jobs may take (interface.md, "Job request"; wire-facts.md,
// §2.2 and §2.4).
const (
	defaultJobLife   = 24 * time.Hour
	longestJob       = 7 * 24 * time.Hour
	asyncRetention   = 30 * time.Minute
	syncRetention    = time.Minute
	leastWaiting     = 50  // jobs that may wait at any endpoint
	waitingPerWorker = 500 // of workers.max
	maxJobBytes      = 20 * fleet.GB
	maxPurged        = 1000 // in one command
	maxStreamed      = 1000 // chunks in one answer
)

// newJobID makes a random id, or, for an idempotency key, the one that goes with it.
func newJobID(who fleet.AccountID, endpoint fleet.EndpointID, once *fleet.Once) (id queue.ID) {
	if once == nil {
		_, _ = rand.Read(id[:]) // never fails
	} else {
		sum := sha256.Sum256([]byte(string(who) + "\x00" + string(endpoint) + "\x00" + once.Key))
		copy(id[:], sum[:])
	}
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80 // version 4
	return id
}

// millis is a duration as package queue counts it.
func millis(d time.Duration) uint32 { return uint32(min(d, longestJob).Milliseconds()) } //nolint:gosec // 7 days fit

// target is an endpoint some of whose jobs a caller may submit and see: its own ones, or those of a public model.
type target struct {
	fleet.Endpoint // shares what it refers to with the state
	who            fleet.AccountID
	model          *fleet.ModelView // nil: the endpoint is the caller's
}

// mayInvoke returns where the caller may submit jobs: id is that of an endpoint or of a public model. Errors: not_found, forbidden.
func mayInvoke(v *state.View, who fleet.Principal, id fleet.EndpointID) (t target, err error) {
	t.who = who.Account
	e := v.Endpoint(id)
	if e == nil || e.Account != who.Account {
		m, ok := v.Model(fleet.ModelID(id))
		if !ok {
			return t, fleet.NotFound("endpoint")
		}
		t.model, e = &m, v.Endpoint(m.Endpoint)
	}
	if e == nil {
		return t, fleet.NotFound("endpoint")
	}
	t.Endpoint = *e
	if !who.MayInvoke(id) {
		return t, fleet.Forbidden("the key may not submit jobs to this endpoint")
	}
	return t, nil
}

// has reports whether a job of the endpoint is one that the caller may see: those of a public model are their callers' alone.
func (t *target) has(j *queue.Job) bool {
	if t.model == nil || j.Sale == nil {
		return t.model == nil && j.Sale == nil
	}
	return j.Sale.Model == t.model.ID && j.Sale.Account == t.who
}

// SubmitJob puts a job in the queue of an endpoint, or of that behind a public model. One whose Once was seen before is answered with the job of then.
// Errors: not_found, forbidden, not_allowed (it is no queue endpoint), low_balance, rate_limited (the queue is full), too_large.
func (s *Service) SubmitJob(ctx context.Context, who fleet.Principal, id fleet.EndpointID, req fleet.JobRequest) (fleet.JobView, error) {
	now := s.Now()
	var t target
	err := s.read(ctx, func(v *state.View) (err error) {
		if t, err = mayInvoke(v, who, id); err != nil {
			return err
		}
		if t.Spec.Type != fleet.EndpointQueue {
			return &fleet.Error{Code: fleet.CodeNotAllowed, Msg: "not allowed for LB API", NothingDone: true}
		}
		if t.model == nil && broke(v, who.Account, now) {
			return fleet.NoCredit("Your account balance is too low to run jobs", 0, v.Balance(who.Account, now))
		}
		return nil
	})
	if err == nil && t.model != nil {
		err = s.mayCall(t.model, &req, t.Spec.TimeoutMS)
	}
	if err != nil {
		return fleet.JobView{}, err
	}
	cmd := jobs.Submit{Submit: queue.Submit{
		At: queue.At(now), ID: newJobID(who.Account, id, req.Once), Endpoint: t.ID, Account: t.Account, Policy: jobPolicy(&t.Spec, &req),
		MaxWaiting: max(leastWaiting, waitingPerWorker*t.Spec.Workers.Max), MaxBytes: maxJobBytes,
	}}
	if req.Once != nil { // whose body need not be sent again
		if made, err := s.madeBefore(cmd.ID, req, now); made.ID != "" || err != nil {
			return made, err
		}
	}
	job, err := s.held(ctx, &t, cmd.ID, func(ctx context.Context, sale *queue.Sale) (job jobs.Job, err error) {
		cmd.Sale = sale
		if cmd.Content, err = s.Jobs.Content(ctx, t.Account, cmd.ID, req.Body, cmd.MaxBytes, cmd.At); err != nil {
			return job, err
		}
		if s.Desks == nil {
			return jobs.One[jobs.Job](ctx, s.Jobs, cmd)
		}
		return s.Desks.Submit(ctx, cmd)
	})
	if fleet.CodeOf(err) == fleet.CodeExists && req.Once != nil {
		return s.madeBefore(cmd.ID, req, now)
	}
	if err != nil {
		return fleet.JobView{}, err
	}
	fleet.MarkFresh(ctx, fleet.ControlPlane) // of before the submission, if the caller goes on with it
	fleet.MarkFresh(ctx, fleet.JobPlane)
	return jobView(&job, nil, now), nil
}

// jobPolicy is what holds for a job: what its caller says, or else its endpoint.
func jobPolicy(spec *fleet.EndpointSpec, req *fleet.JobRequest) queue.Policy {
	pick := func(all ...int64) time.Duration {
		for _, ms := range all {
			if ms > 0 {
				return time.Duration(ms) * time.Millisecond
			}
		}
		return longestJob
	}
	p := queue.Policy{
		Execution: millis(pick(req.Execution, spec.TimeoutMS)), Life: millis(pick(req.Life, defaultJobLife.Milliseconds())),
		Retention: millis(asyncRetention), Retries: uint8(spec.Retries), Low: req.Low, Webhook: req.Webhook, Sync: req.Sync, //nolint:gosec // 0 to 3
	}
	if req.Sync {
		p.Retention = millis(syncRetention)
	}
	return p
}

// madeBefore returns the job that was submitted under an idempotency key, or nothing. Errors: invalid (it was another one).
func (s *Service) madeBefore(id queue.ID, req fleet.JobRequest, now time.Time) (fleet.JobView, error) {
	job, body, err := s.Jobs.Jobs.Read(id, queue.At(now), func(j *queue.Job) queue.Body { return j.Input })
	switch {
	case fleet.CodeOf(err) == fleet.CodeNotFound:
		return fleet.JobView{}, nil
	case err != nil:
		return fleet.JobView{}, err
	case job.Policy.Sync != req.Sync || len(body) > 0 && !bytes.Equal(body, req.Body):
		return fleet.JobView{}, fleet.Invalid("Idempotency-Key", "was used with another request")
	}
	return s.viewed(id, now)
}

// viewed shows a job with its output.
func (s *Service) viewed(id queue.ID, now time.Time) (fleet.JobView, error) {
	job, output, err := s.Jobs.Jobs.Read(id, queue.At(now), func(j *queue.Job) queue.Body {
		if j.Run == nil {
			return queue.Body{}
		}
		return j.Run.Output
	})
	if err != nil {
		return fleet.JobView{}, err
	}
	out := jobView(&job, output, now)
	if job.Status == queue.InQueue && job.Sale == nil {
		before := 0
		s.Jobs.Jobs.View(func(q *queue.Queue) {
			if j := q.Get(id); j != nil && j.Status == queue.InQueue {
				before = q.Before(j)
			}
		})
		why, err := s.waits(job.Account, job.Endpoint, before, now)
		out.Reason = cmp.Or(why, out.Reason)
		return out, err
	}
	return out, nil
}

// EndedJob returns a job with its output and its request, for its webhook, and the secret under which the call is signed; empty: it
// is not. Errors: not_found.
func (s *Service) EndedJob(id queue.ID) (view fleet.JobView, request []byte, key fleet.Secret, err error) {
	if view, err = s.viewed(id, s.Now()); err != nil {
		return view, nil, "", err
	}
	job, request, err := s.Jobs.Jobs.Read(id, queue.At(s.Now()), func(j *queue.Job) queue.Body { return j.Input })
	if err == nil && job.Sale == nil { // the secret is the owner's, and not the caller's
		key, err = s.webhookKey(job.Account, job.Endpoint)
	}
	return view, request, key, err
}

// jobView is what a caller sees of a job. The output of one that failed is its worker's error.
func jobView(j *jobs.Job, output []byte, now time.Time) fleet.JobView {
	out := fleet.JobView{
		ID: jobs.IDText(j.ID, j.Policy.Sync), Status: j.Status.String(), Ended: j.Status.Ended(), Submitted: j.Submitted.Time(),
		Worker: j.Worker(), Attempts: j.Attempt(),
	}
	if j.Run == nil {
		return out
	}
	out.Error, out.Reason = j.Run.Error, j.Run.Reason
	if j.Status == queue.Failed && out.Error == "" {
		out.Error = string(output)
	} else if len(output) > 0 && j.Status != queue.Failed {
		out.Output = output
	}
	if j.Run.Started == 0 {
		return out
	}
	if j.Sale != nil { // which worker it was, and what became of that, is its owner's to know
		out.Worker, out.Reason = "", ""
	}
	end := j.Run.Ended.Time()
	if j.Run.Ended == 0 {
		end = now
	}
	delay, ran := j.Run.Started.Time().Sub(out.Submitted), max(0, end.Sub(j.Run.Started.Time()))
	out.Delay, out.Execution = &delay, &ran
	return out
}

// findJob returns the job of an endpoint that the caller may see. Errors: not_found, forbidden.
func (s *Service) findJob(ctx context.Context, who fleet.Principal, endpoint fleet.EndpointID, text string) (t target, id queue.ID, err error) {
	if err = s.read(ctx, func(v *state.View) error { t, err = mayInvoke(v, who, endpoint); return err }); err != nil {
		return t, id, err
	}
	id, ok := jobs.ParseID(text)
	if !ok {
		return t, id, fleet.NotFound("job")
	}
	if !fleet.TakeFresh(ctx, fleet.JobPlane) {
		if err := s.Jobs.Barrier(ctx); err != nil {
			return t, id, err
		}
	}
	job, err := s.Jobs.Jobs.Get(id, queue.At(s.Now()))
	if err == nil && (job.Endpoint != t.ID || !t.has(&job.Job) || jobs.IDText(id, job.Policy.Sync) != text) {
		err = fleet.NotFound("job")
	}
	return t, id, err
}

// Job returns a job. Retention, when not 0, sets how many milliseconds after its end it is kept. Errors: not_found, forbidden.
func (s *Service) Job(ctx context.Context, who fleet.Principal, endpoint fleet.EndpointID, text string, retention int64) (fleet.JobView, error) {
	_, id, err := s.findJob(ctx, who, endpoint, text)
	if err != nil {
		return fleet.JobView{}, err
	}
	if retention > 0 {
		keep := millis(time.Duration(retention) * time.Millisecond)
		if j, err := s.Jobs.Jobs.Get(id, queue.At(s.Now())); err == nil && j.Policy.Retention != keep {
			if _, err := jobs.One[any](ctx, s.Jobs, jobs.Retain{Retain: queue.Retain{At: queue.At(s.Now()), Job: id, Retention: keep}}); err != nil {
				return fleet.JobView{}, err
			}
		}
	}
	return s.viewed(id, s.Now())
}

// JobRequest returns a job as it was submitted, or nothing once it is not kept any more. Errors: those of Job.
func (s *Service) JobRequest(ctx context.Context, who fleet.Principal, endpoint fleet.EndpointID, text string) ([]byte, error) {
	_, id, err := s.findJob(ctx, who, endpoint, text)
	if err != nil {
		return nil, err
	}
	_, request, err := s.Jobs.Jobs.Read(id, queue.At(s.Now()), func(j *queue.Job) queue.Body { return j.Input })
	return request, err
}

// AwaitJob is Job once it has ended, or wait is over.
func (s *Service) AwaitJob(ctx context.Context, who fleet.Principal, endpoint fleet.EndpointID, text string, wait time.Duration) (fleet.JobView, error) {
	_, id, err := s.findJob(ctx, who, endpoint, text)
	if err != nil {
		return fleet.JobView{}, err
	}
	return s.await(ctx, id, wait, func(j *jobs.Job) bool { return j.Status.Ended() })
}

// await returns a job once it is as wanted, or wait is over.
func (s *Service) await(ctx context.Context, id queue.ID, wait time.Duration, wanted func(*jobs.Job) bool) (fleet.JobView, error) {
	changed, stop := s.Jobs.Jobs.Watch(id)
	defer stop()
	over := time.NewTimer(wait)
	defer over.Stop()
	for {
		job, err := s.Jobs.Jobs.Get(id, queue.At(s.Now()))
		if err != nil {
			return fleet.JobView{}, err
		}
		if wanted(&job) {
			return s.viewed(id, s.Now())
		}
		select {
		case <-changed:
		case <-over.C:
			return s.viewed(id, s.Now())
		case <-ctx.Done():
			return fleet.JobView{}, ctx.Err()
		}
	}
}

// StreamJob returns the chunks of a job's stream that nobody was given yet, in order, once there are some, it has ended, or wait is
// over. more says that there are others already. What is returned is not returned again.
func (s *Service) StreamJob(
	ctx context.Context, who fleet.Principal, endpoint fleet.EndpointID, text string, wait time.Duration,
) (view fleet.JobView, chunks [][]byte, more bool, err error) {
	_, id, err := s.findJob(ctx, who, endpoint, text)
	if err != nil {
		return view, nil, false, err
	}
	view, err = s.await(ctx, id, wait, func(j *jobs.Job) bool { return j.Status.Ended() || len(j.Run.Unread()) > 0 })
	if err != nil {
		return view, nil, false, err
	}
	if job, err := s.Jobs.Jobs.Get(id, queue.At(s.Now())); err != nil || len(job.Run.Unread()) == 0 {
		return view, nil, false, err
	}
	chunks, left, err := s.Jobs.Take(ctx, jobs.Read{Read: queue.Read{Job: id, N: maxStreamed, At: queue.At(s.Now())}})
	return view, chunks, left > 0, err
}

// CancelJob ends a job that has not ended. Errors: not_found, forbidden.
func (s *Service) CancelJob(ctx context.Context, who fleet.Principal, endpoint fleet.EndpointID, text string) (fleet.JobView, error) {
	return s.turnJob(ctx, who, endpoint, text, func(ctx context.Context, _ *target, id queue.ID, at queue.Millis) (jobs.Job, error) {
		return jobs.One[jobs.Job](ctx, s.Jobs, jobs.Cancel{Cancel: queue.Cancel{At: at, Job: id}})
	})
}

// RetryJob lets a job that failed or took too long wait again. Errors: not_found, forbidden, not_allowed, and those of HoldCredit for
// one of a public model.
func (s *Service) RetryJob(ctx context.Context, who fleet.Principal, endpoint fleet.EndpointID, text string) (fleet.JobView, error) {
	return s.turnJob(ctx, who, endpoint, text, func(ctx context.Context, t *target, id queue.ID, at queue.Millis) (jobs.Job, error) {
		return s.held(ctx, t, id, func(ctx context.Context, sale *queue.Sale) (jobs.Job, error) {
			return jobs.One[jobs.Job](ctx, s.Jobs, jobs.Retry{Retry: queue.Retry{At: at, Job: id, Sale: sale}})
		})
	})
}

// turnJob does something to one job and shows the job as it is then.
func (s *Service) turnJob(
	ctx context.Context, who fleet.Principal, endpoint fleet.EndpointID, text string,
	turn func(context.Context, *target, queue.ID, queue.Millis) (jobs.Job, error),
) (fleet.JobView, error) {
	t, id, err := s.findJob(ctx, who, endpoint, text)
	if err != nil {
		return fleet.JobView{}, err
	}
	now := s.Now()
	job, err := turn(ctx, &t, id, queue.At(now))
	if err != nil {
		return fleet.JobView{}, err
	}
	return jobView(&job, nil, now), nil
}

// PurgeJobs cancels the jobs that wait, and returns how many. Errors: not_found, forbidden, not_allowed (of a public model).
func (s *Service) PurgeJobs(ctx context.Context, who fleet.Principal, endpoint fleet.EndpointID) (n int, err error) {
	var t target
	if err := s.read(ctx, func(v *state.View) error { t, err = mayInvoke(v, who, endpoint); return err }); err != nil {
		return 0, err
	}
	if t.model != nil {
		return 0, fleet.NotAllowed("the queue of a public model has others' jobs too: cancel your own")
	}
	at := queue.At(s.Now())
	for {
		// Those that are submitted meanwhile stay.
		some, err := jobs.One[int](ctx, s.Jobs, jobs.Purge{Purge: queue.Purge{At: at, Endpoint: endpoint, Max: maxPurged, Before: at + 1}})
		n += some
		if err != nil || some < maxPurged {
			return n, err
		}
	}
}

// JobCounts returns the numbers of an endpoint's jobs. Errors: not_found, forbidden.
func (s *Service) JobCounts(ctx context.Context, who fleet.Principal, endpoint fleet.EndpointID) (out fleet.JobCounts, err error) {
	var t target
	if err := s.read(ctx, func(v *state.View) error { t, err = mayInvoke(v, who, endpoint); return err }); err != nil {
		return out, err
	}
	if t.Spec.Type == fleet.EndpointBalanced {
		if s.Desks != nil {
			out = s.Desks.Requests(endpoint)
		}
		return out, nil
	}
	if err := s.Jobs.Barrier(ctx); err != nil {
		return out, err
	}
	s.Jobs.Jobs.View(func(q *queue.Queue) {
		c := q.Counts(t.ID)
		out = fleet.JobCounts{
			Waiting: c.Waiting + c.WaitingLow, Running: c.InProgress, Completed: c.Completed, Failed: c.Failed, Retried: c.Retried,
		}
	})
	return out, nil
}

// ListJobs returns a page of an endpoint's jobs without their outputs, the newest first, and where the next one begins; 0: there is
// none. Errors: not_found, forbidden, invalid.
func (s *Service) ListJobs(ctx context.Context, who fleet.Principal, endpoint fleet.EndpointID, page fleet.JobPage) (out []fleet.JobView, next uint64, err error) {
	var t target
	if err := s.read(ctx, func(v *state.View) error { t, err = mayInvoke(v, who, endpoint); return err }); err != nil {
		return nil, 0, err
	}
	for _, text := range page.Statuses {
		if _, ok := queue.ParseStatus(text); !ok {
			return nil, 0, fleet.Invalid("status", fmt.Sprintf("must be one of %s", strings.Join(queue.Statuses(), ", ")))
		}
	}
	if err := s.Jobs.Barrier(ctx); err != nil {
		return nil, 0, err
	}
	now := s.Now()
	out = []fleet.JobView{}
	list, next := s.Jobs.Jobs.List(t.ID, page.Before, page.Limit, func(j *queue.Job) bool {
		at := j.Submitted.Time()
		return !j.Expired(queue.At(now)) && t.has(j) && (len(page.Statuses) == 0 || slices.Contains(page.Statuses, j.Status.String())) &&
			!at.Before(page.From) && (page.To.IsZero() || at.Before(page.To))
	})
	for i := range list {
		out = append(out, jobView(&list[i], nil, now))
	}
	return out, next, nil
}
