package tunnel_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"gantry/netctl/tunnel"
)

// ask is what a test asks an agent for.
type ask struct {
	Do      string
	Config  *tunnel.Config `json:",omitempty"`
	KeyFile string         // of Config
}

type answer struct {
	Err   string
	Peers []tunnel.PeerState
}

// agentMain is a process that has the agent's end of the tunnel in the namespace of a host.
func agentMain() int {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelInfo}))
	p := tunnel.NewProcess(tunnel.ProcessConfig{Program: os.Args[1], Instance: instance, RunDir: os.Args[2], Log: log})
	in, out := json.NewDecoder(bufio.NewReader(os.Stdin)), json.NewEncoder(os.Stdout)
	for {
		var q ask
		if err := in.Decode(&q); err != nil {
			p.Close()
			return 0
		}
		a, err := q.answer(p)
		if err != nil {
			a.Err = err.Error()
		}
		if err := out.Encode(a); err != nil {
			return 1
		}
	}
}

func (q ask) answer(p *tunnel.Process) (a answer, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	switch q.Do {
	case "set":
		if q.Config.Key, err = tunnel.ReadKey(q.KeyFile); err == nil {
			err = p.Set(ctx, *q.Config)
		}
	case "peers":
		a.Peers, err = p.Peers(ctx)
	case "remove":
		err = p.Remove(ctx)
	default:
		err = fmt.Errorf("do %q", q.Do)
	}
	return a, err
}

// agent is such a process, and how it is asked.
type agent struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	enc *json.Encoder
	dec *json.Decoder
}

// startAgent starts one in a host's namespace.
func (h *host) startAgent(t testing.TB) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", h.program, h.dir)
	cmd.Env = append(os.Environ(), agentMark+"=1", "GORACE=atexit_sleep_ms=0") // or each waits a second in the end
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, h.ns.do(cmd.Start))
	h.agent = &agent{cmd: cmd, in: in, enc: json.NewEncoder(in), dec: json.NewDecoder(bufio.NewReader(out))}
}

// killAgent ends the agent without warning.
func (h *host) killAgent(t testing.TB) {
	t.Helper()
	must(t, h.agent.cmd.Process.Kill())
	_ = h.agent.cmd.Wait()
}

func (h *host) ask(t testing.TB, q ask) answer {
	t.Helper()
	a, err := h.try(q)
	if err != nil {
		t.Fatalf("host %d: %s: %v", h.i, q.Do, err)
	}
	return a
}

func (h *host) try(q ask) (a answer, err error) {
	if err := h.agent.enc.Encode(q); err != nil {
		return a, err
	}
	if err := h.agent.dec.Decode(&a); err != nil {
		return a, err
	}
	if a.Err != "" {
		return a, fmt.Errorf("%s", a.Err)
	}
	return a, nil
}
