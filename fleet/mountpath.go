package fleet

import (
	"path"
	"slices"
	"strings"
	"unicode/utf8"
)

// systemPaths may not be mounted over, nor anything below them.
var systemPaths = []string{
	"/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/run", "/sbin", "/sys", "/usr", "/var/run",
}

// MountPathFault says what is wrong with a path in a container at which storage is to be: "must be absolute"; nothing where
// it is right.
func MountPathFault(p string) string {
	switch {
	case !path.IsAbs(p):
		return "must be absolute"
	case strings.ContainsRune(p, 0) || !utf8.ValidString(p):
		return "must not contain NUL"
	case path.Clean(p) == "/":
		return "must not be /"
	case path.Clean(p) != p:
		return "must be clean: without '.', '..', empty parts and a slash at the end"
	case IsSystemPath(p):
		return "must not be a system path"
	}
	return ""
}

// IsSystemPath reports whether a clean path in a container is that of a folder of the system, or of something below one.
func IsSystemPath(p string) bool {
	return slices.ContainsFunc(systemPaths, func(sys string) bool { return p == sys || strings.HasPrefix(p, sys+"/") })
}
