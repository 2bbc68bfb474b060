// Package images looks after the images of a host without a pod that asks: it loads the archives that the operator named, gets what a
// scheduler expects pods of, and removes what nobody needs when the disk is too full.
package images

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/sleep"
)

// Store is what gets and removes images without a pod that asks. Implementations are safe for concurrent use.
type Store interface {
	// Prefetch gets an image, making way for what pods ask for.
	Prefetch(ctx context.Context, ref string) error
	// Room returns the bytes that are used of the file system of the images, and how many may be.
	Room(ctx context.Context) (used, size int64, err error)
	// Collect removes images that nobody needs until about free bytes are free, and returns their names.
	Collect(ctx context.Context, free int64, wanted func() pod.WantedImages) ([]string, error)
}

// Marks say when images are removed that nobody needs: from High percent of their file system on, until no more
// than Low percent are used. With High 0 none is ever removed.
type Marks struct{ High, Low int }

const (
	maxPrefetches   = 64
	prefetchTries   = 3
	prefetchPause   = 5 * time.Second // between two tries
	prefetchTimeout = time.Hour       // of one image, tries included
	collectTimeout  = 5 * time.Minute
	collectRounds   = 3
	// collectPause is for how long images are left alone after all that could be removed was, to no avail.
	collectPause  = 10 * time.Minute
	percent       = 100
	lookEvery     = 10 * time.Second
	importTimeout = 10 * time.Minute

	prefetchToldFor = time.Hour // for which a failed prefetch is a condition of the host
	prefetchesTold  = 8         // such conditions at a time
)

// Config is what a Keeper is made from.
type Config struct {
	Store   Store // nil: images are neither got nor removed
	Marks   Marks
	Records func() []pod.Record
	// Archives are files that Import loads when the agent begins.
	Archives []string
	Import   func(ctx context.Context, archive io.Reader) ([]string, error)
	// Look looks which images are there. It is called when there may be others, and every few seconds.
	Look    func(ctx context.Context)
	Metrics Metrics
	Log     *slog.Logger
}

// Metrics counts what is done to images.
type Metrics interface {
	// Room notes how many bytes are used of the disk of images, and how many may be.
	Room(used, size int64)
	// Collected notes that images were removed to make room.
	Collected(images int)
}

// Keeper looks after the images of the host.
type Keeper struct {
	Config
	queue chan string

	mu      sync.Mutex
	waiting map[string]bool // in the queue, or being got
	failed  map[string]failedPrefetch

	imported  chan struct{} // closed when the archives are loaded; nil: there are none
	idleUntil time.Time     // of the collecting goroutine alone
}

// New makes a Keeper.
func New(c Config) *Keeper {
	k := &Keeper{Config: c, queue: make(chan string, maxPrefetches), waiting: map[string]bool{}, failed: map[string]failedPrefetch{}}
	if len(c.Archives) > 0 {
		k.imported = make(chan struct{})
	}
	return k
}

// Imported is closed when the archives are loaded; nil: there are none.
func (k *Keeper) Imported() <-chan struct{} { return k.imported }

// failedPrefetch is why an image was not got, and when that was.
type failedPrefetch struct {
	at  time.Time
	why string
}

// Conditions tells which images could not be got ahead within the last hour, the newest ones first.
func (k *Keeper) Conditions(now time.Time) []fleet.Condition {
	const most = 300
	k.mu.Lock()
	defer k.mu.Unlock()
	maps.DeleteFunc(k.failed, func(_ string, f failedPrefetch) bool { return now.Sub(f.at) > prefetchToldFor })
	images := slices.SortedFunc(maps.Keys(k.failed), func(a, b string) int {
		return cmp.Or(k.failed[b].at.Compare(k.failed[a].at), strings.Compare(a, b))
	})
	var out []fleet.Condition
	for _, image := range images[:min(len(images), prefetchesTold)] {
		f := k.failed[image]
		text := []rune(fmt.Sprintf("image %s was not prefetched at %s: %s", image, f.at.UTC().Format(time.RFC3339), f.why))
		out = append(out, fleet.Condition{Code: fleet.ConditionPrefetchFailed, Text: string(text[:min(len(text), most)])})
	}
	return out
}

// ask puts an image into the queue of those to get. One that waits there already is not asked for twice.
func (k *Keeper) ask(image string) {
	full, ok := fleet.ImageName(image)
	if !ok || k.Store == nil {
		k.Log.Warn("prefetch refused: invalid image reference, or prefetching is disabled on this host", "image", pod.Readable(image, maxShownImage))
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.waiting[full] {
		return
	}
	select {
	case k.queue <- full:
		k.waiting[full] = true
		delete(k.failed, full)
	default:
		k.Log.Warn("prefetch refused: too many images are queued", "image", full, "waiting", maxPrefetches)
	}
}

// Take asks for an image that the scheduler expects pods of.
func (k *Keeper) Take(_ context.Context, m *agentrpc.Down_Prefetch) (*agentrpc.Up, error) {
	k.ask(m.Prefetch.GetImage())
	return nil, nil
}

const maxShownImage = 300 // bytes

// run gets what was asked for, one image after the other, until ctx ends. changed is called when the host has another
// image, or could not get one.
func (k *Keeper) run(ctx context.Context, changed func()) {
	for {
		select {
		case image := <-k.queue:
			why := k.get(ctx, image)
			k.mu.Lock()
			delete(k.waiting, image)
			if why != "" && len(k.failed) < maxPrefetches {
				k.failed[image] = failedPrefetch{time.Now(), why}
			}
			k.mu.Unlock()
			if ctx.Err() == nil {
				changed()
			}
		case <-ctx.Done():
			return
		}
	}
}

// get gets one image. It returns why it could not, "" when the image is there.
func (k *Keeper) get(ctx context.Context, image string) string {
	ctx, cancel := context.WithTimeout(ctx, prefetchTimeout)
	defer cancel()
	began := time.Now()
	for try := 1; ; try++ {
		err := k.Store.Prefetch(ctx, image)
		if err == nil {
			k.Log.Info("image was prefetched", "image", image, "took", time.Since(began))
			return ""
		}
		var e *pod.Error
		if errors.As(err, &e) && e.Class == pod.Fatal || try == prefetchTries || sleep.For(ctx, prefetchPause) != nil {
			k.Log.Warn("image was not prefetched", "image", image, "tries", try, "err", err)
			if e != nil && e.Sentence != "" {
				return e.Sentence
			}
			return "the host could not get it; its agent's log says why"
		}
	}
}

// collect removes images when the disk is too full, and reports whether any is gone.
func (k *Keeper) collect(ctx context.Context, now time.Time) bool {
	if k.Store == nil || k.Marks.High == 0 || now.Before(k.idleUntil) {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, collectTimeout)
	defer cancel()
	used, size, err := k.Store.Room(ctx)
	if err != nil {
		k.Log.Debug("look how full the disk of images is", "err", err)
		return false
	}
	k.Metrics.Room(used, size)
	if used < size/percent*int64(k.Marks.High) {
		return false
	}
	low, gone := size/percent*int64(k.Marks.Low), 0
	for range collectRounds {
		removed, err := k.Store.Collect(ctx, used-low, func() pod.WantedImages { return pod.ImagesWanted(k.Records()) })
		gone += len(removed)
		k.Metrics.Collected(len(removed))
		if err != nil {
			k.Log.Warn("remove images", "err", err)
			return gone > 0
		}
		before := used
		if used, size, err = k.Store.Room(ctx); err != nil {
			return gone > 0
		}
		k.Log.Info("removed images to free the image disk", "images", removed, "freed", before-used, "used", used, "size", size)
		if used <= low || len(removed) == 0 {
			break
		}
	}
	if used > low {
		k.idleUntil = now.Add(collectPause)
		k.Log.Warn("the image disk is full and no more images can be removed", "used", used, "size", size)
	}
	return gone > 0
}

// Run looks after images until ctx ends.
func (k *Keeper) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	fresh := make(chan struct{}, 1)
	changed := func() {
		select {
		case fresh <- struct{}{}:
		default:
		}
	}
	wg.Go(func() {
		k.importArchives(ctx)
		changed()
		k.run(ctx, changed)
	})
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-fresh:
		case <-tick.C:
			k.collect(ctx, time.Now())
		case <-ctx.Done():
			return
		}
		k.Look(ctx)
	}
}

// importArchives loads the image archives that the operator named, while pods are looked after. One that cannot be
// loaded is named in the log; the agent goes on.
func (k *Keeper) importArchives(ctx context.Context) {
	if k.imported == nil {
		return
	}
	defer close(k.imported)
	for _, path := range k.Archives {
		names, err := k.importArchive(ctx, path)
		if err != nil {
			k.Log.Error("image archive was not loaded", "file", path, "err", err)
			continue
		}
		k.Log.Info("image archive loaded", "file", path, "images", names)
	}
}

func (k *Keeper) importArchive(ctx context.Context, path string) ([]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	ctx, cancel := context.WithTimeout(ctx, importTimeout)
	defer cancel()
	return k.Import(ctx, f)
}
