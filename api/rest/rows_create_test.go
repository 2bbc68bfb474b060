package rest_test

import (
	"fmt"
	"strings"
	"testing"

	"gantry/fleet"
	"gantry/test/plane"
)

// onGPU returns the smallest body of a pod with one GPU of the one host, with more members of gpu.
func onGPU(members string) string {
	return `{"name":"a","image":"busybox","gpu":{"id":"NVIDIA H100 80GB HBM3",` + members + `}}`
}

func gpuRows() []row {
	v := func(name, rule, body string) row { return create("gpu", name, rule, body) }
	const cuda, form, per = "CUDA of the host", "422 CUDA version", "resources per GPU"
	return []row{
		v("cuda-listed", cuda, onGPU(`"allowedCudaVersions":["12.4","12.8"]`)), v("cuda-not-listed", "400 no capacity", onGPU(`"allowedCudaVersions":["12.7","12.80"]`)),
		v("cuda-least", cuda, onGPU(`"minCudaVersion":"12.8"`)), v("cuda-least-by-number", cuda, onGPU(`"minCudaVersion":"9.10"`)), v("cuda-newer", "400 no capacity", onGPU(`"minCudaVersion":"12.10"`)),
		v("cuda-empty-list", cuda, onGPU(`"allowedCudaVersions":[]`)), v("cuda-empty-list-and-least", cuda, onGPU(`"allowedCudaVersions":[],"minCudaVersion":"12.0"`)),
		v("cuda-both", "400 CUDA list with floor", onGPU(`"allowedCudaVersions":["12.8"],"minCudaVersion":"12.0"`)),
		v("cuda-form", form, onGPU(`"minCudaVersion":"12"`)), v("cuda-empty", form, onGPU(`"minCudaVersion":""`)), v("cuda-words", form, onGPU(`"allowedCudaVersions":["12.8.1","v12.8","","12."]`)),
		v("cuda-null", "422 null where nothing says so", onGPU(`"minCudaVersion":null,"allowedCudaVersions":null`)), v("cuda-number", "422 wrong type", onGPU(`"minCudaVersion":12.8`)),
		v("cuda-on-cpu", "422 unknown property", `{"name":"a","image":"b","cpu":{"id":"cpu3g","vcpuCount":2,"minCudaVersion":"12.8"}}`),
		v("ram", per, onGPU(`"count":2,"minRamPerGpu":64`)), v("ram-beyond", "400 no capacity", onGPU(`"count":2,"minRamPerGpu":257`)),
		v("vcpu", per, onGPU(`"minVcpuCountPerGpu":32`)), v("vcpu-beyond", "400 no capacity", onGPU(`"minVcpuCountPerGpu":65`)),
		v("ram-bound", "422 bound", onGPU(`"minRamPerGpu":0,"minVcpuCountPerGpu":0`)), v("ram-fraction", "422 whole number", onGPU(`"minRamPerGpu":0.5`)),
		v("memory-on-cpu", "422 unknown property", `{"name":"a","image":"b","cpu":{"id":"cpu3g","vcpuCount":2,"memory":8}}`),
		v("global-where-it-is", "201 create pod", `{"name":"a","image":"b","gpu":{"id":"NVIDIA GeForce RTX 4090"},"cloud":"COMMUNITY","globalNetworking":true}`),
		v("global-elsewhere", "400 globalNetworking without its preconditions", `{"name":"a","image":"b","gpu":{"id":"NVIDIA H100 80GB HBM3"},"dataCenterIds":["dev-1"],"globalNetworking":true}`),
	}
}

// fromTemplate is a row that creates from a template of User.
func fromTemplate(name, rule, members string, change func(*fleet.Template)) row {
	r := create("templated", name, rule, `{"name":"a","gpu":{"id":"NVIDIA H100 80GB HBM3"},"templateId":"<template-1>"`+members+`}`)
	r.setup = func(t *testing.T, p *plane.Plane) { template(t, p, plane.User, change) }
	return r
}

func templatedRows() []row {
	const merge = "template merge"
	owned := func(key string, public bool) func(*testing.T, *plane.Plane) {
		return func(t *testing.T, p *plane.Plane) {
			template(t, p, key, func(in *fleet.Template) { in.Public = public })
		}
	}
	foreign := fromTemplate("foreign", "404 unknown reference names the field", "", nil)
	foreign.setup = owned(plane.Other, false)
	public := fromTemplate("foreign-public", merge, "", nil)
	public.setup = owned(plane.Other, true)
	many := func(n int, name string) map[string]string {
		out := map[string]string{}
		for i := range n {
			out[fmt.Sprintf("%s%d", name, i)] = "1"
		}
		return out
	}
	fifty := func(in *fleet.Template) { in.Env = many(50, "V") }
	return []row{
		fromTemplate("all-of-it", merge, "", nil),
		fromTemplate("body-wins", merge, `,"image":"busybox","args":"mine","disk":7,"ports":["22/tcp"],"env":{"A":"body","B":"2"}`, nil),
		fromTemplate("body-empties", merge, `,"args":"","ports":[],"env":{},"registry":null`, nil),
		fromTemplate("mount", merge, "", func(in *fleet.Template) { in.Persistent = &fleet.PersistentMount{SizeGB: 30, Path: "/data"} }),
		fromTemplate("cuda-refuses", "400 no capacity", "", func(in *fleet.Template) { in.AllowedCUDA = []string{"11.8"} }),
		{
			topic: "templated", name: "cuda-overridden", rule: merge, method: "POST", path: "/v2/pods", key: plane.User,
			body: `{"name":"a","gpu":{"id":"NVIDIA H100 80GB HBM3","allowedCudaVersions":[]},"templateId":"<template-1>"}`,
			setup: func(t *testing.T, p *plane.Plane) {
				template(t, p, plane.User, func(in *fleet.Template) { in.AllowedCUDA = []string{"11.8"} })
			},
		},
		fromTemplate("fifty", merge, `,"env":{"V0":"mine"}`, fifty), fromTemplate("fifty-one", "422 variables after the merge", `,"env":{"W":"1"}`, fifty),
		fromTemplate("no-name", "422 missing field", `,"name2":1`, nil),
		foreign, public,
		create("templated", "no-image", "422 missing field", `{"name":"a","gpu":{"id":"NVIDIA H100 80GB HBM3"}}`),
		create("templated", "unknown", "404 unknown reference names the field", `{"name":"a","gpu":{"id":"NVIDIA H100 80GB HBM3"},"templateId":"`+missingID+`"}`),
	}
}

func startRows() []row {
	keys := func(t *testing.T, p *plane.Plane) {
		if err := p.SetSSHKeys(t.Context(), p.Who(plane.User), []string{keyLine(t, 1), keyLine(t, 2)}); err != nil {
			t.Fatal(err)
		}
	}
	v := func(name, rule, members string, setup func(*testing.T, *plane.Plane)) row {
		r := create("start", name, rule, with(members))
		r.setup = setup
		return r
	}
	const ssh, jupyter = "startSsh", "startJupyter"
	return []row{
		v("ssh", ssh, `"startSsh":true`, keys), v("ssh-off", ssh, `"startSsh":false`, keys), v("ssh-without-keys", ssh, `"startSsh":true`, nil),
		v("ssh-own-key", ssh, `"startSsh":true,"env":{"PUBLIC_KEY":"mine"}`, keys), v("ssh-own-other", ssh, `"startSsh":true,"env":{"SSH_PUBLIC_KEY":"mine"}`, keys),
		v("jupyter", jupyter, `"startJupyter":true`, nil), v("jupyter-own", jupyter, `"startJupyter":true,"env":{"JUPYTER_PASSWORD":"mine"}`, nil), v("jupyter-off", jupyter, `"startJupyter":false`, nil),
		fromTemplate("template-says", ssh, `,"startJupyter":false`, func(in *fleet.Template) { in.StartJupyter = true }),
		v("form", "422 wrong type", `"startSsh":"yes","startJupyter":1`, nil), v("null", "422 null where nothing says so", `"startSsh":null`, nil),
	}
}

// keyLine returns a public key that is the same in every run.
func keyLine(t testing.TB, n int) string {
	t.Helper()
	return "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI" + strings.Repeat(string(rune('A'+n)), 43) + " user" + fmt.Sprint(n)
}

func onceRows() []row {
	const once, form = "create happens once", "422 Idempotency-Key"
	v := func(name, rule, body string, header ...string) row {
		r := create("once", name, rule, body)
		r.header = append([]string{"Idempotency-Key"}, header...)
		return r
	}
	repeated := v("repeated", once, gpuBody, "make-1")
	repeated.before = 2
	respelt := v("respelt", once, gpuBody, "make-1")
	respelt.warm = strings.ReplaceAll(gpuBody, `,`, " ,\n")
	other := v("other-body", form, gpuBody, "make-1")
	other.warm = cpuBody
	emptied := v("emptied-member", form, with(`"ports":[]`), "make-1")
	emptied.warm = gpuBody
	dry := v("dry-run", "200 dry run", gpuBody, "make-1")
	dry.path, dry.before = "/v2/pods?dryRun=true", 1
	refusedFirst := v("after-refusal", "201 create pod", gpuBody, "make-1")
	refusedFirst.warm = `{"name":"a","image":"b","gpu":{"id":"NVIDIA L4"}}`
	return []row{
		v("first", once, gpuBody, "make-1"), repeated, respelt, other, emptied, dry, refusedFirst,
		v("longest", once, gpuBody, strings.Repeat("k", 255)), v("too-long", form, gpuBody, strings.Repeat("k", 256)), v("space", form, gpuBody, "a b"),
		v("tab", form, gpuBody, "a\tb"), v("not-ascii", form, gpuBody, "clé"), v("twice", form, gpuBody, "a\nb"),
	}
}
