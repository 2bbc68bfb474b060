package nfslab

import (
	"bytes"
	"debug/elf"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
)

// wantedModules are loaded in the guest, with what they depend on; the first are what the kernel looks for by itself where it can.
var wantedModules = []string{
	"crc32_generic", "crc32c_generic", "nfsd", "nfsv4", "ext4", "xfs", "quota_v2", "loop", "veth", "sch_netem", "overlay", "rdma_rxe", "rdma_ucm",
	"bridge", "vxlan", "wireguard", "dummy", "tun", "nf_tables", "nft_ct", "nft_chain_nat", "nft_nat", "nft_masq", "nft_limit", "nft_connlimit",
	"nf_conntrack_netlink", "nft_objref", "nft_meta_bridge", "nft_reject_inet", "nft_fib_inet",
}

// modules returns the wanted modules below a folder, each after those that it needs.
func modules(dir string) ([]string, error) {
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if name, ok := strings.CutSuffix(filepath.Base(path), ".ko"); ok && err == nil && !d.IsDir() {
			files[strings.ReplaceAll(name, "-", "_")] = path
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("modules of the kernel: %w", err)
	}
	var out []string
	seen := map[string]bool{}
	var add func(name, by string) error
	add = func(name, by string) error {
		if seen[name] {
			return nil
		}
		seen[name] = true
		path, ok := files[name]
		if !ok {
			return fmt.Errorf("the kernel has no module %s%s", name, by)
		}
		needs, err := dependencies(path)
		if err != nil {
			return fmt.Errorf("module %s: %w", name, err)
		}
		for _, n := range needs {
			if err := add(n, ", which "+name+" needs"); err != nil {
				return err
			}
		}
		out = append(out, path)
		return nil
	}
	for _, name := range wantedModules {
		if err := add(name, ""); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// dependencies reads what a module says of itself.
func dependencies(path string) ([]string, error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	s := f.Section(".modinfo")
	if s == nil {
		return nil, fmt.Errorf("%s says nothing of itself", path)
	}
	info, err := s.Data()
	if err != nil {
		return nil, err
	}
	for entry := range bytes.SplitSeq(info, []byte{0}) {
		if list, ok := strings.CutPrefix(string(entry), "depends="); ok && list != "" {
			return strings.Split(strings.ReplaceAll(list, "-", "_"), ","), nil
		}
	}
	return nil, nil
}
