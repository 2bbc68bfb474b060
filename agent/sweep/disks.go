package sweep

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"gantry/agent/pod"
	"gantry/fleet"
	"gantry/storage/disk"
)

// Disks are the disks of the host's pods. The zero value has none: persistent data is in plain folders then.
type Disks struct {
	// Containers are those that the container runtime makes, named after their pods; nil: it makes none.
	Containers ContainerDisks
	// Persistent keeps persistent data; its folder is DisksOf's second.
	Persistent pod.Disks
}

// ContainerDisks is what the daemon needs of the disks that the container runtime makes. Implementations are safe for
// concurrent use.
type ContainerDisks interface {
	Names() ([]string, error)
	Remove(ctx context.Context, name string) error
}

// DisksOf returns the folders of the containers' disks and of persistent data below an agent's data folder.
func DisksOf(dir string) (containers, persistent string) {
	return filepath.Join(dir, "disks"), DataDir(dir)
}

// data is the persistent data of the host's pods.
func (s *Sweeper) data() pod.Data { return pod.Data{Dir: DataDir(s.Dir), Disks: s.Disks.Persistent} }

// sweptDisks removes the disks of containers that nobody has any more, and reports whether none is left.
func (s *Sweeper) sweptDisks(ctx context.Context) bool {
	if s.Disks.Containers == nil {
		return true
	}
	names, err := s.Disks.Containers.Names()
	if err != nil {
		s.Log.Warn("list the disks of containers", "err", err)
		return false
	}
	clean := true
	for _, name := range names {
		if s.known(fleet.PodID(name)) {
			continue
		}
		s.Log.Warn("removing the disk of an unknown pod's container", "pod", name)
		err := s.Containers.Remove(ctx, fleet.PodID(name))
		if err == nil {
			err = s.Disks.Containers.Remove(ctx, name)
		}
		if err != nil {
			s.Log.Warn("remove the disk of an unknown pod's container", "pod", name, "err", err)
			clean = false
		}
	}
	return clean
}

// found opens a folder of disks to look after what is there: each disk is of the mechanism that made it. It is nil when
// there is no folder.
func found(dir string) (*disk.Pool, error) {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return disk.Open(disk.Config{Dir: dir, Mechanism: disk.None})
}

// foundData is the persistent data below an agent's data folder, whatever keeps it.
func foundData(dir string) (pod.Data, error) {
	_, folder := DisksOf(dir)
	data := pod.Data{Dir: folder}
	pool, err := found(folder)
	if pool != nil {
		data.Disks = pool
	}
	return data, err
}

// cleanDisks removes the disks of all containers, and lets go of every mount and loop device.
func cleanDisks(ctx context.Context, dir string) error {
	containers, persistent := DisksOf(dir)
	pool, err := found(containers)
	if err == nil && pool != nil {
		var names []string
		names, err = pool.Names()
		for _, name := range names {
			err = errors.Join(err, pool.Remove(ctx, name))
		}
		err = errors.Join(err, pool.Release(ctx))
	}
	if err != nil {
		return fmt.Errorf("clean the disks of containers: %w", err)
	}
	pool, err = found(persistent)
	if err == nil && pool != nil {
		err = pool.Release(ctx)
	}
	if err != nil {
		return fmt.Errorf("unmount persistent data: %w", err)
	}
	return nil
}

// HasData reports whether there is persistent data below an agent's data folder, in its place or set aside.
func HasData(dir string) (bool, error) {
	data, err := foundData(dir)
	if err != nil {
		return false, err
	}
	pods, err := data.Pods()
	if err != nil {
		return false, err
	}
	aside, err := data.Lost()
	return len(pods)+len(aside) > 0, err
}
