package main

import (
	"strings"
	"testing"
	"time"
)

func TestClockLeapFlag(t *testing.T) {
	if c := settings(t); c.ClockLeap != 10*time.Minute || c.validate() != nil {
		t.Errorf("by default %v: %v", c.ClockLeap, c.validate())
	}
	for _, bad := range []string{"0s", "59s", "25h"} {
		c := settings(t, "--clock-leap", bad)
		if err := c.validate(); err == nil || !strings.Contains(err.Error(), "--clock-leap must be 1m to 24h") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// The kernel's own clock runs on under one boot.
func TestTheBootClockRunsOn(t *testing.T) {
	boot, up := bootClock()
	again, later := bootClock()
	if boot == "" || boot != again || up <= 0 || later < up {
		t.Errorf("boot %q after %v, then %q after %v", boot, up, again, later)
	}
}
