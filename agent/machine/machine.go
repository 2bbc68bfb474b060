// Package machine tells a machine from all others: an identity of its system, one of its main board, and one of the present run
// of its kernel.
package machine

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"gantry/fleet"
)

const dmiDir = "/sys/class/dmi/id"

// placeholders are what makers of boards leave in where an identity belongs, in lower case and without
// what is no letter or digit.
var placeholders = []string{
	"defaultstring", "tobefilledbyoem", "notspecified", "notapplicable", "none", "na", "unknown", "systemserialnumber", "serialnumber",
	"baseboardserialnumber", "chassisserialnumber", "0123456789", "123456789", "03000200040005000006000700080009",
}

// Hardware returns what hardware says of this machine.
func Hardware() string { return hardware(dmiDir) }

// hardware returns a digest of what tells the machine's main board from all others; "" when its firmware
// tells nothing that does. A disk that was put into another machine, or copied there, has another one.
func hardware(dir string) string {
	for _, name := range []string{"product_uuid", "board_serial"} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			continue
		}
		text := strings.ToLower(strings.TrimSpace(string(data)))
		if !isIdentity(text) {
			continue
		}
		sum := sha256.Sum256([]byte(name + "\x00" + text))
		return hex.EncodeToString(sum[:16])
	}
	return ""
}

// isIdentity reports whether a text of the firmware tells one machine from others.
func isIdentity(text string) bool {
	bare := strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' || r >= 'a' && r <= 'z' {
			return r
		}
		return -1
	}, text)
	if len(bare) < 4 || strings.Trim(bare, bare[:1]) == "" { // all zeros, all Fs, all of anything
		return false
	}
	for _, p := range placeholders {
		if bare == p {
			return false
		}
	}
	return true
}

// ID returns an identity of this agent's machine and data folder that survives reboots and is
// another one on another machine, and for another agent on the same machine.
func ID(dir string) (string, error) {
	own := filepath.Join(dir, "machine-id")
	for _, path := range []string{"/etc/machine-id", own} {
		if b, err := os.ReadFile(path); err == nil && len(bytes.TrimSpace(b)) >= fleet.IDLength {
			sum := sha256.Sum256(append(bytes.TrimSpace(b), dir...))
			return hex.EncodeToString(sum[:16]), nil
		}
	}
	if err := os.WriteFile(own, []byte(fleet.NewID()+fleet.NewID()+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("write machine id: %w", err)
	}
	return ID(dir)
}

// BootID names the present run of the kernel.
func BootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read boot id: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// Disk is a file system in bytes. Size is what may be used, without the reserve of the file system.
type Disk struct{ Size, Used int64 }

// ReadDisk reads how full the file system of a folder is.
func ReadDisk(dir string) (Disk, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return Disk{}, fmt.Errorf("read free disk: %w", err)
	}
	used := int64(st.Blocks-st.Bfree) * int64(st.Bsize)             //nolint:gosec,unconvert // below 2^63; differs by platform
	return Disk{used + int64(st.Bavail)*int64(st.Bsize), used}, nil //nolint:gosec,unconvert // the same
}
