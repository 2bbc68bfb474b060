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
	"gantry/internal/atomicfile"
	"gantry/scheduler/jobs"
	"gantry/scheduler/membership"
	"gantry/scheduler/replica"
	"gantry/scheduler/state"
)

// recoverFile holds the new identity while a recovery is not finished.
const recoverFile = "recover-unfinished"

type recoverCmd struct {
	DataDir string `required:"" type:"path" help:"Folder of a scheduler that is left; of several, the one with the highest term, and among those the highest index, that recover shows without --yes." placeholder:"DIR"`
	Address string `help:"Address under which hosts and other schedulers reach this one's link port, when it is another one than before." placeholder:"HOST:PORT"`
	Yes     bool   `help:"Say that the other schedulers are lost for good and will never be started again with their data. Without it recover shows up to where this copy goes, and changes nothing."`
}

// Run makes the copy a cluster of its own. It can be repeated until it succeeds.
func (c *recoverCmd) Run(ctx context.Context, log *slog.Logger) (err error) {
	if c.Address != "" && !membership.ValidAddress(c.Address) {
		return errAddress
	}
	lock, err := lockFolder(c.DataDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if !c.Yes {
		return c.show()
	}
	address, err := keepAddress(c.DataDir, c.Address, defaultLinkListen)
	if err != nil {
		return err
	}
	id, before, err := c.identity()
	if err != nil {
		return err
	}
	if err := replica.Recover(filepath.Join(c.DataDir, raftFolder), replica.Member{ID: id, Address: address}, replica.OpenState); err != nil {
		return err
	}
	if err := recoverJobs(ctx, c.DataDir, replica.Member{ID: id, Address: address}); err != nil {
		return err
	}
	if err := writeNodeID(c.DataDir, id); err != nil {
		return err
	}
	m, err := alone(c.DataDir, address, log)
	if err != nil {
		return err
	}
	err = c.begin(ctx, m, before)
	if err = errors.Join(err, m.close()); err != nil {
		return fmt.Errorf("recover: %w", err)
	}
	if err := removeMark(filepath.Join(c.DataDir, recoverFile)); err != nil {
		return err
	}
	log.Info("recovered: start this scheduler with run, then add others with gantry raft add", "id", id)
	return nil
}

// recoverJobs makes this member the only one of the group that has the jobs. One that never was of it begins it anew.
func recoverJobs(ctx context.Context, dir string, m replica.Member) error {
	path := filepath.Join(dir, jobsFolder)
	if !exists(path) {
		return createJobs(ctx, dir, &m)
	}
	if h, err := replica.Inspect(path); err != nil {
		return fmt.Errorf("%w (remove %s to go on without the jobs)", err, path)
	} else if h.Index == 0 {
		return createJobs(ctx, dir, &m)
	}
	return replica.Recover(path, m, func(string) (replica.Machine, error) { return jobs.Open(path) })
}

// show says up to where the copy goes, and refuses.
func (c *recoverCmd) show() error {
	h, err := replica.Inspect(filepath.Join(c.DataDir, raftFolder))
	if err != nil {
		return err
	}
	at := ""
	if !h.At.IsZero() {
		at = ", written " + h.At.UTC().Format(time.RFC3339)
	}
	return fmt.Errorf("this copy goes up to index %d of term %d%s. Of the schedulers that are left, recover the one with the highest term, "+
		"and among those the highest index. Nothing was changed: --yes says that the others are lost for good", h.Index, h.Term, at)
}

// identity returns the identity that the recovered member gets and the one that it had, the same at every try.
func (c *recoverCmd) identity() (id, before string, err error) {
	path := filepath.Join(c.DataDir, recoverFile)
	text, err := os.ReadFile(path)
	if ids := strings.Fields(string(text)); err == nil && len(ids) == 2 && fleet.ValidID(ids[0]) {
		return ids[0], ids[1], nil
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", "", err
	}
	before, ok := nodeID(c.DataDir)
	if !ok {
		return "", "", fmt.Errorf("%s does not hold a scheduler's id", filepath.Join(c.DataDir, idFile))
	}
	id = fleet.NewID()
	return id, before, atomicfile.Write(path, []byte(id+"\n"+before+"\n"), 0o600)
}

// begin takes all others out and gives the member its certificate. It keeps the name that it had as before.
func (c *recoverCmd) begin(ctx context.Context, m *member, before string) error {
	ctx, cancel := context.WithTimeout(ctx, initTimeout) // from now on: a large state takes its time to be read
	defer cancel()
	if err := m.waitLead(ctx); err != nil {
		return err
	}
	cluster, err := clusterOf(m.store)
	if err != nil {
		return err
	}
	var old fleet.Member
	known := false
	err = m.store.View(func(v *state.View) error {
		_, known = v.Member(fleet.MemberID(m.id))
		old, _ = v.Member(fleet.MemberID(before))
		return nil
	})
	if err != nil {
		return err
	}
	now := time.Now()
	if !known {
		if err := m.propose(ctx, newLineage(cluster, m.record(old.Name, now), now, now)); err != nil {
			return err
		}
	}
	return enroll(c.DataDir, m.sealer, cluster, m.id, now)
}
