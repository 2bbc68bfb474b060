package jobs

import (
	"context"
	"crypto/rand"
	"errors"

	"gantry/fleet"
	"gantry/scheduler/entry"
	"gantry/scheduler/replica"
	"gantry/serverless/queue"
)

// Group is this member's part in the group that has the jobs.
type Group struct {
	*replica.Node
	Jobs *Machine
}

// Propose is replica.Node's, with commands of this package.
func (g Group) Propose(ctx context.Context, cmds ...Command) ([]entry.Result, error) {
	data, err := Encode(cmds...)
	if err != nil {
		return nil, err
	}
	return g.Append(ctx, len(cmds), data)
}

// One proposes one command and returns its value. Errors: those of Propose, and the refusal.
func One[T any](ctx context.Context, g Group, cmd Command) (out T, err error) {
	results, err := g.Propose(ctx, cmd)
	if err != nil {
		return out, err
	}
	out, _ = results[0].Value.(T)
	return out, results[0].Err
}

// Content makes of a body what a command about a job of the account carries. A large body goes before it, in parts, so that
// others' commands come between them; those of several bodies take turns. maxBytes is what the account's bodies may have. The parts are
// dropped when they are not used, in time. Errors: those of Propose and of Part; too_large; ctx's.
func (g Group) Content(ctx context.Context, account fleet.AccountID, job queue.ID, body []byte, maxBytes int64, now queue.Millis) (Content, error) {
	if len(body) <= MaxInline {
		return Content{Data: body}, nil
	}
	if len(body) > MaxBody {
		return Content{}, &fleet.Error{Code: fleet.CodeTooLarge, Msg: "the body is too large", NothingDone: true}
	}
	part := Part{At: now, Job: job, Account: account, Size: int64(len(body)), MaxBytes: maxBytes}
	if _, err := rand.Read(part.ID[:]); err != nil {
		return Content{}, err
	}
	for rest := body; len(rest) > 0; {
		part.Data = rest[:min(len(rest), MaxPart)]
		if err := g.inTurn(ctx, part); err != nil {
			return Content{}, err
		}
		part.From += int64(len(part.Data))
		rest = rest[len(part.Data):]
	}
	return Content{Parts: part.ID}, nil
}

// inTurn commits a part of a body.
func (g Group) inTurn(ctx context.Context, part Part) error {
	select {
	case g.Jobs.turns <- struct{}{}:
		defer func() { <-g.Jobs.turns }()
	case <-ctx.Done():
		return fleet.Unavailable("Other large bodies are being kept. Please try again.", ctx.Err())
	}
	_, err := One[any](ctx, g, part)
	return err
}

// Take reads chunks of a job's stream, which nobody is given again, and returns how many are left. Errors: those of Propose;
// bodies.ErrDamaged.
func (g Group) Take(ctx context.Context, cmd Read) (chunks [][]byte, left int, err error) {
	release := g.Jobs.bodies.Pin() // the command drops them
	defer func() { err = errors.Join(err, release()) }()
	taken, err := One[Taken](ctx, g, cmd)
	for _, b := range taken.Chunks {
		data, err := g.Jobs.bodies.Get(b)
		if err != nil {
			return nil, 0, err
		}
		chunks = append(chunks, data)
	}
	return chunks, taken.Left, err
}
