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

// LimitService keeps the limits of accounts that have none of their own.
type LimitService interface {
	// Limits returns the limits that were set for accounts that have none of their own; SetLimits changes them, and nil takes one back.
	Limits(ctx context.Context) (fleet.Limits, error)
	SetLimits(ctx context.Context, change map[string]*int64) (fleet.Limits, error)
}

// change returns what is set, by name.
func limitChange(in *admin.LimitChanges) map[string]*int64 {
	out := map[string]*int64{}
	for l, m := range map[fleet.Limit]v2.Maybe[int64]{
		fleet.LimitPods: in.Pods, fleet.LimitRunning: in.RunningPods, fleet.LimitGPUs: in.GPUs, fleet.LimitVCPUs: in.VCPUs,
		fleet.LimitVolumes: in.NetworkVolumes, fleet.LimitVolumeGB: in.NetworkVolumeGB, fleet.LimitSpecBytes: in.SpecificationBytes,
		fleet.LimitEndpoints: in.Endpoints, fleet.LimitWorkers: in.Workers, fleet.LimitClusters: in.Clusters, fleet.LimitSpend: in.SpendPerHour,
	} {
		if m.Set {
			out[l.String()] = m.Value
		}
	}
	return out
}

// accountLimits shows the limits of an account.
func accountLimits(v *fleet.AccountView) v2.AccountLimits {
	of := func(l fleet.Limit) v2.LimitUse {
		return v2.LimitUse{Limit: l.Of(v.Account.Limits, v.Defaults), Used: l.Shown(v.Used[l])}
	}
	return v2.AccountLimits{
		Pods: of(fleet.LimitPods), RunningPods: of(fleet.LimitRunning), GPUs: of(fleet.LimitGPUs), VCPUs: of(fleet.LimitVCPUs),
		NetworkVolumes: of(fleet.LimitVolumes), NetworkVolumeGB: of(fleet.LimitVolumeGB), SpecificationBytes: of(fleet.LimitSpecBytes),
		Endpoints: of(fleet.LimitEndpoints), Workers: of(fleet.LimitWorkers), Clusters: of(fleet.LimitClusters), SpendPerHour: of(fleet.LimitSpend),
	}
}

// defaultLimits shows the limits of accounts that have none of their own.
func defaultLimits(set fleet.Limits) admin.DefaultLimits {
	of := func(l fleet.Limit) int64 { return l.Of(set) }
	return admin.DefaultLimits{
		Pods: of(fleet.LimitPods), RunningPods: of(fleet.LimitRunning), GPUs: of(fleet.LimitGPUs), VCPUs: of(fleet.LimitVCPUs),
		NetworkVolumes: of(fleet.LimitVolumes), NetworkVolumeGB: of(fleet.LimitVolumeGB), SpecificationBytes: of(fleet.LimitSpecBytes),
		Endpoints: of(fleet.LimitEndpoints), Workers: of(fleet.LimitWorkers), Clusters: of(fleet.LimitClusters), SpendPerHour: of(fleet.LimitSpend),
	}
}

func (a *API) registerLimits() {
	on(a, route{
		method: http.MethodGet, path: "/admin/v1/limits", id: "getLimits", tag: "Operators", summary: "Get the limits of accounts",
		text:  "Returns how much accounts may have that have no limits of their own.",
		scope: auth.Read(fleet.GroupAdmin), limit: limit.PerAccount, status: http.StatusOK, out: defaultLimits(nil),
	}, func(ctx context.Context, svc LimitService, _ *call, _ *none) (*admin.DefaultLimits, error) {
		return show(defaultLimits)(svc.Limits(ctx))
	})
	on(a, route{
		method: http.MethodPatch, path: "/admin/v1/limits", id: "setLimits", tag: "Operators", summary: "Change the limits of accounts",
		text: "Changes how much accounts may have that have no limits of their own; null takes a value back to the one that Gantry comes with. " +
			"What an account has already stays. 422: a limit is below 0 or above 1000000000000.",
		scope: auth.Write(fleet.GroupAdmin), limit: limit.PerAccount, status: http.StatusOK, in: exampleLimitChanges(), out: defaultLimits(nil),
	}, func(ctx context.Context, svc LimitService, _ *call, in *admin.LimitChanges) (*admin.DefaultLimits, error) {
		return show(defaultLimits)(svc.SetLimits(ctx, limitChange(in)))
	})
}

func exampleLimitChanges() admin.LimitChanges {
	return admin.LimitChanges{Pods: v2.Maybe[int64]{Set: true, Value: new(int64(2000))}}
}

func exampleAccountLimits() v2.AccountLimits { return accountLimits(&fleet.AccountView{}) }
