package rest

import (
	"context"
	"net/http"

	"gantry/api/admin"
	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/api/v2"
	"gantry/fleet"
)

// CAService replaces the cluster's CA.
type CAService interface {
	// CAStatus returns the cluster's CA and how far its replacement has come.
	CAStatus(ctx context.Context) (fleet.CAView, error)
	// RotateCA begins to replace the CA.
	RotateCA(ctx context.Context) error
	// FinishCAStep ends the present step, which the caller names, without the hosts that it waits for.
	FinishCAStep(ctx context.Context, step fleet.RotationStep) error
}

// maxCANodes bounds how many hosts and schedulers an answer names.
const maxCANodes = 200

func (a *API) registerCA() {
	read, write := auth.Read(fleet.GroupAdmin), auth.Write(fleet.GroupAdmin)
	on(a, route{
		method: http.MethodGet, path: "/admin/v1/ca", id: "getCA", tag: "Operators", summary: "Get the cluster's CA and when certificates end",
		text: "Returns the CA that signs the certificates of hosts and schedulers, how far its replacement has come and whom that waits for, and when the " +
			"certificates of hosts and schedulers end.",
		scope: read, limit: limit.PerAccount, status: http.StatusOK, out: exampleCA(),
	}, caStatus)
	on(a, route{
		method: http.MethodPost, path: "/admin/v1/ca/rotate", id: "rotateCA", tag: "Operators", summary: "Replace the cluster's CA",
		text: "Makes a new CA, and begins to replace the present one by it. The rest goes by itself, and no connection is cut: when every host and scheduler " +
			"trusts the new CA, it signs; when every certificate is of the new one, the old one is trusted no more. 400: it is being replaced already, or a " +
			"scheduler does not answer or is too old.",
		scope: write, limit: limit.PerAccount, status: http.StatusOK, errors: []int{http.StatusBadRequest}, out: exampleCA(),
	}, rotateCA)
	on(a, route{
		method: http.MethodPost, path: "/admin/v1/ca/finish", id: "finishCA", tag: "Operators", summary: "Go on without hosts that hold up the CA's replacement",
		text: "Ends the present step without the hosts that it waits for. They lose the control plane, while their pods run on, and have to join again. 400: the " +
			"replacement is not at this step, or a scheduler is what it waits for.",
		scope: write, limit: limit.PerAccount, status: http.StatusOK, in: admin.FinishCARequest{Step: "renews"}, out: exampleCA(),
	}, finishCA)
}

func caStatus(ctx context.Context, svc CAService, _ *call, _ *none) (*admin.CAStatus, error) {
	return show(caRecord)(svc.CAStatus(ctx))
}

func rotateCA(ctx context.Context, svc CAService, c *call, in *none) (*admin.CAStatus, error) {
	if err := svc.RotateCA(ctx); err != nil {
		return nil, err
	}
	return caStatus(ctx, svc, c, in)
}

func finishCA(ctx context.Context, svc CAService, c *call, in *admin.FinishCARequest) (*admin.CAStatus, error) {
	if err := svc.FinishCAStep(ctx, fleet.RotationStep(in.Step)); err != nil {
		return nil, err
	}
	return caStatus(ctx, svc, c, nil)
}

func caRecord(v fleet.CAView) admin.CAStatus {
	out := admin.CAStatus{
		CAs: []admin.CA{}, Step: v2.Text(v.Step), BegunAt: v2.AtOrNull(v.BegunAt), SignsAt: v2.AtOrNull(v.SignsAt), EndsBy: v2.AtOrNull(v.EndsBy),
		Waiting: v.Waiting, Total: len(v.Nodes), Nodes: []admin.CANode{},
	}
	for _, ca := range v.CAs {
		out.CAs = append(out.CAs, admin.CA{Digest: ca.Digest, State: string(ca.State), NotBefore: v2.At(ca.NotBefore), NotAfter: v2.At(ca.NotAfter)})
	}
	for _, n := range v.Nodes[:min(len(v.Nodes), maxCANodes)] {
		kind := "host"
		if n.Scheduler {
			kind = "scheduler"
		}
		if n.Gateway {
			kind = "gateway"
		}
		out.Nodes = append(out.Nodes, admin.CANode{
			Kind: kind, ID: n.ID, Name: n.Name, CA: v2.Text(n.Certificate.CA), EndsAt: v2.AtOrNull(n.Certificate.EndsAt), Waits: v2.Text(n.Waits),
		})
	}
	return out
}

func exampleCA() admin.CAStatus {
	const digest = "9f2c4b7d1e6a8053c1b4d7e2f5a8960b3c6d9e1f4a7b0c2d5e8f1a3b6c9d0e2f"
	end := exampleTime(30)
	return admin.CAStatus{
		CAs: []admin.CA{{Digest: digest, State: string(fleet.CASigns), NotBefore: exampleTime(0), NotAfter: v2.At(exampleTime(0).AddDate(10, 0, 0))}}, Total: 1,
		Nodes: []admin.CANode{{Kind: "host", ID: "h7d2k9s4f1g6j3", Name: "gpu-01", CA: v2.Text(digest), EndsAt: &end}},
	}
}
