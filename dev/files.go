package dev

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gantry/fleet"
	"gantry/internal/atomicfile"
)

// File is DIR/dev.json: how to reach what runs. It is there only while a pod could be placed, and always tells the
// present processes.
type File struct {
	API          string       `json:"api"`
	APIKey       fleet.Secret `json:"apiKey"`
	AdminKey     fleet.Secret `json:"adminKey"`
	DataCenterID string       `json:"dataCenterId"`
	ProxyDomain  string       `json:"proxyDomain"`
	AccountID    string       `json:"accountId,omitempty"`
	ClusterID    string       `json:"clusterId,omitempty"`
	Processes    []Process    `json:"processes"`
}

// Process is a child that runs.
type Process struct {
	Role   string `json:"role"` // "scheduler", "gateway", "agent", "containerd" or "s3"
	ID     string `json:"id"`   // that the cluster knows it by
	PID    int    `json:"pid"`
	API    string `json:"api,omitempty"`    // of a scheduler or a gateway
	Leader bool   `json:"leader,omitempty"` // it is the scheduler that leads
}

// keys is what gantry-scheduler init writes to DIR/keys.json.
type keys struct {
	ClusterID string       `json:"clusterId"`
	AdminKey  fleet.Secret `json:"adminKey"`
	AccountID string       `json:"accountId"`
	APIKey    fleet.Secret `json:"apiKey"`
}

// state is DIR/dev-state.json: what dev must remember between two runs.
type state struct {
	DataCenter  string `json:"dataCenter"`
	PodPorts    int    `json:"podPorts"`    // first port of the slot for pods' tcp ports; 0: not chosen yet, or none free
	Initialised bool   `json:"initialised"` // the cluster was made, and its keys are in keys.json

	Schedulers int   `json:"schedulers"`
	Agents     int   `json:"agents"`
	Gateways   int   `json:"gateways,omitempty"`
	Links      []int `json:"links"` // link port of each scheduler, as far as they are chosen
	// GatewayLinks are the ports of gateways for hosts, as far as they are chosen.
	GatewayLinks []int `json:"gatewayLinks,omitempty"`

	Joined []string     `json:"parts"`  // names of the parts that have their certificate from a token
	Island netip.Prefix `json:"island"` // network of several agents; zero: not chosen, or there is one agent
}

// UnmarshalJSON also reads the state of a folder from before a dev could have several agents.
func (s *state) UnmarshalJSON(text []byte) error {
	type plain state
	old := struct {
		*plain
		Joined bool `json:"joined"`
	}{plain: (*plain)(s)}
	if err := json.Unmarshal(text, &old); err != nil {
		return err
	}
	if old.Joined {
		s.Joined = append(s.Joined, roleAgent)
	}
	return nil
}

func (s *state) joined(p part) bool { return slices.Contains(s.Joined, p.name()) }

// parts lists the parts in the order in which stale ones are stopped: what uses another goes first.
func (s *state) parts() []part {
	var out []part
	for n := 1; n <= max(s.Agents, 1); n++ {
		out = append(out, part{roleAgent, n})
	}
	out = append(out, part{roleContainerd, 1})
	for n := 1; n <= s.Gateways; n++ {
		out = append(out, part{roleGateway, n})
	}
	for n := 1; n <= max(s.Schedulers, 1); n++ {
		out = append(out, part{roleScheduler, n})
	}
	return out
}

// fit takes what was asked for into a new folder's state, and refuses what an old folder is not.
func (s *state) fit(dir string, c *Config) error {
	switch want := c.DataCenter; {
	case s.DataCenter == "":
		s.DataCenter = want
		if want == "" {
			s.DataCenter = DefaultDataCenter
		}
	case want != "" && want != s.DataCenter:
		return bad("data folder %s is that of data center %s; name another folder with --data-dir for %s", dir, s.DataCenter, want)
	}
	s.Gateways = max(s.Gateways, c.Gateways)
	for _, f := range []struct {
		have *int
		want int
		what string
	}{{&s.Schedulers, c.Schedulers, "scheduler"}, {&s.Agents, c.Agents, "agent"}} {
		switch {
		case *f.have == 0:
			*f.have = max(f.want, 1)
		case f.want != 0 && f.want != *f.have:
			return bad("data folder %s is that of %s; name another folder with --data-dir for %d", dir, plural(*f.have, f.what), f.want)
		}
	}
	return nil
}

const maxFile = 1 << 20 // bytes of a file of ours

// ReadFile reads dir/dev.json; the error is fs.ErrNotExist when no dev is up there.
func ReadFile(dir string) (File, error) {
	var f File
	err := readJSON(filepath.Join(dir, "dev.json"), &f)
	return f, err
}

// pointer is the file below the state home that names the folder of the dev that was started last.
func pointer(stateHome string) string { return filepath.Join(stateHome, "gantry", "dev") }

// LastDir returns the data folder of the dev that was started last; the error is fs.ErrNotExist when there was none.
func LastDir(stateHome string) (string, error) {
	text, err := os.ReadFile(pointer(stateHome))
	if err != nil {
		return "", err
	}
	dir := strings.TrimSpace(string(text))
	if !filepath.IsAbs(dir) {
		return "", fmt.Errorf("%s does not name a folder", pointer(stateHome))
	}
	return dir, nil
}

// StateHome returns the folder for state that programs keep, as the XDG base directory specification names it: xdg, the
// value of $XDG_STATE_HOME, or the usual place below home.
func StateHome(xdg, home string) string {
	if filepath.IsAbs(xdg) {
		return xdg
	}
	if home == "" {
		return ""
	}
	return filepath.Join(home, ".local", "state")
}

// DefaultDataDir is the data folder of a dev that was not told one.
func DefaultDataDir(stateHome string) string { return filepath.Join(stateHome, "gantry", "dev-data") }

func readJSON(path string, into any) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info.Size() > maxFile {
		return fmt.Errorf("%s: longer than %d bytes", path, maxFile)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

func writeJSON(path string, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	return atomicfile.Write(path, append(text, '\n'), 0o600)
}

// removeIfThere removes a file; one that is not there is success.
func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
