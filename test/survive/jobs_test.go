package survive

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"gantry/api/v2"
	"gantry/client"
	"gantry/test/program/workerimage"
)

// TestAgentKilledAtEveryPointOfAResult: an agent dies at every point between a worker's result and its commit. The job
// completes, once; its worker does it a second time only where the result was nowhere but in the agent's memory.
func TestAgentKilledAtEveryPointOfAResult(t *testing.T) {
	w := newWorld(t)
	w.unusual = append(w.unusual, "--loopback-registries")
	h := w.newHost("results", "points")
	endpoint := must[client.Answer[v2.Endpoint]](t)(w.user.CreateEndpoint(t.Context(), v2.CreateEndpointRequest{
		Name: "results", Type: "QUEUE", Scaling: v2.Scaling{Type: "QUEUE_DELAY", QueueDelay: new(1.0)},
		EndpointSettings: v2.EndpointSettings{
			Image: new(workerimage.Serve(t, "--handler sleep")), CPU: []v2.CreateCPUConfig{{ID: "cpu3c", VCPUCount: 2}},
			Workers: &v2.WantedWorkers{Min: new(1), Max: new(1)},
		},
	})).Value.ID
	for i, c := range []struct {
		point  string
		most   int  // times that the worker may do the job
		leader bool // whether the scheduler is away when the result comes
	}{
		{"worker.result.received", 2, false}, {"worker.result.sent", 2, false}, {"worker.result.kept", 1, false}, {"worker.result.spooled", 1, true},
	} {
		if err := writeAtOnce(h.arm, c.point); err != nil {
			t.Fatal(err)
		}
		input := fmt.Sprintf(`{"n":%d,"seconds":3}`, i)
		job := must[client.Answer[v2.Job]](t)(w.user.SubmitJob(t.Context(), endpoint, v2.JobRequest{Input: json.RawMessage(input)})).Value
		read := func() error {
			a, err := w.user.Job(t.Context(), endpoint, job.ID)
			if err == nil {
				job = a.Value
			}
			return err
		}
		if c.leader {
			await(t, c.point+": the job runs", func() error { return errors.Join(read(), unless(job.Status == "IN_PROGRESS", job)) })
			if err := w.scheduler.end(syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
		select {
		case <-h.agent.done:
		case <-time.After(patience):
			t.Fatalf("the agent does not come to %s", c.point)
		}
		if c.leader { // the worker cannot say it again
			if err := errors.Join(signalWorker(endpoint, syscall.SIGSTOP), w.schedule()); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(os.Remove(h.arm), h.start()); err != nil {
			t.Fatal(err)
		}
		await(t, c.point+": the job ends", func() error { return errors.Join(read(), unless(v2.JobEnded(job.Status), job)) })
		if c.leader {
			if err := signalWorker(endpoint, syscall.SIGCONT); err != nil {
				t.Error(err)
			}
		}
		if job.Status != "COMPLETED" || string(job.Output) != input {
			t.Errorf("%s: %+v", c.point, job)
		}
		health := must[client.Answer[v2.EndpointHealth]](t)(w.user.EndpointHealth(t.Context(), endpoint)).Value.Jobs
		if health.Completed != uint64(i+1) || health.Failed+uint64(health.InProgress+health.InQueue) != 0 { //nolint:gosec // small
			t.Errorf("%s: %+v", c.point, health)
		}
		runs, told := 0, 0
		await(t, c.point+": the worker's log", func() (err error) {
			runs, told, err = h.said(endpoint, job.ID)
			return errors.Join(err, unless(err != nil || runs > 0, "no word of the job"))
		})
		t.Logf("%s: run %d times, accepted %d times", c.point, runs, told)
		if runs > c.most {
			t.Errorf("%s: run %d times, want at most %d", c.point, runs, c.most)
		}
	}
	worker := must[client.Answer[v2.WorkerList]](t)(w.user.Workers(t.Context(), endpoint)).Value.Workers[0].ID
	if err := w.user.DeleteEndpoint(t.Context(), endpoint); err != nil {
		t.Error(err)
	}
	await(t, "the worker is gone", (&life{host: h, pod: worker}).nothingLeft)
}

func unless(is bool, what any) error {
	if is {
		return nil
	}
	return fmt.Errorf("it is %+v", what)
}

// signalWorker sends a signal to the process of an endpoint's only worker, which is known by its environment.
func signalWorker(endpoint string, s syscall.Signal) error {
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	for _, file := range files {
		env, _ := os.ReadFile(file) // it may have ended
		if !bytes.Contains(env, []byte("RUNPOD_ENDPOINT_ID="+endpoint+"\x00")) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		return errors.Join(err, syscall.Kill(pid, s))
	}
	return errors.Join(err, errors.New("the worker has no process"))
}

// said counts how often an endpoint's only worker began a job, and was answered that its result is accepted.
func (h *host) said(endpoint, job string) (runs, told int, err error) {
	a, err := h.user.Workers(h.Context(), endpoint)
	if err != nil || len(a.Value.Workers) != 1 {
		return 0, 0, fmt.Errorf("workers %+v: %w", a.Value.Workers, err)
	}
	err = h.user.WorkerLogs(h.Context(), endpoint, a.Value.Workers[0].ID, client.LogQuery{Source: "container", Tail: 5000}, client.LogEvents{
		Line: func(l client.LogLine) error {
			switch l.Line {
			case "job " + job:
				runs++
			case "told " + job:
				told++
			}
			return nil
		},
	})
	return runs, told, err
}
