package chaos

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"

	"gantry/fleet"
	"gantry/scheduler/entry"
	"gantry/scheduler/replica"
	"gantry/scheduler/state"
)

// sameState checks that all replicas hold the same: it copies the files of each while its process stands still, brings
// the copies to one index with the log of the foremost, and compares hashes. It returns the state's content.
func (c *cluster) sameState(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	var stores []*state.Store
	foremost := 0
	for i, m := range c.members {
		copied := filepath.Join(dir, m.name)
		must(t, copyReplica(m, copied))
		store, err := openState(copied)
		must(t, err)
		defer func() { _ = store.Close() }()
		if store.Discarded() != "" {
			t.Fatalf("the state of %s was not usable: %s", m.name, store.Discarded())
		}
		stores = append(stores, store)
		if store.Index() > stores[foremost].Index() {
			foremost = i
		}
	}
	last := stores[foremost].Index()
	log := filepath.Join(dir, c.members[foremost].name, "raft.db")
	want, err := stores[foremost].Hash()
	must(t, err)
	for i, s := range stores {
		must(t, forward(s, log, last))
		got, err := s.Hash()
		must(t, err)
		if !bytes.Equal(got, want) || s.Index() != last {
			t.Errorf("at index %d, %s has the state %x and %s %x (index %d)", last, c.members[foremost].name, want, c.members[i].name, got, s.Index())
		}
	}
	must(t, stores[foremost].View(func(v *state.View) error { booked(t, v); return nil }))
}

// booked checks that no GPU is promised to two pods.
func booked(t *testing.T, v *state.View) {
	t.Helper()
	of := map[string]fleet.PodID{}
	for _, h := range v.Hosts() {
		for _, p := range v.HostPods(h.ID) {
			for _, gpu := range p.GPUs {
				if other, taken := of[gpu]; taken {
					t.Errorf("GPU %s has the pods %s and %s", gpu, other, p.ID)
				}
				of[gpu] = p.ID
			}
		}
	}
}

func openState(dir string) (*state.Store, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, err
	}
	return state.Open(filepath.Join(dir, replica.StateFile), state.Options{BootID: strings.TrimSpace(string(boot))})
}

// copyReplica copies a replica's files while its process does nothing.
func copyReplica(m *member, to string) (err error) {
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	if m.proc.Alive() {
		if err := m.proc.Pause(); err != nil {
			return err
		}
		defer m.proc.Resume()
	}
	for _, name := range []string{replica.StateFile, replica.StateFile + ".mark", "raft.db"} {
		in, err := os.Open(filepath.Join(m.data, "raft", name))
		if err != nil {
			return err
		}
		out, err := os.Create(filepath.Join(to, name))
		if err != nil {
			return errors.Join(err, in.Close())
		}
		_, err = io.Copy(out, in)
		if err := errors.Join(err, in.Close(), out.Close()); err != nil {
			return err
		}
	}
	return nil
}

// forward applies what is in a log up to an index.
func forward(s *state.Store, log string, last uint64) error {
	if s.Index() == last {
		return nil
	}
	logs, err := raftboltdb.New(raftboltdb.Options{Path: log, NoSync: true})
	if err != nil {
		return err
	}
	defer func() { _ = logs.Close() }()
	for i := s.Index() + 1; i <= last; i++ {
		var l raft.Log
		if err := logs.GetLog(i, &l); err != nil {
			return fmt.Errorf("entry %d: %w", i, err)
		}
		if l.Type != raft.LogCommand {
			continue
		}
		if _, err := s.Apply([]entry.Entry{{Index: l.Index, Term: l.Term, Data: l.Data}}); err != nil {
			return err
		}
	}
	return nil
}
