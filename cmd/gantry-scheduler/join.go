package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"gantry/internal/agentrpc"
	"gantry/internal/atomicfile"
	"gantry/internal/faultpoint"
	"gantry/internal/pki"
	"gantry/scheduler/membership"
	"gantry/scheduler/replica"
)

const joinTimeout = 30 * time.Second

type joinCmd struct {
	DataDir   string   `required:"" type:"path" help:"Folder for this scheduler's data; it must hold none." placeholder:"DIR"`
	Scheduler []string `required:"" help:"Link address of a scheduler of the cluster; more than one may be given." placeholder:"HOST:PORT"`
	TokenFile string   `required:"" type:"path" help:"File with the token of gantry raft add, which only its owner can read (mode 0600)." placeholder:"FILE"`
	Address   string   `required:"" help:"Address under which hosts and the other schedulers will reach this one's link port." placeholder:"HOST:PORT"`
	Name      string   `help:"Name of this scheduler, for people; by default the machine's."`
}

// Run trades the token and writes the data folder. The replica in it is empty: the leader fills it when it runs.
func (c *joinCmd) Run(ctx context.Context, log *slog.Logger) (err error) {
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	if !membership.ValidAddress(c.Address) {
		return errAddress
	}
	newest, err := programLevel()
	if err != nil {
		return err
	}
	token, err := readToken(c.TokenFile)
	if err != nil {
		return err
	}
	if err := makeFolders(c.DataDir); err != nil {
		return err
	}
	lock, err := lockFolder(c.DataDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	replicaDir := filepath.Join(c.DataDir, raftFolder)
	used, prepared, err := replica.Found(replicaDir)
	switch {
	case err != nil:
		return err
	case used:
		return fmt.Errorf("%s holds the data of a scheduler already: start it with run, or use an empty folder", c.DataDir)
	case enrolled(c.DataDir) && prepared: // ended by force before its last write
		if err := replica.Finish(replicaDir); err != nil {
			return err
		}
		log.Info("finished a join that was cut short: start this scheduler with run")
		return nil
	case enrolled(c.DataDir):
		return fmt.Errorf("%s holds a scheduler that has joined a cluster, and its data is lost: run gantry-scheduler rebuild, or use an empty folder", c.DataDir)
	}
	certs, err := pki.OpenStore(filepath.Join(c.DataDir, certFolder))
	if err != nil {
		return err
	}
	csr, err := certs.Request()
	if err != nil {
		return err
	}
	faultpoint.Hit("join.request")
	j, err := membership.Join(ctx, token, c.Scheduler, &agentrpc.JoinMemberRequest{
		Csr: csr, Address: c.Address, Name: hostName(c.Name), Level: newest, Version: version,
	})
	if err != nil {
		return fmt.Errorf("join the cluster: %w", err)
	}
	if err := settle(ctx, c.DataDir, certs, j, c.Address, c.Scheduler...); err != nil {
		return fmt.Errorf("the cluster took this scheduler, but it could not be written down: join again: %w", err)
	}
	log.Info("joined: start this scheduler with run", "id", j.Member, "cluster", j.ClusterID)
	return nil
}

func readToken(file string) (pki.JoinToken, error) {
	text, err := pki.ReadSecretFile(file)
	if err != nil {
		return pki.JoinToken{}, fmt.Errorf("read the token: %w", err)
	}
	token, err := pki.ParseJoinToken(string(text))
	if err != nil {
		return pki.JoinToken{}, fmt.Errorf("%s: %w", file, err)
	}
	return token, nil
}

// writeSchedulers writes down by which addresses schedulers are reached.
func writeSchedulers(dir string, addresses []string) error {
	return atomicfile.Write(filepath.Join(dir, joinedFile), []byte(strings.Join(addresses, "\n")+"\n"), 0o600)
}

// settle writes down what a scheduler got when it joined. Until the certificate is there, the same join can be asked
// again. The empty log comes last: run refuses a folder without one, so that what a crash left is never taken for a new
// member. It is prepared before the certificate, so that join can tell a folder that lacks just that from a lost log.
func settle(ctx context.Context, dir string, certs *pki.Store, j membership.Joined, address string, by ...string) error {
	raft := filepath.Join(dir, raftFolder)
	for _, write := range []struct {
		name string
		do   func() error
	}{
		{"seal-key", func() error { return pki.WriteSealKeyFile(filepath.Join(dir, sealFile), j.SealKey) }},
		{"address", func() error { return writeAddress(dir, address) }},
		{"joined-by", func() error {
			if len(by) == 0 {
				return nil
			}
			return writeSchedulers(dir, by)
		}},
		{"node-id", func() error { return writeNodeID(dir, string(j.Member)) }},
		{"jobs", func() error { return createJobs(ctx, dir, nil) }},
		{"prepare", func() error { return replica.Prepare(raft) }},
		{"certificate", func() error { return certs.Install(j.Leaf, j.Trusted...) }},
		{"log", func() error { return replica.Finish(raft) }},
	} {
		faultpoint.Before("join", write.name)
		if err := write.do(); err != nil {
			return err
		}
		faultpoint.After("join", write.name)
	}
	return nil
}

type rebuildCmd struct {
	DataDir   string   `required:"" type:"path" help:"Folder of the scheduler whose data is damaged." placeholder:"DIR"`
	Scheduler []string `required:"" help:"Link address of another scheduler of the cluster; more than one may be given." placeholder:"HOST:PORT"`
	Address   string   `help:"Address under which the others reach this one's link port, when it is another one than before." placeholder:"HOST:PORT"`
}

// Run trades the certificate for a new identity and puts the damaged data aside.
func (c *rebuildCmd) Run(ctx context.Context, log *slog.Logger) (err error) {
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	if c.Address != "" && !membership.ValidAddress(c.Address) {
		return errAddress
	}
	newest, err := programLevel()
	if err != nil {
		return err
	}
	certs, err := pki.OpenStore(filepath.Join(c.DataDir, certFolder))
	if err != nil {
		return err
	}
	if _, err := certs.Leaf(); err != nil {
		return fmt.Errorf("%w: without a certificate join anew, with a token and an empty folder", err)
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
	csr, err := certs.Request()
	if err != nil {
		return err
	}
	j, err := membership.Rejoin(ctx, certs, c.Scheduler, &agentrpc.RejoinRequest{Csr: csr, Address: address, Level: newest, Version: version})
	if err != nil {
		return fmt.Errorf("begin anew: %w", err)
	}
	// The data goes first: under the new identity it would be taken for data that it promised to keep.
	aside, err := putAside(c.DataDir)
	if err == nil {
		err = settle(ctx, c.DataDir, certs, j, address)
	}
	if err != nil {
		return fmt.Errorf("the cluster gave this scheduler a new identity, but it could not be written down: join anew with a token and an empty folder: %w", err)
	}
	log.Info("prepared a new member: start this scheduler with run", "id", j.Member, "damaged", aside)
	return nil
}

// putAside moves a replica's folder away and makes an empty one.
func putAside(dir string) (aside string, err error) {
	suffix := ".before-" + strconv.FormatInt(time.Now().UnixNano(), 10)
	for _, folder := range []string{jobsFolder, raftFolder} {
		from := filepath.Join(dir, folder)
		if err := os.Rename(from, from+suffix); err != nil && !errors.Is(err, os.ErrNotExist) {
			return "", err
		}
		if err := os.MkdirAll(from, 0o700); err != nil {
			return "", err
		}
	}
	return filepath.Join(dir, raftFolder) + suffix, atomicfile.SyncDir(dir)
}
