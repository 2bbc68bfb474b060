// Package models keeps models of a hub on the host for the workers of serverless endpoints, in the layout of the hub's own clients.
// Each revision of a model is fetched once, whoever wants it, checked against the hub's digests, and shared read-only; one that not
// everybody may read is given only to who the hub says may. The least recently used ones go when the cache is full.
package models

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/internal/outbound"
)

// Settings are what the operator of a host says of its cache.
type Settings struct {
	Size int64 // bytes that it may have; 0: the host has none
	// Guard says where a hub may redirect to.
	Guard outbound.Guard
}

// Config is what a Cache is made from.
type Config struct {
	Settings
	Dir string // of its own
	// InUse reports whether a pod may have a container that uses its models.
	InUse func(fleet.PodID) bool
	// Changed is called when the host has other models than before.
	Changed func()
	Metrics Metrics
	Log     *slog.Logger

	stall, pause time.Duration // for tests; see newCache
}

// Metrics counts what becomes of models.
type Metrics interface {
	// Models notes how many bytes the cache has, and how many it may have.
	Models(used, size int64)
	// Fetched counts bytes that came from the hub.
	Fetched(bytes int64)
	// ModelFetch counts a fetch that ended.
	ModelFetch(ok bool)
	// ModelsRemoved counts models that made room.
	ModelsRemoved(models int)
}

// Cache keeps models. It is safe for concurrent use.
type Cache struct {
	Config
	ctx         context.Context
	own, others *http.Transport
	lanes       chan struct{} // files that are read at once
	queue       chan ahead
	work        sync.WaitGroup
	names       atomic.Pointer[[]string] // of what is here; see Names

	mu      sync.Mutex // guards the fields below, and the folders of the cache
	entries map[string]*entry
	flights map[string]*flight
	pins    map[fleet.PodID][]string // entries that pods use
	queued  map[ahead]bool

	waiting  int           // pods that wait for models
	idlePods chan struct{} // closed when there is none any more
}

const (
	stallLimit  = time.Minute // without a byte
	triesPause  = 2 * time.Second
	maxLanes    = 8 // files of all models
	ofFlight    = 4 // files of one
	progressGap = 500 * time.Millisecond
)

// New opens the cache in a folder of its own, with what an earlier agent left there. What it works on ends with ctx; see Wait.
func New(ctx context.Context, c Config) (*Cache, error) {
	if c.stall == 0 {
		c.stall, c.pause = stallLimit, triesPause
	}
	cache := &Cache{
		Config: c, ctx: ctx, lanes: make(chan struct{}, maxLanes), queue: make(chan ahead, maxAhead),
		entries: map[string]*entry{}, flights: map[string]*flight{}, pins: map[fleet.PodID][]string{}, queued: map[ahead]bool{},
	}
	cache.own, cache.others = newTransports(c.Guard)
	if err := cache.load(); err != nil {
		return nil, err
	}
	cache.work.Go(cache.fetchAhead)
	cache.work.Go(cache.sweepOften)
	return cache, nil
}

// Wait returns when nothing works any more, after the context of New has ended.
func (c *Cache) Wait() {
	c.work.Wait()
	c.own.CloseIdleConnections()
	c.others.CloseIdleConnections()
}

// Get implements pod.Models.
func (c *Cache) Get(
	ctx context.Context, id fleet.PodID, want pod.ModelOrder, progress func(model string, done, total int64),
) (out []pod.Model, err error) {
	defer c.begins()()
	c.unpin(id)
	for _, ref := range want.Models {
		dir, err := c.one(ctx, id, want.Hub, ref, want.Token, func(done, total int64) { progress(ref.Repo, done, total) })
		if err != nil {
			return nil, sentence(ref, want.Token != "", c.Size, err)
		}
		out = append(out, pod.Model{Folder: ref.Folder(), Dir: dir})
	}
	return out, nil
}

// one returns the folder of a model's revision, which stays for the pod; an empty id is of no pod.
func (c *Cache) one(
	ctx context.Context, id fleet.PodID, hubAddress string, ref fleet.ModelRef, token fleet.Secret, progress func(done, total int64),
) (string, error) {
	for {
		h, m, open, err := c.access(ctx, hubAddress, ref, token)
		if errors.Is(err, errAway) {
			if dir, ok := c.known(id, ref); ok { // everybody may have it, and the hub cannot be asked whether there is a newer one
				return dir, nil
			}
		}
		if err != nil {
			c.closed(ref, err)
			return "", err
		}
		dir, ok, err := c.use(id, ref, m, open)
		if ok || err != nil {
			return dir, err
		}
		f, mine := c.join(h, ref, m, open, id != "") //nolint:contextcheck // a fetch outlives who began it
		err = c.await(ctx, f, progress)
		if !mine && ctx.Err() == nil && (errors.Is(err, errDenied) || errors.Is(err, context.Canceled)) {
			continue // that was about who began: its token, or that it left
		}
		if err != nil {
			return "", err
		}
		if dir, ok, err = c.use(id, ref, m, open); ok || err != nil {
			return dir, err
		}
	}
}

// access asks the hub for a revision, and whether its files may be read: by everybody (open), else by who has the token. So a token
// is shown only where it is needed.
func (c *Cache) access(ctx context.Context, address string, ref fleet.ModelRef, token fleet.Secret) (h *hub, m *manifest, open bool, err error) {
	for _, as := range slices.Compact([]fleet.Secret{"", token}) {
		if h, err = c.newHub(address, as); err != nil {
			return nil, nil, false, err
		}
		if m, err = h.ask(ctx, ref); err == nil {
			err = h.opens(ctx, ref.Repo, m.commit, m.largest())
		}
		if !errors.Is(err, errDenied) && !errors.Is(err, errNotThere) {
			return h, m, as == "", err
		}
	}
	return nil, nil, false, err
}

// await waits for a flight, whose progress it tells.
func (c *Cache) await(ctx context.Context, f *flight, progress func(done, total int64)) error {
	defer c.leave(f)
	tick := time.NewTicker(progressGap)
	defer tick.Stop()
	for {
		progress(f.have.Load(), f.manifest.total)
		select {
		case <-f.done:
			return f.err
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Names returns the references of the models that are here, the most recently used first, at most 100.
func (c *Cache) Names() []string { return *c.names.Load() }

// Used returns the bytes that the cache has, with what is being fetched.
func (c *Cache) Used() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.used("")
}
