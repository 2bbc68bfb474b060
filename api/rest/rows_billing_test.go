package rest_test

import (
	"testing"
	"time"

	"gantry/fleet"
	"gantry/test/plane"
)

func init() {
	addRows(billingRows, "200 billing", "billing buckets", "400 billing times", "422 billing query")
}

// charged makes two pods of User's account: a GPU pod that runs for 10 hours of the first day, and a CPU pod that
// runs since midnight. 26 hours pass in all. No bucket of a day has both, for their ids have no order.
func charged(t *testing.T, p *plane.Plane) {
	t.Helper()
	who := p.Who(plane.User)
	gpu := makePod(t, p, fleet.EventRunning)
	p.Advance(10 * time.Hour)
	_, err := p.ActPod(t.Context(), who, gpu, fleet.ActionTerminate)
	must(t, err)
	p.Advance(2 * time.Hour)
	_, err = p.CreatePod(t.Context(), who, fleet.PodRequest{Name: "b", Image: "busybox", CPU: &fleet.CPURequest{Flavor: "cpu3g", VCPU: 4}})
	must(t, err)
	p.Advance(14 * time.Hour)
}

// worked makes a pod that runs, and an endpoint with a worker that starts for an hour, which costs nothing, waits for jobs for two,
// and is frozen for three, which costs nothing.
func worked(t *testing.T, p *plane.Plane) {
	t.Helper()
	_, err := p.CreatePod(t.Context(), p.Who(plane.User), fleet.PodRequest{Name: "b", Image: "busybox", CPU: &fleet.CPURequest{Flavor: "cpu3g", VCPU: 4}})
	must(t, err)
	p.WithJobs()
	w, err := p.StartWorker(t.Context(), makeEndpoint(t, p, func(*fleet.EndpointSpec) {}))
	must(t, err)
	p.Advance(time.Hour)
	p.ReadyWorker(w.ID)
	p.Advance(2 * time.Hour)
	must(t, p.FreezeWorker(t.Context(), &w))
	p.Advance(3 * time.Hour)
}

func billingRows() []row {
	v := func(name, rule, path string) row {
		return row{topic: "billing", name: name, rule: rule, method: "GET", path: "/v2/billing" + path, key: plane.Reader}
	}
	of := func(name, rule, path string) row {
		r := v(name, rule, path)
		r.setup = charged
		return r
	}
	with := func(name, rule, path, key string, setup func(*testing.T, *plane.Plane)) row {
		r := v(name, rule, path)
		r.key, r.setup = key, setup
		return r
	}
	return []row{
		of("all", "200 billing", ""),
		of("pods", "200 billing", "/pods"),
		of("pods-one", "200 billing", "/pods?podId=<pod-1>&bucketSize=hour"),
		of("pods-none", "200 billing", "/pods?podId="+missingID),
		of("volumes", "200 billing", "/network-volumes?networkVolumeId="+missingID),
		with("volumes-charged", "200 billing", "/network-volumes?bucketSize=week", plane.Reader, func(_ *testing.T, p *plane.Plane) {
			p.PutVolume(plane.User, 1, "dev-1")
			p.Advance(73 * time.Hour)
		}),
		of("serverless", "200 billing", "/serverless?serverlessId="+missingID),
		with("serverless-charged", "200 billing", "/serverless?bucketSize=week", plane.Reader, worked),
		with("serverless-in-all", "200 billing", "?bucketSize=week", plane.Reader, worked),
		with("serverless-pods", "200 billing", "/pods", plane.Reader, worked),
		with("serverless-foreign", "200 billing", "/serverless?serverlessId="+endpointID, plane.Other, worked),
		of("endpoints", "200 billing", "/endpoints"),
		of("clusters", "200 billing", "/clusters?clusterId="+missingID),
		v("new", "200 billing", ""),
		with("foreign", "200 billing", "/pods?podId=<pod-1>", plane.Other, charged),
		with("no-permission", "403 key without the permission", "/pods", plane.Reader, func(_ *testing.T, p *plane.Plane) {
			p.Restrict(plane.Reader, map[fleet.Group]fleet.Access{fleet.GroupPods: fleet.AccessWrite})
		}),
		of("last-hours", "billing buckets", "?lastN=2&bucketSize=hour"),
		of("last-day", "billing buckets", "?lastN=1"),
		of("weeks", "billing buckets", "?bucketSize=week&lastN=1"),
		of("months", "billing buckets", "?bucketSize=month&startTime=2026-09-15T00:00:00Z&endTime=2026-10-02T00:00:00Z"),
		of("years", "billing buckets", "?bucketSize=year&lastN=1"),
		of("snapped", "billing buckets", "?startTime=2026-10-02T05:30:00Z&endTime=2026-10-02T06:30:00Z"),
		of("snapped-zone", "billing buckets", "?startTime=2026-10-02T01:30:00%2B02:00&endTime=2026-10-02T06:30:00.5Z&bucketSize=hour"),
		of("exact", "billing buckets", "?startTime=2026-10-01T12:00:00Z&endTime=2026-10-01T13:00:00Z&bucketSize=hour"),
		of("before", "billing buckets", "?startTime=2026-08-01T00:00:00Z&endTime=2026-08-02T00:00:00Z"),
		v("last-and-start", "400 billing times", "?lastN=1&startTime=2026-10-01T00:00:00Z"),
		v("last-and-end", "400 billing times", "/serverless?lastN=1&endTime=2026-10-01T00:00:00Z"),
		v("reversed", "400 billing times", "?startTime=2026-10-01T00:00:00Z&endTime=2026-09-30T00:00:00Z"),
		v("same", "400 billing times", "?startTime=2026-09-30T00:00:00Z&endTime=2026-09-30T00:00:00Z"),
		v("future", "400 billing times", "/clusters?startTime=2027-10-01T00:00:00Z"),
		v("time-form", "422 billing query", "?startTime=yesterday"),
		v("time-date", "422 billing query", "?endTime=2026-10-01"),
		v("time-early", "422 billing query", "?startTime=0001-01-01T00:00:00Z"),
		v("time-late", "422 billing query", "?endTime=9999-01-01T00:00:00Z"),
		v("last-zero", "422 billing query", "?lastN=0"),
		v("last-many", "422 billing query", "?lastN=1001"),
		v("last-text", "422 billing query", "?lastN=all"),
		v("bucket", "422 billing query", "?bucketSize=minute"),
		v("bucket-case", "422 billing query", "?bucketSize=DAY"),
		v("many-buckets", "422 billing query", "?bucketSize=hour&startTime=2020-01-01T00:00:00Z"),
		v("unknown", "unknown query parameters are ignored", "?grouping=podId"),
	}
}
