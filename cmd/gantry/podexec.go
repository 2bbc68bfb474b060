package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"gantry/api/v2"
	"gantry/client"
)

type podExecCmd struct {
	podRef
	Stdin bool `short:"i" help:"Pass standard input on to the program."`
	TTY   bool `name:"tty" short:"t" help:"Give the program a terminal; Ctrl-C then goes to it. With -i for a shell."`

	Command []string `arg:"" optional:"" passthrough:"" placeholder:"COMMAND" help:"The program and its arguments; flags before it are gantry's. After -- everything is the program's."`
}

// Run runs a program in a pod.
func (cmd podExecCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	command := cmd.Command
	switch {
	case len(command) == 0:
		command = a.rest
	case len(a.rest) > 0: // a -- of the program's own
		command = append(append(command, "--"), a.rest...)
	}
	if len(command) == 0 {
		return usage("say the program after the pod, for example: gantry pod exec web ls")
	}
	if cmd.TTY && cmd.Stdin && terminalOf(a.in) == nil {
		return usage("-t with -i needs a terminal on standard input")
	}
	return a.exec(ctx, c, cmd.Pod, v2.ExecRequest{Command: command, Stdin: cmd.Stdin, TTY: cmd.TTY})
}

// processExit is the exit status of a program in a pod, when there is nothing else to say.
type processExit int

func (e processExit) Error() string { return fmt.Sprintf("the program ended with status %d", int(e)) }

// exec runs a program in a pod, joined to this program's streams, until it ends.
func (a *app) exec(ctx context.Context, c *client.Client, pod string, req v2.ExecRequest) error {
	streams := client.ExecStreams{Stdout: a.out, Stderr: a.err}
	screen := a.screen()
	if req.TTY && screen != nil {
		size := terminalSize(screen)
		req.Cols, req.Rows = size.Cols, size.Rows
	}
	if req.TTY {
		req.Term = a.getenv("TERM")
	}
	var session *client.Exec
	err := pods.on(ctx, c, pod, func(id string) (err error) {
		session, err = c.ExecPod(ctx, id, req)
		return err
	})
	if err != nil {
		return err
	}
	// Only now: until the session is there, Ctrl-C is for this program.
	leave, err := a.enter(req, screen, &streams)
	if err != nil {
		_ = session.Close()
		return err
	}
	result, err := session.Run(streams)
	leave()
	switch {
	case err != nil:
		return err
	case result.Error != "":
		return &exitError{max(result.Code, exitFailed), errors.New(result.Error)}
	case result.Code != 0:
		return processExit(result.Code)
	}
	return nil
}

// screen is the terminal whose size counts, nil when there is none.
func (a *app) screen() *os.File {
	for _, stream := range []any{a.out, a.in, a.err} {
		if t := terminalOf(stream); t != nil {
			return t
		}
	}
	return nil
}

// enter joins standard input and the terminal to a session. leave puts everything back.
func (a *app) enter(req v2.ExecRequest, screen *os.File, s *client.ExecStreams) (leave func(), err error) {
	var undo []func()
	leave = func() {
		for i := range undo {
			undo[len(undo)-1-i]()
		}
	}
	if req.Stdin {
		s.Stdin = a.in
		if f, ok := a.in.(*os.File); ok {
			in, err := newInput(f)
			if err != nil {
				return leave, err
			}
			undo = append(undo, in.close)
			s.Stdin, s.StopStdin = in, in.stop
		}
	}
	if req.TTY && screen != nil {
		sizes, stop := watchSize(screen)
		undo = append(undo, stop)
		s.Resize = sizes
	}
	if f := terminalOf(a.in); req.TTY && req.Stdin && f != nil {
		restore, err := setTerminal(f, raw)
		if err != nil {
			leave()
			return leave, err
		}
		undo = append(undo, restore)
	}
	return leave, nil
}

type podSSHCmd struct {
	podRef
	Print bool `help:"Only print the command that logs in by SSH itself, at the pod's public port."`
}

// loginShell runs bash where the image has it.
const loginShell = `if command -v bash >/dev/null 2>&1; then exec bash -l; fi; exec sh -l`

// Run opens a shell.
func (cmd podSSHCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	if !cmd.Print {
		return a.exec(ctx, c, cmd.Pod, v2.ExecRequest{
			Command: []string{"sh", "-c", loginShell}, Stdin: true, TTY: terminalOf(a.in) != nil,
		})
	}
	return pods.on(ctx, c, cmd.Pod, func(id string) error {
		pod, err := c.Pod(ctx, id)
		if err != nil {
			return err
		}
		direct := pod.Value.SSH.Direct
		if direct == nil {
			return &exitError{exitFailed, fmt.Errorf("pod %s cannot be reached by SSH: it must be RUNNING and list 22/tcp in its ports", id)}
		}
		_, err = fmt.Fprintln(a.out, printable(direct.Command))
		return err
	})
}
