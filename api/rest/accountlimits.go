package rest

import (
	"context"
	"net/http"

	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/fleet"
)

// LimitUse is a limit of an account and how much of it is used.
type LimitUse struct {
	Limit int64   `json:"limit" doc:"How much the account may have." minimum:"0" maximum:"1000000000000" example:"1000"`
	Used  float64 `json:"used" doc:"How much it has now; more than the limit where that was lowered." minimum:"0" example:"12"`
}

// AccountLimits are the limits of an account.
type AccountLimits struct {
	Pods               LimitUse `json:"pods" doc:"Pods that are not terminated."`
	RunningPods        LimitUse `json:"runningPods" doc:"Pods that run or are being started."`
	GPUs               LimitUse `json:"gpus" doc:"GPUs of those."`
	VCPUs              LimitUse `json:"vcpus" doc:"vCPUs of those that are CPU pods."`
	NetworkVolumes     LimitUse `json:"networkVolumes" doc:"Network volumes, with those of which something is left after their deletion."`
	NetworkVolumeGB    LimitUse `json:"networkVolumeGB" doc:"GB of network volumes."`
	SpecificationBytes LimitUse `json:"specificationBytes" doc:"Bytes of texts in the specifications of pods that are not terminated: names, images, arguments, environment."`
	Endpoints          LimitUse `json:"endpoints" doc:"Serverless endpoints."`
	Clusters           LimitUse `json:"clusters" doc:"Clusters."`
	SpendPerHour       LimitUse `json:"spendPerHour" doc:"USD per hour, storage included."`
}

// DefaultLimits are the limits of accounts that have none of their own.
type DefaultLimits struct {
	Pods               int64 `json:"pods"`
	RunningPods        int64 `json:"runningPods"`
	GPUs               int64 `json:"gpus"`
	VCPUs              int64 `json:"vcpus"`
	NetworkVolumes     int64 `json:"networkVolumes"`
	NetworkVolumeGB    int64 `json:"networkVolumeGB"`
	SpecificationBytes int64 `json:"specificationBytes"`
	Endpoints          int64 `json:"endpoints"`
	Clusters           int64 `json:"clusters"`
	SpendPerHour       int64 `json:"spendPerHour"`
}

// LimitChanges sets limits; what is left out stays, and null takes a value back.
type LimitChanges struct {
	Pods               Maybe[int64] `json:"pods,omitzero"`
	RunningPods        Maybe[int64] `json:"runningPods,omitzero"`
	GPUs               Maybe[int64] `json:"gpus,omitzero"`
	VCPUs              Maybe[int64] `json:"vcpus,omitzero"`
	NetworkVolumes     Maybe[int64] `json:"networkVolumes,omitzero"`
	NetworkVolumeGB    Maybe[int64] `json:"networkVolumeGB,omitzero"`
	SpecificationBytes Maybe[int64] `json:"specificationBytes,omitzero"`
	Endpoints          Maybe[int64] `json:"endpoints,omitzero"`
	Clusters           Maybe[int64] `json:"clusters,omitzero"`
	SpendPerHour       Maybe[int64] `json:"spendPerHour,omitzero"`
}

// change returns what is set, by name.
func (in *LimitChanges) change() map[string]*int64 {
	out := map[string]*int64{}
	for l, m := range map[fleet.Limit]Maybe[int64]{
		fleet.LimitPods: in.Pods, fleet.LimitRunning: in.RunningPods, fleet.LimitGPUs: in.GPUs, fleet.LimitVCPUs: in.VCPUs,
		fleet.LimitVolumes: in.NetworkVolumes, fleet.LimitVolumeGB: in.NetworkVolumeGB, fleet.LimitSpecBytes: in.SpecificationBytes,
		fleet.LimitEndpoints: in.Endpoints, fleet.LimitClusters: in.Clusters, fleet.LimitSpend: in.SpendPerHour,
	} {
		if m.Set {
			out[l.String()] = m.Value
		}
	}
	return out
}

// accountLimits shows the limits of an account.
func accountLimits(v *fleet.AccountView) AccountLimits {
	of := func(l fleet.Limit) LimitUse {
		return LimitUse{Limit: l.Of(v.Account.Limits, v.Defaults), Used: l.Shown(v.Used[l])}
	}
	return AccountLimits{
		Pods: of(fleet.LimitPods), RunningPods: of(fleet.LimitRunning), GPUs: of(fleet.LimitGPUs), VCPUs: of(fleet.LimitVCPUs),
		NetworkVolumes: of(fleet.LimitVolumes), NetworkVolumeGB: of(fleet.LimitVolumeGB), SpecificationBytes: of(fleet.LimitSpecBytes),
		Endpoints: of(fleet.LimitEndpoints), Clusters: of(fleet.LimitClusters), SpendPerHour: of(fleet.LimitSpend),
	}
}

// defaultLimits shows the limits of accounts that have none of their own.
func defaultLimits(set fleet.Limits) DefaultLimits {
	of := func(l fleet.Limit) int64 { return l.Of(set) }
	return DefaultLimits{
		Pods: of(fleet.LimitPods), RunningPods: of(fleet.LimitRunning), GPUs: of(fleet.LimitGPUs), VCPUs: of(fleet.LimitVCPUs),
		NetworkVolumes: of(fleet.LimitVolumes), NetworkVolumeGB: of(fleet.LimitVolumeGB), SpecificationBytes: of(fleet.LimitSpecBytes),
		Endpoints: of(fleet.LimitEndpoints), Clusters: of(fleet.LimitClusters), SpendPerHour: of(fleet.LimitSpend),
	}
}

func (a *API) registerLimits() {
	handle(a, route{
		method: http.MethodGet, path: "/admin/v1/limits", id: "getLimits", tag: "Operators", summary: "Get the limits of accounts",
		text:  "Returns how much accounts may have that have no limits of their own.",
		scope: auth.Read(fleet.GroupAdmin), limit: limit.PerAccount, status: http.StatusOK, out: defaultLimits(nil),
	}, func(ctx context.Context, _ *call, _ *none) (*DefaultLimits, error) {
		return show(defaultLimits)(a.svc.Limits(ctx))
	})
	handle(a, route{
		method: http.MethodPatch, path: "/admin/v1/limits", id: "setLimits", tag: "Operators", summary: "Change the limits of accounts",
		text: "Changes how much accounts may have that have no limits of their own; null takes a value back to the one that Gantry comes with. " +
			"What an account has already stays. 422: a limit is below 0 or above 1000000000000.",
		scope: auth.Write(fleet.GroupAdmin), limit: limit.PerAccount, status: http.StatusOK, in: exampleLimitChanges(), out: defaultLimits(nil),
	}, func(ctx context.Context, _ *call, in *LimitChanges) (*DefaultLimits, error) {
		return show(defaultLimits)(a.svc.SetLimits(ctx, in.change()))
	})
}

func exampleLimitChanges() LimitChanges {
	return LimitChanges{Pods: Maybe[int64]{Set: true, Value: new(int64(2000))}}
}

func exampleAccountLimits() AccountLimits { return accountLimits(&fleet.AccountView{}) }
