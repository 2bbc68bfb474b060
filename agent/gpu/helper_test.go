package gpu

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"gantry/agent/gpu/wire"
	"gantry/test/fakenvml"
	"gantry/test/program"
)

// script returns a shell script.
func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "helper")
	program.Write(t, path, "#!/bin/sh\n"+text+"\n")
	return path
}

func TestAHelperThatMisbehavesIsNotBelieved(t *testing.T) {
	const silent = "exec sleep 1000"
	for name, x := range map[string]struct{ script, says string }{
		"speaks wrongly":       {"echo '{\"id\":'; exec sleep 1000", "the GPU helper speaks wrongly"},
		"writes without end":   {"read -r line; exec tr '\\000' x </dev/zero", "token too long"},
		"says nothing":         {silent, "did not answer within"},
		"ends":                 {"exit 3", "the GPU helper has ended"},
		"answers another":      {"read -r line; echo '{\"id\":1,\"use\":[]}'; exec sleep 1000", "answered another question"},
		"cannot use a driver":  {"echo '{\"error\":\"no such driver\"}'", "no such driver"},
		"has an old NVML":      {"read -r line; echo '{\"id\":1,\"error\":\"it is too old\"}'; exec sleep 1000", "it is too old"},
		"leaves children back": {"sleep 3 & echo '{\"error\":\"left\"}'; exit 0", "left"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := Config{Data: t.TempDir(), Helper: script(t, x.script), Wanted: true, Sys: t.TempDir(), Log: slog.New(slog.DiscardHandler), Answer: patience, First: patience, Again: time.Minute}
			if x.script == silent {
				c.Answer = 300 * time.Millisecond
			}
			found := open(t, c).Found()
			if len(found.GPUs) != 0 || len(found.Conditions) != 1 || !strings.Contains(found.Conditions[0].Text, x.says) {
				t.Errorf("found %+v, want one condition with %q", found, x.says)
			}
		})
	}
}

func TestAHelperEndsWithItsInput(t *testing.T) {
	for name, hang := range map[string]string{"idle": "", "in a driver that hangs": "nvmlSystemGetDriverVersion"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			m := fakenvml.Healthy(1)
			m.Hang = hang
			d := fakenvml.New(t, m)
			p, err := startHelper(slog.New(slog.DiscardHandler), []string{d.Env}, helperPath, "--nvml", d.Library)
			if err != nil {
				t.Fatal(err)
			}
			defer p.end()
			limit := patience
			if hang != "" {
				limit = 200 * time.Millisecond
			}
			if _, err := p.ask(t.Context(), limit, wire.Request{Ask: wire.AskInventory}); (err != nil) != (hang != "") {
				t.Fatalf("it answers: %v", err)
			}
			if err := p.in.Close(); err != nil {
				t.Fatal(err)
			}
			select {
			case <-p.Gone():
			case <-time.After(patience):
				t.Error("it lives on")
			}
		})
	}
}

func TestLongLinesOfAHelperAreCutInTheLog(t *testing.T) {
	var text strings.Builder
	l := &logLines{log: slog.New(slog.NewTextHandler(&text, nil))}
	for range 3 {
		if n, err := fmt.Fprint(l, strings.Repeat("x", 1500)); n != 1500 || err != nil {
			t.Fatal(n, err)
		}
	}
	if _, err := fmt.Fprint(l, "\nnext\nrest"); err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(text.String(), "x"); got < stderrLine || got > stderrLine+10 || !strings.Contains(text.String(), "text=next") || strings.Contains(text.String(), "rest") {
		t.Errorf("%d characters of the long line; logged:\n%s", got, text.String())
	}
}
