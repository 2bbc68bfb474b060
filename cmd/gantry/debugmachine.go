package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/pelletier/go-toml/v2"
)

const (
	settingsFolder = "/etc/gantry"
	journalMost    = 8 << 20 // bytes of one daemon's journal
)

// daemonsOnMachine are the daemons that packages install: their settings file, and where they serve metrics by default.
func daemonsOnMachine() []struct{ name, metrics string } {
	return []struct{ name, metrics string }{{"scheduler", "127.0.0.1:9413"}, {"agent", "127.0.0.1:9412"}, {"s3", "127.0.0.1:9414"}}
}

// metricsOf returns where the daemons that have settings in a folder serve metrics. Settings that cannot be read are
// taken for the default ones.
func metricsOf(folder string) []string {
	var out []string
	for _, d := range daemonsOnMachine() {
		text, err := os.ReadFile(filepath.Join(folder, d.name+".toml"))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		settings := struct {
			Metrics *string `toml:"metrics"`
		}{&d.metrics}
		if toml.Unmarshal(text, &settings) == nil && *settings.Metrics == "" {
			continue
		}
		out = append(out, "http://"+*settings.Metrics+"/metrics")
	}
	return out
}

// unitsOf names the units of the daemons that have settings in a folder.
func unitsOf(folder string) []string {
	var out []string
	for _, d := range daemonsOnMachine() {
		if _, err := os.Stat(filepath.Join(folder, d.name+".toml")); err == nil {
			out = append(out, "gantry-"+d.name)
		}
	}
	return out
}

// journal returns what a unit wrote within that time, 50,000 lines and 8 MiB at most.
func journal(ctx context.Context, unit string, ago time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, bundleCall)
	defer cancel()
	cmd := exec.CommandContext(ctx, "journalctl", "--unit", unit, "--since", fmt.Sprintf("-%ds", int(ago.Seconds())),
		"--lines", "50000", "--output", "short-iso", "--no-pager", "--quiet")
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	text, readErr := io.ReadAll(io.LimitReader(out, journalMost))
	_, _ = io.Copy(io.Discard, out)
	if err := cmd.Wait(); err != nil {
		return "", fmt.Errorf("journalctl: %w", err)
	}
	return string(text), readErr
}
