package main

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"gantry/fleet"
	"gantry/internal/atomicfile"
	"gantry/internal/pki"
	"gantry/scheduler"
	"gantry/scheduler/membership"
	"gantry/scheduler/replica"
	"gantry/scheduler/state"
)

const initTimeout = 30 * time.Second

// keysFile is what init writes for the operator.
type keysFile struct {
	ClusterID string `json:"clusterId"`
	AdminKey  string `json:"adminKey"`
	AccountID string `json:"accountId"`
	APIKey    string `json:"apiKey"`
}

// Run makes the cluster. Everything that it decides is one log entry; the keys are in their file
// before that entry is committed, so that a crash at any point can be answered by running it again.
func (c *initCmd) Run(ctx context.Context, log *slog.Logger) (err error) {
	ctx, cancel := context.WithTimeout(ctx, initTimeout)
	defer cancel()
	if c.Address != "" && !membership.ValidAddress(c.Address) {
		return errAddress
	}
	if err := makeFolders(c.DataDir); err != nil {
		return err
	}
	lock, err := lockFolder(c.DataDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	id, err := newNodeID(c.DataDir)
	if err != nil {
		return err
	}
	if err := pki.NewSealKeyFile(filepath.Join(c.DataDir, sealFile)); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	address, err := keepAddress(c.DataDir, c.Address, defaultLinkListen)
	if err != nil {
		return err
	}
	// With a certificate this was a member already: a log that is missing then is lost.
	if !enrolled(c.DataDir) {
		if err := replica.Create(filepath.Join(c.DataDir, raftFolder)); err != nil {
			return err
		}
		if err := createJobs(ctx, c.DataDir, &replica.Member{ID: id, Address: address}); err != nil {
			return err
		}
	}
	m, err := alone(c.DataDir, address, log)
	if err != nil {
		return err
	}
	err = c.make(ctx, m, id)
	return errors.Join(err, m.close())
}

func (c *initCmd) make(ctx context.Context, m *member, id string) error {
	if m.node.Empty() && enrolled(c.DataDir) {
		return errors.New("this folder holds a scheduler that has joined a cluster: use an empty one")
	}
	if err := m.node.Bootstrap(ctx); err != nil && fleet.CodeOf(err) != fleet.CodeExists {
		return err
	}
	if err := m.waitLead(ctx); err != nil {
		return err
	}
	done, err := m.initialised()
	if err != nil {
		return err
	}
	if done {
		return c.alreadyMade(m, id)
	}
	now := time.Now()
	cmds, keys, ca, err := firstCommands(m.sealer, fleet.DataCenterID(c.DataCenter), m.record(c.Name, now), now)
	if err != nil {
		return err
	}
	data, err := json.MarshalIndent(keys, "", "  ")
	if err != nil {
		return err
	}
	if err := atomicfile.Write(c.KeysFile, append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("write the keys: %w", err)
	}
	// The certificate comes last: one of a CA that was never committed could not be replaced.
	if err := m.propose(ctx, cmds...); err != nil {
		return err
	}
	return certify(c.DataDir, ca, id, now)
}

// alreadyMade answers a repeated init: right when its keys are where they should be.
func (c *initCmd) alreadyMade(m *member, id string) error {
	if _, err := os.Stat(c.KeysFile); err != nil {
		return fmt.Errorf("this folder holds a cluster already, and its keys are not in %s", c.KeysFile)
	}
	store, err := pki.OpenStore(filepath.Join(c.DataDir, certFolder))
	if err != nil {
		return err
	}
	if _, err := store.Identity(); err == nil {
		return nil
	}
	cluster, err := clusterOf(m.store)
	if err != nil {
		return err
	}
	return enroll(c.DataDir, m.sealer, cluster, id, time.Now())
}

// enroll gives the scheduler its own certificate, of the CA that signs for the cluster, and has it trust all that the cluster trusts.
func enroll(dir string, sealer *pki.Sealer, cluster state.Cluster, id string, now time.Time) error {
	ca, err := scheduler.OpenCA(sealer, cluster)
	if err != nil {
		return err
	}
	trusted, err := pki.ParseTrust(cluster.Trusted())
	if err != nil {
		return err
	}
	return certify(dir, ca, id, now, trusted...)
}

func certify(dir string, ca *pki.CA, id string, now time.Time, trusted ...*x509.Certificate) error {
	store, err := pki.OpenStore(filepath.Join(dir, certFolder))
	if err != nil {
		return err
	}
	return store.Enroll(ca, pki.Identity{Role: pki.RoleScheduler, ID: id}, membership.CertLife, now, trusted...)
}

// enrolled reports whether a data folder holds a certificate, which is the last that init and join write but for
// the log.
func enrolled(dir string) bool {
	store, err := pki.OpenStore(filepath.Join(dir, certFolder))
	if err != nil {
		return false
	}
	_, err = store.Leaf()
	return err == nil
}

// firstCommands is everything that a new cluster begins with.
func firstCommands(
	sealer *pki.Sealer, dc fleet.DataCenterID, first fleet.Member, now time.Time,
) ([]state.Command, keysFile, *pki.CA, error) {
	fail := func(err error) ([]state.Command, keysFile, *pki.CA, error) { return nil, keysFile{}, nil, err }
	cluster := fleet.NewID()
	ca, err := pki.NewCA(cluster, now)
	if err != nil {
		return fail(err)
	}
	boot, err := scheduler.Bootstrap(sealer, ca, now)
	if err != nil {
		return fail(err)
	}
	boot.Level = first.Level
	operator := fleet.Account{ID: fleet.AccountID(fleet.NewID()), Name: "operator", CreatedAt: now}
	user := fleet.Account{ID: fleet.AccountID(fleet.NewID()), Name: "default", CreatedAt: now}
	admin, _ := fleet.Preset("admin")
	all, _ := fleet.Preset("all")
	adminKey, adminText, err := scheduler.NewKey(sealer, operator.ID, "first operator key", admin, now)
	if err != nil {
		return fail(err)
	}
	userKey, userText, err := scheduler.NewKey(sealer, user.ID, "first key", all, now)
	if err != nil {
		return fail(err)
	}
	userKey.Invoke = []string{fleet.InvokeAll}
	cmds := []state.Command{
		boot,
		state.PutMember{Member: first},
		state.PutDataCenter{DataCenter: fleet.DataCenter{ID: dc, Name: string(dc), Region: "UNKNOWN"}},
		state.PutAccount{Account: operator},
		state.PutAccount{Account: user},
		state.PutKey{Key: adminKey},
		state.PutKey{Key: userKey},
	}
	keys := keysFile{ClusterID: cluster, AdminKey: adminText.Reveal(), AccountID: string(user.ID), APIKey: userText.Reveal()}
	return cmds, keys, ca, nil
}
