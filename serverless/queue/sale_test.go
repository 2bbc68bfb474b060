package queue

import (
	"testing"

	"gantry/fleet"
)

// sold is a queue with one job of a public model that a worker has.
func sold(t *testing.T) (*Queue, ID) {
	t.Helper()
	q, id := New(), ID{1}
	_, err := q.Submit(Submit{
		At: 10, ID: id, Endpoint: "e", Account: "owner", Policy: Policy{Execution: 1000, Life: 1000, Retention: 100}, MaxWaiting: 5, MaxBytes: 1000,
		Sale: &Sale{Account: "caller", Model: "draw", Hold: "h1"},
	})
	if err != nil || len(q.Take(Take{At: 11, Endpoint: "e", Worker: "w", Max: 1})) != 1 {
		t.Fatal(err)
	}
	return q, id
}

func TestASoldJobStaysUntilItIsSettled(t *testing.T) {
	q, id := sold(t)
	if n := len(q.Unsettled(10)); n != 0 {
		t.Errorf("%d are to be settled before they end", n)
	}
	q.Settled(Settled{Job: id, Hold: "h1"}) // too early: ignored
	q.Finish(Finish{From: From{At: 20, Job: id, Worker: "w"}, Cost: fleet.Dollar})
	q.Expire(Expire{At: 1_000_000, Max: 10})
	if j := q.Get(id); j == nil || j.Sale.Cost != fleet.Dollar || len(q.Unsettled(10)) != 1 || !j.Expired(1_000_000) {
		t.Fatalf("after its time: %+v", j)
	}
	q.Settled(Settled{Job: id, Hold: "other"})
	if len(q.Unsettled(10)) != 1 {
		t.Error("another hold settled it")
	}
	restored, captured := New(), q.Capture()
	restored.Restore([]ImageEndpoint{captured.Piece(0)})
	captured.Close()
	if len(restored.Unsettled(10)) != 1 || restored.Get(id).Sale == q.Get(id).Sale {
		t.Error("a snapshot has it settled, or shares it")
	}
	before := q.Capture()
	defer before.Close()
	if !q.Forget(Forget{Endpoint: "e", Max: 10}) || q.Get(id) == nil {
		t.Error("it went with its endpoint before it was settled")
	}
	q.Settled(Settled{Job: id, Hold: "h1"})
	if had := before.Piece(0); len(had.Jobs) != 1 || had.Jobs[0].Sale.Settled {
		t.Errorf("a snapshot of before has %+v", had.Jobs)
	}
	if q.Expire(Expire{At: 1_000_000, Max: 10}); q.Get(id) != nil || len(q.Unsettled(10)) != 0 {
		t.Error("it stayed after it was settled")
	}
}

// A failed job costs nothing, and a retry needs a hold of its own, which the end of the first does not end.
func TestASoldJobThatIsRetried(t *testing.T) {
	q, id := sold(t)
	q.Finish(Finish{From: From{At: 20, Job: id, Worker: "w"}, Failed: true, Cost: fleet.Dollar})
	if j := q.Get(id); j.Sale.Cost != 0 {
		t.Errorf("a failed job costs %v", j.Sale.Cost)
	}
	if _, err := q.Retry(Retry{At: 21, Job: id}); fleet.CodeOf(err) != fleet.CodeNotAllowed {
		t.Errorf("without a hold: %v", err)
	}
	if _, err := q.Retry(Retry{At: 21, Job: id, Sale: &Sale{Account: "caller", Model: "draw", Hold: "h2"}}); err != nil {
		t.Fatal(err)
	}
	q.Settled(Settled{Job: id, Hold: "h1"})
	q.Take(Take{At: 22, Endpoint: "e", Worker: "w", Max: 1})
	q.Finish(Finish{From: From{At: 23, Job: id, Worker: "w"}, Cost: 2 * fleet.Dollar})
	if j := q.Get(id); j.Sale.Settled || j.Sale.Hold != "h2" || j.Sale.Cost != 2*fleet.Dollar {
		t.Errorf("retried: %+v", j.Sale)
	}
	if _, err := q.Submit(Submit{At: 30, ID: ID{2}, Endpoint: "e", Account: "owner", MaxWaiting: 5, MaxBytes: 10, Policy: Policy{Life: 100}}); err != nil {
		t.Fatal(err)
	}
	if _, err := q.Retry(Retry{At: 31, Job: ID{2}, Sale: &Sale{Hold: "h3"}}); fleet.CodeOf(err) != fleet.CodeNotAllowed {
		t.Errorf("a hold for a job of none: %v", err)
	}
}
