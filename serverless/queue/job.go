package queue

import (
	"slices"
	"time"

	"gantry/fleet"
)

// ID is the UUID of a job; see jobs.IDText.
type ID [16]byte

// Millis is a time in milliseconds since 1970, UTC. Zero: never.
type Millis int64

// At returns the time of t.
func At(t time.Time) Millis { return Millis(t.UnixMilli()) }

// Time returns m as a time, in UTC.
func (m Millis) Time() time.Time { return time.UnixMilli(int64(m)).UTC() }

// Status is where a job is in its life.
type Status uint8

// The states. The last four are final, but for Retry.
const (
	InQueue Status = iota
	InProgress
	Completed
	Failed
	Cancelled
	TimedOut
)

var statusTexts = [...]string{"IN_QUEUE", "IN_PROGRESS", "COMPLETED", "FAILED", "CANCELLED", "TIMED_OUT"}

// String returns the word on the wire.
func (s Status) String() string { return statusTexts[s] }

// ParseStatus reads the word on the wire.
func ParseStatus(text string) (Status, bool) {
	i := slices.Index(statusTexts[:], text)
	return Status(max(i, 0)), i >= 0 //nolint:gosec // one of six
}

// Statuses lists the words on the wire.
func Statuses() []string { return slices.Clone(statusTexts[:]) }

// Ended reports whether a job of this status runs no more.
func (s Status) Ended() bool { return s >= Completed }

// Body refers to bytes that are kept elsewhere. The zero Body refers to none.
type Body struct {
	At   uint64 `cbor:"1,keyasint,omitempty"` // where; means something to the store of bodies alone
	Size int64  `cbor:"2,keyasint,omitempty"` // bytes
}

// Policy says how long a job may take and what becomes of it. Times are in milliseconds, 7 days at most.
type Policy struct {
	Execution uint32 `cbor:"1,keyasint"`           // of one attempt
	Life      uint32 `cbor:"2,keyasint"`           // from its submission: then it is deleted in any state
	Retention uint32 `cbor:"3,keyasint"`           // from its end
	Retries   uint8  `cbor:"4,keyasint,omitempty"` // how often it is given out again after its worker was lost
	Low       bool   `cbor:"5,keyasint,omitempty"` // taken only while no other job waits; no reason for more workers
	Webhook   bool   `cbor:"6,keyasint,omitempty"` // somebody wants to be told of its end
	Sync      bool   `cbor:"7,keyasint,omitempty"` // submitted by /runsync
}

// Job is what is known of a job. Who reads one must not change it, and it is valid until the next command.
type Job struct {
	ID     ID     `cbor:"1,keyasint"`
	Policy Policy `cbor:"2,keyasint"`
	Status Status `cbor:"3,keyasint,omitempty"`
	// Seq is the order of submission within the endpoint, from 1.
	Seq       uint64 `cbor:"4,keyasint"`
	Submitted Millis `cbor:"5,keyasint"`
	// Due is when Expire has something to do for it.
	Due   Millis `cbor:"6,keyasint"`
	Input Body   `cbor:"7,keyasint,omitzero"`
	// Run is nil for a job that nothing has happened to yet.
	Run *Run `cbor:"8,keyasint,omitempty"`
	// Sale is set for a job that another account than the endpoint's pays for.
	Sale *Sale `cbor:"9,keyasint,omitempty"`

	endpoint      *endpoint
	waitAt, dueAt int32 // indices in the heaps; -1: not there
}

// Sale says who pays for a job of a public model, and alone may see it. Such a job stays, once it has ended, until it is settled.
type Sale struct {
	Account fleet.AccountID  `cbor:"1,keyasint"`
	Model   fleet.ModelID    `cbor:"2,keyasint"`
	Hold    string           `cbor:"3,keyasint"` // of the account's credit
	Price   fleet.ModelPrice `cbor:"4,keyasint"`
	Cost    fleet.Money      `cbor:"5,keyasint,omitempty"` // once the job has completed
	Settled bool             `cbor:"6,keyasint,omitempty"` // the hold was ended for it
}

// Run is what happened to a job since it was submitted.
type Run struct {
	// Workers has the worker of each attempt, the last one's last.
	Workers []fleet.PodID `cbor:"1,keyasint,omitempty"`
	Started Millis        `cbor:"2,keyasint,omitempty"` // the last attempt
	Ended   Millis        `cbor:"3,keyasint,omitempty"` // zero: it has not
	// Output is what its worker last said: its progress, or its result.
	Output Body `cbor:"4,keyasint,omitzero"`
	// Error is why it failed, in words that clients look for, and Reason the same in our own; unless its worker said why.
	Error  string `cbor:"10,keyasint,omitempty"`
	Reason string `cbor:"5,keyasint,omitempty"`
	// Chunks are those of its stream that nobody has read, Chunk counts those of the attempt.
	Chunks []Body `cbor:"6,keyasint,omitempty"`
	Chunk  uint32 `cbor:"7,keyasint,omitempty"`
	// Cut says that chunks were left out, because too much was unread.
	Cut bool `cbor:"8,keyasint,omitempty"`
	// Told says that its webhook needs no further call.
	Told bool `cbor:"9,keyasint,omitempty"`
}

// Unread returns the chunks of the stream that nobody has read. r may be nil.
func (r *Run) Unread() []Body {
	if r == nil {
		return nil
	}
	return r.Chunks
}

// Endpoint returns the job's endpoint and the account that owns it.
func (j *Job) Endpoint() (fleet.EndpointID, fleet.AccountID) {
	return j.endpoint.id, j.endpoint.account
}

// Attempt is how often it was given out: the number of the attempt that runs, or of the last one.
func (j *Job) Attempt() int {
	if j.Run == nil {
		return 0
	}
	return len(j.Run.Workers)
}

// Worker returns who has it, or had it last.
func (j *Job) Worker() fleet.PodID {
	if j.Attempt() == 0 {
		return ""
	}
	return j.Run.Workers[len(j.Run.Workers)-1]
}

// given reports whether it was ever given to a worker.
func (j *Job) given(w fleet.PodID) bool { return j.Run != nil && slices.Contains(j.Run.Workers, w) }

// bytes is what it holds of what its account may have.
func (j *Job) bytes() int64 {
	sum := j.Input.Size
	if j.Run != nil {
		sum += j.Run.Output.Size
		for _, c := range j.Run.Chunks {
			sum += c.Size
		}
	}
	return sum
}

// Counts are numbers of an endpoint's jobs. Those that ended are counted since the endpoint has jobs.
type Counts struct {
	Waiting    int    `cbor:"1,keyasint,omitempty"` // without those of low priority
	WaitingLow int    `cbor:"2,keyasint,omitempty"`
	InProgress int    `cbor:"3,keyasint,omitempty"`
	Completed  uint64 `cbor:"4,keyasint,omitempty"`
	Failed     uint64 `cbor:"5,keyasint,omitempty"` // with those that timed out
	Retried    uint64 `cbor:"6,keyasint,omitempty"` // attempts after a lost one, and retries by users
}
