package v2

import "encoding/json"

// JobRequest is the body that submits a job.
type JobRequest struct {
	Input   json.RawMessage `json:"input"` // an object
	Webhook string          `json:"webhook,omitempty"`
	Policy  *JobPolicy      `json:"policy,omitempty"`
	S3      json.RawMessage `json:"s3Config,omitempty"` // an object of strings, passed on to the worker
}

// JobPolicy bounds a job in milliseconds; what is left out is the endpoint's, or the default.
type JobPolicy struct {
	Execution *int64 `json:"executionTimeout,omitempty"` // of each attempt: 5 s to 7 days
	Life      *int64 `json:"ttl,omitempty"`              // from the submission on: 10 s to 7 days
	Low       *bool  `json:"lowPriority,omitempty"`      // runs when no other job waits
}

// Job is a job of a queue endpoint. Times are in milliseconds, and not there before there is something to count.
type Job struct {
	ID        string          `json:"id"`
	Status    string          `json:"status"`
	Delay     *int64          `json:"delayTime,omitempty"` // in the queue
	Execution *int64          `json:"executionTime,omitempty"`
	Worker    string          `json:"workerId,omitempty"`
	Output    json.RawMessage `json:"output,omitempty"` // the result, or the newest progress
	Error     string          `json:"error,omitempty"`
	Retries   int             `json:"retries,omitempty"`
	Reason    string          `json:"reason,omitempty"` // why it waits, or failed
	Attempts  int             `json:"attempts,omitempty"`
	CreatedAt string          `json:"createdAt,omitempty"` // in lists alone
	Input     json.RawMessage `json:"input,omitempty"`     // where it is asked for, while it is kept: not once the job has completed or was cancelled
}

// JobList is a page of an endpoint's jobs, the newest first.
type JobList struct {
	Requests []Job  `json:"requests"`
	Next     string `json:"next,omitempty"` // cursor of the next page; empty: this is the last
}

// JobStream has the chunks of a job that were not handed out before, each an object with output. Once Status is final there are no more.
type JobStream struct {
	Status string            `json:"status"`
	Stream []json.RawMessage `json:"stream"`
	Error  string            `json:"error,omitempty"`
}

// JobsPurged tells how many waiting jobs were removed.
type JobsPurged struct {
	Removed int    `json:"removed"`
	Status  string `json:"status"`
}

// JobProblem is the body of every error about jobs.
type JobProblem struct {
	Error string `json:"error"`
}

// EndpointHealth counts an endpoint's jobs and workers.
type EndpointHealth struct {
	Jobs    EndpointJobs    `json:"jobs"`
	Workers EndpointWorkers `json:"workers"`
}

// EndpointJobs counts jobs: those that are there now, and all that ended.
type EndpointJobs struct {
	Completed  uint64 `json:"completed"`
	Failed     uint64 `json:"failed"`
	InProgress int    `json:"inProgress"`
	InQueue    int    `json:"inQueue"`
	Retried    uint64 `json:"retried"`
}

// EndpointWorkers counts workers by their status; those that are ready are the idle and the running ones.
type EndpointWorkers struct {
	Idle         int `json:"idle"`
	Initializing int `json:"initializing"`
	Ready        int `json:"ready"`
	Running      int `json:"running"`
	Throttled    int `json:"throttled"`
	Unhealthy    int `json:"unhealthy"`
}

// JobEnded reports whether a status is final: the job has a result, or will never have one.
func JobEnded(status string) bool { return status != "IN_QUEUE" && status != "IN_PROGRESS" }
