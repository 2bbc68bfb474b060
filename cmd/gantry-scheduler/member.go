package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"gantry/fleet"
	"gantry/internal/link"
	"gantry/internal/pki"
	"gantry/scheduler/replica"
	"gantry/scheduler/state"
)

// The files of a data folder.
const (
	sealFile   = "seal.key"
	idFile     = "node-id"
	certFolder = "pki"
	raftFolder = "raft"
)

// member is one scheduler's replica with what it is made of.
type member struct {
	id     string
	sealer *pki.Sealer
	store  *state.Store
	node   *replica.Node
}

// openMember opens the replica in dir. With certificates it can have peers; without, it is alone.
func openMember(dir, address string, streams replica.StreamLayer, snapshotEvery uint64, fatal func(error), log *slog.Logger) (*member, error) {
	id, err := os.ReadFile(filepath.Join(dir, idFile))
	if err != nil {
		return nil, fmt.Errorf("read the scheduler's id: %w", err)
	}
	m := &member{id: strings.TrimSpace(string(id))}
	if m.sealer, err = pki.LoadSealer(filepath.Join(dir, sealFile)); err != nil {
		return nil, err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("read boot id: %w", err)
	}
	raftDir := filepath.Join(dir, raftFolder)
	m.store, err = state.Open(filepath.Join(raftDir, replica.StateFile), state.Options{BootID: strings.TrimSpace(string(boot))})
	if err != nil {
		return nil, err
	}
	m.node, err = replica.Open(replica.Config{
		Dir: raftDir, ID: m.id, Address: address, Store: m.store, Streams: streams, SnapshotThreshold: snapshotEvery,
		Log: log, Fatal: fatal,
	})
	if err != nil {
		return nil, errors.Join(err, m.store.Close())
	}
	return m, nil
}

// close ends the replica; what was acknowledged is on disk already.
func (m *member) close() error { return errors.Join(m.node.Close(), m.store.Close()) }

// waitLead waits until the member leads.
func (m *member) waitLead(ctx context.Context) error {
	led := errors.New("led")
	err := m.node.WhileLeader(ctx, func(context.Context) error { return led })
	if errors.Is(err, led) {
		return nil
	}
	return err
}

// peers is Raft's stream layer on the shared link port.
type peers struct {
	net.Listener
	store *pki.Store
}

// Dial implements replica.StreamLayer.
func (p peers) Dial(address string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return link.DialRaft(ctx, p.store, address)
}

// propose commits one entry and returns the first refusal in it.
func (m *member) propose(ctx context.Context, cmds ...state.Command) error {
	results, err := m.node.Propose(ctx, cmds...)
	if err != nil {
		return err
	}
	for _, r := range results {
		if r.Err != nil {
			return r.Err
		}
	}
	return nil
}

// initialised reports whether the member's state holds a cluster.
func (m *member) initialised() (bool, error) {
	var ok bool
	err := m.store.View(func(v *state.View) error { _, ok = v.Cluster(); return nil })
	return ok, err
}

// newNodeID makes the id file unless there is one.
func newNodeID(dir string) (string, error) {
	path := filepath.Join(dir, idFile)
	if b, err := os.ReadFile(path); err == nil && fleet.ValidID(strings.TrimSpace(string(b))) {
		return strings.TrimSpace(string(b)), nil
	}
	id := fleet.NewID()
	return id, pki.WriteFile(path, []byte(id+"\n"), 0o600)
}
