// Command gantry is the command line of Gantry for users and operators, and, as `gantry dev`, a whole Gantry on this
// machine. It reads flags, environment and dev.json, calls the public API, and shows the answers; it keeps nothing,
// and a key is never taken from, nor put on, a command line.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// version is set by the linker.
var version = "devel"

func main() {
	ends := []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // as nohup has it
		ends = append(ends, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), ends...)
	sys := system{
		in: os.Stdin, out: os.Stdout, err: os.Stderr, env: os.LookupEnv, now: time.Now,
		terminal: isTerminal(os.Stderr), width: func() int { return terminalWidth(os.Stderr) },
		screenWidth: func() int {
			if isTerminal(os.Stdout) {
				return terminalWidth(os.Stdout)
			}
			return 0
		},
	}
	code := run(ctx, os.Args[1:], sys)
	stop()
	os.Exit(code)
}
