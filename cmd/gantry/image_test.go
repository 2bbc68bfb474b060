package main

import (
	"strings"
	"testing"
)

// TestImageCommands plays hosts that get an image one after the other.
func TestImageCommands(t *testing.T) {
	host := func(id, present string) string {
		return `{"id":"` + id + `","name":"gpu-` + id + `","dataCenterId":"dev-1","connected":true,"images":["docker.io/x/y:1","z\u001b[31m"],"present":` + present + `}`
	}
	list := func(hosts ...string) string { return `200 {"hosts":[` + strings.Join(hosts, ",") + `]}` }
	const prefetch, images = "POST /admin/v1/images/prefetch", "GET /admin/v1/images"
	const asked = `202 {"image":"docker.io/x/y:1","hosts":[{"id":"a","name":"gpu-a","present":true},{"id":"b","name":"gpu-b","present":false}]}`
	hosts := `200 {"hosts":[{"id":"a","name":"gpu-a"},{"id":"b","name":"gpu-b"}]}`
	failed := func(minute string) string {
		return `200 {"hosts":[{"id":"b","name":"gpu-b","conditions":[{"code":"prefetch_failed","text":"image docker.io/x/y:1 was not prefetched at 12:` + minute + `: no such image"}]}]}`
	}
	for _, tc := range []struct {
		name, args string
		api        map[string][]string
		code       int
		out, err   string   // what they contain
		requests   []string // of them
	}{
		{
			name: "list", args: "image list --host gpu-a", api: map[string][]string{images: {list(host("a", "null"))}, "GET /admin/v1/hosts": {hosts}},
			out: "a     gpu-a  docker.io/x/y:1\n", requests: []string{"GET /admin/v1/images?hostId=a"},
		},
		{
			name: "list one", args: "image list --image y", api: map[string][]string{images: {list(host("a", "true"), host("b", "false"))}},
			out: "b     gpu-b  dev-1   yes        no\n", requests: []string{"GET /admin/v1/images?image=y"},
		},
		{
			name: "prefetch", args: "image prefetch x/y:1 --data-center dev-1 --host gpu-a", api: map[string][]string{prefetch: {asked}, "GET /admin/v1/hosts": {hosts}},
			out: "b     gpu-b  no\n", requests: []string{prefetch + ` {"image":"x/y:1","dataCenterIds":["dev-1"],"hostIds":["a"]}`},
		},
		{
			name: "prefetch nowhere", args: "image prefetch x/y:1", api: map[string][]string{prefetch: {`202 {"image":"docker.io/x/y:1","hosts":[]}`}},
			out: "no host could be asked\n",
		},
		{
			name: "wait", args: "image prefetch x/y:1 --wait", api: map[string][]string{
				"GET /admin/v1/hosts": {hosts}, prefetch: {asked}, images: {list(host("a", "true"), host("b", "false")), `503 {"status":503,"code":"unavailable"}`, list(host("b", "true"))},
			},
			out: "b     gpu-b  yes\n", err: "waiting for 1 host: b\n", requests: []string{"GET /admin/v1/images?image=docker.io%2Fx%2Fy%3A1"},
		},
		{
			name: "wait in vain", args: "image prefetch x/y:1 --wait --timeout 100ms",
			api: map[string][]string{"GET /admin/v1/hosts": {hosts}, prefetch: {asked}, images: {list(host("b", "false"))}}, code: exitTimeout, err: "gave up waiting for image docker.io/x/y:1",
		},
		{
			name: "wait for what fails", args: "image prefetch x/y:1 --wait",
			api: map[string][]string{
				"GET /admin/v1/hosts": {failed("05"), failed("05"), failed("06")}, prefetch: {asked}, images: {list(host("a", "true"), host("b", "false"))},
			},
			code: exitFailed, err: "gantry: 1 host cannot get image docker.io/x/y:1:\n  gpu-b (b): image docker.io/x/y:1 was not prefetched at 12:06: no such image\n",
		},
		{
			name: "refused", args: "image prefetch x/y:1 --wait", api: map[string][]string{"GET /admin/v1/hosts": {hosts}, prefetch: {asked}, images: {`403 {"status":403,"code":"forbidden"}`}},
			code: exitRefused,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, fake := gantry(t, setup{api: tc.api}, strings.Fields(tc.args)...)
			if got.Code != tc.code || !strings.Contains(got.Out, tc.out) || !strings.Contains(got.Err, tc.err) || strings.Contains(got.Out, "\x1b") {
				t.Errorf("status %d, want %d\n%s%s", got.Code, tc.code, got.Out, got.Err)
			}
			for _, want := range tc.requests {
				if !strings.Contains(strings.Join(fake.seen, "\n")+"\n", want+"\n") {
					t.Errorf("asked %q, want %q", fake.seen, want)
				}
			}
		})
	}
}
