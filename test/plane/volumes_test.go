package plane_test

import (
	"testing"

	"gantry/fleet"
	"gantry/test/plane"
)

func TestVolumesOfAPlane(t *testing.T) {
	p := plane.New(t)
	id := p.PutVolume(plane.User, 1, "dev-1")
	look := func() fleet.VolumeView {
		t.Helper()
		v, err := p.Volume(t.Context(), p.Who(plane.User), id)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	if v := look(); v.Volume.State != fleet.VolumeCreating || v.Problem == "" || v.Volume.Backend != plane.Storage("dev-1") {
		t.Errorf("%+v", v)
	}
	p.SetStorageHost(plane.Storage("dev-1"), plane.Host)
	p.SetUsed(id, 5, "")
	p.Provision(id)
	if v := look(); v.Volume.State != fleet.VolumeReady || v.Problem != "" || v.Used == nil || *v.Used != 5 {
		t.Errorf("%+v", v)
	}
	if err := p.DeleteVolume(t.Context(), p.Who(plane.User), id); err != nil {
		t.Fatal(err)
	}
	p.Provision(id)
	if err := p.DeleteBackend(t.Context(), plane.Storage("dev-1")); err != nil {
		t.Errorf("something is left: %v", err)
	}
}
