package fleet_test

import (
	"slices"
	"strings"
	"testing"

	"gantry/fleet"
)

func TestSimilar(t *testing.T) {
	names := []string{"NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", "NVIDIA L40", "NVIDIA L40S", "cpu3c", "cpu3g", "cpu5c"}
	for text, want := range map[string][]string{
		"H100": {"NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe"}, "h100 pcie": {"NVIDIA H100 PCIe"}, "PCIE H100": {"NVIDIA H100 PCIe"},
		"l40s": {"NVIDIA L40S"}, "L40": {"NVIDIA L40", "NVIDIA L40S"}, "cpu3x": {"cpu3c", "cpu3g"}, "cqu5c": {"cpu5c"},
		"NVIDIA L4OS": {"NVIDIA L40S"}, "H1000": {"NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe"}, "LO40": {"NVIDIA L40"}, "": nil, "TPU": nil, strings.Repeat("x", 10000): nil,
	} {
		if got := fleet.Similar(text, names); !slices.Equal(got, want) {
			t.Errorf("%.20s: %q, want %q", text, got, want)
		}
	}
	many := slices.Repeat([]string{"NVIDIA A"}, 20)
	if got := fleet.Similar("nvidia", many); len(got) != 5 {
		t.Errorf("%d names", len(got))
	}
}
