package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

const (
	gateway       = "10.77.0.1" // nobody is there: it makes the shared network the way out, as on real machines
	machineMemory = "3G"
	machineCPUs   = "1"
	bootLimit     = 5 * time.Minute
)

// scenario is a cluster and what is shown with it.
type scenario struct {
	name       string
	machines   []machine // their names, systems, and which of them run pods
	inventory  func(*lab) vars
	api        string // its address, on any of the schedulers' machines
	schedulers bool   // on each machine, not on the first alone
	steps      []step
}

// lab is machines that run, as its state file has them.
type lab struct {
	Scenario string     `json:"scenario"`
	Machines []*machine `json:"machines"`
	Key      string     `json:"key"`     // the public half, without its kind
	Segment  string     `json:"segment"` // multicast address that is the network of the machines

	plan  *scenario
	root  string // of the module
	accel []string
	built [builds]chan error
	took  []timed
	cache string
	dir   string // of this lab: state, key, consoles, logs
	began time.Time
	full  *os.File // log with all that was run
}

func (l *lab) path(name string) string { return filepath.Join(l.dir, name) }

func (l *lab) state() string { return l.path("lab.json") }

// named returns a machine, nil where there is none.
func (l *lab) named(name string) *machine {
	for _, m := range l.Machines {
		if m.Name == name {
			return m
		}
	}
	return nil
}

// log writes a line for people, with the time since the beginning.
func (l *lab) log(format string, args ...any) {
	text := fmt.Sprintf("%6.1f  ", time.Since(l.began).Seconds()) + strings.TrimRight(fmt.Sprintf(format, args...), "\n")
	fmt.Println(text)
	l.detail("%s", text)
}

// detail writes into the full log alone.
func (l *lab) detail(format string, args ...any) {
	if l.full != nil {
		_, _ = fmt.Fprintf(l.full, "%6.1f  %s\n", time.Since(l.began).Seconds(), strings.TrimRight(fmt.Sprintf(format, args...), "\n"))
	}
}

// open takes the lab of this machine: one program at a time has it.
func open(root string) (*lab, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, err
	}
	l := &lab{root: root, cache: filepath.Join(cache, "gantry", "lab"), began: time.Now()}
	l.dir = filepath.Join(l.cache, "run")
	if err := os.MkdirAll(l.dir, 0o700); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(l.cache, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, fmt.Errorf("another lab runs on this machine (%s): %w", lock.Name(), err)
	}
	text, err := os.ReadFile(l.state())
	if err == nil {
		err = json.Unmarshal(text, l)
	} else if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil {
		return nil, err
	}
	if l.plan, err = scenarioOf(l.Scenario); err != nil {
		return nil, err
	}
	return l, l.openLog()
}

func (l *lab) openLog() (err error) {
	l.full, err = os.OpenFile(l.path("log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	return err
}

// fresh ends what runs and begins a new lab.
func (l *lab) fresh(name string) error {
	plan, err := scenarioOf(name)
	if err != nil {
		return err
	}
	l.down()
	l.plan = plan
	if err := errors.Join(l.full.Close(), os.RemoveAll(l.dir)); err != nil {
		return err
	}
	if err := os.MkdirAll(l.dir, 0o700); err != nil {
		return err
	}
	return l.openLog()
}

// up boots the machines.
func (l *lab) up(ctx context.Context, keep bool) error {
	if err := l.writeKey(ctx); err != nil {
		return err
	}
	l.Scenario, l.Machines = l.plan.name, nil
	for i, m := range l.plan.machines {
		m.Address, m.UUID = fmt.Sprintf("10.77.0.%d", 11+i), newUUID()
		l.Machines = append(l.Machines, &m)
	}
	l.Segment = fmt.Sprintf("239.77.%d.%d:%d", rand.IntN(256), 1+rand.IntN(254), 20000+rand.IntN(10000))
	for i, m := range l.Machines {
		if err := l.boot(m, i, keep); err != nil {
			return err
		}
	}
	text, err := json.MarshalIndent(l, "", "  ")
	if err := errors.Join(err, os.WriteFile(l.state(), text, 0o600), l.writeSSH()); err != nil {
		return err
	}
	var all errgroup.Group
	for _, m := range l.Machines {
		all.Go(func() error {
			if err := l.reached(ctx, m, bootLimit); err != nil {
				return err
			}
			out, err := l.sh(ctx, m, "systemctl is-system-running --wait || systemctl --failed --no-legend; systemd-analyze time | head -1")
			l.log("%s answers: %s", m.Name, strings.Join(strings.Fields(out), " "))
			return err
		})
	}
	return all.Wait()
}

// newUUID makes up the id of a machine.
func newUUID() string {
	return fmt.Sprintf("%08x-%04x-4%03x-8%03x-%012x", rand.Uint32(), rand.Uint32()>>16, rand.Uint32()>>20, rand.Uint32()>>20, rand.Uint64()>>16)
}

// down ends all machines.
func (l *lab) down() {
	for _, m := range l.Machines {
		l.off(m)
	}
	l.Machines = nil
	_ = os.Remove(l.state())
}

// image is the folder with disk, kernel and initrd of a system, which the recipe's checksum names.
func (l *lab) image(system string) (string, error) {
	text, err := os.ReadFile(l.recipe())
	sum := sha256.Sum256(text)
	return filepath.Join(l.images(), hex.EncodeToString(sum[:6]), system), err
}

func (l *lab) images() string { return filepath.Join(l.cache, "images") }

func (l *lab) recipe() string { return filepath.Join(l.root, "test", "lab", "image.sh") }

// makeImages makes the disks of the scenario's machines that are not there.
func (l *lab) makeImages(ctx context.Context) error {
	for _, m := range l.plan.machines {
		image, err := l.image(m.System)
		if err != nil {
			return err
		}
		if _, err := os.Stat(image); err == nil {
			l.log("the disk of %s is there: %s", m.System, image)
			continue
		}
		old, err := filepath.Glob(filepath.Join(l.images(), "*")) // of other recipes
		if err != nil {
			return err
		}
		for _, folder := range old {
			if folder == filepath.Dir(image) {
				continue
			}
			if err := os.RemoveAll(folder); err != nil {
				return err
			}
		}
		half := image + ".new"
		if err := errors.Join(os.RemoveAll(half), os.MkdirAll(half, 0o700)); err != nil {
			return err
		}
		l.log("making the disk of %s: %s", m.System, image)
		if _, err := l.local(ctx, "image.sh "+m.System, "", l.recipe(), m.System, half); err != nil {
			return err
		}
		if err := os.Rename(half, image); err != nil {
			return err
		}
	}
	return nil
}
