package scheduler

import (
	"context"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"gantry/fleet"
	"gantry/scheduler/state"
)

const prototype = "NVIDIA Prototype 9000"

// TestCatalogAgreesWithCreates holds the catalog to its word: what it does not call NONE can be created,
// what it calls NONE cannot.
func TestCatalogAgreesWithCreates(t *testing.T) {
	root := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp(root, "")
		if err != nil {
			t.Fatal(err)
		}
		w := openWorld(t, dir)
		defer w.close()
		settle(t, w)
		q := fleet.CatalogQuery{
			Count: rapid.IntRange(0, 3).Draw(t, "count"), VCPU: rapid.SampledFrom([]int{0, 2, 3, 8, 64}).Draw(t, "vcpu"),
			Cloud:     rapid.SampledFrom([]fleet.Cloud{"", fleet.CloudSecure, fleet.CloudCommunity}).Draw(t, "cloud"),
			Countries: rapid.SampledFrom([][]string{nil, {"DE"}, {"DE", "FR"}, {"US"}}).Draw(t, "countries"),
			CUDA:      rapid.SampledFrom([]fleet.CUDARange{{}, {Allowed: []string{"12.4"}}, {Min: "12.5"}}).Draw(t, "cuda"),
		}
		cat, err := w.svc.Catalog(context.Background(), q)
		if err != nil {
			t.Fatal(err)
		}
		seen := 0
		for _, o := range cat.GPUs {
			if o.MaxSecure+o.MaxCommunity > 0 {
				seen++
			}
			req := fleet.PodRequest{Name: "p", Image: "i", Cloud: q.Cloud, GPU: &fleet.GPURequest{Type: o.ID, Count: max(q.Count, 1)}, CUDA: &q.CUDA}
			agree(t, w, o.ID, req, q, o.Stock, o.Centers)
		}
		for _, o := range cat.CPUs {
			vcpu := q.VCPU
			if vcpu == 0 {
				vcpu = o.MinVCPU
			}
			req := fleet.PodRequest{Name: "p", Image: "i", Cloud: q.Cloud, CPU: &fleet.CPURequest{Flavor: o.ID, VCPU: vcpu}}
			agree(t, w, o.ID, req, q, o.Stock, o.Centers)
		}
		if seen > 3 {
			t.Fatalf("%d types have hosts, of 3", seen)
		}
	})
}

// settle draws some hosts in two data centers, and some pods on them.
func settle(t *rapid.T, w *world) {
	for i := range rapid.IntRange(0, 4).Draw(t, "hosts") {
		dc := rapid.SampledFrom([]fleet.DataCenterID{"dc-de", "dc-fr"}).Draw(t, "dc")
		cloud := rapid.SampledFrom([]fleet.Cloud{fleet.CloudSecure, fleet.CloudCommunity}).Draw(t, "tier")
		gpu := rapid.SampledFrom([]string{h100, mi300, prototype}).Draw(t, "type")
		cores, disk := rapid.Int64Range(1, 16).Draw(t, "cores"), rapid.Int64Range(5, 60).Draw(t, "disk")
		w.addHostIn(cloud, fleet.HostID(fmt.Sprintf("host-%d", i)), dc, gpu, rapid.IntRange(0, 4).Draw(t, "gpus"),
			total(cores, 2*cores, disk), cuda(rapid.SampledFrom([]string{"", "12.4", "12.6"}).Draw(t, "cuda")))
	}
	w.must(
		state.PutDataCenter{DataCenter: fleet.DataCenter{ID: "dc-de", Name: "de", Country: "DE"}},
		state.PutDataCenter{DataCenter: fleet.DataCenter{ID: "dc-fr", Name: "fr", Country: "FR"}},
	)
	for range rapid.IntRange(0, 4).Draw(t, "pods") {
		req := cpuPod(2)
		if rapid.Bool().Draw(t, "gpu") {
			req = gpuPod(rapid.IntRange(1, 2).Draw(t, "count"))
		}
		req.Cloud = rapid.SampledFrom([]fleet.Cloud{fleet.CloudSecure, fleet.CloudCommunity}).Draw(t, "of")
		_, err := w.svc.CreatePod(context.Background(), member(acme), req)
		if err != nil && fleet.CodeOf(err) != fleet.CodeNoCapacity && fleet.CodeOf(err) != fleet.CodeInvalid {
			t.Fatal(err)
		}
	}
}

// agree compares an offer, in all and in each data center, with what a create would say.
func agree(
	t *rapid.T, w *world, what string, req fleet.PodRequest, q fleet.CatalogQuery, stock fleet.Availability, per []fleet.CenterStock,
) {
	var within []fleet.DataCenterID
	for _, c := range per {
		if len(q.Countries) == 0 || slices.Contains(q.Countries, c.Center.Country) {
			within = append(within, c.Center.ID)
		}
	}
	can := func(centers ...fleet.DataCenterID) bool {
		req.Centers = centers
		if len(q.Countries) > 0 && len(centers) == 0 {
			return false
		}
		_, err := w.svc.PlanPod(context.Background(), member(acme), req)
		if code := fleet.CodeOf(err); code != "" && code != fleet.CodeNoCapacity && code != fleet.CodeInvalid {
			t.Fatal(err)
		}
		return err == nil
	}
	if got := can(within...); got != (stock != fleet.AvailableNone) {
		t.Fatalf("%s: the catalog says %s, a create is possible: %v", what, stock, got)
	}
	for _, c := range per {
		got := can(c.Center.ID) && slices.Contains(within, c.Center.ID)
		if got != (c.Stock != fleet.AvailableNone) {
			t.Fatalf("%s in %s: the catalog says %s, a create is possible: %v", what, c.Center.ID, c.Stock, got)
		}
	}
}

func TestCatalogNumbers(t *testing.T) {
	w := newWorld(t)
	w.addHost("host-a", "dc-1", h100, 8, cuda("12.4"))
	w.addHost("host-b", "dc-1", h100, 4, cuda("12.10"))
	w.addHostIn(fleet.CloudCommunity, "host-c", "dc-2", h100, 2, cuda("12.4"))
	w.addHost("host-d", "dc-2", prototype, 1)
	offer := func(id string, q fleet.CatalogQuery) fleet.GPUOffer {
		t.Helper()
		view, err := w.svc.Catalog(context.Background(), q)
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(view.GPUs, func(o fleet.GPUOffer) bool { return o.ID == id })
		if i < 0 {
			t.Fatalf("%s is not in the catalog", id)
		}
		return view.GPUs[i]
	}
	o := offer(h100, fleet.CatalogQuery{})
	if o.MaxSecure != 8 || o.MaxCommunity != 2 || o.Stock != fleet.AvailableMedium || !slices.Equal(o.CUDA, []string{"12.10", "12.4"}) {
		t.Errorf("%+v", o)
	}
	if o.Centers[0].Stock != fleet.AvailableMedium || o.Centers[1].Stock != fleet.AvailableNone {
		t.Errorf("per data center: %+v", o.Centers)
	}
	for _, c := range []struct {
		q    fleet.CatalogQuery
		want fleet.Availability
	}{
		{fleet.CatalogQuery{Count: 4}, fleet.AvailableLow},
		{fleet.CatalogQuery{Count: 9}, fleet.AvailableNone},
		{fleet.CatalogQuery{Cloud: fleet.CloudCommunity}, fleet.AvailableLow},
		{fleet.CatalogQuery{CUDA: fleet.CUDARange{Min: "12.5"}, Count: 4}, fleet.AvailableLow},
		{fleet.CatalogQuery{CUDA: fleet.CUDARange{Allowed: []string{"12.10"}}, Count: 5}, fleet.AvailableNone},
		{fleet.CatalogQuery{Countries: []string{"DE"}}, fleet.AvailableNone},
	} {
		if got := offer(h100, c.q).Stock; got != c.want {
			t.Errorf("%+v: %s, want %s", c.q, got, c.want)
		}
	}
	if o := offer(prototype, fleet.CatalogQuery{}); !o.Contributed || o.Secure != 0 || o.Stock != fleet.AvailableLow {
		t.Errorf("a type that a host brought along: %+v", o)
	}
	_, err := w.svc.Catalog(context.Background(), fleet.CatalogQuery{CUDA: fleet.CUDARange{Allowed: []string{"12.4"}, Min: "12.4"}})
	refused(t, err, fleet.CodeConflictRule, "exclude")
}

func TestDefaultCatalog(t *testing.T) {
	cat := DefaultCatalog()
	seen := map[string]bool{}
	for _, g := range cat.GPUs {
		if seen[g.ID] || g.MemoryGB < 6 || g.Community <= 0 || g.Secure < g.Community || g.Serverless < g.Secure || g.Contributed {
			t.Errorf("%+v", g)
		}
		seen[g.ID] = true
		if (g.Manufacturer == "AMD") != strings.HasPrefix(g.ID, "AMD ") || g.Manufacturer != "AMD" && g.Manufacturer != "NVIDIA" {
			t.Errorf("%s is of %s", g.ID, g.Manufacturer)
		}
	}
	if len(seen) != 45 {
		t.Errorf("%d GPU types", len(seen))
	}
	want := &fleet.StoragePrices{
		ContainerDisk: 100_000_000, PersistentRunning: 100_000_000, PersistentStopped: 200_000_000, VolumeFirst: 70_000_000,
		VolumeBeyond: 50_000_000, FastFirst: 140_000_000, FastBeyond: 100_000_000,
	}
	if d := cmp.Diff(want, cat.Storage); d != "" {
		t.Error(d)
	}
}

// orders is one of everything that an operator may set.
type orders struct {
	gpu    fleet.GPUType
	flavor fleet.CPUFlavor
	center fleet.DataCenter
	prices fleet.StoragePrices
}

func someOrders() orders {
	return orders{
		gpu:    fleet.GPUType{ID: prototype, Name: "P", Manufacturer: "NVIDIA", MemoryGB: 10, Contributed: true},
		flavor: fleet.CPUFlavor{ID: "big", Name: "Big", MinVCPU: 4, MaxVCPU: 64, RAMPerVCPU: 2.5, DiskPerVCPU: 1},
		center: fleet.DataCenter{ID: "EU-1", Region: "EUROPE", Country: "DE", Compliance: []string{"GDPR", "HIPAA", "GDPR"}},
		prices: fleet.StoragePrices{VolumeFirst: 5},
	}
}

// give gives the orders and returns the refusals.
func (o orders) give(s *Service) []error {
	ctx := context.Background()
	errs := []error{s.PutGPUType(ctx, o.gpu), s.PutCPUFlavor(ctx, o.flavor), s.PutDataCenter(ctx, o.center), s.PutStoragePrices(ctx, o.prices)}
	return slices.DeleteFunc(errs, func(err error) bool { return err == nil })
}

func TestOrdersRefused(t *testing.T) {
	w := newWorld(t)
	for path, spoil := range map[string]func(o *orders){
		"$.manufacturer":        func(o *orders) { o.gpu.Manufacturer = "me" },
		"$.memory":              func(o *orders) { o.gpu.MemoryGB = 0 },
		"$.price.secure":        func(o *orders) { o.gpu.Secure = -1 },
		"$.price.serverless":    func(o *orders) { o.gpu.Serverless = maxPrice + 1 },
		"$.vcpu.min":            func(o *orders) { o.flavor.MinVCPU = 3 },
		"$.vcpu.max":            func(o *orders) { o.flavor.MaxVCPU = 2 },
		"$.ramGbPerVcpu":        func(o *orders) { o.flavor.RAMPerVCPU = math.NaN() },
		"$.diskGbPerVcpu":       func(o *orders) { o.flavor.DiskPerVCPU = 0 },
		"$.price.securePerVcpu": func(o *orders) { o.flavor.SecureVCPU = -1 },
		"$.region":              func(o *orders) { o.center.Region = "MOON" },
		"$.country":             func(o *orders) { o.center.Country = "de" },
		"$.compliance":          func(o *orders) { o.center.Compliance = []string{"ISO"} },
		"$.fastBeyond":          func(o *orders) { o.prices.FastBeyond = -1 },
	} {
		o := someOrders()
		spoil(&o)
		if errs := o.give(w.svc); len(errs) != 1 {
			t.Errorf("%s: %v", path, errs)
		} else {
			refused(t, errs[0], fleet.CodeInvalid, path)
		}
	}
}

func TestOrders(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	w.addHost("host-a", "dc-1", h100, 1)
	if errs := someOrders().give(w.svc); len(errs) > 0 {
		t.Fatal(errs)
	}
	cat, err := w.svc.Catalog(ctx, fleet.CatalogQuery{})
	if err != nil {
		t.Fatal(err)
	}
	gpu, flavor := cat.GPUs[len(cat.GPUs)-1], cat.CPUs[len(cat.CPUs)-1]
	if gpu.ID != prototype || gpu.Contributed || flavor.ID != "big" || flavor.Stock != fleet.AvailableMedium { // half of the host is kept
		t.Errorf("%+v %+v", gpu, flavor)
	}
	if !slices.ContainsFunc(cat.Centers, func(d fleet.DataCenter) bool { return d.ID == "EU-1" && d.Name == "EU-1" && len(d.Compliance) == 2 }) {
		t.Errorf("%+v", cat.Centers)
	}
	if got, err := w.svc.StoragePrices(ctx); err != nil || got != someOrders().prices {
		t.Errorf("%+v %v", got, err)
	}
	refused(t, w.svc.DeleteGPUType(ctx, h100), fleet.CodeInUse, "")
	refused(t, w.svc.DeleteDataCenter(ctx, "dc-1"), fleet.CodeInUse, "")
	for _, remove := range []func() error{
		func() error { return w.svc.DeleteGPUType(ctx, prototype) },
		func() error { return w.svc.DeleteCPUFlavor(ctx, "big") },
		func() error { return w.svc.DeleteDataCenter(ctx, "EU-1") },
	} {
		if err := remove(); err != nil {
			t.Error(err)
		}
		refused(t, remove(), fleet.CodeNotFound, "not found")
	}
}

func TestSetHostCloud(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	w.addHost("host-a", "dc-1", h100, 1)
	if view, err := w.svc.SetHostCloud(ctx, "host-a", fleet.CloudCommunity); err != nil || view.Host.Cloud != fleet.CloudCommunity {
		t.Errorf("%s %v", view.Host.Cloud, err)
	}
	_, err := w.svc.SetHostCloud(ctx, "host-a", "PRIVATE")
	refused(t, err, fleet.CodeInvalid, "$.cloud")
	_, err = w.svc.SetHostCloud(ctx, "none", fleet.CloudSecure)
	refused(t, err, fleet.CodeNotFound, "host")
}
