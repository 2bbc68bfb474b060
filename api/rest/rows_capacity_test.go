package rest_test

import (
	"testing"

	"gantry/fleet"
	"gantry/test/plane"
)

func init() { addRows(capacityRows, "200 placement", "200 capacity") }

func capacityRows() []row {
	v := func(name, rule, method, path, body string, setup func(*testing.T, *plane.Plane)) row {
		return row{topic: "capacity", name: name, rule: rule, method: method, path: "/admin/v1/" + path, key: plane.Operator, body: body, setup: setup}
	}
	kept := func(t *testing.T, p *plane.Plane) {
		_, err := p.PutPlacement(t.Context(), fleet.Placement{KeepPercent: 80})
		must(t, err)
	}
	// One CPU pod has most of the host's cores.
	stranded := func(t *testing.T, p *plane.Plane) {
		_, err := p.PutPlacement(t.Context(), fleet.Placement{})
		must(t, err)
		request(t, p, fleet.PodRequest{Name: "large", Image: "busybox", CPU: &fleet.CPURequest{Flavor: "cpu3g", VCPU: 32}})
		p.Restock(plane.Host, func(inv *fleet.Inventory) { inv.Total.MilliCPU = 36_000 })
	}
	busy := func(t *testing.T, p *plane.Plane) {
		p.SetLive(request(t, p, webPod(), run), fleet.Live{GPUs: []fleet.GPUUse{{Util: 40}, {Util: 61}}})
	}
	return []row{
		v("capacity-busy", "200 capacity", "GET", "capacity", "", busy), v("history-none", "200 capacity", "GET", "capacity/history", "", nil),
		byUser(v("history", "", "GET", "capacity/history", "", nil)),
		v("placement", "200 placement", "GET", "placement", "", nil),
		v("placement-set", "200 placement", "PUT", "placement", `{"keepPercent":80}`, nil),
		v("placement-after", "200 placement", "GET", "placement", "", kept),
		v("placement-empty", "422 missing field", "PUT", "placement", `{}`, nil),
		v("placement-type", "422 wrong type", "PUT", "placement", `{"keepPercent":"80"}`, nil),
		v("placement-bound", "422 bound", "PUT", "placement", `{"keepPercent":101}`, nil),
		v("placement-unknown", "422 unknown property", "PUT", "placement", `{"keepPercent":1,"keepCores":2}`, nil),
		byUser(v("placement", "", "GET", "placement", "", nil)),
		byUser(v("placement-set", "", "PUT", "placement", `{"keepPercent":80}`, nil)),
		v("capacity", "200 capacity", "GET", "capacity", "", nil),
		v("capacity-stranded", "200 capacity", "GET", "capacity", "", stranded),
		byUser(v("capacity", "", "GET", "capacity", "", nil)),
	}
}
