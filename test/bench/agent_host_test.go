package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"gantry/test/devtest"
)

const (
	fillAt    = 8 // at once
	watchTime = 10 * time.Second
	endedAway = 1 // processes that end while no agent runs: each has to be removed before its end is told
)

// BenchmarkAgentFull fills a host with BENCH_PODS pods (100) and reads what the agent then uses while nothing
// happens; it kills the agent, ends some pods' processes while there is none, and measures how long the next agent
// takes from its start until the API tells of their ends and of their exit codes. Goals: less than 60 MB and 2 % of a
// core, 1 s; idle 35 MB.
func BenchmarkAgentFull(b *testing.B) {
	n := size(b, "BENCH_PODS", 100)
	w := newWorldOf(b, "--overcommit", roomy)
	pid, err := w.dev.PID("agent")
	if err != nil {
		b.Fatal(err)
	}
	idle, err := resident(pid)
	if err != nil {
		b.Fatal(err)
	}
	ids, took, err := w.fillHost(n)
	if err != nil {
		b.Fatal(err)
	}
	time.Sleep(watchTime / 2) // what the starts have left is collected
	used, rss, err := watch(pid, watchTime)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(idle, "idle-RSS-MB")
	b.ReportMetric(float64(n)/took.Seconds(), "starts/s")
	b.ReportMetric(rss, "RSS-MB")
	b.ReportMetric(100*used, "CPU-%")
	back, after, err := w.restart(pid, ids)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(back.Milliseconds()), "reattached-ms")
	b.ReportMetric(after, "RSS-after-restart-MB")
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), 8*waitLimit)
	defer cancel()
	if err := w.delete(ctx, ids...); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(n)/time.Since(began).Seconds(), "deletes/s")
	b.ReportMetric(0, "ns/op")
}

// fillHost starts n pods, a few at once.
func (w *world) fillHost(n int) ([]string, time.Duration, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 8*waitLimit)
	defer cancel()
	ids := make([]string, n)
	began := time.Now()
	err := each(fillAt, func(first int) error {
		for i := first; i < n; i += fillAt {
			pod, _, err := w.create(ctx, devtest.CPUPod("bench", devtest.Sleeper), manyPoll)
			if err != nil {
				return err
			}
			ids[i] = pod.ID
		}
		return nil
	})
	return ids, time.Since(began), err
}

// watch reads what part of a core a process uses over a time, and what it has resident after it.
func watch(pid int, over time.Duration) (cores, rss float64, err error) {
	before, err := cpuTime(pid)
	if err != nil {
		return 0, 0, err
	}
	began := time.Now()
	time.Sleep(over) // doing nothing is what is measured
	after, err := cpuTime(pid)
	if err != nil {
		return 0, 0, err
	}
	rss, err = resident(pid)
	return float64(after-before) / float64(time.Since(began)), rss, err
}

// restart kills the agent and ends some pods meanwhile. It returns how long after its start the next agent had
// reported all of those, and what it has resident.
func (w *world) restart(old int, ids []string) (time.Duration, float64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 4*waitLimit)
	defer cancel()
	if err := syscall.Kill(old, syscall.SIGKILL); err != nil {
		return 0, 0, err
	}
	ended := ids[:min(endedAway, len(ids))]
	for _, id := range ended {
		if err := killPod(id); err != nil {
			return 0, 0, err
		}
	}
	pid := old
	err := devtest.Until(waitLimit, func() (err error) {
		if pid, err = w.dev.PID("agent"); err == nil && pid == old {
			err = errors.New("no new agent")
		}
		return err
	})
	if err != nil {
		return 0, 0, err
	}
	began, err := startOf(pid)
	if err != nil {
		return 0, 0, err
	}
	for _, id := range ended {
		if err := w.told(ctx, id); err != nil {
			return 0, 0, err
		}
	}
	took := time.Since(began)
	rss, err := resident(pid)
	return took, rss, err
}

// told polls until the API tells that a pod's process was killed.
func (w *world) told(ctx context.Context, id string) error {
	for {
		answer, err := w.api.Pod(ctx, id)
		if err != nil {
			return err
		}
		if code := answer.Value.ExitCode; code != nil {
			if *code != 137 {
				return fmt.Errorf("exit code %d of a process that was killed", *code)
			}
			return nil
		}
		time.Sleep(pollEvery) // the poll is part of what is measured
	}
}

// killPod kills every process in a pod's control group.
func killPod(id string) error {
	for _, pattern := range []string{"/sys/fs/cgroup/gantry/*/", "/sys/fs/cgroup/pids/gantry/*/"} {
		files, err := filepath.Glob(pattern + id + "/cgroup.procs")
		if err != nil {
			return err
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			for word := range strings.FieldsSeq(string(text)) {
				pid, err := strconv.Atoi(word)
				if err != nil {
					return err
				}
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
					return err
				}
			}
			return nil
		}
	}
	return fmt.Errorf("pod %s has no control group", id)
}

// startOf tells when a process began (proc(5), field 22 of its stat, in hundredths of a second since the boot).
func startOf(pid int) (time.Time, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return time.Time{}, err
	}
	_, rest, _ := strings.Cut(string(data), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 20 {
		return time.Time{}, errors.New("stat: too few fields")
	}
	ticks, err := strconv.ParseInt(fields[19], 10, 64)
	if err != nil {
		return time.Time{}, err
	}
	up, err := os.ReadFile("/proc/uptime")
	if err != nil {
		return time.Time{}, err
	}
	text, _, _ := strings.Cut(string(up), " ")
	seconds, err := strconv.ParseFloat(text, 64)
	return time.Now().Add(time.Duration(ticks)*10*time.Millisecond - time.Duration(seconds*float64(time.Second))), err
}
