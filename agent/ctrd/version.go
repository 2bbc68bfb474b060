package ctrd

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"gantry/agent/pod"
)

// versionTimeout bounds each question for a version.
const versionTimeout = 5 * time.Second

// runcSays is what the host's runc tells of itself. It is asked again when the program has changed. Its
// zero value is ready.
type runcSays struct {
	turn chan struct{} // of who asks; see ask
	once sync.Once

	of      os.FileInfo // the program that was asked; nil: none was
	path    string
	version string
	seccomp bool
}

// Version returns the versions of daemon and runc in words, for example
// "containerd 1.6.20, runc 1.1.5"; instead of the latter the class of a host that has another one. A runc without seccomp is an error of class Fatal. It is cheap: runc is
// asked once for each program of that name.
func (r *Runtime) Version(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	v, err := r.client.Version(r.in(ctx))
	if err != nil {
		return "", fault("tell its version", err)
	}
	daemon := "containerd " + strings.TrimPrefix(v.Version, "v")
	if r.cfg.RuntimeClass != "" { // the host may have no runc
		return daemon + ", " + r.cfg.RuntimeClass, nil
	}
	runc, seccomp, err := r.runc.ask(ctx, r.cfg.RuncBinary)
	if err != nil {
		return "", &pod.Error{Class: pod.Retry, Sentence: "the host's runc does not answer", Err: err}
	}
	text := daemon + ", runc " + runc
	if !seccomp {
		return text, &pod.Error{Class: pod.Fatal, Sentence: "the host's runc was built without seccomp"}
	}
	return text, nil
}

// ask returns the version of a program and whether it was built with seccomp.
func (s *runcSays) ask(ctx context.Context, program string) (version string, seccomp bool, err error) {
	s.once.Do(func() { s.turn = make(chan struct{}, 1) })
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return "", false, ctx.Err()
	}
	defer func() { <-s.turn }()
	path, err := exec.LookPath(program)
	if err != nil {
		return "", false, err
	}
	now, err := os.Stat(path)
	if err != nil {
		return "", false, err
	}
	if s.of != nil && s.path == path && os.SameFile(s.of, now) && s.of.Size() == now.Size() && s.of.ModTime().Equal(now.ModTime()) {
		return s.version, s.seccomp, nil
	}
	cmd := exec.CommandContext(ctx, path, "--version")
	cmd.WaitDelay = time.Second // what it started may hold its output
	out, err := cmd.Output()
	if err != nil {
		return "", false, err
	}
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSpace(line)
		if rest, ok := strings.CutPrefix(line, "runc version "); ok {
			version = rest
		}
		seccomp = seccomp || strings.HasPrefix(line, "libseccomp:")
	}
	s.of, s.path, s.version, s.seccomp = now, path, version, seccomp
	return version, seccomp, nil
}
