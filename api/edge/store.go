package edge

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"

	"gantry/fleet"
)

// Store keeps what ACME needs where every scheduler has it. Reads may be a moment old on one that does not lead; writes are
// the leader's alone.
type Store interface {
	TLSFile(name string) (content []byte, updated time.Time, err error) // not_found
	TLSFiles(prefix string) ([]string, error)                           // sorted
	PutTLSFile(ctx context.Context, name string, content []byte) error
	DeleteTLSFile(ctx context.Context, name string) error
}

// errFollows says that another scheduler orders certificates.
var errFollows = errors.New("this scheduler does not lead, so it orders no certificates")

// storage is a Store as certmagic wants it. The leader alone orders, so a lock is one of this process.
type storage struct {
	store Store
	leads func() bool

	mu    sync.Mutex
	locks map[string]chan struct{} // closed when the lock is free
}

func (s *storage) Store(ctx context.Context, key string, value []byte) error {
	return s.store.PutTLSFile(ctx, key, value)
}

func (s *storage) Load(_ context.Context, key string) ([]byte, error) {
	content, _, err := s.store.TLSFile(key)
	return content, missing(err)
}

// missing has certmagic see that there is no such file.
func missing(err error) error {
	if fleet.CodeOf(err) == fleet.CodeNotFound {
		return fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	return err
}

func (s *storage) Delete(ctx context.Context, key string) error {
	names, err := s.names(key)
	for _, name := range names {
		err = errors.Join(err, s.store.DeleteTLSFile(ctx, name))
	}
	return err
}

// names lists a file, or all below a folder.
func (s *storage) names(key string) ([]string, error) {
	names, err := s.store.TLSFiles(key)
	return slices.DeleteFunc(names, func(name string) bool {
		return key != "" && name != key && !strings.HasPrefix(name, strings.TrimSuffix(key, "/")+"/")
	}), err
}

func (s *storage) Exists(_ context.Context, key string) bool {
	names, err := s.names(key)
	return err == nil && len(names) > 0
}

func (s *storage) List(_ context.Context, path string, recursive bool) ([]string, error) {
	names, err := s.names(path)
	if err != nil || recursive {
		return names, err
	}
	below := strings.TrimSuffix(path, "/")
	if below != "" {
		below += "/"
	}
	var out []string
	for _, name := range names {
		if rest, ok := strings.CutPrefix(name, below); ok {
			first, _, _ := strings.Cut(rest, "/")
			out = append(out, below+first)
		}
	}
	return slices.Compact(out), nil
}

func (s *storage) Stat(ctx context.Context, key string) (certmagic.KeyInfo, error) {
	content, updated, err := s.store.TLSFile(key)
	if err == nil {
		return certmagic.KeyInfo{Key: key, Modified: updated, Size: int64(len(content)), IsTerminal: true}, nil
	}
	if fleet.CodeOf(err) == fleet.CodeNotFound && s.Exists(ctx, key) {
		return certmagic.KeyInfo{Key: key}, nil
	}
	return certmagic.KeyInfo{}, missing(err)
}

func (s *storage) Lock(ctx context.Context, name string) error {
	for {
		if !s.leads() {
			return errFollows
		}
		s.mu.Lock()
		held, ok := s.locks[name]
		if !ok {
			s.locks[name] = make(chan struct{})
			s.mu.Unlock()
			return nil
		}
		s.mu.Unlock()
		select {
		case <-held:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (s *storage) Unlock(_ context.Context, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	held, ok := s.locks[name]
	if !ok {
		return fmt.Errorf("the lock %s is not held", name)
	}
	delete(s.locks, name)
	close(held)
	return nil
}
