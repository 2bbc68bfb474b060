package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	"golang.org/x/sys/unix"

	"gantry/storage/s3"
	"gantry/storage/s3/broker"
)

const (
	keepAccess   = 3 * time.Second // what the agent said of a key
	agentAway    = time.Minute     // what it said counts so much longer while it does not run
	maxAccess    = 4096
	freshFolder  = time.Minute     // after which the folder is asked for again: its mount may have been replaced
	brokenFolder = 2 * time.Second // after which one that turned out to be of no use is
	idleFolder   = 5 * time.Minute // after which a folder is closed that nobody uses
	tidyEvery    = 30 * time.Second
	openWithin   = 15 * time.Second
)

// agentSide is the agent, as source needs it.
type agentSide interface {
	Access(ctx context.Context, asked broker.Asked) (broker.Access, error)
	Open(ctx context.Context, asked broker.Asked, volume string) (*os.File, broker.Opened, error)
}

// source is an s3.Source that asks the agent of the host.
type source struct {
	agent  agentSide
	region string
	log    *slog.Logger
	now    func() time.Time
	opens  singleflight.Group

	mu      sync.Mutex // guards the fields below
	keys    map[broker.Asked]keptAccess
	folders map[string]*folder
}

type keptAccess struct {
	access s3.Access
	until  time.Time
}

// folder is a volume's folder, open.
type folder struct {
	root   *os.Root
	mount  *os.File // holds what root is on
	owner  uint32
	opened time.Time
	// users and used are guarded by source.mu, and so is old: another has taken its place.
	users int
	used  time.Time
	old   bool
}

func newSource(agent agentSide, region string, log *slog.Logger) *source {
	return &source{agent: agent, region: region, log: log, now: time.Now, keys: map[broker.Asked]keptAccess{}, folders: map[string]*folder{}}
}

// Access implements s3.Source.
func (s *source) Access(ctx context.Context, key, date string) (s3.Access, error) {
	asked := broker.Asked{Key: key, Date: date, Region: s.region}
	now := s.now()
	s.mu.Lock()
	have, ok := s.keys[asked]
	s.mu.Unlock()
	if ok && now.Before(have.until) {
		return have.access, nil
	}
	said, err := s.agent.Access(ctx, asked)
	var refused *broker.Refused
	switch {
	case errors.Is(err, broker.ErrNoKey):
		return s3.Access{}, s3.ErrNoKey
	case err != nil && ok && !errors.As(err, &refused) && now.Before(have.until.Add(agentAway)):
		return have.access, nil
	case err != nil:
		return s3.Access{}, err
	}
	out := s3.Access{Account: said.Account, ReadOnly: said.ReadOnly, SigningKey: said.SigningKey}
	for _, v := range said.Volumes {
		out.Volumes = append(out.Volumes, s3.Volume{ID: v.ID, Name: v.Name, CreatedAt: v.CreatedAt, SizeGB: v.SizeGB, ReadOnly: v.ReadOnly})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.keys) >= maxAccess {
		clear(s.keys)
	}
	s.keys[asked] = keptAccess{out, now.Add(keepAccess)}
	return out, nil
}

// Open implements s3.Source. A folder that was opened a while ago is opened anew; when the agent does not answer, the old one goes on.
func (s *source) Open(ctx context.Context, key, volume string) (*s3.Folder, error) {
	f := s.hold(volume, freshFolder)
	if f == nil {
		got := s.opens.DoChan(volume, func() (any, error) { //nolint:contextcheck // others wait for it too
			return nil, s.open(key, volume)
		})
		var err error
		select {
		case r := <-got:
			err = r.Err
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if f = s.hold(volume, 0); f == nil {
			return nil, errors.Join(errors.New("the volume's folder is not there"), err)
		}
	}
	var once sync.Once
	return &s3.Folder{
		Root: f.root, Owner: f.owner,
		Release: func() { once.Do(func() { s.release(f) }) },
		Broken:  func() { s.distrust(f) },
	}, nil
}

// distrust has a folder opened anew by the next request, unless it has just been.
func (s *source) distrust(f *folder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now().Sub(f.opened) >= brokenFolder {
		f.opened = time.Time{}
	}
}

// hold returns the folder of a volume that was opened within a time, or at all when that is 0.
func (s *source) hold(volume string, within time.Duration) *folder {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.folders[volume]
	if f == nil || within > 0 && s.now().Sub(f.opened) >= within {
		return nil
	}
	f.users++
	return f
}

func (s *source) release(f *folder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f.users--
	f.used = s.now()
	if f.old && f.users == 0 {
		f.close()
	}
}

func (f *folder) close() {
	_ = f.root.Close() // nothing is written to either
	_ = f.mount.Close()
}

// open opens a volume's folder. One that the agent refuses is dropped; when there is no answer, it stays.
func (s *source) open(key, volume string) error {
	ctx, cancel := context.WithTimeout(context.Background(), openWithin)
	defer cancel()
	asked := broker.Asked{Key: key, Date: s.now().UTC().Format("20060102"), Region: s.region}
	mount, opened, err := s.agent.Open(ctx, asked, volume)
	var refused *broker.Refused
	if err != nil && (errors.As(err, &refused) || errors.Is(err, broker.ErrNoKey)) {
		s.replace(volume, nil)
		return err
	}
	if err != nil {
		return err
	}
	root, err := openRoot(mount, opened.Owner)
	if err != nil {
		_ = mount.Close() // nothing was written to it
		s.replace(volume, nil)
		return err
	}
	s.replace(volume, &folder{root: root, mount: mount, owner: opened.Owner, opened: s.now(), used: s.now()})
	return nil
}

// replace puts a folder in the place of another, which is closed when nobody uses it any more.
func (s *source) replace(volume string, by *folder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.folders[volume]; f != nil {
		if f.old = true; f.users == 0 {
			f.close()
		}
	}
	delete(s.folders, volume)
	if by != nil {
		s.folders[volume] = by
	}
}

// tidy closes folders that nobody uses, until ctx ends.
func (s *source) tidy(ctx context.Context) {
	tick := time.NewTicker(tidyEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.dropIdle()
		case <-ctx.Done():
			return
		}
	}
}

func (s *source) dropIdle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	for id, f := range s.folders {
		if f.users == 0 && now.Sub(f.used) > idleFolder {
			delete(s.folders, id)
			f.close()
		}
	}
	for asked, k := range s.keys {
		if now.After(k.until.Add(agentAway)) {
			delete(s.keys, asked)
		}
	}
}

// openRoot returns the folder at which a descriptor stands, which is mounted nowhere, as its owner sees it. It goes through the working
// directory of a thread of its own: there is no name for it.
func openRoot(mount *os.File, owner uint32) (*os.Root, error) {
	type result struct {
		root *os.Root
		err  error
	}
	done := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // it ends with the goroutine
		var r result
		r.err = unix.Unshare(unix.CLONE_FS)
		if r.err == nil {
			r.err = unix.Setfsgid(int(owner))
		}
		if r.err == nil {
			r.err = unix.Setfsuid(int(owner))
		}
		if r.err == nil {
			r.err = unix.Fchdir(int(mount.Fd()))
		}
		if r.err == nil {
			r.root, r.err = os.OpenRoot(".")
		}
		done <- r
	}()
	r := <-done
	return r.root, r.err
}
