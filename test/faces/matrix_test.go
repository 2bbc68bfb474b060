package faces_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"

	"gantry/api/limit"
	"gantry/api/rest"
	"gantry/api/v1"
	"gantry/fleet"
	"gantry/test/plane"
)

type object = map[string]any

// said is what a face calls a member, and a value as the face writes it.
type said struct {
	at    string // path; "[0]" means the first item of a list
	value any
}

// member is one member of a kind of records in each face. Another face adds a column.
type member struct {
	of     string // title of its v1.Noun
	v1, v2 said
	also   string // members that must be written with it, as in the bodies of base: a key of extras
}

// members is the matrix: each is written through each face and read through all.
func members() []member {
	const pods, endpoints, templates, volumes, auths = "Pods", "Endpoints", "Templates", "Network volumes", "Container registry credentials"
	out := []member{
		{of: pods, v1: said{"templateId", "<template>"}, v2: said{"templateId", "<template>"}},
		{of: pods, v1: said{"networkVolumeId", "vol00000000001"}, v2: said{"mounts.network[0].volumeId", "vol00000000001"}, also: "path"},
		{of: pods, v1: said{"locked", true}, v2: said{"locked", true}, also: "change"},
		{of: pods, v1: said{"interruptible", true}, v2: said{"interruptible", true}, also: "gpu"},
		{of: pods, v1: said{"vcpuCount", 4.0}, v2: said{"cpu.vcpuCount", 4.0}},
		{of: endpoints, v1: said{"name", "b"}, v2: said{"name", "b"}},
		{of: endpoints, v1: said{"templateId", "<workers>"}, v2: said{"templateId", "<workers>"}},
		{of: endpoints, v1: said{"gpuTypeIds", []any{plane.SimGPU}}, v2: said{"gpu.pools", []any{"ADA_80_PRO"}}, also: "excluded"},
		{of: endpoints, v1: said{"gpuCount", 2.0}, v2: said{"gpu.count", 2.0}},
		{of: endpoints, v1: said{"allowedCudaVersions", []any{"12.8"}}, v2: said{"gpu.allowedCudaVersions", []any{"12.8"}}},
		{of: endpoints, v1: said{"minCudaVersion", "12.4"}, v2: said{"gpu.minCudaVersion", "12.4"}},
		{of: endpoints, v1: said{"dataCenterIds", []any{"dev-1"}}, v2: said{"dataCenterIds", []any{"dev-1"}}},
		{of: endpoints, v1: said{"networkVolumeIds", []any{"vol00000000001"}}, v2: said{"networkVolumes", []any{"vol00000000001"}}},
		{of: endpoints, v1: said{"networkVolumeId", "vol00000000001"}, v2: said{"networkVolumes[0]", "vol00000000001"}},
		{of: endpoints, v1: said{"workersMin", 1.0}, v2: said{"workers.min", 1.0}},
		{of: endpoints, v1: said{"workersMax", 7.0}, v2: said{"workers.max", 7.0}},
		{of: endpoints, v1: said{"idleTimeout", 42.0}, v2: said{"workers.idleTimeout", 42.0}},
		{of: endpoints, v1: said{"scalerType", "QUEUE_DELAY"}, v2: said{"scaling.type", "QUEUE_DELAY"}},
		{of: endpoints, v1: said{"scalerValue", 7.5}, v2: said{"scaling.queueDelay", 7.5}},
		{of: endpoints, v1: said{"executionTimeoutMs", 60000.0}, v2: said{"timeout", 60000.0}},
		{of: endpoints, v1: said{"flashboot", true}, v2: said{"flashboot", "FLASHBOOT"}},
		{of: templates, v1: said{"category", "AMD"}, v2: said{"category", "AMD"}},
		{of: templates, v1: said{"isPublic", true}, v2: said{"public", true}},
		{of: templates, v1: said{"isServerless", true}, v2: said{"serverless", true}},
		{of: volumes, v1: said{"name", "b"}, v2: said{"name", "b"}},
		{of: volumes, v1: said{"size", 20.0}, v2: said{"size", 20.0}},
		{of: volumes, v1: said{"dataCenterId", "dev-1"}, v2: said{"dataCenter", "dev-1"}},
		{of: auths, v1: said{"name", "b"}, v2: said{"name", "b"}},
	}
	for _, kind := range []string{pods, templates} {
		out = append(out, []member{
			{of: kind, v1: said{"name", "b"}, v2: said{"name", "b"}},
			{of: kind, v1: said{"imageName", "nginx:1.29"}, v2: said{"image", "nginx:1.29"}},
			{of: kind, v1: said{"containerDiskInGb", 12.0}, v2: said{"disk", 12.0}},
			{of: kind, v1: said{"env", object{"A": "<&>"}}, v2: said{"env", object{"A": "<&>"}}},
			{of: kind, v1: said{"ports", []any{"80/http", "22/tcp"}}, v2: said{"ports", []any{"80/http", "22/tcp"}}},
			{of: kind, v1: said{"dockerStartCmd", []any{"sh", "-c", "a b"}}, v2: said{"args", `{"cmd":["sh","-c","a b"]}`}},
			{of: kind, v1: said{"dockerEntrypoint", []any{"sh"}}, v2: said{"args", `{"entrypoint":["sh"]}`}},
			{of: kind, v1: said{"containerRegistryAuthId", "<registry>"}, v2: said{"registry", "<registry>"}},
			{of: kind, v1: said{"volumeInGb", 30.0}, v2: said{"mounts.persistent.size", 30.0}, also: "gpu size"},
			{of: kind, v1: said{"volumeMountPath", "/data"}, v2: said{"mounts.persistent.path", "/data"}, also: "gpu path"},
		}...)
	}
	return out
}

// base are the smallest bodies of creates, by face and kind.
var base = map[string]map[string]string{
	"v1": {
		"Pods": `{"imageName":"busybox","computeType":"CPU","cpuFlavorIds":["cpu3g"]}`, "Endpoints": `{"templateId":"<workers>","gpuTypeIds":["NVIDIA H100 80GB HBM3"]}`,
		"Templates": `{"name":"a","imageName":"busybox"}`, "Network volumes": `{"name":"a","size":10,"dataCenterId":"dev-1"}`,
		"Container registry credentials": `{"name":"a","username":"u","password":"p"}`,
	},
	"v2": {
		"Pods":      `{"name":"a","image":"busybox","cpu":{"id":"cpu3g","vcpuCount":2}}`,
		"Endpoints": `{"name":"a","type":"QUEUE","templateId":"<workers>","scaling":{"type":"QUEUE_DELAY","queueDelay":4},"gpu":{"pools":["ADA_80_PRO"],"excludedTypes":["NVIDIA H100 PCIe","NVIDIA H100 NVL"]}}`,
		"Templates": `{"name":"a","image":"busybox"}`, "Network volumes": `{"name":"a","size":10,"dataCenter":"dev-1"}`,
		"Container registry credentials": `{"name":"a","username":"u","password":"p"}`,
	},
}

// extras change a base for a member.
var extras = map[string]func(face string, body object){
	"path": func(face string, body object) {
		if face == "v2" {
			put(body, "mounts.network[0].path", "/workspace")
		}
	},
	"gpu":      func(face string, body object) { onGPU(face, body, "name", "a") },
	"gpu size": func(face string, body object) { onGPU(face, body, "mounts.persistent.path", "/workspace") },
	"gpu path": func(face string, body object) { onGPU(face, body, "mounts.persistent.size", 20) },
}

// onGPU has a pod on a GPU, which host-local storage needs.
func onGPU(face string, body object, path string, value any) {
	if face == "v2" {
		put(body, path, value)
		if body["cpu"] != nil {
			delete(body, "cpu")
			body["gpu"] = object{"id": plane.SimGPU}
		}
		return
	}
	if body["computeType"] != nil {
		delete(body, "computeType")
		delete(body, "cpuFlavorIds")
		body["gpuTypeIds"] = []any{plane.SimGPU}
	}
}

var paths = map[string]map[string]string{
	"v1": {}, // those of v1.Nouns
	"v2": {
		"Pods": "/v2/pods", "Endpoints": "/v2/serverless", "Templates": "/v2/templates", "Network volumes": "/v2/network-volumes",
		"Container registry credentials": "/v2/registries",
	},
}

// renamedInRecords are members whose record has another name than their bodies.
var renamedInRecords = map[string]string{"templateId": "template"}

// site is a control plane with its faces.
type site struct {
	t     *testing.T
	plane *plane.Plane
	faces map[string]http.Handler
	ids   map[string]string
}

func newSite(t *testing.T) *site {
	t.Helper()
	p := plane.New(t)
	api, err := rest.New(rest.Config{Service: p, Log: slog.New(slog.DiscardHandler), Now: p.Now, Rates: limit.Quotas{}})
	if err != nil {
		t.Fatal(err)
	}
	old, err := v1.New(api)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(api.Close)
	s := &site{t: t, plane: p, faces: map[string]http.Handler{"v1": old, "v2": api}, ids: map[string]string{}}
	p.PutBackend("disks", "dev-1", fleet.VolumeStandard)
	p.Provision(p.PutVolume(plane.User, 1, "dev-1"))
	s.ids["<registry>"] = s.make("v2", "Container registry credentials", s.body("v2", "Container registry credentials"))
	s.ids["<template>"] = s.make("v2", "Templates", s.body("v2", "Templates"))
	workers := s.body("v2", "Templates")
	workers["serverless"] = true
	s.ids["<workers>"] = s.make("v2", "Templates", workers)
	for _, n := range v1.Nouns() {
		paths["v1"][n.Title] = n.Path
	}
	return s
}

// meant replaces names of what was made by their ids.
func (s *site) meant(v any) any {
	if text, ok := v.(string); ok && s.ids[text] != "" {
		return s.ids[text]
	}
	return v
}

func (s *site) body(face, kind string) (out object) {
	text := base[face][kind]
	for name, id := range s.ids {
		text = strings.ReplaceAll(text, name, id)
	}
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		s.t.Fatal(err)
	}
	return out
}

func (s *site) ask(face, method, path string, body any) object {
	s.t.Helper()
	var data []byte
	if body != nil {
		var err error
		if data, err = json.Marshal(body); err != nil {
			s.t.Fatal(err)
		}
	}
	code, text := s.send(face, method, path, string(data))
	if code >= http.StatusBadRequest {
		s.t.Fatalf("%s %s %s: %d %s", method, path, data, code, text)
	}
	out := object{}
	if text != "" {
		if err := json.Unmarshal([]byte(text), &out); err != nil {
			s.t.Fatalf("%v: %s", err, text)
		}
	}
	return out
}

// send sends a request of User to a face.
func (s *site) send(face, method, path, body string) (status int, answer string) {
	s.t.Helper()
	r := httptest.NewRequestWithContext(s.t.Context(), method, path, strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+plane.KeyText(plane.User).Reveal())
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	s.faces[face].ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

func (s *site) make(face, kind string, body object) string {
	s.t.Helper()
	if len(paths["v1"]) == 0 {
		for _, n := range v1.Nouns() {
			paths["v1"][n.Title] = n.Path
		}
	}
	id, _ := s.ask(face, http.MethodPost, paths[face][kind], body)["id"].(string)
	return id
}

// in is what a member is in a face.
func (m *member) in(face string) said { return map[string]said{"v1": m.v1, "v2": m.v2}[face] }

// TestEveryMemberIsTheSameInEveryFace writes each member through each face and reads it through all.
func TestEveryMemberIsTheSameInEveryFace(t *testing.T) {
	s := newSite(t)
	checked := 0
	for _, m := range members() {
		for _, writer := range slices.Sorted(maps.Keys(s.faces)) {
			t.Run(fmt.Sprintf("%s/%s/%s", m.of, m.v1.at, writer), func(t *testing.T) {
				s.t = t
				say, body := m.in(writer), s.body(writer, m.of)
				if change := extras[m.also]; change != nil {
					change(writer, body)
				}
				if m.also != "change" {
					put(body, say.at, s.meant(say.value))
				}
				id := s.make(writer, m.of, body)
				if m.also == "change" {
					s.ask(writer, http.MethodPatch, paths[writer][m.of]+"/"+id, object{say.at: say.value})
				}
				for reader := range s.faces {
					want, at := m.in(reader), m.in(reader).at
					record := s.ask(reader, http.MethodGet, paths[reader][m.of]+"/"+id, nil)
					if other := renamedInRecords[at]; other != "" && reader == "v2" {
						at = other
					}
					if got := get(record, at); !reflect.DeepEqual(got, s.meant(want.value)) {
						t.Errorf("%s shows %s as %v, want %v", reader, at, got, want.value)
					}
					checked++
				}
				if m.of == "Pods" { // leaves its place to the next
					s.ask("v2", http.MethodDelete, "/v2/pods/"+id, nil)
					if err := s.plane.Report(fleet.PodID(id), "gone"); err != nil {
						t.Log(err)
					}
				}
			})
		}
	}
	t.Logf("%d members, %d faces, %d reads", len(members()), len(s.faces), checked)
}

// TestMatrixHasEveryMember: what can be written and read in version 1 and has a place in version 2 is in the matrix.
func TestMatrixHasEveryMember(t *testing.T) {
	for _, n := range v1.Nouns() {
		for _, name := range n.Names {
			written := strings.ContainsAny(name.Of, "cCu")
			read := slices.ContainsFunc(n.Names, func(o v1.Name) bool { return o.V1 == name.V1 && strings.Contains(o.Of, "r") })
			if !written || !read || name.V2 == "" {
				continue
			}
			if !slices.ContainsFunc(members(), func(m member) bool { return m.of == n.Title && m.v1.at == name.V1 }) {
				t.Errorf("%s: %s is not in the matrix", n.Title, name.V1)
			}
		}
	}
}

// get returns the member at a path, nil where there is none.
func get(at object, path string) any {
	name, rest, more := strings.Cut(path, ".")
	name, item := strings.CutSuffix(name, "[0]")
	v := at[name]
	if list, _ := v.([]any); item && len(list) > 0 {
		v = list[0]
	}
	if below, _ := v.(object); more {
		return get(below, rest)
	}
	return v
}

// put sets the member at a path.
func put(at object, path string, v any) {
	name, rest, more := strings.Cut(path, ".")
	name, item := strings.CutSuffix(name, "[0]")
	if more {
		below, _ := at[name].(object)
		if list, _ := at[name].([]any); item && len(list) > 0 {
			below, _ = list[0].(object)
		}
		if below == nil {
			below = object{}
		}
		put(below, rest, v)
		v = below
	}
	if item {
		v = []any{v}
	}
	at[name] = v
}
