package rest

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/fleet"
)

// maxCANodes bounds how many hosts and schedulers an answer names.
const maxCANodes = 200

// CAStatus is the cluster's CA and the certificates of hosts and schedulers.
type CAStatus struct {
	CAs     []CA     `json:"cas" doc:"The CAs that are trusted; the first signs."`
	Step    *string  `json:"step" doc:"How far the replacement of the CA has come: spreads (the next CA is made known to everybody) or renews (it signs, and every certificate is renewed); null while there is none."`
	BegunAt *Time    `json:"begunAt" doc:"When the replacement began, or null."`
	SignsAt *Time    `json:"signsAt" doc:"Since when the new CA signs, or null."`
	EndsBy  *Time    `json:"endsBy" doc:"When the step ends at the latest, since no certificate of the old CA is valid any more; null: it has no such end."`
	Waiting int      `json:"waiting" doc:"Hosts and schedulers that the step waits for."`
	Total   int      `json:"total" doc:"Hosts and schedulers that are not gone."`
	Nodes   []CANode `json:"nodes" doc:"At most 200 of them: those that the step waits for first, then by when their certificates end."`
}

// CA is one certificate authority of the cluster.
type CA struct {
	Digest    string `json:"digest" doc:"SHA-256 of its certificate." example:"9f2c4b7d1e6a8053c1b4d7e2f5a8960b3c6d9e1f4a7b0c2d5e8f1a3b6c9d0e2f"`
	State     string `json:"state" doc:"What it is to the cluster: it signs, it is next to sign, or it retires and is trusted until nobody needs it." enum:"signs,next,retires"`
	NotBefore Time   `json:"notBefore" doc:"When its certificate begins."`
	NotAfter  Time   `json:"notAfter" doc:"When its certificate ends."`
}

// CANode is a host or a scheduler with its certificate, as it told it last.
type CANode struct {
	Kind   string  `json:"kind" doc:"What it is." enum:"host,scheduler"`
	ID     string  `json:"id" doc:"Host or member identifier." example:"h7d2k9s4f1g6j3"`
	Name   string  `json:"name" doc:"Name." example:"gpu-01"`
	CA     *string `json:"ca" doc:"Digest of the CA of its certificate, or null when that is not known."`
	EndsAt *Time   `json:"endsAt" doc:"When its certificate ends, or null when that is not known."`
	Waits  *string `json:"waits" doc:"What the step waits for of it, in a sentence, or null."`
}

// FinishCARequest is the body that ends a step.
type FinishCARequest struct {
	Step string `json:"step" doc:"The step that is to end." enum:"spreads,renews" example:"renews"`
}

// TransformSchema says which members may be null.
func (CAStatus) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return nullable(s, "begunAt", "signsAt", "endsBy")
}

// TransformSchema says which members may be null.
func (CANode) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return nullable(s, "endsAt")
}

func (a *API) registerCA() {
	read, write := auth.Read(fleet.GroupAdmin), auth.Write(fleet.GroupAdmin)
	handle(a, route{
		method: http.MethodGet, path: "/admin/v1/ca", id: "getCA", tag: "Operators", summary: "Get the cluster's CA and when certificates end",
		text: "Returns the CA that signs the certificates of hosts and schedulers, how far its replacement has come and whom that waits for, and when the " +
			"certificates of hosts and schedulers end.",
		scope: read, limit: limit.PerAccount, status: http.StatusOK, out: exampleCA(),
	}, a.caStatus)
	handle(a, route{
		method: http.MethodPost, path: "/admin/v1/ca/rotate", id: "rotateCA", tag: "Operators", summary: "Replace the cluster's CA",
		text: "Makes a new CA, and begins to replace the present one by it. The rest goes by itself, and no connection is cut: when every host and scheduler " +
			"trusts the new CA, it signs; when every certificate is of the new one, the old one is trusted no more. 400: it is being replaced already, or a " +
			"scheduler does not answer or is too old.",
		scope: write, limit: limit.PerAccount, status: http.StatusOK, errors: []int{http.StatusBadRequest}, out: exampleCA(),
	}, a.rotateCA)
	handle(a, route{
		method: http.MethodPost, path: "/admin/v1/ca/finish", id: "finishCA", tag: "Operators", summary: "Go on without hosts that hold up the CA's replacement",
		text: "Ends the present step without the hosts that it waits for. They lose the control plane, while their pods run on, and have to join again. 400: the " +
			"replacement is not at this step, or a scheduler is what it waits for.",
		scope: write, limit: limit.PerAccount, status: http.StatusOK, in: FinishCARequest{Step: "renews"}, out: exampleCA(),
	}, a.finishCA)
}

func (a *API) caStatus(ctx context.Context, _ *call, _ *none) (*CAStatus, error) {
	return show(caRecord)(a.svc.CAStatus(ctx))
}

func (a *API) rotateCA(ctx context.Context, c *call, in *none) (*CAStatus, error) {
	if err := a.svc.RotateCA(ctx); err != nil {
		return nil, err
	}
	return a.caStatus(ctx, c, in)
}

func (a *API) finishCA(ctx context.Context, c *call, in *FinishCARequest) (*CAStatus, error) {
	if err := a.svc.FinishCAStep(ctx, fleet.RotationStep(in.Step)); err != nil {
		return nil, err
	}
	return a.caStatus(ctx, c, nil)
}

func caRecord(v fleet.CAView) CAStatus {
	out := CAStatus{
		CAs: []CA{}, Step: textOrNull(v.Step), BegunAt: timeOrNull(v.BegunAt), SignsAt: timeOrNull(v.SignsAt), EndsBy: timeOrNull(v.EndsBy),
		Waiting: v.Waiting, Total: len(v.Nodes), Nodes: []CANode{},
	}
	for _, ca := range v.CAs {
		out.CAs = append(out.CAs, CA{Digest: ca.Digest, State: string(ca.State), NotBefore: Time{ca.NotBefore}, NotAfter: Time{ca.NotAfter}})
	}
	for _, n := range v.Nodes[:min(len(v.Nodes), maxCANodes)] {
		kind := "host"
		if n.Scheduler {
			kind = "scheduler"
		}
		out.Nodes = append(out.Nodes, CANode{
			Kind: kind, ID: n.ID, Name: n.Name, CA: textOrNull(n.Certificate.CA), EndsAt: timeOrNull(n.Certificate.EndsAt), Waits: textOrNull(n.Waits),
		})
	}
	return out
}

func exampleCA() CAStatus {
	const digest = "9f2c4b7d1e6a8053c1b4d7e2f5a8960b3c6d9e1f4a7b0c2d5e8f1a3b6c9d0e2f"
	end := exampleTime(30)
	return CAStatus{
		CAs: []CA{{Digest: digest, State: string(fleet.CASigns), NotBefore: exampleTime(0), NotAfter: Time{exampleTime(0).AddDate(10, 0, 0)}}}, Total: 1,
		Nodes: []CANode{{Kind: "host", ID: "h7d2k9s4f1g6j3", Name: "gpu-01", CA: textOrNull(digest), EndsAt: &end}},
	}
}
