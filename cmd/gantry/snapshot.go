package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"gantry/api/v2"
	"gantry/client"
	"gantry/scheduler/backup"
)

type snapshotCmd struct {
	Save    snapshotSaveCmd    `cmd:"" help:"Save a snapshot of the control plane's state."`
	Keep    snapshotKeepCmd    `cmd:"" help:"Back up as the settings say: save, verify, send, remove expired snapshots, report to the cluster."`
	Inspect snapshotInspectCmd `cmd:"" help:"Verify a snapshot, and show its cluster and time."`
	Restore snapshotRestoreCmd `cmd:"" help:"Create a new cluster from a snapshot, on the machine of its first scheduler."`
}

type snapshotSaveCmd struct {
	File           string   `arg:"" placeholder:"FILE" help:"File to write."`
	Recipient      []string `sep:"none" placeholder:"AGE" help:"Encrypt for this recipient of age (age1…). May be repeated."`
	PassphraseFile string   `placeholder:"FILE" help:"Encrypt with the passphrase in the first line of this file."`
	Force          bool     `help:"Replace a file that is there."`
}

// Run saves a copy.
func (cmd snapshotSaveCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	if len(cmd.Recipient) > 0 && cmd.PassphraseFile != "" {
		return usage("--recipient and --passphrase-file exclude each other")
	}
	out, err := newWhole(cmd.File, cmd.Force)
	if err != nil {
		return err
	}
	defer out.drop()
	info, err := cmd.receive(ctx, c, out)
	if err != nil {
		return err
	}
	if err := out.keep(); err != nil {
		return err
	}
	info.Encrypted = !cmd.locks().None()
	return a.showSnapshot(cmd.File, info)
}

func (cmd snapshotSaveCmd) locks() backup.Locks {
	return backup.Locks{Recipients: cmd.Recipient, PassphraseFile: cmd.PassphraseFile}
}

// receive writes a copy to out, and checks what came.
func (cmd snapshotSaveCmd) receive(ctx context.Context, c *client.Client, out io.Writer) (info backup.Info, err error) {
	if !cmd.locks().None() {
		lock, err := backup.Encrypt(out, cmd.locks())
		if err != nil {
			return info, usage("%v", err)
		}
		defer func() { err = errors.Join(err, lock.Close()) }()
		out = lock
	}
	body, err := c.Snapshot(ctx)
	if err != nil {
		return info, err
	}
	defer func() { _ = body.Close() }()
	info, err = backup.Inspect(io.TeeReader(body, out), backup.Keys{})
	var gone *client.Unreachable
	switch {
	case ctx.Err() != nil:
		return info, ctx.Err()
	case errors.As(err, &gone):
		return info, gone
	}
	return info, err
}

type snapshotKeys struct {
	Identity       string `placeholder:"FILE" help:"File with the identity of age that opens it."`
	PassphraseFile string `placeholder:"FILE" help:"File whose first line is the passphrase that opens it."`
}

func (k snapshotKeys) check() error {
	if k.Identity != "" && k.PassphraseFile != "" {
		return usage("--identity and --passphrase-file exclude each other")
	}
	return nil
}

type snapshotInspectCmd struct {
	File string `arg:"" placeholder:"FILE" help:"File that gantry snapshot save wrote."`
	snapshotKeys
}

// Run checks a copy.
func (cmd snapshotInspectCmd) Run(a *app) error {
	if err := cmd.check(); err != nil {
		return err
	}
	f, err := os.Open(cmd.File)
	if err != nil {
		return usage("%v", err)
	}
	defer func() { _ = f.Close() }()
	info, err := backup.Inspect(f, backup.Keys{IdentityFile: cmd.Identity, PassphraseFile: cmd.PassphraseFile})
	if err != nil {
		return err
	}
	return a.showSnapshot(cmd.File, info)
}

// showSnapshot tells what a copy is of.
func (a *app) showSnapshot(file string, info backup.Info) error {
	raw, err := json.Marshal(struct {
		File string `json:"file"`
		backup.Header
		Encrypted bool  `json:"encrypted"`
		Bytes     int64 `json:"bytes"`
	}{file, info.Header, info.Encrypted, info.Bytes})
	if err != nil {
		return err
	}
	return a.show(raw, func() string {
		return sheet([][2]string{
			{"File", file},
			{"Cluster", info.ClusterID},
			{"Saved", when(v2.AtOrNull(info.SavedAt))},
			{"Up to", fmt.Sprintf("entry %d of the log", info.Index)},
			{"Lineage", fmt.Sprint(info.Lineage)},
			{"Level", fmt.Sprint(info.Level)},
			{"Scheduler", info.Program},
			{"State", bytesText(info.Bytes)},
			{"Encrypted", yes(info.Encrypted)},
		})
	})
}
