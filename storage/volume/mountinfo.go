package volume

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// mountEntry is a line of mountinfo (proc_pid_mountinfo(5)).
type mountEntry struct {
	id       uint64
	dev      string // "major:minor"
	root     string // in its file system
	at       string
	readOnly bool
	fsType   string
}

// mounts reads what is mounted. It asks no server.
func mounts() ([]mountEntry, error) {
	text, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("read what is mounted: %w", err)
	}
	return parseMounts(string(text))
}

// readMounts does the same from an open file.
func readMounts(f io.Reader) ([]mountEntry, error) {
	text, err := io.ReadAll(f)
	if err != nil {
		return nil, fmt.Errorf("read what is mounted: %w", err)
	}
	return parseMounts(string(text))
}

func parseMounts(text string) ([]mountEntry, error) {
	var out []mountEntry
	for line := range strings.Lines(text) {
		left, right, ok := strings.Cut(line, " - ")
		fields, kind := strings.Fields(left), strings.Fields(right)
		if !ok || len(fields) < 6 || len(kind) < 1 {
			return nil, fmt.Errorf("what is mounted: a line of %d fields", len(fields))
		}
		id, err := strconv.ParseUint(fields[0], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("what is mounted: %w", err)
		}
		out = append(out, mountEntry{
			id: id, dev: fields[2], root: unescape.Replace(fields[3]), at: unescape.Replace(fields[4]),
			readOnly: fields[5] == "ro" || strings.HasPrefix(fields[5], "ro,"), fsType: kind[0],
		})
	}
	return out, nil
}

var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`, `\043`, "#")

// topAt returns what is mounted last at a path.
func topAt(all []mountEntry, path string) (mountEntry, bool) {
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].at == path {
			return all[i], true
		}
	}
	return mountEntry{}, false
}

// mountedIn returns the names in a folder at which something is mounted, each once.
func mountedIn(all []mountEntry, folder string) []string {
	var out []string
	seen := map[string]bool{}
	for _, m := range all {
		if name := filepath.Base(m.at); filepath.Dir(m.at) == folder && !seen[name] {
			seen[name] = true
			out = append(out, name)
		}
	}
	return out
}
