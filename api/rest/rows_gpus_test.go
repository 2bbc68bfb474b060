package rest_test

import (
	"testing"

	"gantry/fleet"
	"gantry/test/plane"
)

func init() { addRows(hostGPURows, "200 host GPU", "400 GPU gone") }

func hostGPURows() []row {
	const (
		rule   = "200 host GPU"
		reason = `{"reason":"RMA 4711"}`
		gpu    = "/gpus/0"
	)
	v := func(name, rule, path, body string, setup func(*testing.T, *plane.Plane)) row {
		return operator("host-gpus", name, rule, "POST", path, body, setup)
	}
	cordoned := func(t *testing.T, p *plane.Plane) {
		_, err := p.CordonGPU(t.Context(), plane.Host, "0", "fan")
		must(t, err)
	}
	pulled := func(t *testing.T, p *plane.Plane) {
		cordoned(t, p)
		p.Restock(plane.Host, func(inv *fleet.Inventory) { inv.GPUs = inv.GPUs[1:] })
	}
	uuid := func(word string, setup func(*testing.T, *plane.Plane)) row {
		return v(word+"-uuid", rule, theHost+"/gpus/GPU-00000008-0000-0000-0000-000000000000/"+word, "", setup)
	}
	return []row{
		v("cordon", rule, theHost+gpu+"/cordon", reason, nil),
		v("cordon-again", rule, theHost+gpu+"/cordon", reason, cordoned),
		v("cordon-none", "404 missing object", theHost+"/gpus/999/cordon", reason, nil),
		v("cordon-other", "404 missing object", theHost+"/gpus/GPU-none/cordon", reason, nil),
		v("cordon-no-host", "404 missing object", noHostID+gpu+"/cordon", reason, nil),
		v("cordon-no-reason", "422 missing field", theHost+gpu+"/cordon", `{}`, nil),
		v("cordon-empty-reason", "422 bound", theHost+gpu+"/cordon", `{"reason":""}`, nil),
		byUser(v("cordon", "", theHost+gpu+"/cordon", reason, nil)),
		uuid("uncordon", cordoned),
		v("uncordon-open", "404 missing object", theHost+gpu+"/uncordon", "", nil),
		named(uuid("uncordon", pulled), "uncordon-gone", "400 GPU gone"),
		byUser(v("uncordon", "", theHost+gpu+"/uncordon", "", cordoned)),
		uuid("clear", cordoned),
		named(uuid("clear", pulled), "clear-gone", rule),
		v("clear-open", "404 missing object", theHost+gpu+"/clear", "", nil),
		byUser(v("clear", "", theHost+gpu+"/clear", "", cordoned)),
		operator("host-gpus", "get-gone", rule, "GET", theHost, "", pulled),
	}
}

// named is a row under another name and rule.
func named(r row, name, rule string) row {
	r.name, r.rule = name, rule
	return r
}
