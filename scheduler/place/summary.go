package place

import (
	"slices"

	"gantry/fleet"
)

// summary is what picking looks at on a host, small and close together: a pick looks at every host.
type summary struct {
	kinds  []kindSummary
	images []uint64 // hashes of the references of images and models that are there, sorted
	cuda   cudaVersion
	// volumes are the kinds of network volumes that it can mount.
	volumes kindSet
	// networked says that it has an end of the tunnel to other hosts.
	networked bool
	// at is where the host is, by nearness: hashes of the labels; 0: not said. Two places of one hash are taken for one.
	at [len(nearness)]uint64
	// fabric is the hash of the name of the fabric that the host has left for another member of a cluster; 0: none.
	fabric uint64
	rate   int64 // of that, in Mbit/s
}

// kindSet is a set of kinds of backends of network volumes.
type kindSet uint8

// bitOf is the set of a kind alone; that of a kind which is not known is empty.
func bitOf(kind fleet.BackendKind) kindSet {
	switch kind {
	case fleet.BackendNFS:
		return 1
	case fleet.BackendCeph:
		return 2
	case fleet.BackendLocal:
		return 4
	}
	return 0
}

func kindSetOf(kinds []fleet.BackendKind) (out kindSet) {
	for _, kind := range kinds {
		out |= bitOf(kind)
	}
	return out
}

// kindSummary is what a host has of one type of GPU.
type kindSummary struct {
	name   string
	total  int     // sick ones too
	free   int     // healthy and not held
	groups []group // of the free ones
}

// group is a number of free GPUs of one type that share an island and a NUMA node.
type group struct {
	island, node int
	free, take   int
}

// maxGroups bounds the groups that are told apart; what is beyond counts to the last one. Machines
// have at most 16 GPUs.
const maxGroups = 16

// summary returns the summary of a candidate, working it out if that was not done before.
func (c *Candidate) summary() *summary {
	if c.sum != nil {
		return c.sum
	}
	return c.summarize(nil)
}

// summarize works out the summary. A candidate of the same host saves it what has not changed.
func (c *Candidate) summarize(before *Candidate) *summary {
	s := &summary{}
	if before != nil && before.sum != nil && sameImages(before.Host, c.Host) {
		s.images = before.sum.images
	} else {
		s.images = hashImages(c.Host.Inventory.Images, c.Host.Inventory.Models)
	}
	if before != nil && before.sum != nil && before.Host == c.Host {
		s.at = before.sum.at
	} else {
		for i, label := range nearness {
			s.at[i] = hashOf(c.Host.Labels[label])
		}
	}
	s.cuda, s.volumes = parseCUDA(c.Host.Inventory.CUDA), kindSetOf(c.Host.Inventory.Volumes)
	s.networked = c.Host.Networked()
	if f := &c.Host.Inventory.Fabric; f.Mode != "" && c.Fabrics < f.Members() {
		s.fabric, s.rate = hashOf(c.Host.FabricName()), f.Mbps()
	}
	for i := range c.Host.Inventory.GPUs {
		s.add(c.Host.Inventory.GPUs[i].Type).total++
	}
	for i := range c.FreeGPUs {
		gpu := &c.FreeGPUs[i]
		k := s.add(gpu.Type)
		k.free++
		k.groups = addGroup(k.groups, gpu)
	}
	return s
}

// sameImages reports whether two records of a host hold one list of images, and one of models, not only equal ones.
func sameImages(a, b *fleet.Host) bool {
	same := func(x, y []string) bool { return len(x) == len(y) && (len(x) == 0 || &x[0] == &y[0]) }
	return same(a.Inventory.Images, b.Inventory.Images) && same(a.Inventory.Models, b.Inventory.Models)
}

func hashImages(lists ...[]string) []uint64 {
	var out []uint64
	for _, references := range lists {
		for _, one := range references {
			out = append(out, hashOf(one))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// add returns the entry of a type, a new one if need be.
func (s *summary) add(name string) *kindSummary {
	for i := range s.kinds {
		if s.kinds[i].name == name {
			return &s.kinds[i]
		}
	}
	s.kinds = append(s.kinds, kindSummary{name: name})
	return &s.kinds[len(s.kinds)-1]
}

// addGroup counts a free GPU.
func addGroup(groups []group, gpu *fleet.GPU) []group {
	if i := groupOf(groups, gpu); i >= 0 {
		groups[i].free++
		return groups
	}
	return append(groups, group{island: gpu.Island, node: gpu.NUMA, free: 1})
}

// groupOf returns the group that a GPU counts to, -1 when there is none yet.
func groupOf(groups []group, gpu *fleet.GPU) int {
	for i := range groups {
		if groups[i].island == gpu.Island && groups[i].node == gpu.NUMA {
			return i
		}
	}
	if len(groups) == maxGroups {
		return maxGroups - 1
	}
	return -1
}

// kind returns what the host has of a type.
func (s *summary) kind(name string) kindSummary {
	for i := range s.kinds {
		if s.kinds[i].name == name {
			return s.kinds[i]
		}
	}
	return kindSummary{}
}

// hasImage reports whether the host has an image, by its hash. Two references of one hash cost a pod
// a pull at worst.
func (s *summary) hasImage(hash uint64) bool {
	_, ok := slices.BinarySearch(s.images, hash)
	return ok
}

// hashOf is FNV-1a, the same on every machine; 0 for an empty text.
func hashOf(text string) uint64 {
	if text == "" {
		return 0
	}
	h := uint64(14695981039346656037)
	for i := range len(text) {
		h = (h ^ uint64(text[i])) * 1099511628211
	}
	return h
}
