package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/pelletier/go-toml/v2"
	"golang.org/x/sys/unix"

	"gantry/client"
	"gantry/scheduler/backup"
)

const (
	keptForm    = "gantry-20060102T150405Z.snapshot"
	offSiteStop = 10 * time.Second // between the signal that ends the off-site command and the one that kills it
	fileWord    = "{file}"
	nameWord    = "{name}"
)

var (
	keptName = regexp.MustCompile(`^gantry-\d{8}T\d{6}Z\.snapshot$`)
	halfName = regexp.MustCompile(`^\.gantry-\d{8}T\d{6}Z\.snapshot\.\d+$`) // of a run that was killed
)

// keepSettings are where and how back-ups are kept.
type keepSettings struct {
	Folder         string   `toml:"folder"`
	API            string   `toml:"api"`
	KeyFile        string   `toml:"key-file"`
	Keep           int      `toml:"keep"`
	KeepDays       int      `toml:"keep-days"`
	Recipients     []string `toml:"recipients"`
	PassphraseFile string   `toml:"passphrase-file"`
	OffSite        []string `toml:"off-site"`
	OffSiteTimeout string   `toml:"off-site-timeout"`

	timeout time.Duration
}

// readKeepSettings reads a settings file. An unknown key is an error.
func readKeepSettings(path string) (keepSettings, error) {
	s := keepSettings{Keep: 48, OffSiteTimeout: "30m"}
	f, err := os.Open(path)
	if err != nil {
		return s, usage("%v", err)
	}
	defer func() { _ = f.Close() }()
	var strict *toml.StrictMissingError
	switch err := toml.NewDecoder(f).DisallowUnknownFields().Decode(&s); {
	case errors.As(err, &strict) && len(strict.Errors) > 0:
		return s, usage("%s: %s is no setting", printable(path), printable(strings.Join(strict.Errors[0].Key(), ".")))
	case err != nil:
		return s, usage("%s: %v", printable(path), err)
	}
	if err := s.check(); err != nil {
		return s, usage("%s: %v", printable(path), err)
	}
	return s, nil
}

func (s *keepSettings) check() (err error) {
	s.timeout, err = time.ParseDuration(s.OffSiteTimeout)
	named := slices.ContainsFunc(s.OffSite, func(word string) bool { return strings.Contains(word, fileWord) })
	switch {
	case !filepath.IsAbs(s.Folder):
		return errors.New("folder must be an absolute path")
	case s.Keep < 1:
		return errors.New("keep must be 1 or more")
	case s.KeepDays < 0:
		return errors.New("keep-days must be 0 or more")
	case len(s.Recipients) > 0 && s.PassphraseFile != "":
		return errors.New("recipients and passphrase-file exclude each other")
	case err != nil || s.timeout <= 0:
		return errors.New("off-site-timeout must be a time above 0, such as 30m")
	case len(s.OffSite) > 0 && !filepath.IsAbs(s.OffSite[0]):
		return errors.New("off-site must begin with the absolute path of a program")
	case len(s.OffSite) > 0 && !named:
		return errors.New("off-site must have {file} in one of its arguments")
	}
	return nil
}

type snapshotKeepCmd struct {
	Config string `default:"/etc/gantry/backup.toml" placeholder:"FILE" help:"File with the settings."`
	Check  bool   `help:"Check the settings, and do nothing."`
}

// Run makes a back-up.
func (cmd snapshotKeepCmd) Run(ctx context.Context, a *app) error {
	s, err := readKeepSettings(cmd.Config)
	if err != nil {
		return err
	}
	if cmd.Check {
		_, err := fmt.Fprintln(a.out, "the settings are fine")
		return err
	}
	a.cli.API, a.cli.APIKeyFile = cmp.Or(a.cli.API, s.API), cmp.Or(a.cli.APIKeyFile, s.KeyFile)
	c, _, err := a.connect(true)
	if err != nil {
		return err
	}
	defer c.Close()
	free, err := lockFolder(s.Folder)
	if err != nil {
		return err
	}
	defer free()
	at := a.now().UTC()
	path := filepath.Join(s.Folder, at.Format(keptForm))
	info, err := s.save(ctx, c, path)
	if err != nil {
		return fmt.Errorf("save %s: %w", printable(path), err)
	}
	// Before the copy leaves the machine: one that cannot is no reason to fill the disk, which may be the scheduler's.
	removed, err := s.prune(filepath.Base(path), at)
	if err != nil {
		return fmt.Errorf("remove old copies: %w", err)
	}
	if err := s.send(ctx, a, path); err != nil {
		return fmt.Errorf("off-site command: %w", err)
	}
	if _, err := c.NoteBackup(ctx, info.SavedAt); err != nil {
		return err
	}
	if removed > 0 {
		_, _ = fmt.Fprintf(a.err, "%s removed\n", count(removed, "older copy"))
	}
	return a.showSnapshot(path, info)
}

// lockFolder keeps other runs from the folder until free is called.
func lockFolder(path string) (free func(), err error) {
	dir, err := os.Open(path)
	if err != nil {
		return nil, usage("the folder of copies: %v", err)
	}
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = dir.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("another back-up into %s is under way", printable(path))
		}
		return nil, fmt.Errorf("lock %s: %w", printable(path), err)
	}
	return func() { _ = dir.Close() }, nil
}

// save writes a copy that appears when it is whole, and reads it back.
func (s *keepSettings) save(ctx context.Context, c *client.Client, path string) (info backup.Info, err error) {
	out, err := newWhole(path, false)
	if err != nil {
		return info, err
	}
	defer out.drop()
	sum := sha256.New()
	one := snapshotSaveCmd{Recipient: s.Recipients, PassphraseFile: s.PassphraseFile}
	info, err = one.receive(ctx, c, io.MultiWriter(out, sum))
	if err != nil {
		return info, err
	}
	info.Encrypted = !one.locks().None()
	return info, errors.Join(out.same(sum.Sum(nil)), out.keep())
}

// prune removes copies that are neither among the newest nor young enough, and what a run left that was killed.
func (s *keepSettings) prune(newest string, now time.Time) (removed int, err error) {
	all, err := os.ReadDir(s.Folder) // by name, which is by time
	if err != nil {
		return 0, err
	}
	var faults []error
	drop := func(name string) { faults = append(faults, os.Remove(filepath.Join(s.Folder, name))) }
	younger := 0
	for _, e := range slices.Backward(all) {
		made, err := time.Parse(keptForm, e.Name())
		switch {
		case halfName.MatchString(e.Name()):
			drop(e.Name())
		case err != nil || !keptName.MatchString(e.Name()) || !e.Type().IsRegular():
		case e.Name() == newest || younger+1 < s.Keep || now.Sub(made) < time.Duration(s.KeepDays)*24*time.Hour:
			if e.Name() != newest {
				younger++
			}
		default:
			drop(e.Name())
			removed++
		}
	}
	return removed, errors.Join(faults...)
}

// send runs the off-site command.
func (s *keepSettings) send(ctx context.Context, a *app, path string) error {
	if len(s.OffSite) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	words := strings.NewReplacer(fileWord, path, nameWord, filepath.Base(path))
	var args []string
	for _, word := range s.OffSite[1:] {
		args = append(args, words.Replace(word))
	}
	run := exec.CommandContext(ctx, s.OffSite[0], args...)
	run.Stdout, run.Stderr = a.err, a.err
	run.Cancel = func() error { return run.Process.Signal(syscall.SIGTERM) }
	run.WaitDelay = offSiteStop
	run.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "GANTRY_") }) // keys
	err := run.Run()
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("it takes more than %s", s.timeout)
	}
	return err
}
