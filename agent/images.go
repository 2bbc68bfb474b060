package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/internal/link"
	"gantry/internal/sleep"
)

// Images is what gets and removes images without a pod that asks. Implementations are safe for concurrent use.
type Images interface {
	// Prefetch gets an image, making way for what pods ask for.
	Prefetch(ctx context.Context, ref string) error
	// Room returns the bytes that are used of the file system of the images, and how many may be.
	Room(ctx context.Context) (used, size int64, err error)
	// Collect removes images that nobody needs until about free bytes are free, and returns their names.
	Collect(ctx context.Context, free int64, wanted func() pod.WantedImages) ([]string, error)
}

// ImageRoom says when images are removed that nobody needs: from High percent of their file system on, until no more
// than Low percent are used. With High 0 none is ever removed.
type ImageRoom struct{ High, Low int }

const (
	maxPrefetches   = 64
	prefetchTries   = 3
	prefetchPause   = 5 * time.Second // between two tries
	prefetchTimeout = time.Hour       // of one image, tries included
	collectTimeout  = 5 * time.Minute
	collectRounds   = 3
	// collectPause is for how long images are left alone after all that could be removed was, to no avail.
	collectPause = 10 * time.Minute
	percent      = 100

	prefetchToldFor = time.Hour // for which a failed prefetch is a notice of the host
	prefetchesTold  = 8         // such notices at a time
)

// imageKeeper looks after the images of the host.
type imageKeeper struct {
	images Images // nil: they are neither got nor removed
	room   ImageRoom
	wanted func() pod.WantedImages
	log    *slog.Logger

	queue   chan string
	metrics *metrics // nil: nothing is counted

	mu      sync.Mutex
	waiting map[string]bool // in the queue, or being got
	failed  map[string]failedPrefetch

	idleUntil time.Time // of the collecting goroutine alone
}

func newImageKeeper(c *Config, records func() []pod.Record) *imageKeeper {
	return &imageKeeper{
		images: c.Images, room: c.ImageRoom, wanted: func() pod.WantedImages { return pod.ImagesWanted(records()) }, log: c.Log,
		queue: make(chan string, maxPrefetches), waiting: map[string]bool{}, failed: map[string]failedPrefetch{},
	}
}

// failedPrefetch is why an image was not got, and when that was.
type failedPrefetch struct {
	at  time.Time
	why string
}

// notices tells which images could not be got ahead within the last hour, the newest ones first.
func (k *imageKeeper) notices(now time.Time) []fleet.Notice {
	const most = 300
	k.mu.Lock()
	defer k.mu.Unlock()
	maps.DeleteFunc(k.failed, func(_ string, f failedPrefetch) bool { return now.Sub(f.at) > prefetchToldFor })
	images := slices.SortedFunc(maps.Keys(k.failed), func(a, b string) int {
		return cmp.Or(k.failed[b].at.Compare(k.failed[a].at), strings.Compare(a, b))
	})
	var out []fleet.Notice
	for _, image := range images[:min(len(images), prefetchesTold)] {
		f := k.failed[image]
		text := []rune(fmt.Sprintf("image %s was not prefetched at %s: %s", image, f.at.UTC().Format(time.RFC3339), f.why))
		out = append(out, fleet.Notice{Code: fleet.NoticePrefetchFailed, Text: string(text[:min(len(text), most)])})
	}
	return out
}

// ask puts an image into the queue of those to get. One that waits there already is not asked for twice.
func (k *imageKeeper) ask(image string) {
	full, ok := fleet.ImageName(image)
	if !ok || k.images == nil {
		k.log.Warn("prefetch refused: invalid image reference, or prefetching is disabled on this host", "image", pod.Readable(image, maxShownImage))
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
		k.log.Warn("prefetch refused: too many images are queued", "image", full, "waiting", maxPrefetches)
	}
}

// takePrefetch asks for an image that the scheduler expects pods of.
func (k *imageKeeper) takePrefetch(_ context.Context, m *link.Down_Prefetch) (*link.Up, error) {
	k.ask(m.Prefetch.GetImage())
	return nil, nil
}

const maxShownImage = 300 // bytes

// run gets what was asked for, one image after the other, until ctx ends. changed is called when the host has another
// image, or could not get one.
func (k *imageKeeper) run(ctx context.Context, changed func()) {
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
func (k *imageKeeper) get(ctx context.Context, image string) string {
	ctx, cancel := context.WithTimeout(ctx, prefetchTimeout)
	defer cancel()
	began := time.Now()
	for try := 1; ; try++ {
		err := k.images.Prefetch(ctx, image)
		if err == nil {
			k.log.Info("image was prefetched", "image", image, "took", time.Since(began))
			return ""
		}
		var e *pod.Error
		if errors.As(err, &e) && e.Class == pod.Fatal || try == prefetchTries || sleep.For(ctx, prefetchPause) != nil {
			k.log.Warn("image was not prefetched", "image", image, "tries", try, "err", err)
			if e != nil && e.Sentence != "" {
				return e.Sentence
			}
			return "the host could not get it; its agent's log says why"
		}
	}
}

// collect removes images when the disk is too full, and reports whether any is gone.
func (k *imageKeeper) collect(ctx context.Context, now time.Time) bool {
	if k.images == nil || k.room.High == 0 || now.Before(k.idleUntil) {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, collectTimeout)
	defer cancel()
	used, size, err := k.images.Room(ctx)
	if err != nil {
		k.log.Debug("look how full the disk of images is", "err", err)
		return false
	}
	k.metrics.room(used, size)
	if used < size/percent*int64(k.room.High) {
		return false
	}
	low, gone := size/percent*int64(k.room.Low), 0
	for range collectRounds {
		removed, err := k.images.Collect(ctx, used-low, k.wanted)
		gone += len(removed)
		k.metrics.collected(len(removed))
		if err != nil {
			k.log.Warn("remove images", "err", err)
			return gone > 0
		}
		before := used
		if used, size, err = k.images.Room(ctx); err != nil {
			return gone > 0
		}
		k.log.Info("removed images to free the image disk", "images", removed, "freed", before-used, "used", used, "size", size)
		if used <= low || len(removed) == 0 {
			break
		}
	}
	if used > low {
		k.idleUntil = now.Add(collectPause)
		k.log.Warn("the image disk is full and no more images can be removed", "used", used, "size", size)
	}
	return gone > 0
}

// watchImages keeps what the scheduler is told of the images up to date, and has room made for them.
func (d *daemon) watchImages(ctx context.Context) {
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
		d.importArchives(ctx)
		changed()
		d.keeper.run(ctx, changed)
	})
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-fresh:
		case <-tick.C:
			d.keeper.collect(ctx, time.Now())
		case <-ctx.Done():
			return
		}
		d.listImages(ctx)
	}
}

// listImages asks what images are there. While the container runtime does not answer, what it said before stands.
func (d *daemon) listImages(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, runtimeTimeout)
	defer cancel()
	now, err := d.Containers.Images(ctx)
	d.metrics.answered(err)
	version := ""
	if err == nil {
		version, err = d.Containers.Version(ctx) // it may have been upgraded
	}
	if err != nil {
		d.Log.Debug("ask the container runtime", "err", err)
		return
	}
	d.saidMu.Lock()
	same := slices.Equal(now, d.images) && version == d.runtime
	d.images, d.runtime = now, version
	d.judge(version, nil)
	d.saidMu.Unlock()
	if !same {
		d.stir()
	}
}
