package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"gantry/fleet"
	"gantry/internal/pki"
	"gantry/scheduler"
	"gantry/scheduler/peers"
	"gantry/scheduler/replica"
	"gantry/scheduler/state"
)

// recoverFile holds the new identity while a recovery is not finished.
const recoverFile = "recover-unfinished"

type recoverCmd struct {
	DataDir string `required:"" type:"path" help:"Folder of a scheduler that is left; of several, the one with the highest index on the list of gantry raft members." placeholder:"DIR"`
	Address string `help:"Address under which hosts and other schedulers reach this one's link port, when it is another one than before." placeholder:"HOST:PORT"`
	Yes     bool   `required:"" help:"Say that the other schedulers are lost for good and will never be started again with their data."`
}

// Run makes the copy a cluster of its own. It can be repeated until it succeeds.
func (c *recoverCmd) Run(ctx context.Context, log *slog.Logger) (err error) {
	ctx, cancel := context.WithTimeout(ctx, initTimeout)
	defer cancel()
	if c.Address != "" && !peers.ValidAddress(c.Address) {
		return errAddress
	}
	lock, err := lockFolder(c.DataDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	address, err := keepAddress(c.DataDir, c.Address, defaultLinkListen)
	if err != nil {
		return err
	}
	id, err := c.identity()
	if err != nil {
		return err
	}
	if err := replica.Recover(filepath.Join(c.DataDir, raftFolder), replica.Member{ID: id, Address: address}); err != nil {
		return err
	}
	if err := writeNodeID(c.DataDir, id); err != nil {
		return err
	}
	m, err := alone(c.DataDir, address, log)
	if err != nil {
		return err
	}
	err = c.begin(ctx, m)
	if err = errors.Join(err, m.close()); err != nil {
		return fmt.Errorf("recover: %w", err)
	}
	if err := os.Remove(filepath.Join(c.DataDir, recoverFile)); err != nil {
		return err
	}
	log.Info("recovered: start this scheduler with run, and add others with gantry raft add", "id", id)
	return nil
}

// identity returns the identity that the recovered member gets, the same at every try.
func (c *recoverCmd) identity() (string, error) {
	path := filepath.Join(c.DataDir, recoverFile)
	text, err := os.ReadFile(path)
	if id := strings.TrimSpace(string(text)); err == nil && fleet.ValidID(id) {
		return id, nil
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	id := fleet.NewID()
	return id, pki.WriteFile(path, []byte(id+"\n"), 0o600)
}

// begin takes all others out and gives the member its certificate.
func (c *recoverCmd) begin(ctx context.Context, m *member) error {
	if err := m.waitLead(ctx); err != nil {
		return err
	}
	cluster, err := clusterOf(m.store)
	if err != nil {
		return err
	}
	known := false
	err = m.store.View(func(v *state.View) error { _, known = v.Member(fleet.MemberID(m.id)); return nil })
	if err != nil {
		return err
	}
	now := time.Now()
	if !known {
		if err := m.propose(ctx, newLineage(cluster, m.record("", now), now, now)); err != nil {
			return err
		}
	}
	ca, err := scheduler.OpenCA(m.sealer, cluster)
	if err != nil {
		return err
	}
	return enroll(c.DataDir, ca, m.id, now)
}
