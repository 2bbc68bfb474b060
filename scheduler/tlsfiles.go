package scheduler

import (
	"context"
	"fmt"
	"time"

	"gantry/fleet"
	"gantry/scheduler/state"
)

// purposeTLSFile begins the purpose under which a file of TLS for users is sealed; its name follows.
const purposeTLSFile = "tls file"

// TLSFile opens a file of TLS for users as this scheduler's copy of the state has it, which may be a moment old on one
// that does not lead. Errors: not_found.
func (s *Service) TLSFile(name string) (content []byte, updated time.Time, err error) {
	var file fleet.TLSFile
	err = s.Store.View(func(v *state.View) error {
		var ok bool
		if file, ok = v.TLSFile(name); !ok {
			return fleet.NotFound("file of TLS")
		}
		return nil
	})
	if err != nil {
		return nil, time.Time{}, err
	}
	if content, err = s.Sealer.Open(purposeTLSFile+"\x00"+name, file.Sealed); err != nil {
		return nil, time.Time{}, fmt.Errorf("open file of TLS %s: %w", name, err)
	}
	return content, file.UpdatedAt, nil
}

// TLSFiles lists the files of TLS for users whose names begin with prefix, sorted, as TLSFile reads them.
func (s *Service) TLSFiles(prefix string) (names []string, err error) {
	err = s.Store.View(func(v *state.View) error {
		names = v.TLSFiles(prefix)
		return nil
	})
	return names, err
}

// PutTLSFile seals a file of TLS for users and commits it. Only the leader can. Errors: invalid, rule (there are too many),
// unavailable.
func (s *Service) PutTLSFile(ctx context.Context, name string, content []byte) error {
	sealed, err := s.Sealer.Seal(purposeTLSFile+"\x00"+name, content)
	if err != nil {
		return err
	}
	_, err = propose[any](ctx, s, state.PutTLSFile{File: fleet.TLSFile{Name: name, Sealed: sealed, UpdatedAt: s.Now()}})
	return err
}

// DeleteTLSFile deletes a file of TLS for users, also when there is none. Only the leader can.
func (s *Service) DeleteTLSFile(ctx context.Context, name string) error {
	_, err := propose[any](ctx, s, state.PutTLSFile{File: fleet.TLSFile{Name: name, UpdatedAt: s.Now()}})
	return err
}
