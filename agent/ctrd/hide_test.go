package ctrd

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"gantry/agent/pod"
)

// TestDrivesAreHiddenWhereTheyArePlugged makes a /sys with a disk of each kind, an adapter, and what stays visible.
func TestDrivesAreHiddenWhereTheyArePlugged(t *testing.T) {
	sys := t.TempDir()
	nvme, sata, virtual := "devices/pci0000:00/0000:01:00.0/nvme/nvme0", "devices/pci0000:00/ata1/host0/target0:0:0/0:0:0:0", "devices/virtual/block/loop0"
	adapter := "devices/pci0000:00/0000:02:00.0/infiniband/mlx5_0"
	for _, dir := range []string{nvme + "/nvme0n1", sata + "/block/sda", virtual, adapter, "class/block", "class/nvme", "class/infiniband", "class/net"} {
		must(t, os.MkdirAll(filepath.Join(sys, dir), 0o755))
	}
	for link, to := range map[string]string{
		"class/block/nvme0n1": nvme + "/nvme0n1", nvme + "/nvme0n1/device": nvme, "class/nvme/nvme0": nvme,
		"class/block/sda": sata + "/block/sda", sata + "/block/sda/device": sata,
		"class/block/loop0": virtual, "class/infiniband/mlx5_0": adapter, "class/block/gone": "devices/gone",
	} {
		must(t, os.Symlink(filepath.Join(sys, to), filepath.Join(sys, link)))
	}
	want := []string{"/sys/class/infiniband", "/sys/class/nvme", "/sys/" + nvme, "/sys/" + adapter, "/sys/" + sata}
	got := hiddenDevices(sys, nil)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("hidden: %q, want %q", got, want)
	}
	if got := hiddenDevices(filepath.Join(sys, "none"), nil); len(got) != 0 {
		t.Errorf("of no /sys: %q", got)
	}
}

// TestAdaptersOfOthersAreHidden: of two, a container sees the one that is its own, and no node for management.
func TestAdaptersOfOthersAreHidden(t *testing.T) {
	sys := t.TempDir()
	for i, at := range []string{"devices/pci0000:00/0000:02:00.0", "devices/pci0000:00/0000:02:00.1"} {
		for class, name := range map[string]string{"infiniband": "mlx5_", "infiniband_verbs": "uverbs", "infiniband_mad": "umad"} {
			name = fmt.Sprint(name, i)
			must(t, os.MkdirAll(filepath.Join(sys, at, class, name), 0o755))
			must(t, os.MkdirAll(filepath.Join(sys, "class", class), 0o755))
			must(t, os.Symlink(filepath.Join(sys, at, class, name), filepath.Join(sys, "class", class, name)))
		}
	}
	got := hiddenDevices(sys, []pod.Adapter{{Device: "mlx5_1", Verbs: "uverbs1"}})
	const at = "/sys/devices/pci0000:00/0000:02:00."
	want := []string{
		"/sys/class/infiniband_mad", at + "0/infiniband/mlx5_0", at + "0/infiniband_mad/umad0", at + "0/infiniband_verbs/uverbs0", at + "1/infiniband_mad/umad1",
	}
	if !slices.Equal(got, want) {
		t.Errorf("hidden: %q, want %q", got, want)
	}
	got = hiddenDevices(sys, nil)
	for _, path := range []string{"/sys/class/infiniband", "/sys/class/infiniband_verbs", at + "1/infiniband/mlx5_1", at + "1/infiniband_verbs/uverbs1"} {
		if !slices.Contains(got, path) {
			t.Errorf("a container without an adapter sees %s", path)
		}
	}
}

// TestGPUsOfOthersAreHidden: the driver names each GPU of the host, with its number, to whoever reads its folder.
func TestGPUsOfOthersAreHidden(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"0000:01:00.0": "Model: \t\t X\nDevice Minor: \t 0\n", "0000:02:00.0": "Model: \t\t X\nDevice Minor: \t 1\n", "0000:03:00.0": "Model: X\n",
	} {
		must(t, os.Mkdir(filepath.Join(dir, name), 0o755))
		must(t, os.WriteFile(filepath.Join(dir, name, "information"), []byte(text), 0o644))
	}
	for _, c := range []struct {
		nodes []pod.DeviceNode
		want  []string
	}{
		{nil, []string{"0000:01:00.0", "0000:02:00.0", "0000:03:00.0"}},
		{[]pod.DeviceNode{{Major: 195, Minor: 255}, {Major: 195, Minor: 1}, {Major: 510, Minor: 0}}, []string{"0000:01:00.0", "0000:03:00.0"}},
	} {
		for i, name := range c.want {
			c.want[i] = filepath.Join(gpuFolder, name)
		}
		if got := hiddenGPUs(dir, c.nodes); !slices.Equal(got, c.want) {
			t.Errorf("with %v: %q, want %q", c.nodes, got, c.want)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
