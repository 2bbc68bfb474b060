// Package watchdog feeds the watchdog that systemd has for a service (WatchdogSec=). A service that is not fed in time is ended
// with SIGABRT, to which a program in Go writes what each of its goroutines does, and is started again.
package watchdog

import (
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// Every returns how often the watchdog of this process wants to be fed, with time to spare; 0: it has none.
func Every() time.Duration {
	limit, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		return 0 // not started by systemd, or by one that says nothing we know
	}
	return limit / 3
}

// Feed feeds it once.
func Feed() { _, _ = daemon.SdNotify(false, daemon.SdNotifyWatchdog) }

// Start feeds it again and again, while moves, asked each time, answers that the service moves. To block is another way to say
// that it does not. It goes on until stop is called, which waits for moves to return.
func Start(moves func() bool) (stop func()) {
	every := Every()
	if every == 0 {
		return func() {}
	}
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-end:
				return
			}
			if moves() {
				Feed()
			}
		}
	}()
	return func() {
		close(end)
		<-ended
	}
}
