package disk

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"gantry/storage/disk/tree"
)

// trash begins the names of folders whose removal has begun. No disk's name begins so.
const trash = ".removed-"

// discard removes a folder and what an interrupted removal left. The folder has lost its name before the
// first of its files is gone, so that nobody takes what is left for the whole.
func discard(ctx context.Context, dir, name string) error {
	if err := removeTrash(ctx, dir, name); err != nil {
		return err
	}
	err := os.Rename(filepath.Join(dir, name), filepath.Join(dir, trash+name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return busy(err)
	}
	return removeTrash(ctx, dir, name)
}

// removeTrash removes what an interrupted removal of a disk left.
func removeTrash(ctx context.Context, dir, name string) error {
	return busy(tree.Remove(ctx, filepath.Join(dir, trash+name)))
}

// busy makes ErrBusy of the kernel's word for it.
func busy(err error) error {
	if errors.Is(err, unix.EBUSY) {
		return errors.Join(ErrBusy, err)
	}
	return err
}
