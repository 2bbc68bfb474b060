// Command simhosts runs simulated hosts against a real cluster: each joins, keeps a session over mutual TLS and says of
// every pod that it runs. It says how far it is each second, and ends with an error when a pod or a GPU was used twice.
//
//	go run ./test/simhosts --api http://127.0.0.1:8080 --key-file admin.key --scheduler 127.0.0.1:8443 --hosts 1000
//
// The scheduler must allow as many tokens a minute as there are hosts: gantry-scheduler run --rate-minute 0 --rate-hour 0
// --rate-day 0.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"gantry/client"
	"gantry/fleet"
	"gantry/test/simhosts/simhost"
)

type settings struct {
	conf    simhost.Config
	api     string
	keyFile string
	center  string
}

func main() {
	if err := begin(); err != nil {
		fmt.Fprintln(os.Stderr, "simhosts:", err)
		os.Exit(1)
	}
}

func begin() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	s, err := parse(os.Args[1:])
	if err != nil {
		return err
	}
	return s.run(ctx, os.Stdout)
}

func parse(args []string) (settings, error) {
	var s settings
	var schedulers string
	f := flag.NewFlagSet("simhosts", flag.ContinueOnError)
	f.StringVar(&s.api, "api", "http://127.0.0.1:8080", "address of the API, for join tokens")
	f.StringVar(&s.keyFile, "key-file", "", "file with an operator's key")
	f.StringVar(&s.center, "data-center", "dc-1", "where the hosts stand")
	f.StringVar(&schedulers, "scheduler", "127.0.0.1:8443", "link addresses, with commas between")
	f.IntVar(&s.conf.Hosts, "hosts", 1, "number of hosts")
	f.IntVar(&s.conf.GPUs, "gpus", 8, "GPUs of each host; -1: none")
	f.StringVar(&s.conf.GPUType, "gpu-type", simhost.DefaultGPU, "their type")
	f.StringVar(&s.conf.Prefix, "prefix", "sim", "of the hosts' names")
	f.DurationVar(&s.conf.StartAfter, "start-after", 0, "from a pod's assignment to its running")
	if err := f.Parse(args); err != nil {
		return s, err
	}
	if s.keyFile == "" || f.NArg() > 0 {
		return s, errors.New("--key-file is needed, and no arguments")
	}
	s.conf.Schedulers = strings.Split(schedulers, ",")
	return s, nil
}

func (s *settings) run(ctx context.Context, out io.Writer) error {
	key, err := os.ReadFile(s.keyFile)
	if err != nil {
		return err
	}
	api, err := client.New(s.api, fleet.Secret(strings.TrimSpace(string(key))), "simhosts")
	if err != nil {
		return err
	}
	defer api.Close()
	s.conf.Token = simhost.Operator(api, s.center)
	hosts := simhost.New(s.conf)
	began := time.Now()
	if err := hosts.Join(ctx); err != nil {
		return err
	}
	fmt.Fprintf(out, "%d hosts joined in %s\n", s.conf.Hosts, time.Since(began).Round(time.Millisecond))
	done := make(chan struct{})
	go func() { defer close(done); _ = hosts.Run(ctx) }() // its error is that ctx has ended
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for running := true; running; {
		select {
		case <-tick.C:
			fmt.Fprintf(out, "%+v\n", hosts.Count())
		case <-done:
			running = false
		}
	}
	if faults := hosts.Faults(); len(faults) > 0 {
		return fmt.Errorf("%d faults: %s", len(faults), strings.Join(faults, "; "))
	}
	return nil
}
