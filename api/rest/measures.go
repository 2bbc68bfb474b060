package rest

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/api/v2"
	"gantry/fleet"
)

// registerMeasures registers the stream of what is live of a pod. It counts among the account's streams of events.
func (a *API) registerMeasures() {
	rt := route{
		method: http.MethodGet, path: "/v2/pods/{id}/metrics", id: "followPodMetrics", tag: "Pods", summary: "Follow a pod's measures",
		text: "Streams what is live of the pod as server-sent events, one now and one every 5 seconds, which is how often hosts measure. Each has " +
			"`data: {\"at\",\"runtime\"}`, with runtime as GET of the pod shows it: null unless it runs on a host that can be reached. When the stream cannot " +
			"go on, an event named error with a problem is the last one. 404: there is no such pod. 429: the account has 32 streams of events and measures, or " +
			"all accounts 2048.",
		scope: auth.Read(fleet.GroupPods), limit: limit.PerAccount, status: http.StatusOK, errors: []int{http.StatusTooManyRequests}, params: []*huma.Param{podIDParam()},
	}
	op := a.declare(rt)
	op.Extensions["x-gantry"] = true
	op.Responses["200"] = &huma.Response{
		Description: "The measures.",
		Content: map[string]*huma.MediaType{logMediaType: {
			Schema: &huma.Schema{Type: huma.TypeString}, Example: "data: {\"at\":\"2026-10-01T12:00:00.000Z\",\"runtime\":null}\n\n",
		}},
	}
	a.serve(op, rt, a.sendMeasures)
}

// sendMeasures answers with measures until the reader is gone, the API closes, or the key may not read the pod any more.
func (a *API) sendMeasures(ctx context.Context, c *call) error {
	id, err := pathID[fleet.PodID](c, "pod")
	if err != nil {
		return err
	}
	if !a.watches.take(c.who.Account) {
		return &fleet.Error{Code: fleet.CodeLimited, Msg: fmt.Sprintf("the account follows events and measures more than %d times, or all accounts together do", maxWatches)}
	}
	defer a.watches.give(c.who.Account)
	s := &stream{w: c.w, rc: http.NewResponseController(c.w)}
	_ = s.rc.SetReadDeadline(time.Time{}) // else the server ends the request after its read limit
	tick := time.NewTicker(a.pace.measure)
	defer tick.Stop()
	for {
		text, err := a.measure(ctx, c, id)
		if err != nil {
			return s.end(ctx, err)
		}
		if s.write(text) != nil || c.r.Method == http.MethodHead {
			return nil // the reader is gone or too slow
		}
		select {
		case <-tick.C:
		case <-a.closed:
			return nil
		case <-ctx.Done():
			return nil
		}
		if _, err := a.again(ctx, c); err != nil {
			return s.end(ctx, err)
		}
	}
}

// measure returns the event of what is live of a pod now.
func (a *API) measure(ctx context.Context, c *call, id fleet.PodID) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, a.callTimeout)
	defer cancel()
	view, err := part[PodService](a).Pod(ctx, c.who, id)
	if err != nil {
		return "", err
	}
	now := a.now()
	data, err := json.Marshal(v2.Measure{At: v2.At(now), Runtime: podRecord(&view, now).Runtime})
	return "data: " + string(data) + "\n\n", err
}
