// Mutate measures how much the tests of a package notice. It makes small faults in the package's code (mutants) and runs
// the package's tests against each: a mutant that no test fails for has survived, and shows a rule that no test holds.
//
//	go run ./test/mutate [flags] PACKAGE...
//
// All mutants of a package are compiled into one test binary, in which an environment variable switches one of them on.
// A first run of each test records which mutants it reaches, so that a mutant meets only the tests that can notice it,
// the quickest first. Nothing in the source tree is written.
//
// A rule may be held by the tests of another package alone, such as a simulation of the whole. With -also, the survivors
// meet the tests of those packages too, and what these kill is counted apart.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1)
	}
}

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	var r runner
	flag.IntVar(&r.sample, "sample", 0, "how many mutants of each package to try; 0: all")
	flag.Int64Var(&r.seed, "seed", 1, "which of them, when it is not all")
	flag.StringVar(&r.file, "file", "", "only the mutants of files with this base name")
	flag.IntVar(&r.parallel, "p", 2, "how many mutants to try at a time")
	flag.BoolVar(&r.list, "list", false, "only list the mutants that no test reaches, and count the others as killed")
	also := flag.String("also", "", "packages, with commas between them, whose tests then meet the survivors")
	goal := flag.Float64("goal", 0, "fail when a package is below this share, in percent")
	flag.Parse()
	if *also != "" {
		r.also = strings.Split(*also, ",")
	}
	if flag.NArg() == 0 {
		return fmt.Errorf("usage: mutate [flags] PACKAGE")
	}
	below := 0
	for _, pkg := range flag.Args() {
		score, err := r.measure(ctx, pkg)
		if err != nil {
			return fmt.Errorf("%s: %w", pkg, err)
		}
		fmt.Println(score)
		if score.percent() < *goal {
			below++
		}
	}
	if below > 0 {
		return fmt.Errorf("%d packages are below %g %%", below, *goal)
	}
	return nil
}
