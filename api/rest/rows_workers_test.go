package rest_test

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"gantry/api/rest"
	"gantry/api/v2"
	"gantry/fleet"
	"gantry/test/plane"
)

func init() {
	addRows(workerRows, "200 workers", "200 releases", "200 worker log", "rollout of a release")
}

// staffed makes an endpoint with a worker that has a job, one that has none and is frozen, and one whose image is pulled still.
func staffed(t *testing.T, p *plane.Plane) {
	t.Helper()
	p.WithJobs()
	p.Workers(nil)
	id := makeEndpoint(t, p, func(*fleet.EndpointSpec) {})
	who := p.Who(plane.User)
	_, err := p.SubmitJob(t.Context(), who, id, fleet.JobRequest{Body: []byte(`{"input":1}`)})
	must(t, err)
	for n := range 3 {
		p.Advance(time.Second)
		w, err := p.StartWorker(t.Context(), id)
		must(t, err)
		if n == 2 {
			p.SetLive(w.ID, fleet.Live{At: p.Now().Add(1), Activity: "pulling image", PullDone: 63, PullTotal: 100})
			break
		}
		p.ReadyWorker(w.ID)
		p.Log(w.ID, "container", "worker is ready")
		if n == 0 {
			p.GiveJob(id, w.ID)
			continue
		}
		must(t, p.FreezeWorker(t.Context(), &w))
	}
	p.Advance(time.Minute)
}

// rolling is staffed with a newer release, of which there is one worker.
func rolling(t *testing.T, p *plane.Plane) {
	t.Helper()
	staffed(t, p)
	id := fleet.EndpointID(p.Meant(endpointID))
	_, err := p.UpdateEndpoint(t.Context(), p.Who(plane.User), id, func(s *fleet.EndpointSpec) { s.Image, s.Env = "worker:2", map[string]string{"B": "2"} })
	must(t, err)
	_, err = p.StartWorker(t.Context(), id)
	must(t, err)
}

func workerRows() []row {
	v := func(name, rule, path, key string, setup func(*testing.T, *plane.Plane)) row {
		return row{topic: "workers", name: name, rule: rule, method: "GET", path: "/v2/serverless/" + path, key: key, setup: setup}
	}
	own := func(name, rule, path string, setup func(*testing.T, *plane.Plane)) row {
		return v(name, rule, endpointID+path, plane.Reader, setup)
	}
	noPermission := func(t *testing.T, p *plane.Plane) {
		staffed(t, p)
		p.Restrict(plane.Reader, map[fleet.Group]fleet.Access{fleet.GroupPods: fleet.AccessWrite})
	}
	const denied, log = "403 key without the permission", "/workers/<pod-1>/logs?follow=false"
	return []row{
		own("none", "200 workers", "/workers", ownEndpoint),
		own("all", "200 workers", "/workers", staffed),
		own("rolling", "rollout of a release", "/workers", rolling),
		v("foreign", "404 foreign object", endpointID+"/workers", plane.Other, staffed),
		v("missing", "404 missing object", missingID+"/workers", plane.User, nil),
		own("no-permission", denied, "/workers", noPermission),

		own("releases", "200 releases", "/releases", ownEndpoint),
		own("releases-rolling", "rollout of a release", "/releases", rolling),
		v("releases-foreign", "404 foreign object", endpointID+"/releases", plane.Other, ownEndpoint),
		own("releases-no-permission", denied, "/releases", noPermission),
		own("endpoint-rolling", "rollout of a release", "", rolling),

		own("logs", "200 worker log", log, staffed),
		own("logs-system", "200 worker log", log+"&source=system", staffed),
		v("logs-foreign", "404 foreign object", endpointID+log, plane.Other, staffed),
		own("logs-missing", "404 missing object", "/workers/"+missingID+"/logs", staffed),
		own("logs-not-an-id", "404 missing object", "/workers/no-id/logs", staffed),
		own("logs-no-permission", denied, log, noPermission),
		own("logs-of-a-pod", "404 missing object", "/workers/<pod-4>/logs", func(t *testing.T, p *plane.Plane) {
			staffed(t, p)
			makePod(t, p)
		}),
		{
			topic: "workers", name: "no-pod", rule: "404 missing object", method: "GET", path: "/v2/pods/<pod-1>/logs", key: plane.Reader, setup: staffed,
		},
	}
}

// TestWorkersAndReleasesInParts are all of them, in order.
func TestWorkersAndReleasesInParts(t *testing.T) {
	s := newSite(t, nil, rest.Limits{})
	rolling(t, s.plane)
	for path, want := range map[string][]uint64{"workers": {1, 1, 1, 2}, "releases": {1, 2}} {
		var versions []uint64
		var seen []string
		for next := ""; ; {
			query := "?limit=1"
			if next != "" {
				query += "&cursor=" + next
			}
			got := s.ask(t, "GET", s.plane.Meant("/v2/serverless/"+endpointID+"/"+path+query), plane.Reader, "")
			var page struct {
				v2.Page
				Workers  []v2.Worker
				Releases []v2.Release
			}
			if err := json.Unmarshal([]byte(got.body), &page); err != nil || len(page.Workers)+len(page.Releases) != 1 {
				t.Fatalf("%d %s", got.status, got.body)
			}
			for _, w := range page.Workers {
				seen, versions = append(seen, w.ID), append(versions, w.Version)
			}
			for _, r := range page.Releases {
				seen, versions = append(seen, r.ID), append(versions, r.Version)
			}
			if next = page.Next; next == "" || len(seen) > len(want) {
				break
			}
		}
		slices.Sort(seen)
		if !slices.Equal(versions, want) || len(slices.Compact(seen)) != len(want) {
			t.Errorf("%s in parts: versions %v of %v", path, versions, seen)
		}
	}
}
