package v2

import "encoding/json"

// Worker is a worker of a serverless endpoint. Members that may be null are always there.
type Worker struct {
	ID           string `json:"id" doc:"Worker identifier." example:"w4n8k0zq5r7d2a"`
	Status       string `json:"status" doc:"RUNNING has a job, IDLE waits for one, INITIALIZING has not asked for one yet, UNHEALTHY is that after those before it crashed." enum:"RUNNING,IDLE,INITIALIZING,THROTTLED,UNHEALTHY"`
	IsStale      bool   `json:"isStale" doc:"Whether it is of an earlier release than the newest; it ends when it has no job."`
	IsFrozen     bool   `json:"isFrozen" doc:"Whether it stands still until the next job, and costs nothing (flashboot)."`
	Version      uint64 `json:"version" doc:"Number of the release that it was made from."`
	Image        Text   `json:"image" doc:"Image reference, or null."`
	GPUCount     int    `json:"gpuCount" doc:"Number of GPUs." minimum:"0"`
	GPUTypeID    Text   `json:"gpuTypeId" doc:"GPU type, or null."`
	DataCenterID Text   `json:"dataCenterId" doc:"Data center, or null."`
	Uptime       *int64 `json:"uptimeSeconds" doc:"Seconds since its container started, or null." minimum:"0"`
	StartedAt    *Time  `json:"startedAt" doc:"When its container started, or null."`
	CreatedAt    Time   `json:"createdAt" doc:"When it was made."`
	ColdStart    *int64 `json:"coldStart,omitempty" doc:"Milliseconds from its first answer that it gets ready (204) to the first that it is (200); on LOAD_BALANCER endpoints only." minimum:"0"`
	Reason       Text   `json:"reason" doc:"What it waits for, or what went wrong, or null." example:"pulling image 63 %"`
}

// WorkerSummary are numbers of workers by status.
type WorkerSummary struct {
	Running      int `json:"running" minimum:"0"`
	Idle         int `json:"idle" minimum:"0"`
	Initializing int `json:"initializing" minimum:"0"`
	Throttled    int `json:"throttled" doc:"Those for which there is no room, which are not listed." minimum:"0"`
	Unhealthy    int `json:"unhealthy" doc:"Those after a crash; one that is not started again yet is not listed." minimum:"0"`
	Total        int `json:"total" doc:"Sum of the others." minimum:"0"`
}

// WorkerList is the answer to listing an endpoint's workers.
type WorkerList struct {
	Page
	Workers         []Worker      `json:"workers" doc:"The workers that run or start, oldest first."`
	Summary         WorkerSummary `json:"summary" doc:"Numbers of all workers by status."`
	EndpointVersion uint64        `json:"endpointVersion" doc:"Number of the newest release."`
}

// Rollout is how far the newest release has come.
type Rollout struct {
	InProgress      bool `json:"inProgress" doc:"Whether there are workers of earlier releases."`
	WorkersOnLatest int  `json:"workersOnLatest" doc:"Workers of the newest release." minimum:"0"`
	WorkersTotal    int  `json:"workersTotal" doc:"All workers." minimum:"0"`
	PercentOnLatest int  `json:"percentOnLatest" doc:"Percent of the workers that are of the newest release; 100 when there are none." minimum:"0" maximum:"100"`
}

// Release is a version of what an endpoint's workers are made from. Members that may be null are always there.
type Release struct {
	ID          string        `json:"id" doc:"Release identifier."`
	Version     uint64        `json:"version" doc:"Its number, from 1."`
	Source      string        `json:"source" doc:"What made it: a change of the endpoint." enum:"MANUAL"`
	BuildID     Text          `json:"buildId" doc:"Always null."`
	CreatedBy   Text          `json:"createdByUserId" doc:"Key that made it, or null."`
	WorkerCount int           `json:"workerCount" doc:"Its workers now." minimum:"0"`
	CreatedAt   Time          `json:"createdAt" doc:"When it was made."`
	Diff        []FieldChange `json:"diff" doc:"What it changed; empty for the first."`
}

// FieldChange is a member of an endpoint that a release changed.
type FieldChange struct {
	Field string          `json:"field" doc:"Member, as the endpoint's record names it." example:"image"`
	Old   json.RawMessage `json:"old" doc:"What it was; of more than 1,024 bytes a text with their beginning."`
	New   json.RawMessage `json:"new" doc:"What it is from then on, in the same way."`
}

// ReleaseList is the answer to listing an endpoint's releases.
type ReleaseList struct {
	Page
	Releases        []Release `json:"releases" doc:"The last 20 releases, oldest first."`
	Rollout         Rollout   `json:"rollout" doc:"How far the newest has come."`
	EndpointVersion uint64    `json:"endpointVersion" doc:"Number of the newest release."`
}
