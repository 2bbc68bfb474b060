package main

import (
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"

	"gantry/api/limit"
)

// settings reads the flags of run as the daemon does.
func settings(t *testing.T, args ...string) runCmd {
	t.Helper()
	var c cli
	parser, err := kong.New(&c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parser.Parse(append([]string{"run", "--data-dir", t.TempDir()}, args...)); err != nil {
		t.Fatal(err)
	}
	return c.Run
}

func TestRateFlags(t *testing.T) {
	c := settings(t)
	if c.rates() != limit.Default() || c.RateFailures != limit.DefaultFailures || c.validate() != nil {
		t.Errorf("defaults: %+v %d: %v", c.rates(), c.RateFailures, c.validate())
	}
	for args, fault := range map[string]string{
		"--rate-minute 100000 --rate-hour 0 --rate-day 0": "",
		"--rate-minute 0 --rate-hour 0 --rate-day 0":      "",
		"--rate-failures 0":                               "",
		"--rate-minute=-1":                                "the quota per minute must be 0 to",
		"--rate-minute 8000":                              "the quota per hour must be 0, or at least that per minute",
		"--rate-day 5":                                    "the quota per day",
		"--rate-failures=-1":                              "--rate-failures must be 0 to",
	} {
		c := settings(t, strings.Fields(args)...)
		if err := c.validate(); (err == nil) != (fault == "") || err != nil && !strings.Contains(err.Error(), fault) {
			t.Errorf("%s: %v", args, err)
		}
	}
}

func TestKeepFlags(t *testing.T) {
	if c := settings(t); c.KeepUsage != 400*24*time.Hour || c.validate() != nil {
		t.Errorf("usage is kept for %s", c.KeepUsage)
	}
	if c := settings(t); c.KeepAudit != 90*24*time.Hour {
		t.Errorf("the audit log is kept for %s", c.KeepAudit)
	}
	for _, flag := range []string{"--keep-usage", "--keep-audit"} {
		c := settings(t, flag+"=0s")
		if err := c.validate(); err == nil || !strings.Contains(err.Error(), flag+" must be above 0") {
			t.Errorf("got %v", err)
		}
	}
}

func TestSnapshotFlags(t *testing.T) {
	if c := settings(t); c.SnapshotEvery != 8192 || c.SnapshotBytes != 64<<20 || c.validate() != nil {
		t.Errorf("by default every %d entries or %d bytes: %v", c.SnapshotEvery, c.SnapshotBytes, c.validate())
	}
	for value, good := range map[string]bool{"0": false, "1048575": false, "1048576": true, "17179869184": true, "17179869185": false, "-1": false} {
		c := settings(t, "--snapshot-bytes="+value)
		if err := c.validate(); (err == nil) != good || err != nil && !strings.Contains(err.Error(), "--snapshot-bytes must be 1048576 to 17179869184") {
			t.Errorf("%s: %v", value, err)
		}
	}
}
