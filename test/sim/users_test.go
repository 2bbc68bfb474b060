package sim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"gantry/fleet"
	"gantry/scheduler"
)

// user does what a user does now and then.
func (d *driver) user() {
	d.tally.Lock()
	defer d.tally.Unlock()
	if d.open >= maxCalls {
		return
	}
	account := d.accounts[d.rng.IntN(len(d.accounts))]
	call := d.userCall(account)
	if call == nil {
		return
	}
	d.open++
	d.calls.Go(func() {
		call()
		d.tally.Lock()
		defer d.tally.Unlock()
		d.open--
	})
}

// userCall decides on a call; tally is held.
func (d *driver) userCall(account fleet.AccountID) func() {
	recent := func(n int) fleet.PodID { return d.ids[len(d.ids)-1-d.rng.IntN(min(len(d.ids), n))] }
	switch n := d.rng.IntN(100); {
	case n < 35 || len(d.ids) == 0:
		req := d.request()
		d.mounts(account, &req)
		d.joins(&req)
		switch d.rng.IntN(6) {
		case 0:
			return d.userCreatesSet(account, req)
		case 1, 2, 3:
			return func() { d.userCreates(account, req) }
		}
		once := d.once("pod")
		req.Name, req.Once = once.name, once.key
		return func() { d.userCreatesOnce(account, req, once) }
	case n < 68:
		id := recent(25)
		actions := append(fleet.Actions(), fleet.ActionTerminate)
		action := actions[d.rng.IntN(len(actions))]
		return func() { d.userActs(d.owner(id), id, action) }
	case n < 79:
		id := recent(15)
		change := d.change(d.acked[id])
		return func() { d.userUpdates(d.owner(id), id, change) }
	case n < 82:
		return d.userTemplates(account)
	case n < 84:
		return d.userVolumes(account)
	case n < 86:
		id := recent(10)
		return func() { d.userReads(id) }
	case n < 91:
		return func() { d.userLooks(account) }
	case n < 95:
		id := d.ids[d.rng.IntN(len(d.ids))]
		return func() { d.userPries(id) }
	}
	return d.operator()
}

func (d *driver) owner(id fleet.PodID) fleet.AccountID {
	d.tally.Lock()
	defer d.tally.Unlock()
	return d.owned[id]
}

// image is one that a user asks for.
func (d *driver) image() string {
	d.numbers++
	kinds := []string{
		"steady", "steady", "moving", "moving", "polite", "polite", "stubborn", "done", "done", "fail", "oom", "missing", "broken", "slow",
	}
	kind := kinds[d.rng.IntN(len(kinds))]
	number := d.numbers
	if d.rng.IntN(2) == 0 {
		number = 0 // an image that others have too
	}
	return image(kind, d.rng.IntN(40), number)
}

// ports are what a user exposes; hosts have few public ones.
func (d *driver) ports() []fleet.Port {
	return [][]fleet.Port{
		nil,
		{{Number: 22, Protocol: "tcp"}},
		{{Number: 8888, Protocol: "http"}, {Number: 22, Protocol: "tcp"}},
		{{Number: 5000, Protocol: "tcp"}, {Number: 22, Protocol: "tcp"}},
	}[d.rng.IntN(4)]
}

// request is what a user asks for; tally is held.
func (d *driver) request() fleet.PodRequest {
	req := cpuPod(2<<d.rng.IntN(2), d.image())
	if d.rng.IntN(2) == 0 {
		req = gpuPod(1+d.rng.IntN(3), req.Image)
		if d.rng.IntN(2) == 0 {
			req.Persistent = &fleet.PersistentMount{SizeGB: 10, Path: "/data"}
		}
		d.bids(&req)
	}
	req.Ports = d.ports()
	if d.rng.IntN(2) == 0 {
		yes := true
		req.Movable = &yes
	}
	if d.rng.IntN(2) == 0 {
		useSecret(&req)
	}
	if len(d.templates) > 0 && d.rng.IntN(4) == 0 {
		req.Template = d.templates[d.rng.IntN(len(d.templates))]
		if d.rng.IntN(2) == 0 {
			req.Image = ""
		}
	}
	return req
}

// bids makes every third pod interruptible; tally is held.
func (d *driver) bids(req *fleet.PodRequest) {
	if d.rng.IntN(3) == 0 {
		req.Interruptible, req.Return = true, d.rng.IntN(2) == 0
		req.Bid = leastBid + fleet.Money(d.rng.IntN(4))*fleet.Dollar/10
	}
}

// refusals are those of a create or a start, beside others.
func refusals(more ...fleet.Code) []fleet.Code {
	return append(more, fleet.CodeNoCapacity, fleet.CodeNoCredit)
}

func (d *driver) userCreates(account fleet.AccountID, req fleet.PodRequest) {
	rec, err := d.create(account, req)
	d.paid(account, err)
	d.answered("create", rec, err, refusals(d.goneThings(req)...)...)
}

// userCreatesSet creates several pods of one shape; tally is held.
func (d *driver) userCreatesSet(account fleet.AccountID, req fleet.PodRequest) func() {
	d.numbers++
	set := scheduler.PodSet{Requests: make([]fleet.PodRequest, 2+d.rng.IntN(7))}
	set.OneCenter, set.OnePerHost = d.rng.IntN(2) == 0, d.rng.IntN(4) == 0
	req.Name = fmt.Sprintf("set-%d-%d", d.numbers, len(set.Requests))
	for i := range set.Requests {
		set.Requests[i] = req
	}
	return func() {
		var pods []fleet.Pod
		_, err := d.ask(func(ctx context.Context, p *process) (_ fleet.PodView, err error) {
			pods, _, err = p.service.CreatePods(ctx, principal(account), set)
			return fleet.PodView{}, err
		})
		d.paid(account, err)
		if err != nil {
			d.answered("create of a set", fleet.Pod{}, err, refusals(d.goneThings(req)...)...)
		}
		for _, pod := range pods {
			d.answered("create in a set", pod, nil)
		}
	}
}

// goneThings is how a create is refused that names a template, which may be another account's, or gone, or a network
// volume, which may be gone.
func (d *driver) goneThings(req fleet.PodRequest) []fleet.Code {
	if req.Template == "" && req.Network == nil {
		return nil
	}
	return []fleet.Code{fleet.CodeNotFound}
}

// paid holds that none but prepaid accounts are refused for want of credit.
func (d *driver) paid(account fleet.AccountID, err error) {
	if fleet.CodeOf(err) != fleet.CodeNoCredit {
		return
	}
	d.note("refused for want of credit")
	if account != prepaidAccount {
		d.broke("%s is not prepaid and is refused: %v", account, err)
	}
}

func (d *driver) userActs(account fleet.AccountID, id fleet.PodID, action fleet.Trigger) {
	rec, err := d.act(account, id, action)
	d.paid(account, err)
	d.answered("action", rec, err, refusals(fleet.CodeNotAllowed, fleet.CodeNotFound)...)
}

// change is what a user changes of a pod, of which rec is the newest answer; tally is held.
func (d *driver) change(rec fleet.Pod) fleet.PodUpdate {
	var out fleet.PodUpdate
	switch d.rng.IntN(8) {
	case 0:
		name := rec.Spec.Name + "'"
		out.Name = &name
	case 1:
		locked := !rec.Locked
		out.Locked = &locked
	case 2:
		ref := d.image()
		out.Image = &ref
	case 3:
		ports := d.ports()
		out.Ports = &ports
	case 4:
		disk := 1 + d.rng.IntN(20)
		out.DiskGB = &disk
	case 5:
		env := map[string]string{"N": fmt.Sprint(d.rng.IntN(3))}
		out.Env = &env
	case 6:
		if len(d.templates) > 0 {
			out.Template = d.templates[d.rng.IntN(len(d.templates))]
		}
	default:
		if p := rec.Spec.Persistent; p != nil {
			out.Persistent = &fleet.PersistentMount{SizeGB: p.SizeGB + d.rng.IntN(5), Path: fmt.Sprintf("/data-%d", d.rng.IntN(3))}
		}
	}
	return out
}

func (d *driver) userUpdates(account fleet.AccountID, id fleet.PodID, change fleet.PodUpdate) {
	rec, err := d.ask(func(ctx context.Context, p *process) (fleet.PodView, error) {
		return p.service.UpdatePod(ctx, principal(account), id, change)
	})
	d.paid(account, err) // a larger disk takes credit
	may := []fleet.Code{fleet.CodeNoCapacity, fleet.CodeNotAllowed, fleet.CodeNotFound, fleet.CodeNoCredit}
	if change.Persistent != nil {
		may = append(may, fleet.CodeConflictRule) // a change without an answer may have made it larger
	}
	d.answered("update", rec, err, may...)
}

// userPries looks at and ends a pod of another account, which must be as if it were not there.
func (d *driver) userPries(id fleet.PodID) {
	for _, account := range d.accounts {
		if account == d.owner(id) {
			continue
		}
		_, err := d.act(account, id, fleet.ActionTerminate)
		if code := fleet.CodeOf(err); code != fleet.CodeNotFound && code != fleet.CodeUnavailable {
			d.broke("I8: %s ends a pod of another account: %v", account, err)
		}
		var bill fleet.BillingView
		_, err = d.ask(func(ctx context.Context, p *process) (fleet.PodView, error) {
			var err error
			bill, err = p.service.Billing(ctx, principal(account), fleet.BillingQuery{Kind: fleet.ChargePod, ID: string(id)})
			return fleet.PodView{}, err
		})
		if err == nil && len(bill.Records) > 0 {
			d.broke("I8: %s sees charges of a pod of another account", account)
		}
	}
}

// userLooks reads all pods of an account: they are as new as anything that anybody was told before (I6).
func (d *driver) userLooks(account fleet.AccountID) {
	d.tally.Lock()
	want := map[fleet.PodID]uint64{}
	for id, rec := range d.acked {
		if old, seen := d.before.pods[id]; rec.Account == account && (!seen || old.Status != fleet.StatusTerminated) {
			want[id] = rec.Rev
		}
	}
	d.tally.Unlock()
	have := map[fleet.PodID]fleet.Pod{}
	_, err := d.ask(func(ctx context.Context, p *process) (fleet.PodView, error) {
		views, err := p.service.Pods(ctx, principal(account))
		for _, v := range views {
			have[v.Pod.ID] = *v.Pod
		}
		return fleet.PodView{}, err
	})
	d.told("look", err)
	if err != nil {
		return
	}
	for id, rev := range want {
		rec, there := have[id]
		if !there {
			var v fleet.PodView
			if v, err = d.view(account, id); fleet.CodeOf(err) == fleet.CodeUnavailable || err == nil && v.Pod.Status == fleet.StatusTerminated {
				continue
			}
			if err == nil {
				rec = *v.Pod
			}
		}
		if rec.Rev < rev && !d.purged(id) {
			d.broke("I6: pod %s was acknowledged at revision %d, and a reader sees %d, %s (%v)", id, rev, rec.Rev, rec.Status, err)
		}
	}
}

// purged reports whether a pod may be gone from the records.
func (d *driver) purged(id fleet.PodID) bool {
	d.tally.Lock()
	defer d.tally.Unlock()
	old, seen := d.before.pods[id]
	return !seen || old.Status == fleet.StatusTerminated
}

// userReads reads a pod's log through its host.
func (d *driver) userReads(id fleet.PodID) {
	lines := 0
	var ctxErr error
	_, err := d.ask(func(ctx context.Context, p *process) (fleet.PodView, error) {
		err := p.service.PodLogs(ctx, principal(d.owner(id)), id, fleet.LogQuery{Tail: 100}, func(fleet.LogLine) error {
			lines++
			return nil
		})
		ctxErr = ctx.Err()
		return fleet.PodView{}, err
	})
	switch code := fleet.CodeOf(err); {
	case err == nil && lines > 0:
		d.note("log read")
	case err == nil, code == fleet.CodeNotAllowed, code == fleet.CodeNotFound:
	case code == fleet.CodeUnavailable, ctxErr != nil:
		d.log.Info("log unavailable", "pod", id, "err", err)
		d.note("log unavailable")
	default:
		d.broke("log of pod %s: unexpected error %v", id, err)
	}
}

// answered keeps what a user was told. Only refusals that a user can understand are right; a pod
// that is not found must have been terminated long ago, which the checker sees.
func (d *driver) answered(what string, rec fleet.Pod, err error, refusals ...fleet.Code) {
	d.tally.Lock()
	defer d.tally.Unlock()
	code := fleet.CodeOf(err)
	switch {
	case err == nil:
		d.count[what]++
		if old, known := d.acked[rec.ID]; !known || old.Rev < rec.Rev {
			d.acked[rec.ID] = rec
		}
		if _, known := d.owned[rec.ID]; !known {
			d.owned[rec.ID] = rec.Account
			d.ids = append(d.ids, rec.ID)
		}
	case strings.Contains(err.Error(), "too quickly") && !d.troubled() && !d.serverless: // the autoscaler competes with users
		d.broke("%s: with %d callers the scheduler never came to a decision: %v", what, maxCalls, err)
	case code == fleet.CodeUnavailable:
		d.count[what+" unavailable"]++
	case slices.Contains(refusals, code):
		d.count[what+" refused"]++
	default:
		d.broke("%s: unexpected error %v", what, err)
	}
}

// attempt is a create under an idempotency key, of a name that nothing else has.
type attempt struct {
	name string
	key  *fleet.Once
	lost int // so many answers do not reach the user
}

// once decides on an attempt; tally is held.
func (d *driver) once(what string) attempt {
	d.numbers++
	name := fmt.Sprintf("once-%s-%d", what, d.numbers)
	return attempt{name, &fleet.Once{Key: name, Fingerprint: []byte(name)}, d.rng.IntN(3)}
}

const tries = 8

// certain asks under one key until an answer reaches the user, as a careful client does, and at most so
// many times. Answered is false when none did. Call returns what was made and whether that is a replay.
func (d *driver) certain(once attempt, call func() (made string, replayed bool, err error)) (answered bool, err error) {
	first, sure := "", true
	for n := range tries {
		made, replayed, err := call()
		switch {
		case fleet.CodeOf(err) == fleet.CodeUnavailable:
			d.told("create", err)
			sure = false
			time.Sleep(2 * time.Second)
			continue
		case err != nil && first != "":
			d.brokeKey("%s: made %q, and when asked again it is refused: %v", once.name, first, err)
		case err != nil:
			return true, err
		case first != "" && made != first, replayed && sure, !replayed && first != "":
			d.brokeKey("%s: the answers are %q and %q, replayed %v, sure %v", once.name, first, made, replayed, sure)
		case replayed:
			d.note("create replayed")
		}
		if n >= once.lost {
			return true, nil
		}
		first, sure = made, false
		d.note("answer lost")
	}
	return false, nil
}

// userCreatesOnce creates a pod under an idempotency key: there is exactly one afterwards, or, when the
// answer is a refusal, none.
func (d *driver) userCreatesOnce(account fleet.AccountID, req fleet.PodRequest, once attempt) {
	var rec fleet.Pod
	answered, err := d.certain(once, func() (string, bool, error) {
		var view fleet.PodView
		made, err := d.ask(func(ctx context.Context, p *process) (fleet.PodView, error) {
			var err error
			view, err = p.service.CreatePod(ctx, principal(account), req)
			return view, err
		})
		if err == nil {
			rec = made
		}
		return string(made.ID), view.Replayed, err
	})
	if !answered {
		d.note("create without an answer")
		return
	}
	d.paid(account, err)
	d.answered("create", rec, err, refusals(d.goneThings(req)...)...)
	d.tally.Lock()
	defer d.tally.Unlock()
	d.only[once.name] = string(rec.ID)
}

// userTemplates makes, changes or deletes a template; tally is held.
func (d *driver) userTemplates(account fleet.AccountID) func() {
	n := d.rng.IntN(4)
	if n < 2 || len(d.templates) == 0 {
		once := d.once("template")
		t := fleet.Template{Name: once.name, Image: d.image(), Ports: d.ports(), Public: d.rng.IntN(4) == 0}
		if d.rng.IntN(3) == 0 {
			t.Persistent = &fleet.PersistentMount{SizeGB: 10, Path: "/data"}
		}
		return func() { d.userMakesTemplate(account, t, once) }
	}
	id, ref := d.templates[d.rng.IntN(len(d.templates))], d.image()
	return func() {
		_, err := d.ask(func(ctx context.Context, p *process) (fleet.PodView, error) {
			if n == 2 {
				return fleet.PodView{}, p.service.DeleteTemplate(ctx, principal(account), id)
			}
			_, err := p.service.UpdateTemplate(ctx, principal(account), id, func(t *fleet.Template) { t.Image = ref })
			return fleet.PodView{}, err
		})
		d.told("template", err, fleet.CodeNotFound, fleet.CodeInUse)
	}
}

// userMakesTemplate makes a template under an idempotency key. Nobody knows of it before that is over.
func (d *driver) userMakesTemplate(account fleet.AccountID, t fleet.Template, once attempt) {
	var made fleet.Template
	answered, err := d.certain(once, func() (string, bool, error) {
		var replayed bool
		_, err := d.ask(func(ctx context.Context, p *process) (fleet.PodView, error) {
			var err error
			made, replayed, err = p.service.CreateTemplate(ctx, principal(account), t, once.key)
			return fleet.PodView{}, err
		})
		return string(made.ID), replayed, err
	})
	if !answered {
		return
	}
	d.told("template", err)
	d.tally.Lock()
	defer d.tally.Unlock()
	d.only[once.name] = string(made.ID)
	d.templates = append(d.templates, made.ID)
}

// told counts an answer that has no pod in it.
func (d *driver) told(what string, err error, refusals ...fleet.Code) {
	d.tally.Lock()
	defer d.tally.Unlock()
	switch code := fleet.CodeOf(err); {
	case err == nil:
		d.count[what]++
	case strings.Contains(err.Error(), "too quickly") && !d.troubled() && !d.serverless: // the autoscaler competes with users
		d.broke("%s: with %d callers the scheduler never came to a decision: %v", what, maxCalls, err)
	case code == fleet.CodeUnavailable:
		d.count[what+" unavailable"]++
	case slices.Contains(refusals, code):
		d.count[what+" refused"]++
	default:
		d.broke("%s: unexpected error %v", what, err)
	}
}
