package rest_test

import (
	"testing"

	"gantry/test/plane"
)

func init() {
	addRows(gatewayRows, "200 gateways", "201 gateway token", "200 gateway drained", "204 gateway removed")
}

func gatewayRows() []row {
	const id = "gateway0000001"
	v := func(name, rule, method, path, body string) row {
		return operator("gateway", name, rule, method, "gateways"+path, body, func(_ *testing.T, p *plane.Plane) { p.AddGateway(id) })
	}
	return []row{
		v("list", "200 gateways", "GET", "", ""), byUser(v("list", "", "GET", "", "")),
		v("token", "201 gateway token", "POST", "/tokens", `{}`),
		v("token-center-missing", "404 missing object", "POST", "/tokens", `{"dataCenterId":"nowhere"}`),
		v("token-center-word", "422 pattern", "POST", "/tokens", `{"dataCenterId":"-"}`),
		v("token-bounds", "422 bound", "POST", "/tokens", `{"ttlSeconds":59}`),
		v("token-unknown", "422 unknown property", "POST", "/tokens", `{"voter":true}`),
		byUser(v("token", "", "POST", "/tokens", `{}`)),
		v("drain", "200 gateway drained", "POST", "/"+id+"/drain", ""),
		v("undrain", "200 gateway drained", "POST", "/"+id+"/undrain", ""),
		v("drain-missing", "404 missing object", "POST", "/"+missingID+"/drain", ""),
		v("drain-no-id", "404 missing object", "POST", "/edge-1/drain", ""),
		byUser(v("drain", "", "POST", "/"+id+"/drain", "")),
		v("remove", "204 gateway removed", "DELETE", "/"+id, ""),
		v("remove-missing", "404 missing object", "DELETE", "/"+missingID, ""),
		byUser(v("remove", "", "DELETE", "/"+id, "")),
	}
}
