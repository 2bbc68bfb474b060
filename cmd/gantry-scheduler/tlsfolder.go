package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gantry/fleet"
	"gantry/internal/atomicfile"
)

// tlsFolder keeps what ACME needs in files below a folder: a gateway orders its own certificates.
type tlsFolder string

func (d tlsFolder) path(name string) (string, error) {
	if !filepath.IsLocal(name) {
		return "", fleet.Invalid("name", "must be a path below the folder")
	}
	return filepath.Join(string(d), filepath.FromSlash(name)), nil
}

// TLSFile implements edge.Store.
func (d tlsFolder) TLSFile(name string) (content []byte, updated time.Time, err error) {
	path, err := d.path(name)
	if err != nil {
		return nil, updated, err
	}
	info, err := os.Stat(path)
	if err == nil && info.Mode().IsRegular() {
		content, err = os.ReadFile(path)
		updated = info.ModTime()
	}
	if content == nil && (err == nil || errors.Is(err, fs.ErrNotExist)) {
		err = fleet.NotFound("file")
	}
	return content, updated, err
}

// TLSFiles implements edge.Store.
func (d tlsFolder) TLSFiles(prefix string) (out []string, err error) {
	err = filepath.WalkDir(string(d), func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		rel, err := filepath.Rel(string(d), path)
		if name := filepath.ToSlash(rel); strings.HasPrefix(name, prefix) {
			out = append(out, name)
		}
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	slices.Sort(out)
	return out, err
}

// PutTLSFile implements edge.Store.
func (d tlsFolder) PutTLSFile(_ context.Context, name string, content []byte) error {
	path, err := d.path(name)
	if err != nil {
		return err
	}
	return errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), atomicfile.Write(path, content, 0o600))
}

// DeleteTLSFile implements edge.Store.
func (d tlsFolder) DeleteTLSFile(_ context.Context, name string) error {
	path, err := d.path(name)
	if err != nil {
		return err
	}
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
