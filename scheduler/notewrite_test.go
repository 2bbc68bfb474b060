package scheduler_test

import (
	"testing"

	"gantry/fleet"
	"gantry/test/plane"
)

// TestAWriteThroughAGatewayIsNoted as that of the key's holder, unless it would be refused here.
func TestAWriteThroughAGatewayIsNoted(t *testing.T) {
	p := plane.New(t)
	made, err := p.CreatePod(t.Context(), p.Who(plane.User), fleet.PodRequest{Name: "a", Image: "busybox", GPU: &fleet.GPURequest{Type: plane.SimGPU, Count: 1}})
	if err != nil {
		t.Fatal(err)
	}
	id := made.Pod.ID
	note := func(key string) error { return p.NoteWrite(t.Context(), plane.KeyText(key), id, "192.0.2.7") }
	if err := note(plane.User); fleet.CodeOf(err) != fleet.CodeNotAllowed {
		t.Errorf("a pod that does not run yet: %v", err)
	}
	if err := p.Report(id, fleet.EventRunning); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]fleet.Code{
		plane.Reader: fleet.CodeForbidden, plane.Other: fleet.CodeNotFound, plane.Expired: "", "nobody": fleet.CodeUnauthorized,
	} {
		if key == plane.Expired {
			p.Expire(key, p.Now())
			want = fleet.CodeUnauthorized
		}
		if err := note(key); fleet.CodeOf(err) != want {
			t.Errorf("%s: %v", key, err)
		}
	}
	if err := p.NoteWrite(t.Context(), "", id, ""); fleet.CodeOf(err) != fleet.CodeUnauthorized {
		t.Errorf("no key: %v", err)
	}
	lines := func() []fleet.AuditLine {
		page, err := p.Audit(t.Context(), fleet.AuditQuery{Account: plane.Research, Operation: "writePodFiles", Limit: 9})
		if err != nil {
			t.Fatal(err)
		}
		return page.Lines
	}
	if got := lines(); len(got) != 0 {
		t.Errorf("refused writes are on record: %+v", got)
	}
	p.SetDown(true)
	if err := note(plane.User); err == nil {
		t.Error("a line that cannot be written")
	}
	p.SetDown(false)
	if err := note(plane.User); err != nil {
		t.Fatal(err)
	}
	got := lines()
	if len(got) != 1 || got[0].Object != string(id) || got[0].Key != string(p.Who(plane.User).Key) || got[0].Face != "v2" || got[0].Address != "192.0.2.7" ||
		got[0].Status != 204 || got[0].Operator {
		t.Errorf("%+v", got)
	}
}
