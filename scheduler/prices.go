package scheduler

import (
	"cmp"
	"context"
	"slices"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// What operators may set. Prices stay far below what a sum of them could overflow.
const (
	maxPrice    = 1_000_000 * fleet.Dollar
	maxMemoryGB = 1_000_000
	maxVCPU     = 4096
	maxPerVCPU  = 100_000 // GB
)

func regions() []string {
	return []string{
		"NORTH_AMERICA", "SOUTH_AMERICA", "EUROPE", "ASIA", "MIDDLE_EAST", "AFRICA", "OCEANIA", "ANTARCTICA", "UNKNOWN",
	}
}

func complianceWords() []string {
	return []string{
		"GDPR", "ISO_IEC_27001", "ISO_14001", "PCI_DSS", "HITRUST", "SOC_1_TYPE_2", "SOC_2_TYPE_2", "SOC_3_TYPE_2", "ITAR",
		"FISMA_HIGH", "HIPAA", "RENEWABLE",
	}
}

// PutDataCenter creates or replaces a data center. Errors: invalid.
func (s *Service) PutDataCenter(ctx context.Context, dc fleet.DataCenter) error {
	dc.Region = cmp.Or(dc.Region, "UNKNOWN")
	dc.Name = cmp.Or(dc.Name, string(dc.ID))
	dc.Compliance = slices.Compact(slices.Sorted(slices.Values(dc.Compliance)))
	known := complianceWords()
	switch {
	case dc.ID == "":
		return fleet.Invalid("$.id", "must not be empty")
	case !slices.Contains(regions(), dc.Region):
		return fleet.Invalid("$.region", "must be a region of the catalog, such as 'EUROPE', or 'UNKNOWN'")
	case dc.Country != "" && !validCountry(dc.Country):
		return fleet.Invalid("$.country", "must be two capital letters (ISO 3166-1 alpha-2)")
	case slices.ContainsFunc(dc.Compliance, func(w string) bool { return !slices.Contains(known, w) }):
		return fleet.Invalid("$.compliance", "must list words of the catalog, such as 'GDPR' or 'SOC_2_TYPE_2'")
	}
	return s.operate(ctx, "data center set", "dataCenter", string(dc.ID), state.PutDataCenter{DataCenter: dc})
}

func validCountry(code string) bool {
	return len(code) == 2 && code[0] >= 'A' && code[0] <= 'Z' && code[1] >= 'A' && code[1] <= 'Z'
}

// DeleteDataCenter deletes a data center. Errors: not_found, rule (hosts or volumes are there).
func (s *Service) DeleteDataCenter(ctx context.Context, id fleet.DataCenterID) error {
	return s.operate(ctx, "data center deleted", "dataCenter", string(id), state.DeleteDataCenter{ID: id})
}

// PutGPUType creates or replaces a GPU type, which has its operator's word from then on. Errors: invalid.
func (s *Service) PutGPUType(ctx context.Context, t fleet.GPUType) error {
	t.Contributed = false
	switch {
	case t.ID == "" || t.Name == "":
		return fleet.Invalid("$.name", "must not be empty")
	case t.Manufacturer != "NVIDIA" && t.Manufacturer != "AMD" && t.Manufacturer != "UNKNOWN":
		return fleet.Invalid("$.manufacturer", "value must be one of 'NVIDIA', 'AMD', 'UNKNOWN'")
	case t.MemoryGB < 1 || t.MemoryGB > maxMemoryGB:
		return fleet.Invalid("$.memory", "must be 1 to 1000000")
	}
	if err := checkPrices("$.price.", []price{
		{"secure", t.Secure},
		{"community", t.Community},
		{"serverless", t.Serverless},
		{"secureSpot", t.SecureSpot},
		{"communitySpot", t.CommunitySpot},
	}); err != nil {
		return err
	}
	switch {
	case t.SecureSpot > t.Secure:
		return fleet.BreaksRule("price.secureSpot must not be above price.secure")
	case t.CommunitySpot > t.Community:
		return fleet.BreaksRule("price.communitySpot must not be above price.community")
	}
	return s.operate(ctx, "GPU type set", "gpuType", t.ID, state.PutGPUType{Type: t})
}

// DeleteGPUType deletes a GPU type. Errors: not_found, rule (a host has such GPUs).
func (s *Service) DeleteGPUType(ctx context.Context, id string) error {
	return s.operate(ctx, "GPU type deleted", "gpuType", id, state.DeleteGPUType{ID: id})
}

// PutCPUFlavor creates or replaces a CPU flavor; pods that have it keep what they have. Errors: invalid.
func (s *Service) PutCPUFlavor(ctx context.Context, f fleet.CPUFlavor) error {
	switch {
	case f.ID == "" || f.Name == "":
		return fleet.Invalid("$.name", "must not be empty")
	case !powerOfTwo(f.MinVCPU) || f.MinVCPU > maxVCPU:
		return fleet.Invalid("$.vcpu.min", "must be a power of two, at most 4096")
	case !powerOfTwo(f.MaxVCPU) || f.MaxVCPU > maxVCPU || f.MaxVCPU < f.MinVCPU:
		return fleet.Invalid("$.vcpu.max", "must be a power of two, at least vcpu.min and at most 4096")
	// A NaN is not within bounds, so what is asked is whether the value is inside them.
	case !(f.RAMPerVCPU*float64(f.MinVCPU) >= 1 && f.RAMPerVCPU <= maxPerVCPU):
		return fleet.Invalid("$.ramGbPerVcpu", "must be at most 100000 and give the smallest pod 1 GB")
	case f.DiskPerVCPU < 1 || f.DiskPerVCPU > maxPerVCPU:
		return fleet.Invalid("$.diskGbPerVcpu", "must be 1 to 100000")
	}
	if err := checkPrices("$.price.", []price{
		{"securePerVcpu", f.SecureVCPU}, {"serverlessPerVcpu", f.Serverless},
	}); err != nil {
		return err
	}
	return s.operate(ctx, "CPU flavor set", "cpuFlavor", f.ID, state.PutCPUFlavor{Flavor: f})
}

// DeleteCPUFlavor deletes a CPU flavor; pods that have it keep it. Errors: not_found.
func (s *Service) DeleteCPUFlavor(ctx context.Context, id string) error {
	return s.operate(ctx, "CPU flavor deleted", "cpuFlavor", id, state.DeleteCPUFlavor{ID: id})
}

// StoragePrices returns the prices of storage, all 0 in clusters that never had any.
func (s *Service) StoragePrices(ctx context.Context) (fleet.StoragePrices, error) {
	var out fleet.StoragePrices
	err := s.read(ctx, func(v *state.View) error {
		if p := v.Catalog().Storage; p != nil {
			out = *p
		}
		return nil
	})
	return out, err
}

// PutStoragePrices replaces the prices of storage, for charges that begin from now on. Errors: invalid.
func (s *Service) PutStoragePrices(ctx context.Context, p fleet.StoragePrices) error {
	prices := []price{
		{"containerDisk", p.ContainerDisk},
		{"persistentRunning", p.PersistentRunning},
		{"persistentStopped", p.PersistentStopped},
		{"volumeFirst", p.VolumeFirst},
		{"volumeBeyond", p.VolumeBeyond},
		{"fastFirst", p.FastFirst},
		{"fastBeyond", p.FastBeyond},
	}
	if err := checkPrices("$.", prices); err != nil {
		return err
	}
	return s.operate(ctx, "storage prices set", "of", "storage", state.PutStoragePrices{Prices: p})
}

// price is a price with its name in a request.
type price struct {
	name  string
	value fleet.Money
}

func checkPrices(path string, prices []price) error {
	for _, p := range prices {
		if p.value < 0 || p.value > maxPrice {
			return fleet.Invalid(path+p.name, "must be 0 to 1000000")
		}
	}
	return nil
}

// operate commits what an operator ordered, and logs it.
func (s *Service) operate(ctx context.Context, what, kind, id string, cmd state.Command) error {
	if _, err := propose[any](ctx, s, cmd); err != nil {
		return err
	}
	s.Log.Info("operator action", "what", what, kind, id)
	return nil
}
