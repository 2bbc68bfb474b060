package place

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"gantry/fleet"
)

const (
	h100 = "NVIDIA H100 80GB HBM3"
	a40  = "NVIDIA A40"
)

// host makes a ready host of 16 cores, 64 GB and 1 TB in data center dc-1.
func host(id string, gpus ...fleet.GPU) Candidate {
	total := fleet.Resources{MilliCPU: 16_000, MemoryMB: 64_000, DiskGB: 1000}
	return Candidate{
		Host: &fleet.Host{
			ID: fleet.HostID(id), DataCenter: "dc-1", Cloud: fleet.CloudSecure, State: fleet.HostReady,
			Inventory: fleet.Inventory{Total: total, GPUs: gpus},
		},
		FreeGPUs: gpus, Free: total,
	}
}

// gpus makes n GPUs, per island and two islands per NUMA node, named after the host.
func gpus(prefix, kind string, n, perIsland int) []fleet.GPU {
	var out []fleet.GPU
	for i := range n {
		island := i / perIsland
		out = append(out, fleet.GPU{UUID: fmt.Sprintf("%s-%d", prefix, i), Type: kind, Island: island, NUMA: island / 2})
	}
	return out
}

// but changes a candidate.
func (c Candidate) but(change func(*Candidate)) Candidate {
	h := *c.Host
	c.Host = &h
	change(&c)
	return c
}

// free leaves only the GPUs with these numbers free.
func (c Candidate) only(numbers ...int) Candidate {
	return c.but(func(c *Candidate) {
		c.FreeGPUs = nil
		for _, i := range numbers {
			c.FreeGPUs = append(c.FreeGPUs, c.Host.Inventory.GPUs[i])
		}
	})
}

func wantGPUs(kind string, n int) Request {
	return Request{
		GPU: &fleet.GPURequest{Type: kind, Count: n}, Cloud: fleet.CloudSecure,
		Need: fleet.Resources{MilliCPU: 1000, MemoryMB: 1000, DiskGB: 20},
	}
}

func wantCPU() Request {
	return Request{Cloud: fleet.CloudSecure, Need: fleet.Resources{MilliCPU: 2000, MemoryMB: 4000, DiskGB: 10}}
}

func with(r Request, change func(*Request)) Request {
	change(&r)
	return r
}

func TestPick(t *testing.T) {
	for _, tc := range []struct {
		rule  string
		req   Request
		hosts []Candidate
		host  string
		gpus  []string
	}{
		{
			"a broken host is filled before a whole one", wantGPUs(h100, 1),
			[]Candidate{host("a", gpus("a", h100, 8, 8)...), host("b", gpus("b", h100, 8, 8)...).only(3, 5)},
			"b",
			[]string{"b-3"},
		},
		{
			"a broken island is filled before a whole one", wantGPUs(h100, 2),
			[]Candidate{host("a", gpus("a", h100, 8, 4)...).only(0, 1, 2, 3, 5, 6, 7)},
			"a",
			[]string{"a-5", "a-6"},
		},
		{
			"one island goes before the better fit on two", wantGPUs(h100, 2),
			[]Candidate{host("a", gpus("a", h100, 8, 4)...).only(0, 4), host("b", gpus("b", h100, 8, 8)...)},
			"b",
			[]string{"b-0", "b-1"},
		},
		{
			"without an island that is large enough, one NUMA node", wantGPUs(a40, 2),
			[]Candidate{host("a", gpus("a", a40, 4, 1)...).only(1, 2, 3)},
			"a",
			[]string{"a-2", "a-3"},
		},
		{
			"across NUMA nodes when nothing else is left", wantGPUs(a40, 2),
			[]Candidate{host("a", gpus("a", a40, 4, 1)...).only(0, 3)},
			"a",
			[]string{"a-0", "a-3"},
		},
		{
			"only GPUs of the type", wantGPUs(a40, 1),
			[]Candidate{host("a", append(gpus("h", h100, 2, 2), gpus("a", a40, 1, 1)...)...)},
			"a",
			[]string{"a-0"},
		},
		{
			"the image is there", with(wantCPU(), func(r *Request) { r.Image = "busybox" }),
			[]Candidate{host("a"), host("b").but(func(c *Candidate) {
				c.Host.Inventory.Images = []string{"docker.io/library/alpine:latest", "docker.io/library/busybox:latest"}
			})},
			"b", nil,
		},
		{
			"the model is there, which goes before the image", with(wantCPU(), func(r *Request) { r.Image, r.Model = "busybox", "https://hub/o/n:main" }),
			[]Candidate{host("a").but(func(c *Candidate) {
				c.Host.Inventory.Images = []string{"docker.io/library/busybox:latest"}
			}), host("b").but(func(c *Candidate) {
				c.Host.Inventory.Models = []string{"https://hub/o/n:main"}
			})},
			"b", nil,
		},
		{
			"a better fit goes before the image", with(wantGPUs(h100, 1), func(r *Request) { r.Image = "x" }),
			[]Candidate{
				host("a", gpus("a", h100, 4, 4)...).but(func(c *Candidate) { c.Host.Inventory.Images = []string{"docker.io/library/x:latest"} }),
				host("b", gpus("b", h100, 4, 4)...).only(2),
			},
			"b",
			[]string{"b-2"},
		},
		{
			"the preferred host", with(wantCPU(), func(r *Request) { r.Prefer = "b" }),
			[]Candidate{host("a"), host("b").but(func(c *Candidate) { c.Free.MemoryMB = 5000 })},
			"b", nil,
		},
		{
			"the pinned host", with(wantCPU(), func(r *Request) { r.Pinned = "b" }),
			[]Candidate{host("a"), host("b", gpus("b", a40, 1, 1)...)},
			"b", nil,
		},
		{
			"the least loaded", wantCPU(),
			[]Candidate{host("a").but(func(c *Candidate) { c.Free.MemoryMB = 30_000 }), host("b")},
			"b", nil,
		},
		{
			"the fewest pods", wantCPU(),
			[]Candidate{host("a").but(func(c *Candidate) { c.Pods = 1 }), host("b")},
			"b", nil,
		},
		{"the first id among equals", wantCPU(), []Candidate{host("c"), host("a"), host("b")}, "a", nil},
		{
			"pods without GPUs stay off GPU hosts", wantCPU(),
			[]Candidate{host("a", gpus("a", a40, 1, 1)...), host("b").but(func(c *Candidate) { c.Free.MemoryMB = 5000 })},
			"b", nil,
		},
		{
			"or go where the fewest GPUs are free", wantCPU(),
			[]Candidate{host("a", gpus("a", a40, 2, 1)...), host("b", gpus("b", a40, 2, 1)...).only(1)},
			"b", nil,
		},
		{
			"the data center asked for", with(wantCPU(), func(r *Request) { r.Centers = []fleet.DataCenterID{"dc-2"} }),
			[]Candidate{host("a"), host("b").but(func(c *Candidate) { c.Host.DataCenter = "dc-2" })},
			"b", nil,
		},
	} {
		t.Run(tc.rule, func(t *testing.T) {
			for range 2 {
				got, err := pick(t, tc.req, tc.hosts)
				if err != nil {
					t.Fatal(err)
				}
				if string(got.Host) != tc.host || !slices.Equal(got.GPUs, tc.gpus) {
					t.Fatalf("got %+v, want host %s, GPUs %v", got, tc.host, tc.gpus)
				}
				slices.Reverse(tc.hosts)
			}
		})
	}
}

func TestPickExplainsEachHostOnce(t *testing.T) {
	all := gpus("g", h100, 8, 8)
	state := func(s fleet.HostState) func(*Candidate) { return func(c *Candidate) { c.Host.State = s } }
	hosts := []Candidate{
		host("a").but(func(c *Candidate) { c.Host.DataCenter = "dc-2"; c.Host.Cloud = fleet.CloudCommunity }),
		host("b").but(func(c *Candidate) { c.Host.Cloud = fleet.CloudCommunity }),
		host("c"), host("d", gpus("d", a40, 1, 1)...), host("e"),
		host("c1", all...).but(func(c *Candidate) { c.Host.Inventory.CUDA = "" }),
		host("c2", all...).but(func(c *Candidate) { c.Host.Inventory.CUDA = "12.4" }),
		host("m1", all...).but(func(c *Candidate) { c.Host.Inventory.Total.MemoryMB = 31_999; c.Host.State = fleet.HostUnreachable }),
		host("v1", all...).but(func(c *Candidate) { c.Host.Inventory.Total.MilliCPU = 7_999 }),
		host("f", all...).but(state(fleet.HostUnreachable)),
		host("g", all...).but(state(fleet.HostJoining)),
		host("h", all...).only(1), host("i", all...).only(2), host("j", all...).only(),
		host("k", all...).but(func(c *Candidate) { c.Free.MilliCPU = 999 }),
		host("l", all...).but(func(c *Candidate) { c.Free.MemoryMB = 999 }),
		host("m", all...).but(func(c *Candidate) { c.Free.DiskGB = 19 }),
		host("n", all...), host("o", all...), host("p", all...),
	}
	req := with(wantGPUs(h100, 2), func(r *Request) {
		r.Centers = []fleet.DataCenterID{"dc-1"}
		r.CUDA, r.MinMemoryMB, r.MinMilliCPU = &fleet.CUDARange{Min: "12.6"}, 32_000, 8_000
		r.VolumeKind, r.Networked = fleet.BackendCeph, true
	})
	for i := range hosts {
		if hosts[i].Host.Inventory.CUDA == "" && hosts[i].Host.ID != "c1" {
			hosts[i] = hosts[i].but(func(c *Candidate) { c.Host.Inventory.CUDA = "12.8" })
		}
		kinds := []fleet.BackendKind{fleet.BackendCeph}
		if hosts[i].Host.ID == "n" {
			kinds[0] = fleet.BackendNFS
		}
		hosts[i] = hosts[i].but(func(c *Candidate) {
			c.Host.Inventory.Volumes = kinds
			c.Host.Tunnel, c.Host.Inventory.Tunnel.PublicKey = netip.MustParseAddr("100.127.0.1"), "key"
			switch c.Host.ID {
			case "o":
				c.Host.Tunnel = netip.Addr{}
			case "p":
				c.Host.Inventory.Tunnel.PublicKey = ""
			}
		})
	}
	_, err := pick(t, req, hosts)
	var got *fleet.Error
	if !errors.As(err, &got) || got.Code != fleet.CodeNoCapacity {
		t.Fatalf("got %v", err)
	}
	want := []fleet.Exclusion{
		{Reason: "data center", Hosts: 1},
		{Reason: "cloud tier", Hosts: 1},
		{Reason: "GPU type", Hosts: 3},
		{Reason: "CUDA version", Hosts: 2},
		{Reason: "cannot mount cephfs volumes", Hosts: 1},
		{Reason: "no tunnel to other hosts", Hosts: 2},
		{Reason: "host memory", Hosts: 1},
		{Reason: "host vCPUs", Hosts: 1},
		{Reason: "not connected yet", Hosts: 1},
		{Reason: "unreachable", Hosts: 1},
		{Reason: "0 of 8 GPUs free", Hosts: 1},
		{Reason: "1 of 8 GPUs free", Hosts: 2},
		{Reason: "CPU: needs 1 core, at most 0.999 free; the GPUs are free", Hosts: 1},
		{Reason: "memory: needs 1 GB, at most 0.999 GB free; the GPUs are free", Hosts: 1},
		{Reason: "container disk: needs 20 GB, at most 19 GB free; the GPUs are free", Hosts: 1},
	}
	if d := cmp.Diff(want, got.Excluded); d != "" {
		t.Error(d)
	}
	const msg = "There are no longer any instances available with the requested specifications. Please refresh and try again."
	if got.Msg != msg {
		t.Errorf("message %q", got.Msg)
	}
	if n := stock(t, req, hosts); n != 0 {
		t.Errorf("stock %d of what cannot be placed", n)
	}
}

func TestPickWithoutHosts(t *testing.T) {
	_, err := pick(t, wantCPU(), nil)
	if fleet.CodeOf(err) != fleet.CodeNoCapacity {
		t.Errorf("got %v", err)
	}
	req := with(wantCPU(), func(r *Request) { r.Pinned = "z" })
	_, err = pick(t, req, []Candidate{host("a")})
	var e *fleet.Error
	if !errors.As(err, &e) || len(e.Excluded) != 1 || e.Excluded[0].Reason != "the pod's data is on another host" {
		t.Errorf("got %v", err)
	}
}

func TestPickRefusesACountBelowOne(t *testing.T) {
	for _, n := range []int{0, -1} {
		if _, err := pick(t, wantGPUs(h100, n), []Candidate{host("a", gpus("a", h100, 8, 8)...)}); fleet.CodeOf(err) != fleet.CodeNoCapacity {
			t.Errorf("count %d: got %v", n, err)
		}
	}
}

func TestStock(t *testing.T) {
	hosts := []Candidate{
		host("a", gpus("a", h100, 8, 8)...), host("b", gpus("b", h100, 8, 8)...).only(0, 1, 2),
		host("c").but(func(c *Candidate) { c.Free.MilliCPU = 5000 }),
	}
	if n := stock(t, wantGPUs(h100, 2), hosts); n != 4+1 {
		t.Errorf("pairs: %d", n)
	}
	if n := stock(t, wantCPU(), hosts); n != 8+8+2 {
		t.Errorf("CPU pods: %d", n)
	}
	if n := stock(t, Request{Cloud: fleet.CloudSecure}, hosts); n < 1 {
		t.Errorf("pods that need nothing: %d", n)
	}
}

// drawFleet draws hosts with GPUs in any shape and anything free.
func drawFleet(t *rapid.T) []Candidate {
	kinds := []string{h100, a40}
	var out []Candidate
	keep := rapid.SampledFrom([]int{0, 25, 100}).Draw(t, "keep")
	for i := range rapid.IntRange(0, 6).Draw(t, "hosts") {
		id := fmt.Sprintf("host%d", i)
		var all []fleet.GPU
		for j := range rapid.IntRange(0, 20).Draw(t, "gpus") {
			all = append(all, fleet.GPU{
				UUID: fmt.Sprintf("%s-%d", id, j), Type: rapid.SampledFrom(kinds).Draw(t, "type"),
				Island: rapid.IntRange(0, 18).Draw(t, "island"), NUMA: rapid.IntRange(0, 3).Draw(t, "numa"),
			})
		}
		c := host(id, all...)
		c.FreeGPUs = nil
		for _, g := range all {
			if rapid.Bool().Draw(t, "free") {
				c.FreeGPUs = append(c.FreeGPUs, g)
			}
		}
		c.Host.Inventory.CUDA = rapid.SampledFrom([]string{"", "11.8", "12.8", "12.10"}).Draw(t, "cuda")
		if rapid.IntRange(0, 3).Draw(t, "small") == 0 {
			c.Host.Inventory.Total = fleet.Resources{MilliCPU: 15_999, MemoryMB: 63_999, DiskGB: 1000}
		}
		c.Free.MilliCPU = rapid.Int64Range(0, 16_000).Draw(t, "cpu")
		c.Host.State = rapid.SampledFrom([]fleet.HostState{fleet.HostReady, fleet.HostReady, fleet.HostUnreachable}).Draw(t, "state")
		c.Pods = rapid.IntRange(0, 3).Draw(t, "pods")
		c.Keep = keep
		out = append(out, c)
	}
	return out
}

func TestPickProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		hosts := drawFleet(t)
		req := wantCPU()
		if rapid.Bool().Draw(t, "wants GPUs") {
			req = wantGPUs(rapid.SampledFrom([]string{h100, a40}).Draw(t, "kind"), rapid.IntRange(1, 9).Draw(t, "count"))
		}
		req.CUDA = rapid.SampledFrom([]*fleet.CUDARange{nil, nil, {}, {Min: "12.4"}, {Min: "9.0"}, {Allowed: []string{"12.8", "11.8"}}}).Draw(t, "range")
		req.MinMemoryMB = rapid.SampledFrom([]int64{0, 0, 64_000}).Draw(t, "least memory")
		req.MinMilliCPU = rapid.SampledFrom([]int64{0, 0, 16_000}).Draw(t, "least CPU")
		q := ask(&req)
		possible := slices.ContainsFunc(hosts, func(c Candidate) bool { return firstRefusal(&q, &c) == passes })
		got, err := pick(t, req, hosts)
		if (err == nil) != possible {
			t.Fatalf("possible %t, got %v", possible, err)
		}
		if (stock(t, req, hosts) > 0) != possible {
			t.Fatalf("possible %t, stock %d", possible, stock(t, req, hosts))
		}
		shuffled := rapid.Permutation(hosts).Draw(t, "order")
		again, errAgain := pick(t, req, shuffled)
		if d := cmp.Diff(got, again); d != "" {
			t.Fatalf("the order of hosts matters: %s", d)
		}
		if err != nil {
			checkExcluded(t, err, errAgain, len(hosts))
			return
		}
		i := slices.IndexFunc(hosts, func(c Candidate) bool { return c.Host.ID == got.Host })
		c := hosts[i]
		total := c.Host.Inventory.Total
		if c.Host.State != fleet.HostReady || c.Free.MilliCPU < req.Need.MilliCPU || total.MemoryMB < req.MinMemoryMB ||
			total.MilliCPU < req.MinMilliCPU || !cudaAllows(req.CUDA, c.Host.Inventory.CUDA) {
			t.Fatalf("host %+v cannot take it", c)
		}
		want := 0
		if req.GPU != nil {
			want = req.GPU.Count
		}
		if len(got.GPUs) != want {
			t.Fatalf("%d GPUs for %d", len(got.GPUs), want)
		}
		for j, uuid := range got.GPUs {
			ok := slices.ContainsFunc(c.FreeGPUs, func(g fleet.GPU) bool { return g.UUID == uuid && g.Type == req.GPU.Type })
			if !ok || slices.Contains(got.GPUs[:j], uuid) {
				t.Fatalf("GPU %s is not free, not of the type or chosen twice", uuid)
			}
		}
	})
}

func checkExcluded(t *rapid.T, err, again error, hosts int) {
	var a, b *fleet.Error
	if !errors.As(err, &a) || !errors.As(again, &b) {
		t.Fatalf("got %v, %v", err, again)
	}
	n := 0
	for _, e := range a.Excluded {
		n += e.Hosts
	}
	if n != hosts {
		t.Fatalf("%d of %d hosts are explained", n, hosts)
	}
	if d := cmp.Diff(a.Excluded, b.Excluded); d != "" {
		t.Fatal(d)
	}
}

// What Stock promises, picking and taking one after the other keeps.
func TestStockCanBePlaced(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		hosts := drawFleet(t)
		req := wantGPUs(h100, rapid.IntRange(1, 4).Draw(t, "count"))
		want := stock(t, req, hosts)
		for n := range want {
			got, err := pick(t, req, hosts)
			if err != nil {
				t.Fatalf("placed %d of %d: %v", n, want, err)
			}
			i := slices.IndexFunc(hosts, func(c Candidate) bool { return c.Host.ID == got.Host })
			c := &hosts[i]
			c.FreeGPUs = slices.DeleteFunc(c.FreeGPUs, func(g fleet.GPU) bool { return slices.Contains(got.GPUs, g.UUID) })
			c.Free.MilliCPU -= req.Need.MilliCPU
			c.Free.MemoryMB -= req.Need.MemoryMB
			c.Free.DiskGB -= req.Need.DiskGB
		}
		if n := stock(t, req, hosts); n != 0 {
			t.Fatalf("%d are left after all were placed", n)
		}
	})
}
