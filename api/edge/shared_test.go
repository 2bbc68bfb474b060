package edge

import (
	"context"
	"encoding/pem"
	"sync"
	"time"

	"gantry/fleet"
)

// shared is a Store in memory.
type shared struct {
	mu    sync.Mutex
	files map[string][]byte
}

func (s *shared) TLSFile(name string) ([]byte, time.Time, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	content, ok := s.files[name]
	if !ok {
		return nil, time.Time{}, fleet.NotFound("file")
	}
	return content, time.Now(), nil
}

func (s *shared) TLSFiles(prefix string) (out []string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range sorted(s.files) {
		if len(name) >= len(prefix) && name[:len(prefix)] == prefix {
			out = append(out, name)
		}
	}
	return out, nil
}

func (s *shared) PutTLSFile(_ context.Context, name string, content []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files[name] = content
	return nil
}

func (s *shared) DeleteTLSFile(_ context.Context, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.files, name)
	return nil
}

func pemOf(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
