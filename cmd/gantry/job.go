package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"gantry/api/v2"
	"gantry/client"
)

type jobCmd struct {
	Run     jobRunCmd     `cmd:"" help:"Submit a job."`
	RunSync jobRunSyncCmd `cmd:"" name:"runsync" help:"Submit a job and wait for its output."`
	Status  jobStatusCmd  `cmd:"" help:"Show a job: its status, why it waits, its output."`
	Stream  jobStreamCmd  `cmd:"" help:"Show the parts of a job's output as they come."`
	Cancel  jobCancelCmd  `cmd:"" help:"Cancel jobs."`
	Retry   jobRetryCmd   `cmd:"" help:"Put jobs that failed or timed out back into the queue."`
	List    jobListCmd    `cmd:"" help:"List an endpoint's jobs, the newest first."`
	Purge   jobPurgeCmd   `cmd:"" help:"Remove all jobs that wait."`
}

// jobRef is a job on the command line.
type jobRef struct {
	endpointRef
	Job string `arg:"" placeholder:"JOB" help:"Id of the job."`
}

// jobRefs are several jobs of one endpoint.
type jobRefs struct {
	endpointRef
	Jobs []string `arg:"" placeholder:"JOB" help:"Ids of jobs."`
}

type jobRunCmd struct {
	endpointRef
	jobFlags
	waiting
}

// Run submits a job.
func (cmd jobRunCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	body, err := cmd.body(a, maxRun)
	if err != nil {
		return err
	}
	key := onceKey(cmd.IdempotencyKey)
	return endpoints.on(ctx, c, cmd.Endpoint, func(id string) error {
		job, err := c.Keyed(key).SubmitJob(ctx, id, body)
		if err != nil {
			return a.uncertain(err, key)
		}
		if !cmd.Wait {
			return showJobs(a, job, nil)
		}
		return a.awaitOutput(ctx, c, id, job, cmd.Timeout)
	})
}

type jobRunSyncCmd struct {
	endpointRef
	jobFlags
	Timeout time.Duration `default:"15m" help:"Stop waiting after this time. The job stays."`
}

// syncHold is how long one request waits for a job that may be done at once.
const syncHold = time.Second

// Run submits a job and waits for it.
func (cmd jobRunSyncCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	body, err := cmd.body(a, maxRunSync)
	if err != nil {
		return err
	}
	key := onceKey(cmd.IdempotencyKey)
	return endpoints.on(ctx, c, cmd.Endpoint, func(id string) error {
		job, err := c.Keyed(key).RunJob(ctx, id, body, syncHold)
		if err != nil {
			return a.uncertain(err, key)
		}
		return a.awaitOutput(ctx, c, id, job, cmd.Timeout)
	})
}

type jobStatusCmd struct {
	jobRef
	waiting
	Input bool `help:"Show its input, too, which is kept until the job has completed or was cancelled."`
}

// Run shows a job.
func (cmd jobStatusCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	if cmd.Wait && cmd.Input {
		return usage("--wait and --input do not go together: ask for the input before or after")
	}
	return endpoints.on(ctx, c, cmd.Endpoint, func(id string) error {
		read := c.Job
		if cmd.Input {
			read = c.JobWithInput
		}
		job, err := read(ctx, id, cmd.Job)
		if err == nil && cmd.Wait {
			if job, err = a.awaitJob(ctx, c, id, job, cmd.Timeout); err == nil {
				err = failureOf(job.Value)
			}
			if job.Value.ID == "" || !v2.JobEnded(job.Value.Status) {
				return err
			}
			return a.several([]error{reply(a, job, nil, jobSheet), err})
		}
		return reply(a, job, err, jobSheet)
	})
}

type jobStreamCmd struct{ jobRef }

// streamHold is how long one request waits for a part.
const streamHold = 4 * time.Second

// Run shows what a job yields until it ends.
func (cmd jobStreamCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	if !a.forPeople() && a.cli.Output != formatJSON {
		return usage("a stream is text, or with -o json a JSON object for each part")
	}
	return endpoints.on(ctx, c, cmd.Endpoint, func(id string) error {
		for {
			got, err := c.StreamJob(ctx, id, cmd.Job, streamHold)
			if err != nil {
				return err
			}
			for _, part := range got.Value.Stream {
				if err := printPart(a, part); err != nil {
					return err
				}
			}
			if v2.JobEnded(got.Value.Status) {
				return failureOf(v2.Job{ID: cmd.Job, Status: got.Value.Status, Error: got.Value.Error})
			}
		}
	})
}

// printPart prints one part of a stream: its output, or with -o json all of it.
func printPart(a *app, part json.RawMessage) error {
	if !a.forPeople() {
		_, err := fmt.Fprintf(a.out, "%s\n", part)
		return err
	}
	var in struct {
		Output json.RawMessage `json:"output"`
	}
	if json.Unmarshal(part, &in) != nil {
		in.Output = part
	}
	text, err := outputText(in.Output)
	if err == nil {
		_, err = fmt.Fprint(a.out, text)
	}
	return err
}

type jobCancelCmd struct{ jobRefs }

// Run cancels jobs.
func (cmd jobCancelCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	return cmd.each(ctx, a, c, (*client.Client).CancelJob)
}

type jobRetryCmd struct{ jobRefs }

// Run puts jobs back into the queue.
func (cmd jobRetryCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	return cmd.each(ctx, a, c, (*client.Client).RetryJob)
}

// each does something with each job. One that refuses does not keep the others from theirs.
func (r jobRefs) each(ctx context.Context, a *app, c *client.Client, do func(*client.Client, context.Context, string, string) (client.Answer[v2.Job], error)) error {
	return endpoints.on(ctx, c, r.Endpoint, func(id string) error {
		var faults []error
		var done []v2.Job
		for _, ref := range r.Jobs {
			job, err := do(c, ctx, id, ref)
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case err != nil:
				faults = append(faults, named(err, ref, len(r.Jobs)))
			case a.forPeople():
				done = append(done, job.Value)
			default:
				faults = append(faults, a.showRaw(job.Raw))
			}
		}
		if len(done) > 0 {
			faults = append(faults, a.page(jobTable(done, a.now())))
		}
		return a.several(faults)
	})
}

type jobListCmd struct {
	endpointRef
	Status []string `sep:"none" placeholder:"FAILED" help:"Only jobs in this status: IN_QUEUE, IN_PROGRESS, COMPLETED, FAILED, CANCELLED or TIMED_OUT. May be repeated."`
	Since  string   `placeholder:"TIME" help:"Only jobs submitted since then: RFC 3339, or a time ago such as 10m."`
	Until  string   `placeholder:"TIME" help:"Only jobs submitted before."`
	Limit  int      `default:"100" placeholder:"N" help:"Jobs of one page, 1 to 1000."`
	Cursor string   `placeholder:"TEXT" help:"The page after one that said so."`
}

// Run lists jobs.
func (cmd jobListCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	f := client.JobFilter{Statuses: cmd.Status, Limit: cmd.Limit, Cursor: cmd.Cursor}
	if cmd.Limit < 1 || cmd.Limit > 1000 {
		return usage("--limit must be from 1 to 1000")
	}
	for flag, text := range map[string]string{"--since": cmd.Since, "--until": cmd.Until} {
		if text == "" {
			continue
		}
		at, err := moment(text, a.now())
		if err != nil {
			return usage("%s must be a time in RFC 3339, or a time ago such as 10m", flag)
		}
		if flag == "--since" {
			f.From = at
		} else {
			f.To = at
		}
	}
	return endpoints.on(ctx, c, cmd.Endpoint, func(id string) error {
		list, err := c.Jobs(ctx, id, f)
		if err := reply(a, list, err, func(l v2.JobList) string { return jobTable(l.Requests, a.now()) }); err != nil {
			return err
		}
		if list.Value.Next != "" {
			_, _ = fmt.Fprintf(a.err, "There are more: add --cursor %s\n", printable(list.Value.Next))
		}
		return nil
	})
}

type jobPurgeCmd struct {
	endpointRef
	confirmed
}

// Run removes the jobs that wait.
func (cmd jobPurgeCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	return endpoints.on(ctx, c, cmd.Endpoint, func(id string) error {
		if err := cmd.ask(ctx, a, fmt.Sprintf("Remove all jobs that wait at endpoint %s?", printable(id))); err != nil {
			return err
		}
		purged, err := c.PurgeJobs(ctx, id)
		return reply(a, purged, err, func(p v2.JobsPurged) string { return "removed " + count(p.Removed, "job") + "\n" })
	})
}

// showJobs shows one job in a table.
func showJobs(a *app, job client.Answer[v2.Job], err error) error {
	return reply(a, job, err, func(j v2.Job) string { return jobTable([]v2.Job{j}, a.now()) })
}

func jobTable(jobs []v2.Job, now time.Time) string {
	var rows [][]string
	for _, j := range jobs {
		made, _ := time.Parse(time.RFC3339Nano, j.CreatedAt)
		rows = append(rows, []string{
			j.ID, j.Status, orDash(millis(j.Delay)), orDash(millis(j.Execution)), orDash(j.Worker), age(now, made), orDash(first(errorLine(j.Error), j.Reason)),
		})
	}
	return table(trimmed([]string{"ID", "STATUS", "WAITED", "RAN", "~WORKER", "~AGE", "REASON"}, rows, 2))
}

func millis(n *int64) string {
	if n == nil {
		return ""
	}
	return (time.Duration(*n) * time.Millisecond).String()
}

func jobSheet(j v2.Job) string {
	attempts := ""
	if j.Attempts > 1 {
		attempts = fmt.Sprint(j.Attempts)
	}
	out := sheet([][2]string{
		{"Id", j.ID},
		{"Status", j.Status},
		{"Reason", j.Reason},
		{"Waited", millis(j.Delay)},
		{"Ran", millis(j.Execution)},
		{"Worker", j.Worker},
		{"Attempts", attempts},
		{"Error", errorLine(j.Error)},
	})
	for _, part := range []struct {
		name string
		json json.RawMessage
	}{{"Input", j.Input}, {"Output", j.Output}} {
		if text, err := outputText(part.json); err == nil && len(part.json) > 0 {
			out += part.name + ":\n" + text
		}
	}
	return out
}

// outputText shows what a worker said: a text as it is, anything else as JSON.
func outputText(output json.RawMessage) (string, error) {
	var text string
	if json.Unmarshal(output, &text) == nil && string(output) != "null" {
		return printableLines(text) + "\n", nil
	}
	if len(output) == 0 {
		return "", nil
	}
	return jsonText(output)
}

// workerError is what worker libraries make of an exception; all else is a plain sentence.
type workerError struct {
	Type      string `json:"error_type"`
	Message   string `json:"error_message"`
	Traceback string `json:"error_traceback"`
}

func parseError(text string) (out workerError) {
	if json.Unmarshal([]byte(text), &out) != nil || out.Message == "" {
		return workerError{Message: text}
	}
	out.Type = strings.TrimSuffix(strings.TrimPrefix(out.Type, "<class '"), "'>")
	return out
}

// errorLine shows an error of a job in one line.
func errorLine(text string) string {
	e := parseError(text)
	if e.Type != "" {
		return e.Type + ": " + e.Message
	}
	return e.Message
}
