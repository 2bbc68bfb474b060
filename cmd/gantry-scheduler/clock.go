package main

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	minClockLeap = time.Minute
	maxClockLeap = 24 * time.Hour
)

// timeError is the kernel's word that nothing keeps its clock right; see adjtimex(2).
const timeError = 5

// askTimedate bounds how long timedatectl may take.
const askTimedate = 2 * time.Second

// synced reports whether the kernel says that its clock is synchronized, as chrony and systemd-timesyncd tell it. The
// unit keeps the daemon from asking the kernel itself, so that it asks systemd then.
func synced() bool {
	state, err := unix.Adjtimex(&unix.Timex{})
	if err == nil {
		return state != timeError
	}
	ctx, cancel := context.WithTimeout(context.Background(), askTimedate)
	defer cancel()
	out, err := exec.CommandContext(ctx, "timedatectl", "show", "--property=NTPSynchronized", "--value").Output()
	return err == nil && strings.TrimSpace(string(out)) == "yes"
}

// bootClock identifies the boot of the kernel, and says for how long it has run, sleep included. The id is empty when
// that is not known.
func bootClock() (id string, up time.Duration) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	var now unix.Timespec
	if err != nil || unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) != nil {
		return "", 0
	}
	return strings.TrimSpace(string(boot)), time.Duration(now.Nano())
}
