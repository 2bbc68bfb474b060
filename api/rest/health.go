package rest

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/auth"
	"gantry/api/limit"
)

// HealthReport is the answer of /healthz.
type HealthReport struct {
	Status     string   `json:"status" doc:"ok, or failing when a condition is not." enum:"ok,failing"`
	Conditions []Health `json:"conditions,omitempty" doc:"With verbose: every known condition."`
}

func (a *API) registerHealth() {
	handle(a, route{
		method: http.MethodGet, path: "/healthz", id: "health", tag: "Operators", summary: "Health of this daemon",
		text:  "Answers 200 when every known condition holds, else 503 with the same body. Needs no key.",
		scope: auth.Public(), limit: limit.Exempt, status: http.StatusOK, alike: []int{http.StatusServiceUnavailable},
		params: []*huma.Param{flagParam("verbose", "List the conditions.", false)},
		out:    HealthReport{Status: "ok"},
	}, func(_ context.Context, c *call, _ *none) (*HealthReport, error) {
		out := &HealthReport{Status: "ok"}
		conditions := a.health()
		for _, h := range conditions {
			if !h.OK {
				out.Status, c.status = "failing", http.StatusServiceUnavailable
				c.w.Header().Set(retryHeader, "1")
			}
		}
		if c.args.flag("verbose", false) {
			out.Conditions = conditions
		}
		return out, nil
	})
}
