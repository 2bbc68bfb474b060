package state

import (
	"strings"
	"testing"
	"time"

	"gantry/fleet"
)

// model is an open public model at 1 dollar a request and half a dollar for each of up to 8 images.
func model() fleet.Model {
	m := sampleModel()
	m.Closed = false
	return m
}

// modelWorld has a public model of acme's endpoint ep-1, which other calls with 20 dollars of credit.
func modelWorld(t testing.TB) *world {
	t.Helper()
	w := newWorld(t).settle().furnish()
	w.must(Put[fleet.Endpoint]{Record: endpoint("ep-1")}, PutModel{model()}, AddCredit{Account: "other", Amount: 20 * fleet.Dollar, At: at(0)},
		UpdateAccount{Account: "other", Prepaid: ptr(true)})
	return w
}

// hold keeps credit of other for a job of the model.
func hold(id string) HoldCredit {
	return HoldCredit{fleet.CreditHold{ID: id, Account: "other", Model: "draw", At: at(5)}}
}

func TestAPublicModel(t *testing.T) {
	w := modelWorld(t)
	next := model()
	next.Owner, next.CreatedAt, next.Description = "other", at(99), "new"
	if got := w.must(PutModel{next}).(fleet.Model); got.Owner != "acme" || !got.CreatedAt.Equal(at(1)) || got.Description != "new" {
		t.Errorf("replaced by %+v", got)
	}
	w.view(func(v *View) {
		if m, ok := v.Model("draw"); !ok || m.Description != "new" || len(v.Models()) != 1 {
			t.Errorf("got %+v", m)
		}
		if m, ok := v.Model("paint"); ok || m.ID != "" {
			t.Errorf("got %+v", m)
		}
	})
	w.refused(fleet.CodeInUse, Delete[fleet.Endpoint]{Account: "acme", ID: "ep-1"})
	w.must(hold("h1"))
	w.refused(fleet.CodeInUse, DeleteModel{ID: "draw"})
	w.must(SettleHolds{Holds: []SettledHold{{ID: "h1"}}, At: at(6)}, DeleteModel{ID: "draw"}, Delete[fleet.Endpoint]{Account: "acme", ID: "ep-1"})
	w.refused(fleet.CodeNotFound, DeleteModel{ID: "draw"})
	w.refused(fleet.CodeNotFound, PutModel{model()})
	w.check()
}

func TestAModelAndAnEndpointNeverHaveOneID(t *testing.T) {
	w := modelWorld(t)
	w.must(Put[fleet.Endpoint]{Record: endpoint("ep-2")})
	m := model()
	m.ID = "ep-2"
	w.refused(fleet.CodeExists, PutModel{m})
	w.refused(fleet.CodeExists, Put[fleet.Endpoint]{Record: endpoint("draw")})
}

func TestTheLargestModel(t *testing.T) {
	with := func(change func(*fleet.Model)) error {
		m := model()
		change(&m)
		return checkModel(&m)
	}
	checkBounds(t, []bound{
		{"the longest id", with(func(m *fleet.Model) { m.ID = fleet.ModelID(strings.Repeat("a", 63)) }), ""},
		{"a longer id", with(func(m *fleet.Model) { m.ID = fleet.ModelID(strings.Repeat("a", 64)) }), "$.id"},
		{"a short id", with(func(m *fleet.Model) { m.ID = "a" }), "$.id"},
		{"a word of the API", with(func(m *fleet.Model) { m.ID = "network-volumes" }), "$.id"},
		{"capital letters", with(func(m *fleet.Model) { m.ID = "Draw" }), "$.id"},
		{"a long description", with(func(m *fleet.Model) { m.Description = long(1001) }), "$.description"},
		{"a long schema", with(func(m *fleet.Model) { m.Schema = make([]byte, fleet.MaxModelSchema+1) }), "$.inputSchema"},
		{"the highest price", with(func(m *fleet.Model) { m.Price = fleet.ModelPrice{Request: fleet.MaxModelPrice} }), ""},
		{"a higher price", with(func(m *fleet.Model) { m.Price.Request = fleet.MaxModelPrice + 1 }), "$.price.request"},
		{"a price below 0", with(func(m *fleet.Model) { m.Price.Request = -1 }), "$.price.request"},
		{"a unit below 0", with(func(m *fleet.Model) { m.Price.Unit = -1 }), "$.price.unit"},
		{"a dear unit", with(func(m *fleet.Model) { m.Price.Unit = fleet.MaxModelPrice + 1 }), "$.price.unit"},
		{"the most units", with(func(m *fleet.Model) { m.Price.MaxUnits = fleet.MaxModelUnits }), ""},
		{"more units", with(func(m *fleet.Model) { m.Price.MaxUnits = fleet.MaxModelUnits + 1 }), "$.price.maxUnits"},
		{"units below 0", with(func(m *fleet.Model) { m.Price.MaxUnits = -1 }), "$.price.maxUnits"},
		{"units that nobody counts", with(func(m *fleet.Model) { m.Price.Counted = "" }), "$.price.counted"},
		{"units without a price", with(func(m *fleet.Model) { m.Price.Unit = 0 }), "$.price.counted"},
		{"units without a bound", with(func(m *fleet.Model) { m.Price.MaxUnits = 0 }), "$.price.counted"},
		{"the most jobs", with(func(m *fleet.Model) { m.Limits.Jobs = fleet.MaxModelJobs }), ""},
		{"more jobs", with(func(m *fleet.Model) { m.Limits.Jobs = fleet.MaxModelJobs + 1 }), "$.limits.jobs"},
		{"no jobs", with(func(m *fleet.Model) { m.Limits.Jobs = 0 }), "$.limits.jobs"},
	})
	w := modelWorld(t)
	balanced := endpoint("ep-3")
	balanced.Spec.Type = fleet.EndpointBalanced
	w.must(Put[fleet.Endpoint]{Record: balanced})
	m := model()
	m.Endpoint = "ep-3"
	w.refused(fleet.CodeConflictRule, PutModel{m})
}

// Each hold keeps 5 dollars, the most that a job costs: of 20 dollars, the fourth leaves nothing.
func TestParallelCallsCannotSpendCreditTwice(t *testing.T) {
	w := modelWorld(t)
	m := model()
	m.Limits.Jobs = 100
	w.must(PutModel{m})
	if got := w.must(hold("h1")).(fleet.CreditHold); got.Price.Most() != 5*fleet.Dollar || got.Owner != "acme" {
		t.Errorf("held %+v", got)
	}
	w.must(hold("h2"), hold("h3"), hold("h4"))
	w.refused(fleet.CodeNoCredit, hold("h5"))
	w.refused(fleet.CodeExists, hold("h4"))
	w.must(SettleHolds{Holds: []SettledHold{{ID: "h1", Cost: fleet.Dollar}, {ID: "h2"}}, At: at(9)})
	w.must(hold("h5")) // 19 dollars are left, of which 10 are held
	w.refused(fleet.CodeNoCredit, hold("h6"))
	w.must(UpdateAccount{Account: "other", Prepaid: ptr(false)}, hold("h6"))
	w.check()
}

func TestAFreeModelNeedsCreditToo(t *testing.T) {
	w := modelWorld(t)
	m := model()
	m.Price = fleet.ModelPrice{}
	w.must(PutModel{m}, hold("h1"), AddCredit{Account: "other", Amount: -20 * fleet.Dollar, At: at(6)})
	w.refused(fleet.CodeNoCredit, hold("h2"))
}

func TestAnAccountHasSoManyJobsOfAModel(t *testing.T) {
	w := modelWorld(t)
	w.must(hold("h1"), hold("h2"), hold("h3"))
	w.refused(fleet.CodeLimited, hold("h4"))
	mine := hold("h4")
	mine.Hold.Account = "acme"
	w.must(mine)
	closed := model()
	closed.Closed = true
	w.must(PutModel{closed})
	w.refused(fleet.CodeNotAllowed, hold("h5"))
	nobody, nothing := hold("h5"), hold("h5")
	nobody.Hold.Account, nothing.Hold.Model = "nobody", "paint"
	w.refused(fleet.CodeNotFound, nobody)
	w.refused(fleet.CodeNotFound, nothing)
	w.refused(fleet.CodeInvalid, hold(""))
}

// What is settled twice is charged once: a new leader settles again what the last one may have.
func TestACallIsChargedOnce(t *testing.T) {
	w := modelWorld(t)
	w.must(hold("h1"), hold("h2"))
	settle := SettleHolds{Holds: []SettledHold{{ID: "h1", Cost: 3 * fleet.Dollar}, {ID: "h2"}, {ID: "none", Cost: fleet.Dollar}}, At: at(9)}
	if n := w.must(settle); n != 2 {
		t.Errorf("%v were settled", n)
	}
	if n := w.must(settle); n != 0 {
		t.Errorf("%v were settled again", n)
	}
	if got := w.balance("other", at(10)); got != 17*fleet.Dollar {
		t.Errorf("the caller has %v", got)
	}
	if got := w.balance("acme", at(10)); got != 3*fleet.Dollar {
		t.Errorf("the owner has %v", got)
	}
	hour := at(9).Truncate(time.Hour)
	for account, want := range map[fleet.AccountID]fleet.Amounts{
		"other": {Calls: 3 * fleet.Dollar}, "acme": {Revenue: 3 * fleet.Dollar},
	} {
		w.view(func(v *View) {
			got, err := v.Usage(account, fleet.ChargeModel, "draw", hour, hour.Add(time.Hour), at(10))
			if err != nil || len(got) != 1 || got[0].Amounts != want {
				t.Errorf("%s: %+v, %v", account, got, err)
			}
		})
	}
	w.check()
}

func TestACallCostsNoMoreThanWasHeld(t *testing.T) {
	w := modelWorld(t)
	w.must(hold("h1"), hold("h2"), SettleHolds{Holds: []SettledHold{{ID: "h1", Cost: 99 * fleet.Dollar}, {ID: "h2", Cost: -fleet.Dollar}}, At: at(9)})
	if got := w.balance("other", at(10)); got != 15*fleet.Dollar {
		t.Errorf("the caller has %v", got)
	}
	w.refused(fleet.CodeInvalid, SettleHolds{Holds: make([]SettledHold, maxSettled+1), At: at(9)})
}

func TestHoldsThatAreOld(t *testing.T) {
	w := modelWorld(t)
	w.must(hold("h1"), hold("h2"))
	w.view(func(v *View) {
		if n := len(v.Holds(at(6), time.Second, 10)); n != 0 {
			t.Errorf("%d are older than themselves", n)
		}
		if n := len(v.Holds(at(7), time.Second, 1)); n != 1 {
			t.Errorf("%d of at most one", n)
		}
		if all := v.Holds(at(7), time.Second, 10); len(all) != 2 || v.Models()[0].Jobs != 2 {
			t.Errorf("got %+v", all)
		}
	})
}
