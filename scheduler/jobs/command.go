package jobs

import (
	"sync"

	"gantry/scheduler/entry"
	"gantry/serverless/queue"

	"gantry/fleet"
)

// Bounds of what travels on the log.
const (
	// MaxInline is the most bytes of a body that goes with its command. A larger one comes in Parts before.
	MaxInline = 256 << 10
	// MaxPart is the most bytes of a Part.
	MaxPart = 512 << 10
	// MaxBody is the most bytes of one body (wire-facts.md, §2.3), with some room for what is around it.
	MaxBody = 21 << 20
	// partLife is how long the first parts of a body wait for the others.
	partLife = 2 * 60 * 1000
	// maxParts is how many bodies of an account may be incomplete at once.
	maxParts = 32
)

// Command is one decision on the log. Commands are applied one by one.
type Command interface {
	// number is the command's type on the log. It is fixed for ever, and so is the meaning of the fields' numbers.
	number() uint64
	// apply checks first and writes after. The value is for the proposer. An error that is no *fleet.Error means that
	// this replica cannot go on.
	apply(m *Machine) (any, error)
}

// Content is a body that comes with a command: its bytes, or the id under which its parts came.
type Content struct {
	Data  []byte   `cbor:"1,keyasint,omitempty"`
	Parts queue.ID `cbor:"2,keyasint,omitzero"`
}

// Submit is queue.Submit with the input. Value: a Job. Errors: those of queue.Submit; exists comes with the Job.
type Submit struct {
	queue.Submit
	Content Content `cbor:"20,keyasint"`
}

// Take is queue.Take. Value: []Job.
type Take struct{ queue.Take }

// Finish is queue.Finish with the output. Value: whether it ended the job.
type Finish struct {
	queue.Finish
	Content Content `cbor:"20,keyasint"`
}

// Progress is queue.Progress with the output.
type Progress struct {
	queue.Progress
	Content Content `cbor:"20,keyasint"`
}

// Chunk is queue.Chunk with the chunk.
type Chunk struct {
	queue.Chunk
	Content Content `cbor:"20,keyasint"`
}

// Read is queue.Read. Value: Taken.
type Read struct{ queue.Read }

// Lost is queue.Lost.
type Lost struct{ queue.Lost }

// LostWorker is queue.LostWorker. Schedulers of this release propose Lost for each job instead.
type LostWorker struct{ queue.LostWorker }

// Cancel is queue.Cancel. Value: a Job.
type Cancel struct{ queue.Cancel }

// Retry is queue.Retry. Value: a Job.
type Retry struct{ queue.Retry }

// Told is queue.Told.
type Told struct{ queue.Told }

// Settled is queue.Settled.
type Settled struct{ queue.Settled }

// Retain is queue.Retain.
type Retain struct{ queue.Retain }

// Expire is queue.Expire, and drops parts of bodies that were never completed. Value: how many it changed.
type Expire struct{ queue.Expire }

// Purge is queue.Purge. Value: how many.
type Purge struct{ queue.Purge }

// Forget is queue.Forget. Value: whether nothing is left.
type Forget struct{ queue.Forget }

// Part is some bytes of a body, in order. The first one takes the place. Errors: rate_limited (the account may have no more
// bytes, or incomplete bodies); stale (it is not the next one, or waited too long).
type Part struct {
	At      queue.Millis    `cbor:"1,keyasint"`
	ID      queue.ID        `cbor:"2,keyasint"`
	Job     queue.ID        `cbor:"3,keyasint"` // which the body is of
	Account fleet.AccountID `cbor:"4,keyasint"`
	Size    int64           `cbor:"5,keyasint"` // of the body
	From    int64           `cbor:"6,keyasint"` // where the bytes begin
	Data    []byte          `cbor:"7,keyasint"`
	// MaxBytes is what all bodies of the account may have, this one included.
	MaxBytes int64 `cbor:"8,keyasint"`
}

// Drop says that the parts of a body are not needed.
type Drop struct {
	ID queue.ID `cbor:"1,keyasint"`
}

func (Submit) number() uint64     { return 1 }
func (Take) number() uint64       { return 2 }
func (Finish) number() uint64     { return 3 }
func (Progress) number() uint64   { return 4 }
func (Chunk) number() uint64      { return 5 }
func (Read) number() uint64       { return 6 }
func (Lost) number() uint64       { return 7 }
func (LostWorker) number() uint64 { return 8 }
func (Cancel) number() uint64     { return 9 }
func (Retry) number() uint64      { return 10 }
func (Told) number() uint64       { return 11 }
func (Retain) number() uint64     { return 12 }
func (Expire) number() uint64     { return 13 }
func (Purge) number() uint64      { return 14 }
func (Forget) number() uint64     { return 15 }
func (Part) number() uint64       { return 16 }
func (Drop) number() uint64       { return 17 }
func (Settled) number() uint64    { return 18 }

// wire is the codec of commands and snapshots.
var wire = sync.OnceValues(func() (*entry.Codec[Command], error) {
	return entry.NewCodec(MaxPart+64<<10, Command.number, []Command{
		Submit{},
		Take{},
		Finish{},
		Progress{},
		Chunk{},
		Read{},
		Lost{},
		LostWorker{},
		Cancel{},
		Retry{},
		Told{},
		Retain{},
		Expire{},
		Purge{},
		Forget{},
		Part{},
		Drop{},
		Settled{},
	})
})

// Encode returns the data of a log entry that holds the commands; see entry.Codec.
func Encode(cmds ...Command) ([]byte, error) {
	c, err := wire()
	if err != nil {
		return nil, err
	}
	return c.Encode(cmds...)
}
