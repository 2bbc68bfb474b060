package graphql

import (
	"cmp"
	"context"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"gantry/api/v2"
	"gantry/fleet"
)

// gpus are the GPU types of the catalog; params ask for what is free.
func (s *session) gpus(params url.Values) ([]v2.GPUType, error) {
	all, err := read[v2.GPUList](s, "listGpuTypes", params)
	if err != nil {
		return nil, err
	}
	return all.GPUs, nil
}

func (s *session) centers() ([]v2.DataCenter, error) {
	all, err := read[v2.DataCenterList](s, "listDataCenters", url.Values{"include": {"GPU_AVAILABILITY"}})
	if err != nil {
		return nil, err
	}
	return all.DataCenters, nil
}

// gpuName is the short name of a GPU type; its id where the catalog cannot be read.
func (s *session) gpuName(of *v2.GPUConfig) string {
	if of == nil {
		return ""
	}
	return cmp.Or(s.gpuNames()[of.ID], of.ID)
}

// centerName is the name of a data center; its id where the catalog cannot be read.
func (s *session) centerName(id string) string { return cmp.Or(s.centerNames()[id], id) }

// gpu shows a GPU type.
type gpu struct {
	s   *session
	rec *v2.GPUType

	ID, DisplayName, Manufacturer                                                              string
	MemoryInGb, MaxGpuCount, MaxGpuCountCommunityCloud, MaxGpuCountSecureCloud, MinPodGpuCount int32
	CudaCores                                                                                  *int32
	SecureCloud, CommunityCloud                                                                bool
	SecurePrice, CommunityPrice, OneWeekPrice, OneMonthPrice, ThreeMonthPrice, SixMonthPrice   *float64
	CommunitySpotPrice, SecureSpotPrice, ClusterPrice                                          *float64
}

func newGPU(s *session, r *v2.GPUType) *gpu {
	return &gpu{
		s: s, rec: r, ID: r.ID, DisplayName: r.Name, Manufacturer: r.Manufacturer, MemoryInGb: int32(r.Memory), MinPodGpuCount: 1,
		MaxGpuCount: int32(max(r.MaxCount.Secure, r.MaxCount.Community)), MaxGpuCountSecureCloud: int32(r.MaxCount.Secure),
		MaxGpuCountCommunityCloud: int32(r.MaxCount.Community), SecureCloud: r.Secure, CommunityCloud: r.Community,
		SecurePrice: price(r.Price.Secure), CommunityPrice: price(r.Price.Community), ClusterPrice: price(r.Price.Secure),
		SecureSpotPrice: r.Price.SecureSpot, CommunitySpotPrice: r.Price.CommunitySpot,
	}
}

// GpuTypes are the GPU types that the input names, or all.
func (root) GpuTypes(ctx context.Context, args with) ([]*gpu, error) {
	s := sessionOf(ctx)
	all, err := s.gpus(nil)
	if err != nil {
		return nil, err
	}
	return list(s, named(all, args.Input, func(g v2.GPUType) string { return g.ID }), newGPU)
}

// named are the records that an input names by id or ids; all where it names none.
func named[R any](all []R, in input, id func(R) string) []R {
	want := in.texts("ids")
	if one := in.text("id"); one != "" {
		want = append(want, one)
	}
	if len(want) == 0 {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), func(r R) bool { return !slices.Contains(want, id(r)) })
}

// NodeGroupDatacenters are the data centers where some of the type is free.
func (g *gpu) NodeGroupDatacenters() ([]*center, error) {
	mine, err := g.in(url.Values{"include": {"AVAILABILITY"}, "product": {"CLUSTER"}})
	if err != nil {
		return nil, err
	}
	all, err := g.s.centers()
	if err != nil {
		return nil, err
	}
	return list(g.s, slices.DeleteFunc(slices.Clone(all), func(d v2.DataCenter) bool {
		return !slices.ContainsFunc(mine.DataCenters, func(c v2.CenterStock) bool {
			return c.ID == d.ID && stock(c.Availability) != nil
		})
	}), newCenter)
}

// in is the type in the catalog that params ask for, which is read once for all types.
func (g *gpu) in(params url.Values) (*v2.GPUType, error) {
	all, err := g.s.gpus(params)
	if err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(all, func(o v2.GPUType) bool { return o.ID == g.rec.ID }); i >= 0 {
		return &all[i], nil
	}
	return g.rec, nil
}

// lowest shows the price and the stock of a GPU type.
type lowest struct {
	GpuName, GpuTypeID                    string
	StockStatus, CountryCode              *string
	MinimumBidPrice, UninterruptablePrice *float64
	MinMemory, MinVcpu                    *int32
	Compliance                            []string
	GpuTypeCudaVersions                   []cuda
}

// cuda shows a CUDA version.
type cuda struct{ CudaVersion, Availability string }

// LowestPrice is price and stock of the better tier, or of the one that the input names.
func (g *gpu) LowestPrice(args with) (*lowest, error) {
	in, best := args.Input, -1
	out := &lowest{GpuName: g.DisplayName, GpuTypeID: g.ID, Compliance: []string{}, GpuTypeCudaVersions: []cuda{}}
	tiers := []string{string(fleet.CloudSecure), string(fleet.CloudCommunity)}
	if secure, ok := in["secureCloud"].(bool); ok && secure {
		tiers = tiers[:1]
	} else if ok {
		tiers = tiers[1:]
	}
	params := url.Values{"include": {"AVAILABILITY"}, "product": {"POD"}}
	if n, ok := in.number("gpuCount"); ok {
		params.Set("count", strconv.Itoa(int(n)))
	}
	if country := in.text("countryCode"); country != "" {
		params.Set("countryCodes", country)
	}
	if versions := in.texts("allowedCudaVersions"); len(versions) > 0 {
		params["cudaVersions"] = versions
	} else if least := in.text("minCudaVersion"); least != "" {
		params.Set("minCudaVersion", least)
	}
	for _, tier := range tiers {
		params.Set("cloud", tier)
		rec, err := g.in(params)
		if err != nil {
			return nil, err
		}
		usd, bid, availability := rec.Price.Secure, rec.Price.SecureSpot, availabilityIn(in.text("dataCenterId"), rec.Availability, rec.DataCenters)
		if tier == string(fleet.CloudCommunity) {
			usd, bid = rec.Price.Community, rec.Price.CommunitySpot
		}
		if rank(availability) <= best {
			continue
		}
		best, out.GpuTypeCudaVersions, out.MinimumBidPrice = rank(availability), []cuda{}, bid
		if out.StockStatus = stock(availability); out.StockStatus != nil {
			out.UninterruptablePrice = &usd
		}
		for _, v := range rec.CUDAVersions {
			out.GpuTypeCudaVersions = append(out.GpuTypeCudaVersions, cuda{v.Version, map[bool]string{true: "AVAILABLE", false: "UNAVAILABLE"}[v.Available]})
		}
	}
	return out, nil
}

// availabilityIn is what is free everywhere, or in the data center with an id.
func availabilityIn(id, everywhere string, centers []v2.CenterStock) string {
	if id == "" {
		return everywhere
	}
	for _, c := range centers {
		if c.ID == id {
			return c.Availability
		}
	}
	return string(fleet.AvailableNone)
}

// rank orders what is free.
func rank(availability string) int {
	return slices.Index([]string{
		string(fleet.AvailableNone), string(fleet.AvailableLow), string(fleet.AvailableMedium), string(fleet.AvailableHigh),
	}, availability)
}

// center shows a data center.
type center struct {
	s   *session
	rec *v2.DataCenter

	ID, Name, Location    string
	Listed, GlobalNetwork bool
	Compliance            []string
}

func newCenter(s *session, r *v2.DataCenter) *center {
	return &center{
		s: s, rec: r, ID: r.ID, Name: r.Name, Location: r.Region, Listed: true, GlobalNetwork: r.GlobalNetwork, Compliance: append([]string{}, r.Compliance...),
	}
}

// DataCenters are all data centers.
func (root) DataCenters(ctx context.Context) ([]*center, error) {
	s := sessionOf(ctx)
	all, err := s.centers()
	if err != nil {
		return nil, err
	}
	return list(s, all, newCenter)
}

// gpuStock shows what is free of a GPU type.
type gpuStock struct {
	GpuTypeID, DisplayName string
	StockStatus            *string
}

func (c *center) GpuAvailability() ([]*gpuStock, error) {
	return list(c.s, c.rec.GPUAvailability, func(_ *session, r *v2.Stock) *gpuStock { return &gpuStock{r.ID, r.Name, stock(r.Availability)} })
}

// CountryCodes are the countries that the ids of data centers name: the first part with two letters that is no continent.
func (root) CountryCodes(ctx context.Context) ([]string, error) {
	all, err := sessionOf(ctx).centers()
	out := []string{}
	for _, d := range all {
		for part := range strings.SplitSeq(d.ID, "-") {
			if len(part) == 2 && part != "EU" && part != "AP" && part != "OC" && strings.ToUpper(part) == part && part[0] > '9' {
				out = append(out, part)
				break
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out), err
}

// flavor shows a CPU flavor.
type flavor struct {
	s   *session
	rec *v2.CPUFlavor

	ID, GroupID, GroupName, DisplayName string
	MinVcpu, MaxVcpu                    int32
	RAMMultiplier                       float64
	DiskLimitPerVcpu                    *int32
}

func newFlavor(s *session, r *v2.CPUFlavor) *flavor {
	return &flavor{
		s: s, rec: r, ID: r.ID, GroupID: r.Group, GroupName: r.Group, DisplayName: r.Name, MinVcpu: int32(r.VCPU.Min), MaxVcpu: int32(r.VCPU.Max),
		RAMMultiplier: r.RAMPerVCPU,
	}
}

func (s *session) flavors(params url.Values) ([]v2.CPUFlavor, error) {
	all, err := read[v2.CPUList](s, "listCpuFlavors", params)
	if err != nil {
		return nil, err
	}
	return all.CPUs, nil
}

// CPUFlavors are the flavors that the input names, or all.
func (root) CPUFlavors(ctx context.Context, args with) ([]*flavor, error) {
	s := sessionOf(ctx)
	all, err := s.flavors(nil)
	if err != nil {
		return nil, err
	}
	return list(s, named(all, args.Input, func(f v2.CPUFlavor) string { return f.ID }), newFlavor)
}

// specifics shows an instance of a flavor.
type specifics struct {
	StockStatus *string
	SecurePrice float64
}

// Specifics is what is free of an instance, and its price.
func (f *flavor) Specifics(args with) (*specifics, error) {
	vcpus := f.rec.VCPU.Min
	if _, n, _, ok := instance(args.Input.text("instanceId")); ok {
		vcpus = n
	}
	all, err := f.s.flavors(url.Values{"include": {"AVAILABILITY"}, "product": {"POD"}, "vcpuCount": {strconv.Itoa(vcpus)}})
	if err != nil {
		return nil, err
	}
	out := &specifics{SecurePrice: f.rec.Price.SecurePerVCPU * float64(vcpus)}
	if i := slices.IndexFunc(all, func(o v2.CPUFlavor) bool { return o.ID == f.ID }); i >= 0 {
		out.StockStatus = stock(availabilityIn(args.Input.text("dataCenterId"), all[i].Availability, all[i].DataCenters))
	}
	return out, nil
}

// instance cuts flavor-vCPUs-GB.
func instance(id string) (name string, vcpus int, gb string, ok bool) {
	parts := strings.Split(id, "-")
	if len(parts) != 3 {
		return "", 0, "", false
	}
	vcpus, err := strconv.Atoi(parts[1])
	return parts[0], vcpus, parts[2], err == nil && vcpus > 0
}

// pool shows a pool of GPU types.
type pool struct {
	ID         string
	GpuTypeIDs []string
}

// ServerlessGpuPools are the pools that the GPU types are in.
func (root) ServerlessGpuPools(ctx context.Context) ([]*pool, error) {
	all, err := sessionOf(ctx).gpus(nil)
	if err != nil {
		return nil, err
	}
	types := map[string][]string{}
	for _, g := range all {
		if g.Pool != "" {
			types[string(g.Pool)] = append(types[string(g.Pool)], g.ID)
		}
	}
	out := []*pool{}
	for _, id := range sortedKeys(types) {
		out = append(out, &pool{id, types[id]})
	}
	return out, nil
}
