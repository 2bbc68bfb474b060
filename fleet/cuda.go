package fleet

import (
	"strconv"
	"strings"
)

// maxCUDADigits bounds the digits of either number of a CUDA version.
const maxCUDADigits = 4

// ParseCUDA reads a CUDA version, "major.minor": two decimal numbers without sign or leading zeros. It
// is false for anything else.
func ParseCUDA(version string) (major, minor int, ok bool) {
	a, b, found := strings.Cut(version, ".")
	if !found {
		return 0, 0, false
	}
	major, okMajor := plainNumber(a)
	minor, okMinor := plainNumber(b)
	if !okMajor || !okMinor {
		return 0, 0, false
	}
	return major, minor, true
}

// plainNumber reads a short decimal number that is written in its shortest form.
func plainNumber(s string) (int, bool) {
	n, err := strconv.Atoi(s)
	return n, err == nil && n >= 0 && len(s) <= maxCUDADigits && strconv.Itoa(n) == s
}
