package ctrd

import (
	"context"
	"errors"
	"time"
)

const (
	roomEvery = 200 * time.Millisecond
	// leastRoom is the share of the disk of images, one in so many, that no pull takes: an image can unpack to a
	// thousand times its size, and the rest of the host lives there too.
	leastRoom = 50
)

var errNoRoom = errors.New("no room on the host's disk")

// watchRoom returns a context that ends when the disk of images is as good as full. The caller hands what came of its
// work to the returned function, which names the reason if it was that.
func (r *Runtime) watchRoom(ctx context.Context) (watched context.Context, end func(error) error) {
	watched, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	r.work.Go(func() {
		defer close(done)
		tick := time.NewTicker(roomEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-watched.Done():
				return
			}
			if used, size, err := r.Room(watched); err == nil && size-used < size/leastRoom {
				cancel(errNoRoom)
				return
			}
		}
	})
	return watched, func(err error) error {
		cancel(nil)
		<-done
		if err != nil && errors.Is(context.Cause(watched), errNoRoom) {
			return errNoRoom
		}
		return err
	}
}
