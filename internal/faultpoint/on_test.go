//go:build faultpoints

package faultpoint

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// TestPointsKillAndAreListed runs itself as the process that comes to points.
func TestPointsKillAndAreListed(t *testing.T) {
	if os.Getenv("FAULTPOINT_CHILD") != "" {
		for range 2 {
			Hit("one")
			Before("two", "three")
			After("two", "three")
		}
		return
	}
	for _, c := range []struct {
		want, inFile, list string
		killed             bool
	}{
		{"", "", "one\ntwo.three.before\ntwo.three.after\none\ntwo.three.before\ntwo.three.after\n", false},
		{"one", "", "one\n", true},
		{"two.three.before:2", "", "one\ntwo.three.before\ntwo.three.after\none\ntwo.three.before\n", true},
		{"", "two.three.after\n", "one\ntwo.three.before\ntwo.three.after\n", true},
		{"none", "", "one\ntwo.three.before\ntwo.three.after\none\ntwo.three.before\ntwo.three.after\n", false},
	} {
		t.Run(c.want+c.inFile, func(t *testing.T) {
			list, file := filepath.Join(t.TempDir(), "list"), filepath.Join(t.TempDir(), "file")
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestPointsKillAndAreListed$")
			cmd.Env = append(os.Environ(), "FAULTPOINT_CHILD=1", "GANTRY_FAULTPOINT="+c.want, "GANTRY_FAULTPOINT_LIST="+list)
			if c.inFile != "" {
				cmd.Env = append(cmd.Env, "GANTRY_FAULTPOINT_FILE="+file)
				if err := os.WriteFile(file, []byte(c.inFile), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			_ = cmd.Run() // how it ended is looked at below
			status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
			if killed := ok && status.Signaled() && status.Signal() == syscall.SIGKILL; killed != c.killed {
				t.Errorf("killed %v, ended %v", killed, cmd.ProcessState)
			}
			if got, err := os.ReadFile(list); string(got) != c.list {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}
