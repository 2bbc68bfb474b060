package workers_test

import (
	"strings"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/scheduler/state"
	"gantry/test/plane"
)

// gallery is a shop whose endpoint is behind the public model draw, at a dollar a job and half a dollar for each image.
type gallery struct {
	*shop
	caller fleet.Principal
	pod    *fleet.Pod
	link   *link
}

func newGallery(t *testing.T) *gallery {
	t.Helper()
	s := newShop(t, func(*fleet.EndpointSpec) {})
	g := &gallery{shop: s, caller: s.Who(plane.Other)}
	g.caller.Invoke = []string{fleet.InvokeAll}
	_, err := s.PutModel(t.Context(), fleet.Model{
		ID: "draw", Endpoint: s.endpoint, Limits: fleet.ModelLimits{Jobs: 10},
		Price: fleet.ModelPrice{Request: fleet.Dollar, Unit: fleet.Dollar / 2, Counted: "images", MaxUnits: 4},
	})
	s.must(err)
	return g
}

// call submits a job of the model.
func (g *gallery) call() fleet.JobView {
	g.t.Helper()
	v, err := g.SubmitJob(g.t.Context(), g.caller, "draw", fleet.JobRequest{Body: []byte(`{"input":{}}`)})
	g.must(err)
	return v
}

// works has the one worker begin.
func (g *gallery) works() {
	g.t.Helper()
	g.pod = g.worker(1)
	g.runs(g.pod)
	g.link, _ = g.connect(plane.Host)
	g.link.wants(g.pod.ID, 1)
}

// ends waits until a job of the model has a status, and no credit is held any more.
func (g *gallery) ends(v fleet.JobView, status string) (got fleet.JobView) {
	g.t.Helper()
	g.eventually("job "+v.ID+" is "+status, func() bool {
		var err error
		got, err = g.Job(g.t.Context(), g.caller, "draw", v.ID, 0)
		g.must(err)
		return got.Status == status
	})
	g.eventually("its credit is not held any more", func() bool { return g.held() == 0 })
	return got
}

func (g *gallery) held() (n int) {
	g.View(func(v *state.View) { m, _ := v.Model("draw"); n = m.Jobs })
	return n
}

// spent is what all calls cost the caller, and earned the owner.
func (g *gallery) spent() (cost, revenue fleet.Money) {
	g.t.Helper()
	for _, who := range []fleet.Principal{g.caller, g.who} {
		view, err := g.Billing(g.t.Context(), who, fleet.BillingQuery{Kind: fleet.ChargeModel})
		g.must(err)
		for _, r := range view.Records {
			cost, revenue = cost+r.Amounts.Calls, revenue+r.Amounts.Revenue
		}
	}
	return cost, revenue
}

func (g *gallery) costs(want fleet.Money) {
	g.t.Helper()
	if cost, revenue := g.spent(); cost != want || revenue != want {
		g.t.Errorf("the calls cost %v and earned %v, want %v", cost, revenue, want)
	}
}

// A call costs what its result says, once, whoever leads; one that fails, or whose result has no price, costs nothing.
func TestACallIsChargedWhenItIsCompleted(t *testing.T) {
	g := newGallery(t)
	good := g.call()
	g.works()
	given, _ := g.link.given()
	g.link.reports(given, agentrpc.JobReport_DONE, `{"image_url":"x","images":3}`, func(*agentrpc.JobReport) {})
	if got := g.ends(good, "COMPLETED"); string(got.Output) != `{"cost":2.5,"image_url":"x","images":3}` || got.Worker != "" {
		t.Errorf("its caller gets %s of %q", got.Output, got.Worker)
	}
	g.costs(2*fleet.Dollar + fleet.Dollar/2)

	for report, body := range map[agentrpc.JobReport_Kind]string{agentrpc.JobReport_FAILED: `"it broke"`, agentrpc.JobReport_DONE: `{"image_url":"x"}`} {
		bad := g.call()
		g.link.wants(g.pod.ID, 1)
		given, _ = g.link.given()
		g.link.reports(given, report, body, func(*agentrpc.JobReport) {})
		if got := g.ends(bad, "FAILED"); got.Error == "" {
			t.Errorf("no error: %+v", got)
		}
	}
	g.costs(2*fleet.Dollar + fleet.Dollar/2)

	g.link.leave()
	g.lead() // another leader charges nothing again
	later := g.call()
	_, err := g.CancelJob(t.Context(), g.caller, "draw", later.ID)
	g.must(err)
	g.ends(later, "CANCELLED")
	g.costs(2*fleet.Dollar + fleet.Dollar/2)
}

// A hold whose job was never submitted, or was deleted before it ended, is released after five minutes, and not before.
func TestAHoldWithoutAJobIsReleased(t *testing.T) {
	g := newGallery(t)
	g.Do(state.HoldCredit{Hold: fleet.CreditHold{ID: "lost", Account: g.caller.Account, Model: "draw", At: g.Now()}})
	waits := g.call()
	if g.held() != 2 {
		t.Fatalf("%d holds", g.held())
	}
	g.Advance(6 * time.Minute)
	g.eventually("only the hold of the job that waits is left", func() bool { return g.held() == 1 })
	got, err := g.Job(t.Context(), g.caller, "draw", waits.ID, 0)
	if err != nil || !strings.HasPrefix(got.Status, "IN_") {
		t.Errorf("%+v, %v", got, err)
	}
	g.costs(0)
}
