package ctrd

import (
	"context"
	"os"
	"path/filepath"

	"gantry/storage/disk"
)

// plainDisks are folders that nothing limits.
type plainDisks struct{ dir string }

func (d plainDisks) Make(ctx context.Context, name string, _ int64) (string, error) {
	if err := d.Remove(ctx, name); err != nil {
		return "", err
	}
	dir := filepath.Join(d.dir, name)
	if err := os.MkdirAll(d.dir, 0o700); err != nil {
		return "", err
	}
	return dir, os.Mkdir(dir, 0o755) //nolint:gosec // root's, and the folder above is closed
}

func (d plainDisks) Remove(_ context.Context, name string) error {
	return os.RemoveAll(filepath.Join(d.dir, name))
}

func (d plainDisks) Usage(context.Context, string) (disk.Usage, error) { return disk.Usage{}, nil }

func (d plainDisks) Names() ([]string, error) { return entries(d.dir), nil }
