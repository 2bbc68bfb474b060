package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// pids are the first processes of all pods, of each its own.
func (l *lab) pids(ctx context.Context) (string, error) {
	var all strings.Builder
	for _, m := range l.hosts() {
		out, err := l.sh(ctx, m, `for f in /sys/fs/cgroup/gantry/gantry-*/*/cgroup.procs; do echo "$f $(sort -n "$f" | head -n 1)"; done`)
		if err != nil {
			return "", err
		}
		all.WriteString(m.Name + "\n" + out)
	}
	return all.String(), nil
}

// well says that both pods run, have the volume and reach each other.
func (l *lab) well(ctx context.Context) error {
	return await(ctx, 3*time.Minute, func(ctx context.Context) error {
		_, err := l.gantry(ctx, `for n in one two; do gantry pod exec $n -- grep -q 'of two' /workspace/file; done
gantry pod exec one -- ping -c 1 -W 5 two.gantry.internal`)
		return err
	})
}

// undisturbed does something that must not touch a pod.
func (l *lab) undisturbed(ctx context.Context, do func() error) error {
	before, err := l.pids(ctx)
	if err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	if err := l.well(ctx); err != nil {
		return err
	}
	if after, err := l.pids(ctx); err != nil || after != before {
		return errors.Join(err, fmt.Errorf("pods had the processes %s, and have %s", before, after))
	}
	return nil
}

func (l *lab) restart(ctx context.Context) error {
	return l.undisturbed(ctx, func() error {
		if _, err := l.sh(ctx, l.control(), "systemctl restart gantry-scheduler"); err != nil {
			return err
		}
		_, err := l.sh(ctx, l.named("gpu-02"), `old=$(systemctl show -P MainPID gantry-agent)
systemctl kill -s ABRT --kill-whom=main gantry-agent
for i in $(seq 60); do
	new=$(systemctl show -P MainPID gantry-agent)
	if [ "$new" != 0 ] && [ "$new" != "$old" ] && systemctl is-active -q gantry-agent; then exit 0; fi
	sleep 1
done
systemctl status gantry-agent
exit 1`)
		return err
	})
}

// bootHost has a host boot by its own means. What comes next does not wait for it.
func (l *lab) bootHost(ctx context.Context) error {
	m := l.named("gpu-01")
	id, err := l.sh(ctx, m, "cat /proc/sys/kernel/random/boot_id")
	if err == nil {
		err = os.WriteFile(l.path("boot_id"), []byte(id), 0o600)
	}
	if err != nil {
		return err
	}
	_, _ = l.sh(ctx, m, "systemctl reboot") // the connection ends with it
	l.leave(ctx, m)
	return nil
}

// booted waits until that host is there again, with its pods.
func (l *lab) booted(ctx context.Context) error {
	m := l.named("gpu-01")
	before, err := os.ReadFile(l.path("boot_id"))
	if err != nil {
		return err
	}
	err = await(ctx, bootLimit, func(ctx context.Context) error {
		if err := l.connect(ctx, m); err != nil {
			return err
		}
		after, err := l.sh(ctx, m, "cat /proc/sys/kernel/random/boot_id")
		if err == nil && after == string(before) {
			err = errors.New("the host has not gone down yet")
			l.leave(ctx, m)
		}
		return err
	})
	if err != nil {
		return err
	}
	return l.well(ctx)
}

func (l *lab) backup(ctx context.Context) error {
	_, err := l.play(ctx, "install.md", "control-backup", " -e backup_to="+l.path("backup"))
	return err
}

// heard is what the second pod has written on the volume: whether the first one answered, and when.
func (l *lab) heard(ctx context.Context) (lines []string, err error) {
	out, err := l.gantry(ctx, "gantry pod exec one -- cat /workspace/heard")
	return strings.Split(strings.TrimSpace(out), "\n"), err
}

const (
	maxLost    = 2                // pings in an upgrade, of the many that there are
	maxSilence = 15 * time.Second // between two of them: the machine has one processor, which unpacks packages
)

// unheard tells what was missed, if that was too much.
func unheard(lines []string) error {
	var lost int
	var last, silence int64
	for _, line := range lines {
		when, answer, _ := strings.Cut(line, " ")
		at, err := strconv.ParseInt(when, 10, 64)
		if err != nil {
			return fmt.Errorf("what a pod has written is damaged: %q", line)
		}
		if last != 0 {
			silence = max(silence, at-last)
		}
		if last = at; answer != "yes" {
			lost++
		}
	}
	if len(lines) < 10 || lost > maxLost || time.Duration(silence)*time.Second > maxSilence {
		return fmt.Errorf("of %d pings %d were lost, with a silence of %d s:\n%s", len(lines), lost, silence, strings.Join(lines, "\n"))
	}
	return nil
}

// heardThrough does something through which pods run on, keep their volume and hear each other.
func (l *lab) heardThrough(ctx context.Context, do func() error) error {
	before, err := l.heard(ctx)
	if err != nil {
		return err
	}
	if err := l.undisturbed(ctx, do); err != nil {
		return err
	}
	after, err := l.heard(ctx)
	if err != nil {
		return err
	}
	return unheard(after[len(before):])
}

func (l *lab) upgrade(ctx context.Context) error {
	if err := l.packages(ctx, 2); err != nil {
		return err
	}
	version, err := l.version(2)
	if err != nil {
		return err
	}
	err = l.heardThrough(ctx, func() error {
		out, err := l.play(ctx, "upgrade.md", "control-upgrade", " -e host_soak_first=10 -e host_soak=5 -e common_debs_dir="+l.debs(2))
		return errors.Join(err, awaited(out, "scheduler : Wait until it is well again", "gateway : Wait until it is heard again", "host : Wait until it is connected again"))
	})
	if err != nil {
		return err
	}
	members, err := l.scheduler(ctx, "upgrade.md", "scheduler-upgraded")
	if err != nil {
		return err
	}
	rest, err := l.gantry(ctx, "gantry host list --output json; gantry gateway list --output json")
	if err == nil && (!strings.Contains(members, version) || strings.Count(rest, version) != len(l.Machines) || !strings.Contains(rest, `"state": "connected"`)) {
		err = fmt.Errorf("not every machine has version %s and takes requests: %s\n%s", version, members, rest)
	}
	return err
}

// certificates looks when they end, and then has all of them replaced, with the CA that signs them.
func (l *lab) certificates(ctx context.Context) error {
	if _, err := l.play(ctx, "install.md", "control-certificates", ""); err != nil {
		return err
	}
	return l.undisturbed(ctx, func() error {
		if _, err := l.gantry(ctx, "gantry raft ca rotate --yes"); err != nil {
			return err
		}
		return await(ctx, 2*time.Minute, func(ctx context.Context) error {
			out, err := l.gantry(ctx, "gantry raft ca show --output json")
			if err == nil && !strings.Contains(out, `"step": null`) {
				err = fmt.Errorf("the CA is not replaced yet: %s", out)
			}
			return err
		})
	})
}

func (l *lab) drain(ctx context.Context) error {
	if _, err := l.scheduler(ctx, "upgrade.md", "scheduler-drain"); err != nil {
		return err
	}
	if out, err := l.gantry(ctx, "gantry host pods gpu-02 --output json"); err != nil || !strings.Contains(out, `"pods": []`) {
		return errors.Join(err, fmt.Errorf("the host is not empty: %s", out))
	}
	if err := l.well(ctx); err != nil {
		return err
	}
	if _, err := l.scheduler(ctx, "upgrade.md", "scheduler-uncordon"); err != nil {
		return err
	}
	out, err := l.gantry(ctx, "gantry host pods gpu-01 --output json; gantry host list")
	if n := strings.Count(out, `"accountId"`); err == nil && n != 2 {
		err = fmt.Errorf("the host that stayed has %d pods, not 2: %s", n, out)
	}
	return err
}

func (l *lab) remove(ctx context.Context) error {
	if _, err := l.play(ctx, "install.md", "control-remove-host", ""); err != nil {
		return err
	}
	bare, err := loadTraces(l.path("bare.json"))
	if err != nil {
		return err
	}
	now, err := l.traces(ctx, l.named("gpu-02"))
	if err != nil {
		return err
	}
	return now.beyond(bare)
}

func (l *lab) add(ctx context.Context) error {
	if _, err := l.play(ctx, "install.md", "control-add-host", " -e common_debs_dir="+l.debs(2)); err != nil {
		return err
	}
	out, err := l.gantry(ctx, `gantry pod create three `+image+` --gpu "`+simulatedGPU+`" --count 4 --disk 1 --network-volume data:/workspace --global-networking --movable --wait --timeout 3m -- sleep 1d
gantry pod exec three -- ping -c 1 -W 5 one.gantry.internal
gantry pod exec three -- grep 'of two' /workspace/file
gantry host pods gpu-02 --output json`)
	if err == nil && strings.Count(out, `"accountId"`) != 1 {
		err = fmt.Errorf("the host that came back has no pod: %s", out)
	}
	return err
}
