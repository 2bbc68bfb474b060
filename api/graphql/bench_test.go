package graphql_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"gantry/api/limit"
	"gantry/test/plane"
)

// get asks the REST face.
func (s *site) get(path string) answer {
	r := httptest.NewRequest(http.MethodGet, path, nil)
	r.Header.Set("Authorization", "Bearer "+plane.KeyText(plane.User).Reveal())
	return s.do(s.rest, r)
}

// BenchmarkMyself and BenchmarkGetPod are to be compared (docs/performance.md).
func BenchmarkMyself(b *testing.B) {
	s := benchSite(b, 1)
	sent := body(`query { myself { id email } }`)
	for b.Loop() {
		if got := s.send(plane.User, sent); got.status != http.StatusOK {
			b.Fatal(got.body)
		}
	}
}

func BenchmarkGetPod(b *testing.B) {
	s := benchSite(b, 1)
	path := s.plane.Meant("/v2/pods/<pod-1>")
	for b.Loop() {
		if got := s.get(path); got.status != http.StatusOK {
			b.Fatal(got.body)
		}
	}
}

// manyPods is what a command line client asks for when it lists pods.
const manyPods = `query myPods { myself { pods { id containerDiskInGb costPerHr desiredStatus dockerArgs dockerId env gpuCount imageName lastStatusChange
  machineId memoryInGb name podType port ports uptimeSeconds vcpuCount volumeInGb volumeMountPath runtime { ports { ip isIpPublic privatePort publicPort
  PortType: type } } machine { gpuDisplayName location } } } }`

func BenchmarkMyPods1000(b *testing.B) {
	s := benchSite(b, 1000)
	sent := body(manyPods)
	for b.Loop() {
		if got := s.send(plane.User, sent); got.status != http.StatusOK {
			b.Fatal(got.body)
		}
	}
}

func BenchmarkListPods1000(b *testing.B) {
	s := benchSite(b, 1000)
	for b.Loop() {
		if got := s.get("/v2/pods"); got.status != http.StatusOK {
			b.Fatal(got.body)
		}
	}
}

func benchSite(b *testing.B, pods int) *site {
	b.Helper()
	s := newSiteWith(b, limit.Quotas{})
	makePods(b, s, pods)
	return s
}
