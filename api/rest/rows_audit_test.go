package rest_test

import (
	"testing"

	"gantry/fleet"
	"gantry/test/plane"
)

func init() {
	addRows(auditRows, "200 audit log", "200 audit log as JSON lines", "400 audit cursor", "422 audit filter")
}

func auditRows() []row {
	v := func(name, rule, path, key string) row {
		return row{topic: "audit", name: name, rule: rule, method: "GET", path: path, key: key, setup: func(t *testing.T, p *plane.Plane) {
			t.Helper()
			for i, l := range []fleet.AuditLine{
				{Operation: "createPod", Object: "p7x1c9v2b6n8e4", Face: "v2", Status: 201},
				{Operation: "podStop", Object: "p7x1c9v2b6n8e4", Face: "graphql", Status: 200},
				{Operation: "addCredit", Object: "acc00000000001", Face: "admin", Status: 200, Operator: true},
			} {
				who := p.Who([]string{plane.User, plane.User, plane.Operator}[i])
				l.Account, l.Key, l.Address = who.Account, string(who.Key), "192.0.2.1"
				if err := p.NoteAudit(fleet.WithAudit(t.Context(), l)); err != nil {
					t.Fatal(err)
				}
			}
		}}
	}
	none := v("no-permission", "403 key without the permission", "/v2/audit", plane.Reader)
	none.setup = func(_ *testing.T, p *plane.Plane) {
		p.Restrict(plane.Reader, map[fleet.Group]fleet.Access{fleet.GroupPods: fleet.AccessWrite})
	}
	lines := v("accept", "200 audit log as JSON lines", "/v2/audit", plane.Reader)
	lines.header = []string{"Accept", "application/x-ndjson"}
	return []row{
		v("own", "200 audit log", "/v2/audit", plane.Reader),
		v("of-another", "200 audit log", "/v2/audit", plane.Other),
		v("first", "200 audit log", "/v2/audit?limit=1", plane.Reader),
		v("second", "200 audit log", "/v2/audit?limit=1&cursor=2", plane.Reader),
		v("operation", "200 audit log", "/v2/audit?operation=podStop&object=p7x1c9v2b6n8e4", plane.Reader),
		v("time", "200 audit log", "/v2/audit?from=2026-10-01T12:00:01Z&to=2026-10-02T00:00:00Z", plane.Reader),
		v("operator", "200 audit log", "/admin/v1/audit", plane.Operator),
		v("operator-account", "200 audit log", "/admin/v1/audit?accountId=acc00000000001", plane.Operator),
		v("jsonl", "200 audit log as JSON lines", "/admin/v1/audit?format=jsonl", plane.Operator),
		lines,
		v("cursor", "400 audit cursor", "/v2/audit?cursor=x", plane.Reader),
		v("from", "422 audit filter", "/v2/audit?from=yesterday&format=csv&limit=0", plane.Reader),
		v("no-operator", "403 key without the permission", "/admin/v1/audit", plane.User),
		none,
	}
}
