// Package gpu tells which GPUs a host has. It decides nothing about who gets one.
//
// A simulated GPU is a pretence that an operator asks for by name: it can be placed, held and given
// back like a real one, it is marked as simulated in the host's record, and no device appears in a
// container.
package gpu

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"gantry/fleet"
)

const (
	maxSimulated     = 64
	defaultMemoryGB  = 24
	gpusPerNUMANode  = 4
	simulatedUUIDLen = 12
	simulatedPrefix  = "GPU-sim-"
)

var memoryInName = regexp.MustCompile(`(\d+) ?GB`)

// Simulate reads "TYPE:COUNT" specifications, such as "NVIDIA H100 80GB HBM3:8", and returns that
// many simulated GPUs. seed makes their UUIDs unique to the host and the same after a restart. The
// memory is the number of GB in the type's name, or 24. COUNT is 1 to 64, over all specifications.
func Simulate(seed string, specs []string) ([]fleet.GPU, error) {
	var out []fleet.GPU
	for _, spec := range specs {
		at := strings.LastIndexByte(spec, ':')
		if at < 1 {
			return nil, fmt.Errorf("simulated GPUs: want TYPE:COUNT")
		}
		typ := strings.TrimSpace(spec[:at])
		count, err := strconv.Atoi(spec[at+1:])
		if err != nil || count < 1 || len(out)+count > maxSimulated || typ == "" {
			return nil, fmt.Errorf("simulated GPUs: want TYPE:COUNT with 1 to %d GPUs in all", maxSimulated)
		}
		memory := int64(defaultMemoryGB)
		if m := memoryInName.FindStringSubmatch(typ); m != nil {
			memory, _ = strconv.ParseInt(m[1], 10, 32)
		}
		for range count {
			n := len(out)
			sum := sha256.Sum256([]byte(seed + "\x00" + typ + "\x00" + strconv.Itoa(n)))
			out = append(out, fleet.GPU{
				UUID: simulatedPrefix + hex.EncodeToString(sum[:])[:simulatedUUIDLen], Type: typ,
				MemoryMB: memory * 1000, NUMA: n / gpusPerNUMANode, Island: 0, Simulated: true,
			})
		}
	}
	return out, nil
}
