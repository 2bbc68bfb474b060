package admin

import (
	"gantry/api/v2"
)

// CAStatus is the cluster's CA and the certificates of hosts and schedulers.
type CAStatus struct {
	CAs     []CA     `json:"cas" doc:"The CAs that are trusted; the first signs."`
	Step    v2.Text  `json:"step" doc:"How far the replacement of the CA has come: spreads (the next CA is made known to everybody) or renews (it signs, and every certificate is renewed); null while there is none."`
	BegunAt *v2.Time `json:"begunAt" doc:"When the replacement began, or null."`
	SignsAt *v2.Time `json:"signsAt" doc:"Since when the new CA signs, or null."`
	EndsBy  *v2.Time `json:"endsBy" doc:"When the step ends at the latest, since no certificate of the old CA is valid any more; null: it has no such end."`
	Waiting int      `json:"waiting" doc:"Hosts and schedulers that the step waits for."`
	Total   int      `json:"total" doc:"Hosts and schedulers that are not gone."`
	Nodes   []CANode `json:"nodes" doc:"At most 200 of them: those that the step waits for first, then by when their certificates end."`
}

// CA is one certificate authority of the cluster.
type CA struct {
	Digest    string  `json:"digest" doc:"SHA-256 of its certificate." example:"9f2c4b7d1e6a8053c1b4d7e2f5a8960b3c6d9e1f4a7b0c2d5e8f1a3b6c9d0e2f"`
	State     string  `json:"state" doc:"What it is to the cluster: it signs, it is next to sign, or it retires and is trusted until nobody needs it." enum:"signs,next,retires"`
	NotBefore v2.Time `json:"notBefore" doc:"When its certificate begins."`
	NotAfter  v2.Time `json:"notAfter" doc:"When its certificate ends."`
}

// CANode is a host, a scheduler or a gateway with its certificate, as it told it last.
type CANode struct {
	Kind   string   `json:"kind" doc:"What it is." enum:"host,scheduler,gateway"`
	ID     string   `json:"id" doc:"Host, member or gateway identifier." example:"h7d2k9s4f1g6j3"`
	Name   string   `json:"name" doc:"Name." example:"gpu-01"`
	CA     v2.Text  `json:"ca" doc:"Digest of the CA of its certificate, or null when that is not known."`
	EndsAt *v2.Time `json:"endsAt" doc:"When its certificate ends, or null when that is not known."`
	Waits  v2.Text  `json:"waits" doc:"What the step waits for of it, in a sentence, or null."`
}

// FinishCARequest is the body that ends a step.
type FinishCARequest struct {
	Step string `json:"step" doc:"The step that is to end." enum:"spreads,renews" example:"renews"`
}
