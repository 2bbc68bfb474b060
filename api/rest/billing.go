package rest

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"gantry/api/auth"
	"gantry/api/limit"
	"gantry/api/v2"
	"gantry/fleet"
)

const (
	maxBuckets = 1000 // that lastN may ask for
	firstYear  = 1970
	lastYear   = 9998

	billingText = " Amounts are USD per bucket, summed in units of 10^-9 USD; buckets begin on whole hours, days, Mondays, months and years of UTC, and " +
		"those without charges have no record. What runs is counted up to now.\n\n400: lastN comes with startTime or endTime, or startTime is not before endTime."
)

func billingParams() []*huma.Param {
	when := func(name, text string) *huma.Param {
		return queryParam(name, text, huma.Schema{Type: huma.TypeString, Format: "date-time", Examples: []any{"2026-10-01T00:00:00Z"}})
	}
	size := wordParam("bucketSize", "Length of a bucket. Default day.", "hour", "day", "week", "month", "year")
	return []*huma.Param{
		when("startTime", "Begin, RFC 3339, snapped down to a bucket. Default: 30 days before the end."),
		when("endTime", "End, RFC 3339, snapped up to a bucket. Default: now."),
		countParam("lastN", "The last buckets, the present one among them; excludes startTime and endTime.", 1, maxBuckets),
		size,
	}
}

func (a *API) registerBilling() {
	get := func(path, id, summary, text, filter string, out any) route {
		params := billingParams()
		if filter != "" {
			params = append(params, queryParam(filter, "Only charges of this one.", huma.Schema{Type: huma.TypeString}))
		}
		return route{
			method: http.MethodGet, path: "/v2/billing" + path, id: id, tag: "Billing", summary: summary, text: text + billingText,
			scope: auth.Read(fleet.GroupBilling), limit: limit.PerAccount, status: http.StatusOK, params: params, out: out,
		}
	}
	on(a, get("", "getBilling", "Charges of the account", "Tells what the account was charged, for everything.", "",
		exampleAccountBilling()), billAccount)
	on(a, get("/pods", "getPodBilling", "Charges of pods", "Tells what pods were charged.", "podId", examplePodBilling()), billPods)
	on(a, get("/network-volumes", "getNetworkVolumeBilling", "Charges of network volumes", "Tells what network volumes were charged.",
		"networkVolumeId", exampleVolumeBilling()), billVolumes)
	on(a, get("/serverless", "getServerlessBilling", "Charges of serverless endpoints", "Tells what the workers of serverless endpoints were charged.",
		"serverlessId", exampleServerlessBilling()), billServerless)
	on(a, get("/endpoints", "getEndpointBilling", "Charges of public endpoints", "Tells what calls of public endpoints were charged, and what they earned their owner.",
		"", exampleEndpointBilling()), billEndpoints)
	on(a, get("/clusters", "getClusterBilling", "Charges of clusters", "Tells what clusters were charged.",
		"clusterId", exampleClusterBilling()), billClusters)
}

// billingQuery reads what the parameters select. Errors: CodeInvalid.
func (c *call) billingQuery() (fleet.BillingQuery, error) {
	q := fleet.BillingQuery{
		Start: c.args.time("startTime"), End: c.args.time("endTime"), LastN: c.args.number("lastN", 0), Bucket: fleet.BucketSize(c.args.text("bucketSize")),
	}
	for _, name := range []string{"startTime", "endTime"} {
		if year := c.args.time(name).UTC().Year(); c.args.has(name) && (year < firstYear || year > lastYear) {
			return q, fleet.Invalid("query."+name, "must be in the years 1970 to 9998")
		}
	}
	return q, nil
}

// charges returns what a kind of resource was charged; filter is the parameter that picks one.
func charges(ctx context.Context, svc AccountService, c *call, kind fleet.ChargeKind, filter string) (fleet.BillingView, error) {
	q, err := c.billingQuery()
	if err != nil {
		return fleet.BillingView{}, err
	}
	q.Kind, q.ID = kind, c.args.text(filter)
	return svc.Billing(ctx, c.who, q)
}

// sum adds up records and counts their resources.
func sum(records []fleet.BillingRecord) (total fleet.Amounts, resources int) {
	seen := map[string]bool{}
	for _, r := range records {
		total, seen[r.ID] = total.Plus(r.Amounts), true
	}
	return total, len(seen)
}

func billAccount(ctx context.Context, svc AccountService, c *call, _ *none) (*v2.AccountBilling, error) {
	view, err := charges(ctx, svc, c, "", "")
	if err != nil {
		return nil, err
	}
	out, total := &v2.AccountBilling{Records: []v2.AccountBillingRecord{}}, map[fleet.ChargeKind]fleet.Amounts{}
	for i, bucket := 0, map[fleet.ChargeKind]fleet.Amounts{}; i < len(view.Records); i++ {
		r := view.Records[i]
		bucket[r.Kind], total[r.Kind] = r.Amounts, total[r.Kind].Plus(r.Amounts)
		if i+1 == len(view.Records) || !view.Records[i+1].Start.Equal(r.Start) {
			out.Records = append(out.Records, v2.AccountBillingRecord{BillingPeriod: period(r), AccountAmounts: accountAmounts(bucket)})
			clear(bucket)
		}
	}
	out.Metadata = v2.AccountBillingMetadata{Query: window(view), RecordCount: len(out.Records), Totals: accountAmounts(total)}
	return out, nil
}

func billPods(ctx context.Context, svc AccountService, c *call, _ *none) (*v2.PodBilling, error) {
	view, err := charges(ctx, svc, c, fleet.ChargePod, "podId")
	if err != nil {
		return nil, err
	}
	total, pods := sum(view.Records)
	out := &v2.PodBilling{
		Records: []v2.PodBillingRecord{},
		Metadata: v2.PodBillingMetadata{
			Query:       v2.PodBillingQuery{BillingWindow: window(view), PodID: v2.Text(c.args.text("podId"))},
			RecordCount: len(view.Records), UniquePodCount: pods, Totals: podAmounts(total),
		},
	}
	for _, r := range view.Records {
		out.Records = append(out.Records, v2.PodBillingRecord{BillingPeriod: period(r), PodID: r.ID, PodAmounts: podAmounts(r.Amounts)})
	}
	return out, nil
}

func billVolumes(ctx context.Context, svc AccountService, c *call, _ *none) (*v2.VolumeBilling, error) {
	view, err := charges(ctx, svc, c, fleet.ChargeVolume, "networkVolumeId")
	if err != nil {
		return nil, err
	}
	total, volumes := sum(view.Records)
	out := &v2.VolumeBilling{
		Records: []v2.VolumeBillingRecord{},
		Metadata: v2.VolumeBillingMetadata{
			Query:       v2.VolumeBillingQuery{BillingWindow: window(view), NetworkVolumeID: v2.Text(c.args.text("networkVolumeId"))},
			RecordCount: len(view.Records), UniqueNetworkVolumeCount: volumes, Totals: volumeAmounts(total),
		},
	}
	for _, r := range view.Records {
		out.Records = append(out.Records, v2.VolumeBillingRecord{BillingPeriod: period(r), NetworkVolumeID: r.ID, VolumeAmounts: volumeAmounts(r.Amounts)})
	}
	return out, nil
}

func billServerless(ctx context.Context, svc AccountService, c *call, _ *none) (*v2.ServerlessBilling, error) {
	view, err := charges(ctx, svc, c, fleet.ChargeEndpoint, "serverlessId")
	if err != nil {
		return nil, err
	}
	total, endpoints := sum(view.Records)
	out := &v2.ServerlessBilling{
		Records: []v2.ServerlessBillingRecord{},
		Metadata: v2.ServerlessBillingMetadata{
			Query:       v2.ServerlessBillingQuery{BillingWindow: window(view), ServerlessID: v2.Text(c.args.text("serverlessId"))},
			RecordCount: len(view.Records), UniqueServerlessCount: endpoints, Totals: v2.ServerlessAmounts{PodAmounts: podAmounts(total)},
		},
	}
	for _, r := range view.Records {
		out.Records = append(out.Records, v2.ServerlessBillingRecord{
			BillingPeriod: period(r), ServerlessID: r.ID, ServerlessAmounts: v2.ServerlessAmounts{PodAmounts: podAmounts(r.Amounts)},
		})
	}
	return out, nil
}

// billEndpoints does not tell public endpoints apart: the records of a bucket are one.
func billEndpoints(ctx context.Context, svc AccountService, c *call, _ *none) (*v2.EndpointBilling, error) {
	view, err := charges(ctx, svc, c, fleet.ChargeModel, "")
	if err != nil {
		return nil, err
	}
	total, _ := sum(view.Records)
	out := &v2.EndpointBilling{Records: []v2.EndpointBillingRecord{}}
	for i, bucket := 0, (fleet.Amounts{}); i < len(view.Records); i++ {
		r := view.Records[i]
		bucket = bucket.Plus(r.Amounts)
		if i+1 == len(view.Records) || !view.Records[i+1].Start.Equal(r.Start) {
			out.Records = append(out.Records, v2.EndpointBillingRecord{BillingPeriod: period(r), EndpointAmounts: endpointAmounts(bucket)})
			bucket = fleet.Amounts{}
		}
	}
	out.Metadata = v2.EndpointBillingMetadata{Query: window(view), RecordCount: len(out.Records), Totals: endpointAmounts(total)}
	return out, nil
}

func billClusters(ctx context.Context, svc AccountService, c *call, _ *none) (*v2.ClusterBilling, error) {
	view, err := charges(ctx, svc, c, fleet.ChargeCluster, "clusterId")
	if err != nil {
		return nil, err
	}
	total, clusters := sum(view.Records)
	out := &v2.ClusterBilling{
		Records: []v2.ClusterBillingRecord{},
		Metadata: v2.ClusterBillingMetadata{
			Query:       v2.ClusterBillingQuery{BillingWindow: window(view), ClusterID: v2.Text(c.args.text("clusterId"))},
			RecordCount: len(view.Records), UniqueClusterCount: clusters, Totals: clusterAmounts(total),
		},
	}
	for _, r := range view.Records {
		out.Records = append(out.Records, v2.ClusterBillingRecord{BillingPeriod: period(r), ClusterID: r.ID, ClusterAmounts: clusterAmounts(r.Amounts)})
	}
	return out, nil
}

func exampleWindow() v2.BillingWindow {
	return v2.BillingWindow{
		StartTime: v2.At(time.Date(2026, 10, 1, 0, 0, 0, 0, time.UTC)), EndTime: v2.At(time.Date(2026, 10, 2, 0, 0, 0, 0, time.UTC)), BucketSize: "day",
	}
}

func examplePeriod() v2.BillingPeriod {
	w := exampleWindow()
	return v2.BillingPeriod{StartTime: w.StartTime, EndTime: w.EndTime}
}

func exampleAmounts() fleet.Amounts {
	return fleet.Amounts{GPU: fleet.MoneyUSD(64.56), Disk: fleet.MoneyUSD(0.07)}
}

func exampleAccountBilling() v2.AccountBilling {
	amounts := accountAmounts(map[fleet.ChargeKind]fleet.Amounts{fleet.ChargePod: exampleAmounts()})
	return v2.AccountBilling{
		Records:  []v2.AccountBillingRecord{{BillingPeriod: examplePeriod(), AccountAmounts: amounts}},
		Metadata: v2.AccountBillingMetadata{Query: exampleWindow(), RecordCount: 1, Totals: amounts},
	}
}

func examplePodBilling() v2.PodBilling {
	amounts := podAmounts(exampleAmounts())
	return v2.PodBilling{
		Records:  []v2.PodBillingRecord{{BillingPeriod: examplePeriod(), PodID: "k3n8w0zq5r7d2a", PodAmounts: amounts}},
		Metadata: v2.PodBillingMetadata{Query: v2.PodBillingQuery{BillingWindow: exampleWindow()}, RecordCount: 1, UniquePodCount: 1, Totals: amounts},
	}
}

func exampleVolumeBilling() v2.VolumeBilling {
	return v2.VolumeBilling{
		Records: []v2.VolumeBillingRecord{}, Metadata: v2.VolumeBillingMetadata{Query: v2.VolumeBillingQuery{BillingWindow: exampleWindow()}},
	}
}

func exampleServerlessBilling() v2.ServerlessBilling {
	amounts := v2.ServerlessAmounts{PodAmounts: podAmounts(exampleAmounts())}
	return v2.ServerlessBilling{
		Records: []v2.ServerlessBillingRecord{{BillingPeriod: examplePeriod(), ServerlessID: "e4m7x1c9v2b6n8", ServerlessAmounts: amounts}},
		Metadata: v2.ServerlessBillingMetadata{
			Query: v2.ServerlessBillingQuery{BillingWindow: exampleWindow()}, RecordCount: 1, UniqueServerlessCount: 1, Totals: amounts,
		},
	}
}

func exampleEndpointBilling() v2.EndpointBilling {
	return v2.EndpointBilling{Records: []v2.EndpointBillingRecord{}, Metadata: v2.EndpointBillingMetadata{Query: exampleWindow()}}
}

func exampleClusterBilling() v2.ClusterBilling {
	return v2.ClusterBilling{
		Records: []v2.ClusterBillingRecord{}, Metadata: v2.ClusterBillingMetadata{Query: v2.ClusterBillingQuery{BillingWindow: exampleWindow()}},
	}
}
