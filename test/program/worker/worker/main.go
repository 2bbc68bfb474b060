// Command worker is the serverless worker of tests, for containers.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"gantry/test/program/worker"
)

func main() {
	handler := flag.String("handler", "echo", "what it does with a job: echo, clock (answers when it began), sleep, error, crash, stream, progress, refresh, empty, openai, lie, or any: what the input says")
	version := flag.String("library", "1.10", "in the ways of which version of the library it asks: 1.6, 1.7.12 or 1.10")
	many := flag.Int("concurrency", 1, "jobs at a time; more than one are taken in batches")
	serve := flag.Bool("serve", false, "answer OpenAI's API at $PORT, as the worker of an endpoint that balances, and ask for no jobs")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	if *serve {
		if err := worker.Serve(ctx, os.Getenv("PORT")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	err := worker.Run(ctx, worker.Config{
		Env: os.Getenv, Library: *version, Handler: *handler, Concurrency: *many, Exit: os.Exit,
		Say: func(line string) { fmt.Println(line) },
	})
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
