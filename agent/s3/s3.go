// Package s3 answers what the host's gantry-s3 asks: what an access key may do, which the leader says over the connection of
// the session, and the folder of a volume. Answers are kept for a minute, and longer while no scheduler answers.
package s3

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sync/singleflight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gantry/agent/volumes"
	"gantry/internal/agentrpc"
	"gantry/storage/s3/broker"
	"gantry/storage/volume"
)

const (
	freshFor      = 55 * time.Second // what a scheduler said counts so long; gantry-s3 keeps it for 3 s more
	staleFor      = 10 * time.Minute // and so much longer while none answers
	noKeyFor      = 5 * time.Second  // that there is no such key
	askAgain      = 5 * time.Second  // between two tries to ask while an old answer counts
	askWithin     = 4 * time.Second  // for an answer of the scheduler
	openWithin    = 12 * time.Second
	mostKept      = 4096 // answers
	asksAtOnce    = 8    // questions to the scheduler, which takes few more
	opensAtOnce   = 16   // folders that are being opened
	mostStrangers = 40   // questions in a second of keys that are not known, so that who makes them up does not use up what the scheduler allows the host
)

// Broker answers what gantry-s3 asks of this host.
type Broker struct {
	open  func(context.Context, volume.Volume) (*os.File, error)
	log   *slog.Logger
	now   func() time.Time
	asks  *semaphore.Weighted
	opens *semaphore.Weighted
	once  singleflight.Group // of questions to the scheduler

	mu    sync.Mutex // guards the fields below
	conn  *grpc.ClientConn
	known map[broker.Asked]*answer
	// strangers were asked of in the second that began then.
	strangers int
	since     time.Time
}

// answer is what a scheduler said of an access key. It does not change.
type answer struct {
	said  *agentrpc.S3AccessResponse // nil: there is no such key
	at    time.Time
	again time.Time // not asked before
}

// New makes a Broker. open opens the folder of a volume.
func New(open func(context.Context, volume.Volume) (*os.File, error), log *slog.Logger) *Broker {
	return &Broker{
		open: open, log: log, now: time.Now, known: map[broker.Asked]*answer{},
		asks: semaphore.NewWeighted(asksAtOnce), opens: semaphore.NewWeighted(opensAtOnce),
	}
}

// During makes a session's connection the one that is asked, until the returned function is called.
func (d *Broker) During(conn *grpc.ClientConn) (ended func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.conn = conn
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.conn == conn {
			d.conn = nil
		}
	}
}

// Serve answers gantry-s3 at a socket until ctx ends.
func (d *Broker) Serve(ctx context.Context, socket string) {
	l, err := broker.Listen(socket)
	if err != nil {
		d.log.Error("gantry-s3 cannot reach this host's agent", "err", err)
		return
	}
	broker.Serve(ctx, l, d, d.log)
	Drop(socket)
}

// Drop removes what a stopped agent left of its socket for gantry-s3.
func Drop(socket string) {
	_ = os.Remove(socket)
	_ = os.Remove(filepath.Dir(socket))
}

// Access implements broker.Agent.
func (d *Broker) Access(ctx context.Context, asked broker.Asked) (broker.Access, error) {
	known, err := d.look(ctx, asked)
	if err != nil {
		return broker.Access{}, err
	}
	out := broker.Access{Account: known.said.GetAccountId(), ReadOnly: known.said.GetReadOnly(), SigningKey: known.said.GetSigningKey()}
	for _, v := range known.said.GetVolumes() {
		out.Volumes = append(out.Volumes, broker.Volume{
			ID: v.GetVolume().GetVolumeId(), Name: v.GetName(), CreatedAt: time.Unix(0, v.GetCreatedNs()).UTC(), SizeGB: v.GetSizeGb(),
			ReadOnly: v.GetVolume().GetReadOnly(),
		})
	}
	return out, nil
}

// Open implements broker.Agent. The folder can be written to also when the volume is over its size: what is in it may be deleted.
func (d *Broker) Open(ctx context.Context, asked broker.Asked, id string) (*os.File, broker.Opened, error) {
	known, err := d.look(ctx, asked)
	if err != nil {
		return nil, broker.Opened{}, err
	}
	for _, v := range known.said.GetVolumes() {
		if v.GetVolume().GetVolumeId() != id {
			continue
		}
		found, err := volumes.Decode(v.GetVolume())
		if err != nil {
			return nil, broker.Opened{}, err
		}
		found.ReadOnly = false
		f, err := d.openFolder(ctx, *found)
		return f, broker.Opened{Owner: found.IDBase}, err
	}
	return nil, broker.Opened{}, &broker.Refused{Sentence: "the access key does not reach the volume"}
}

func (d *Broker) openFolder(ctx context.Context, v volume.Volume) (*os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, openWithin)
	defer cancel()
	if err := d.opens.Acquire(ctx, 1); err != nil {
		return nil, &broker.Refused{Sentence: "the host opens too many volumes at once"}
	}
	defer d.opens.Release(1)
	f, err := d.open(ctx, v)
	var because *volume.Error
	if errors.As(err, &because) {
		d.log.Warn("open the folder of a network volume for gantry-s3", "volume", v.ID, "err", err)
		return nil, &broker.Refused{Sentence: because.Sentence}
	}
	return f, err
}

// look returns what is known of an access key. The error is broker.ErrNoKey when there is none.
func (d *Broker) look(ctx context.Context, asked broker.Asked) (*answer, error) {
	known, now := d.kept(asked), d.now()
	if !known.counts(now, 0) && (known == nil || !now.Before(known.again)) {
		if known == nil && d.stranger(asked) && !d.mayAskOfStranger(now) {
			return nil, &broker.Refused{Sentence: "too many unknown access keys are tried"}
		}
		fresh, err := d.ask(ctx, asked)
		switch {
		case err == nil:
			known = fresh
		case !silent(err) || !known.counts(now, staleFor):
			d.forget(asked)
			return nil, err
		default:
			known = d.put(asked, &answer{said: known.said, at: known.at, again: now.Add(askAgain)})
		}
	}
	if !known.counts(now, staleFor) || known.said == nil {
		return nil, broker.ErrNoKey
	}
	return known, nil
}

// counts reports whether the answer may be used, and for how much longer than usual.
func (k *answer) counts(now time.Time, more time.Duration) bool {
	switch {
	case k == nil:
		return false
	case k.said == nil:
		return now.Sub(k.at) < noKeyFor
	case k.said.GetExpiresNs() != 0 && now.UnixNano() >= k.said.GetExpiresNs():
		return false
	}
	return now.Sub(k.at) < freshFor+more
}

func (d *Broker) kept(asked broker.Asked) *answer {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.known[asked]
}

// stranger reports whether nothing is known of an access key on the days beside the asked one: who was known yesterday is not held up
// by those who make keys up.
func (d *Broker) stranger(asked broker.Asked) bool {
	day, _ := time.Parse("20060102", asked.Date) // beside what is no date nothing is known
	for _, days := range []int{-1, 1} {
		beside := broker.Asked{Key: asked.Key, Date: day.AddDate(0, 0, days).Format("20060102"), Region: asked.Region}
		if k := d.kept(beside); k != nil && k.said != nil {
			return false
		}
	}
	return true
}

func (d *Broker) mayAskOfStranger(now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if since := now.Sub(d.since); since < 0 || since >= time.Second {
		d.since, d.strangers = now, 0
	}
	d.strangers++
	return d.strangers <= mostStrangers
}

// put keeps an answer, and when there are too many lets go of those that do not count any more. Of keys that there are not those are
// nearly all, as anybody can make them up. Only when that makes no room, others go.
func (d *Broker) put(asked broker.Asked, k *answer) *answer {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.known[asked]; !ok && len(d.known) >= mostKept {
		now := d.now()
		maps.DeleteFunc(d.known, func(_ broker.Asked, k *answer) bool { return !k.counts(now, staleFor) })
		if len(d.known) >= mostKept {
			left := mostKept * 3 / 4
			maps.DeleteFunc(d.known, func(broker.Asked, *answer) bool { left--; return left < 0 })
		}
	}
	d.known[asked] = k
	return k
}

// forget drops an answer that the scheduler has taken back, or that does not count any more.
func (d *Broker) forget(asked broker.Asked) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.known, asked)
}

// errNoScheduler says that there is nobody to ask.
var errNoScheduler = &broker.Refused{Sentence: "no scheduler answers this host"}

// silent reports whether a scheduler said nothing of the access key, rather than that it is none.
func silent(err error) bool {
	switch status.Code(err) {
	case codes.PermissionDenied, codes.InvalidArgument, codes.Unauthenticated, codes.Unimplemented:
		return false
	}
	return !errors.Is(err, broker.ErrNoKey)
}

// ask asks the scheduler. Who asks the same at the same time gets the same answer.
func (d *Broker) ask(ctx context.Context, asked broker.Asked) (*answer, error) {
	got := d.once.DoChan(asked.Key+" "+asked.Date+" "+asked.Region, func() (any, error) { //nolint:contextcheck // it is not one caller's
		return d.rpc(asked)
	})
	select {
	case r := <-got:
		if r.Err != nil {
			return nil, r.Err
		}
		return r.Val.(*answer), nil
	case <-ctx.Done():
		return nil, errNoScheduler
	}
}

func (d *Broker) rpc(asked broker.Asked) (*answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), askWithin)
	defer cancel()
	d.mu.Lock()
	conn := d.conn
	d.mu.Unlock()
	if conn == nil {
		return nil, errNoScheduler
	}
	if err := d.asks.Acquire(ctx, 1); err != nil {
		return nil, errNoScheduler
	}
	defer d.asks.Release(1)
	said, err := agentrpc.NewLinkClient(conn).S3Access(ctx, &agentrpc.S3AccessRequest{AccessKey: asked.Key, Date: asked.Date, Region: asked.Region})
	now := d.now()
	switch {
	case status.Code(err) == codes.NotFound:
		return d.put(asked, &answer{at: now}), nil
	case err != nil:
		return nil, fmt.Errorf("ask the scheduler of an access key: %w", err)
	}
	return d.put(asked, &answer{said: said, at: now}), nil
}
