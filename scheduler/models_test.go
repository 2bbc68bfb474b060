package scheduler

import (
	"context"
	"errors"
	"slices"
	"testing"

	"gantry/fleet"
	"gantry/scheduler/jobs"
	"gantry/scheduler/state"
	"gantry/serverless/queue"
)

const drawSchema = `{"type":"object","properties":{"prompt":{"type":"string"}},"required":["prompt"]}`

// gallery is a workplace whose endpoint is behind the public model draw, at 2 dollars a job, which caller may call with 5 dollars.
type gallery struct {
	*workplace
	caller fleet.Principal
}

func newGallery(t *testing.T) *gallery {
	t.Helper()
	g := &gallery{newWorkplace(t), member("other")}
	g.caller.Invoke = []string{fleet.InvokeAll}
	for _, cmd := range []state.Command{
		state.PutAccount{Account: fleet.Account{ID: "other", Name: "Other", CreatedAt: g.clock(), Prepaid: true}},
		state.AddCredit{Account: "other", Amount: 5 * fleet.Dollar, At: g.clock()},
	} {
		if _, err := g.svc.commit(t.Context(), cmd); err != nil {
			t.Fatal(err)
		}
	}
	_, err := g.svc.PutModel(t.Context(), fleet.Model{
		ID: "draw", Endpoint: g.endpoint, Schema: []byte(drawSchema), Price: fleet.ModelPrice{Request: 2 * fleet.Dollar}, Limits: fleet.ModelLimits{Jobs: 10},
	})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// call submits a job of the model.
func (g *gallery) call(body string) (fleet.JobView, error) {
	return g.svc.SubmitJob(context.Background(), g.caller, "draw", fleet.JobRequest{Body: []byte(body)})
}

func (g *gallery) holds() (n int) {
	g.t.Helper()
	if err := g.svc.Store.View(func(v *state.View) error { m, _ := v.Model("draw"); n = m.Jobs; return nil }); err != nil {
		g.t.Fatal(err)
	}
	return n
}

func (g *gallery) is(what string, err error, code fleet.Code) {
	g.t.Helper()
	if fleet.CodeOf(err) != code {
		g.t.Errorf("%s: %v, want %s", what, err, code)
	}
}

const prompt = `{"input":{"prompt":"a cat"}}`

// A job of a model is its caller's: neither the owner of the endpoint nor anybody else sees it.
func TestAJobOfAModelIsItsCallersAlone(t *testing.T) {
	g := newGallery(t)
	v, err := g.call(prompt)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	if got, err := g.svc.Job(ctx, g.caller, "draw", v.ID, 0); err != nil || got.Status != "IN_QUEUE" || got.Reason != "" {
		t.Errorf("its caller: %+v, %v", got, err)
	}
	for what, ask := range map[string]struct {
		who fleet.Principal
		at  fleet.EndpointID
	}{"the owner, at the endpoint": {g.who, g.endpoint}, "another caller": {g.who, "draw"}, "the caller, at the endpoint": {g.caller, g.endpoint}} {
		_, err := g.svc.Job(ctx, ask.who, ask.at, v.ID, 0)
		g.is(what, err, fleet.CodeNotFound)
		_, err = g.svc.CancelJob(ctx, ask.who, ask.at, v.ID)
		g.is(what+" cancels", err, fleet.CodeNotFound)
	}
	own, _ := g.svc.SubmitJob(ctx, g.who, g.endpoint, fleet.JobRequest{Body: []byte(`{"input":{}}`)})
	for _, list := range []struct {
		who  fleet.Principal
		at   fleet.EndpointID
		want string
	}{{g.caller, "draw", v.ID}, {g.who, g.endpoint, own.ID}} {
		page, _, err := g.svc.ListJobs(ctx, list.who, list.at, fleet.JobPage{Limit: 10})
		if err != nil || len(page) != 1 || page[0].ID != list.want {
			t.Errorf("%s lists %+v, %v", list.who.Account, page, err)
		}
	}
	_, err = g.svc.PurgeJobs(ctx, g.caller, "draw")
	g.is("a caller purges", err, fleet.CodeNotAllowed)
	if n, err := g.svc.JobCounts(ctx, g.caller, "draw"); err != nil || n.Waiting != 2 {
		t.Errorf("counts: %+v, %v", n, err)
	}
	narrow := g.caller
	narrow.Invoke = []string{string(g.endpoint)}
	_, err = g.svc.SubmitJob(ctx, narrow, "draw", fleet.JobRequest{Body: []byte(prompt)})
	g.is("a key for another endpoint", err, fleet.CodeForbidden)
}

func TestACallHoldsCredit(t *testing.T) {
	g := newGallery(t)
	for range 2 {
		if _, err := g.call(prompt); err != nil {
			t.Fatal(err)
		}
	}
	_, err := g.call(prompt)
	g.is("with one dollar left", err, fleet.CodeNoCredit)
	if n := g.holds(); n != 2 {
		t.Errorf("%d holds", n)
	}
}

func TestAnInputThatIsNotAsTheSchemaSays(t *testing.T) {
	g := newGallery(t)
	_, err := g.call(`{"input":{"prompt":7}}`)
	var why *fleet.Error
	if !errors.As(err, &why) || why.Code != fleet.CodeInvalid || !slices.Equal(why.Details, []string{"$.input.prompt: must be of the type string"}) {
		t.Errorf("%+v", err)
	}
	if n := g.holds(); n != 0 {
		t.Errorf("%d holds", n)
	}
	_, err = g.svc.PutModel(t.Context(), fleet.Model{ID: "draw", Endpoint: g.endpoint, Closed: true, Limits: fleet.ModelLimits{Jobs: 10}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = g.call(prompt)
	g.is("a closed model", err, fleet.CodeNotAllowed)
}

// A hold whose job was not submitted is released at once.
func TestACallThatIsRefusedHoldsNothing(t *testing.T) {
	g := newGallery(t)
	for g.fills() == nil {
	}
	_, err := g.call(prompt)
	g.is("with a full queue", err, fleet.CodeLimited)
	if n := g.holds(); n != 0 {
		t.Errorf("%d holds", n)
	}
}

// fills submits a job of the owner's.
func (g *gallery) fills() error {
	_, err := g.svc.SubmitJob(context.Background(), g.who, g.endpoint, fleet.JobRequest{Body: []byte(`{"input":{}}`)})
	return err
}

// The second call under an idempotency key is answered with the job of the first, and holds nothing.
func TestACallUnderAKeyIsHeldOnce(t *testing.T) {
	g := newGallery(t)
	call := func(body string) (fleet.JobView, error) {
		return g.svc.SubmitJob(t.Context(), g.caller, "draw", fleet.JobRequest{Body: []byte(body), Once: &fleet.Once{Key: "k"}})
	}
	first, err := call(prompt)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if again, err := call(prompt); err != nil || again.ID != first.ID {
			t.Fatalf("again: %+v, %v", again, err)
		}
	}
	if n := g.holds(); n != 1 {
		t.Errorf("%d holds", n)
	}
	_, err = call(`{"input":{"prompt":"a dog"}}`)
	g.is("another body", err, fleet.CodeInvalid)
}

// A retry of a failed job holds credit anew; one that is refused does not.
func TestARetryHoldsCreditAnew(t *testing.T) {
	g := newGallery(t)
	v, err := g.call(prompt)
	if err != nil {
		t.Fatal(err)
	}
	_, err = g.svc.RetryJob(t.Context(), g.caller, "draw", v.ID)
	g.is("one that waits", err, fleet.CodeNotAllowed)
	if n := g.holds(); n != 1 {
		t.Errorf("%d holds after a retry that is refused", n)
	}
	g.take(1)
	g.finish(v, true, "it broke")
	if got, err := g.svc.Job(t.Context(), g.caller, "draw", v.ID, 0); err != nil || got.Worker != "" || got.Error != "it broke" {
		t.Errorf("its caller sees %+v, %v", got, err)
	}
	if got, err := g.svc.RetryJob(t.Context(), g.caller, "draw", v.ID); err != nil || got.Status != "IN_QUEUE" {
		t.Fatalf("%+v, %v", got, err)
	}
	id, _ := jobs.ParseID(v.ID)
	job, err := g.svc.Jobs.Jobs.Get(id, queue.At(g.clock()))
	if err != nil || job.Sale == nil || job.Sale.Settled || g.holds() != 2 {
		t.Errorf("%+v, %v, %d holds", job.Sale, err, g.holds())
	}
}
