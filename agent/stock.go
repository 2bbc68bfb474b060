package agent

import (
	"context"
	"sync"
	"time"
)

// lookEvery is how often the host looks whether it has become another: its images, its notices.
const lookEvery = 10 * time.Second

// watchHost tells the scheduler of what changes of the host while a session stands.
func (d *daemon) watchHost(ctx context.Context) {
	var gpus <-chan struct{}
	if d.Accelerators != nil {
		gpus = d.Accelerators.Changed()
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { d.watchImages(ctx) })
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-gpus:
			d.pods.Poke() // a GPU may be free, or healthy, again
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		d.sessions.stir()
	}
}

// gpuName returns the type of a GPU of this host; "" when there is none.
func (d *daemon) gpuName(uuid string) string {
	for _, g := range d.inventory().GPUs {
		if g.UUID == uuid {
			return g.Type
		}
	}
	return ""
}

// prefetch gets an image that the scheduler expects pods of.
func (d *daemon) prefetch(image string) { d.keeper.ask(image) }
