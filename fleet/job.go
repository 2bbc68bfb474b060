package fleet

import "time"

// JobRequest is a job as a caller submits it to a queue endpoint (interface.md, "Job request").
type JobRequest struct {
	Body      []byte // JSON object with input, and with webhook, policy and s3Config where they were given
	Sync      bool   // the caller waits: by /runsync
	Low       bool   // it is no reason for more workers
	Execution int64  // milliseconds of one attempt; 0: what the endpoint says
	Life      int64  // milliseconds from now, after which it is deleted in any state; 0: 24 hours
	Webhook   bool   // the body has one
	Once      *Once
}

// JobView is what a caller sees of a job.
type JobView struct {
	ID        string
	Status    string // see queue.Status
	Ended     bool
	Submitted time.Time
	Delay     *time.Duration // in the queue; nil: it waits still
	Execution *time.Duration // of the last attempt, so far; nil: nothing ran
	Worker    PodID
	Output    []byte // JSON: its result, or the newest progress; nil: none
	Error     string // of one that failed; empty: none
	Reason    string // why it waits, or failed, in one sentence
	Attempts  int    // how often it was given to a worker
}

// JobCounts are the numbers of an endpoint's jobs.
type JobCounts struct {
	Waiting, Running           int
	Completed, Failed, Retried uint64
}

// JobPage asks for a page of an endpoint's jobs, the newest first.
type JobPage struct {
	Limit    int
	Before   uint64    // Seq of the last page's end; 0: begin
	Statuses []string  // empty: any
	From, To time.Time // of the submission; zero: any
}
