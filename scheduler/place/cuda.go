package place

import (
	"cmp"
	"slices"

	"gantry/fleet"
)

// cudaVersion is a parsed CUDA version; the zero value is none, or one that cannot be read.
type cudaVersion struct {
	known        bool
	major, minor int
}

func parseCUDA(text string) cudaVersion {
	major, minor, ok := fleet.ParseCUDA(text)
	return cudaVersion{known: ok, major: major, minor: minor}
}

// acceptsCUDA reports whether a host of this version will do for a request that states a range. What
// cannot be read, on either side, never does.
func (q *question) acceptsCUDA(host cudaVersion) bool {
	if !host.known {
		return false
	}
	if len(q.allowed) > 0 && !slices.Contains(q.allowed, host) {
		return false
	}
	if q.CUDA.Min == "" {
		return true
	}
	return q.min.known && cmp.Or(cmp.Compare(host.major, q.min.major), cmp.Compare(host.minor, q.min.minor)) >= 0
}
