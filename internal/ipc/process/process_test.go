package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"gantry/internal/ipc"
)

const (
	limit    = 1 << 20
	childVar = "GANTRY_IPC_CHILD" // makes this program one that the tests start
)

func TestMain(m *testing.M) {
	switch os.Getenv(childVar) {
	case "asked": // lives as long as who started it
		sock, err := ipc.Asker()
		if err == nil {
			err = (&ipc.Server{Sock: sock, Question: limit, Answer: limit, Within: time.Second, Handle: pid}).Serve(context.Background())
		}
		fmt.Fprintln(os.Stderr, err)
		syscall.Exit(3) // os.Exit has a program with a race detector wait for a second
	case "deaf":
		select {}
	}
	goleak.VerifyTestMain(m)
}

func pid(context.Context, ipc.Message, []*os.File) (ipc.Reply, error) {
	return ipc.Reply{Value: os.Getpid()}, nil
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func child(t *testing.T, kind string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVar+"="+kind)
	return cmd
}

func TestAProcessEndsWithItsConnection(t *testing.T) {
	cmd := child(t, "asked")
	var said bytes.Buffer
	cmd.Stderr = &said
	p, sock, err := StartAsked(cmd)
	must(t, err)
	c := ipc.NewConn(sock, limit)
	var got int
	if _, err := c.Call(t.Context(), "pid", nil, &got); err != nil || got != p.PID() {
		t.Errorf("process %d, %v", got, err)
	}
	c.Close()
	<-p.Gone()
	if p.Err() == nil || p.State() != "exit status 3" || !strings.Contains(said.String(), "nil") || !p.Kill(0) {
		t.Errorf("%v, %s, said %s", p.Err(), p.State(), &said)
	}
	if _, _, err := StartAsked(exec.Command("/no/program")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no program: %v", err)
	}
}

func TestAProcessIsKilledWithItsGroup(t *testing.T) {
	for _, group := range []bool{false, true} {
		cmd := child(t, "deaf")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: group}
		p, err := Start(cmd)
		must(t, err)
		if !p.Kill(10*time.Second) || p.State() != "signal: killed" {
			t.Errorf("group %v: it lives", group)
		}
	}
}

func TestBackoffGrowsAndBeginsAnew(t *testing.T) {
	b := Backoff{Least: 1, Most: 4, Stood: 10}
	var got []time.Duration
	for _, stood := range []time.Duration{0, 10, 0, 0, 11, 0} {
		got = append(got, b.Next(stood))
	}
	if fmt.Sprint(got) != "[1ns 2ns 4ns 4ns 1ns 2ns]" {
		t.Errorf("%v", got)
	}
}
