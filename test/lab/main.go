package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const usage = `usage: lab [SCENARIO]           boot the machines, run all steps, end the machines
       lab up [SCENARIO]       boot the machines and leave them running
       lab run STEP...         run steps on the machines that run
       lab build               build both versions of the packages
       lab sh MACHINE SCRIPT   run a script there as root
       lab down                end the machines
SCENARIO is cluster, which is meant without one, or distributions.
LAB_KEEP=1 leaves the machines of a whole run up, also after a failure.`

// errUsage is for words that are no command.
var errUsage = errors.New("it is called in another way")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "lab: FAILED:", err)
	if errors.Is(err, errUsage) {
		fmt.Fprintln(os.Stderr, usage)
	}
	os.Exit(1)
}

func run(ctx context.Context, args []string) error {
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	l, err := open(root)
	if err != nil {
		return err
	}
	verb := ""
	if len(args) > 0 {
		verb, args = args[0], args[1:]
	}
	switch verb {
	case "up":
		if err := l.fresh(strings.Join(args, " ")); err != nil {
			return err
		}
		return l.start(ctx, true)
	case "run":
		return l.steps(ctx, args)
	case "build":
		for n := range builds {
			if err := l.build(ctx, n+1); err != nil {
				return err
			}
		}
		return nil
	case "sh":
		if len(args) != 2 || l.named(args[0]) == nil {
			return errUsage
		}
		out, err := l.sh(ctx, l.named(args[0]), args[1])
		fmt.Print(out)
		return err
	case "down":
		l.down()
		return nil
	default:
		return l.whole(ctx, strings.Join(append([]string{verb}, args...), " "), os.Getenv("LAB_KEEP") == "1")
	}
}

// start makes the disk and boots the machines.
func (l *lab) start(ctx context.Context, keep bool) error {
	for program, pkg := range map[string]string{
		emulator: "qemu-system-x86", "debootstrap": "debootstrap", "mke2fs": "e2fsprogs", "dpkg-scanpackages": "dpkg-dev",
		"ansible-playbook": "ansible-core", "ssh": "openssh-client", "apt-ftparchive": "apt-utils", "gpg": "gnupg", "openssl": "openssl",
	} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("the lab needs %s (package %s): %w", program, pkg, err)
		}
	}
	if err := l.makeImages(ctx); err != nil {
		return err
	}
	if err := l.accelerate(ctx); err != nil {
		return err
	}
	return l.up(ctx, keep)
}

// whole runs all of a scenario, and takes everything away.
func (l *lab) whole(ctx context.Context, name string, keep bool) error {
	if err := l.fresh(name); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	built := l.startBuilds(ctx)
	defer func() {
		cancel()
		built()
		if !keep {
			l.down()
		}
	}()
	if err := l.start(ctx, keep); err != nil {
		return err
	}
	l.took = append(l.took, timed{"boot", "bare machines", time.Since(l.began)})
	var names []string
	for _, s := range l.plan.steps {
		names = append(names, s.name)
	}
	if err := l.steps(ctx, names); err != nil {
		return err
	}
	version, err := l.version(1)
	if err != nil {
		return err
	}
	l.log("all is well, %s, version %s:", time.Now().UTC().Format(time.DateOnly), version)
	table := "| step | time | what |\n| --- | --- | --- |\n"
	for _, t := range append(l.took, timed{"all", "", time.Since(l.began)}) {
		l.log("%-12s %5.0f s  %s", t.name, t.took.Seconds(), t.what)
		table += fmt.Sprintf("| `%s` | %.0f s | %s |\n", t.name, t.took.Seconds(), t.what)
	}
	return os.WriteFile(l.path("summary.md"), []byte(table), 0o600) // for docs/install.md
}

// scenarioOf returns a scenario by its name, the first without one.
func scenarioOf(name string) (*scenario, error) {
	all := []*scenario{clusterScenario(), distributionsScenario()}
	if name == "" {
		return all[0], nil
	}
	for _, s := range all {
		if s.name == name {
			return s, nil
		}
	}
	return nil, errUsage
}

// timed is a step that was taken.
type timed struct {
	name, what string
	took       time.Duration
}

// step is one thing that is shown, in the words of a user, with what it needs of the steps before.
type step struct {
	name string
	what string
	do   func(*lab, context.Context) error
}

// steps runs some, in the order given. The first that fails ends it, with what the machines have to say.
func (l *lab) steps(ctx context.Context, names []string) error {
	if len(l.Machines) == 0 {
		return errors.New("the steps need machines: lab up")
	}
	for _, name := range names {
		s, err := l.plan.find(name)
		if err != nil {
			return err
		}
		began := time.Now()
		l.log("-- %s: %s", s.name, s.what)
		if err := s.do(l, ctx); err != nil {
			l.explain(ctx)
			return fmt.Errorf("%s: %w", s.name, err)
		}
		l.log("ok %s: %.1f s", s.name, time.Since(began).Seconds())
		l.took = append(l.took, timed{s.name, s.what, time.Since(began)})
	}
	return nil
}

func (s *scenario) find(name string) (step, error) {
	var known []string
	for _, one := range s.steps {
		if one.name == name {
			return one, nil
		}
		known = append(known, one.name)
	}
	return step{}, fmt.Errorf("no step %q; there are %s", name, strings.Join(known, ", "))
}

// explain puts into the full log what the machines know of a failure.
func (l *lab) explain(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	for _, m := range l.Machines {
		_, _ = l.sh(ctx, m, "systemctl --failed --no-legend; systemctl --no-pager status 'gantry*' containerd | head -60; journalctl --no-pager -o cat -n 60 -u 'gantry-*'; dmesg | tail -20")
	}
	l.log("what the machines say is in %s", l.path("log"))
}
