package place

import (
	"errors"
	"testing"

	"gantry/fleet"
)

func TestCUDARanges(t *testing.T) {
	for _, tc := range []struct {
		rule string
		want *fleet.CUDARange
		host string
		ok   bool
	}{
		{"nothing is stated", nil, "", true},
		{"an empty list states nothing", &fleet.CUDARange{Allowed: []string{}}, "", true},
		{"one of the list", &fleet.CUDARange{Allowed: []string{"11.8", "12.8"}}, "12.8", true},
		{"not one of the list", &fleet.CUDARange{Allowed: []string{"11.8", "12.7"}}, "12.8", false},
		{"a newer one than the list has", &fleet.CUDARange{Allowed: []string{"12.1"}}, "12.10", false},
		{"the floor itself", &fleet.CUDARange{Min: "12.8"}, "12.8", true},
		{"above the floor by number, not by letter", &fleet.CUDARange{Min: "12.8"}, "12.10", true},
		{"above the floor by its first number", &fleet.CUDARange{Min: "9.2"}, "12.0", true},
		{"below the floor", &fleet.CUDARange{Min: "12.8"}, "12.4", false},
		{"below the floor by its first number", &fleet.CUDARange{Min: "12.0"}, "11.8", false},
		{"a host without CUDA under a floor", &fleet.CUDARange{Min: "11.0"}, "", false},
		{"a host without CUDA under a list", &fleet.CUDARange{Allowed: []string{"11.0"}}, "", false},
		{"a host of an odd version", &fleet.CUDARange{Min: "11.0"}, "twelve", false},
		{"an odd floor", &fleet.CUDARange{Min: "twelve"}, "12.8", false},
		{"an odd list and an odd host", &fleet.CUDARange{Allowed: []string{"twelve"}}, "twelve", false},
	} {
		t.Run(tc.rule, func(t *testing.T) {
			h := host("a", gpus("a", h100, 1, 1)...).but(func(c *Candidate) { c.Host.Inventory.CUDA = tc.host })
			req := with(wantGPUs(h100, 1), func(r *Request) { r.CUDA = tc.want })
			if _, err := pick(t, req, []Candidate{h}); (err == nil) != tc.ok {
				t.Errorf("got %v", err)
			}
			if n := stock(t, req, []Candidate{h}); (n == 1) != tc.ok {
				t.Errorf("stock %d", n)
			}
		})
	}
}

func TestShortage(t *testing.T) {
	free := fleet.Resources{MilliCPU: 10, MemoryMB: 20, DiskGB: 30}
	for reason, need := range map[string]fleet.Resources{
		"": free, "CPU: needs 0.011 cores, at most 0.01 free": {MilliCPU: 11},
		"memory: needs 0.021 GB, at most 0.02 GB free": {MemoryMB: 21}, "container disk: needs 31 GB, at most 30 GB free": {DiskGB: 31},
	} {
		err := Shortage(need, free)
		var e *fleet.Error
		switch {
		case reason == "":
			if err != nil {
				t.Errorf("what fits: %v", err)
			}
		case !errors.As(err, &e) || e.Code != fleet.CodeNoCapacity || e.Msg != NoCapacity ||
			len(e.Excluded) != 1 || e.Excluded[0] != (fleet.Exclusion{Reason: reason, Hosts: 1}):
			t.Errorf("%s: got %+v", reason, err)
		}
	}
}

// cudaAllows says by a plain list what the drawn ranges allow of the drawn versions.
func cudaAllows(r *fleet.CUDARange, version string) bool {
	switch {
	case r == nil || len(r.Allowed) == 0 && r.Min == "":
		return true
	case r.Min == "12.4":
		return version == "12.8" || version == "12.10"
	case r.Min == "9.0":
		return version != ""
	}
	return version == "12.8" || version == "11.8"
}
