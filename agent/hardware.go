package agent

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
)

const dmiDir = "/sys/class/dmi/id"

// placeholders are what makers of boards leave in where an identity belongs, in lower case and without
// what is no letter or digit.
var placeholders = []string{
	"defaultstring", "tobefilledbyoem", "notspecified", "notapplicable", "none", "na", "unknown", "systemserialnumber", "serialnumber",
	"baseboardserialnumber", "chassisserialnumber", "0123456789", "123456789", "03000200040005000006000700080009",
}

// hardwareID returns a digest of what tells the machine's main board from all others; "" when its firmware
// tells nothing that does. A disk that was put into another machine, or copied there, has another one.
func hardwareID(dir string) string {
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
