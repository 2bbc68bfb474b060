package disk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestTwentyAtOnce(t *testing.T) {
	forEach(t, func(t *testing.T, p *Pool, _ error) {
		const n = 20
		each := func(do func(name string) error) {
			var wait sync.WaitGroup
			for i := range n {
				wait.Go(func() {
					if err := do(fmt.Sprint("d", i)); err != nil {
						t.Error(err)
					}
				})
			}
			wait.Wait()
		}
		each(func(name string) error {
			dir, err := p.Make(t.Context(), name, 1)
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, "name"), []byte(name), 0o600)
			}
			return err
		})
		if names, err := p.Names(); err != nil || len(names) != n {
			t.Errorf("names %v, %v", names, err)
		}
		for i := range n {
			dir, err := p.Keep(t.Context(), fmt.Sprint("d", i), 1)
			must(t, err)
			wantFile(t, dir, "name", fmt.Sprint("d", i))
		}
		each(func(name string) error { return p.Remove(t.Context(), name) })
		wantNothing(t, p)
	})
}

// TestOneDiskAskedForByManyIsOne has callers meet on one name.
func TestOneDiskAskedForByManyIsOne(t *testing.T) {
	forEach(t, func(t *testing.T, p *Pool, _ error) {
		var wait sync.WaitGroup
		for range 8 {
			wait.Go(func() {
				if _, err := p.Keep(t.Context(), "d", 1); err != nil {
					t.Error(err)
				}
			})
		}
		wait.Wait()
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		done, err := p.names.lock(t.Context(), "d")
		must(t, err)
		if err := p.Remove(ended, "d"); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		done()
		if len(p.names.held) != 0 {
			t.Error("names are held for ever")
		}
	})
}

func TestABusyDiskIsNotRemoved(t *testing.T) {
	for _, held := range []string{"open", "bound"} {
		t.Run(held, func(t *testing.T) {
			p := openPool(t, Loop, true)
			dir, err := p.Keep(t.Context(), "d", 1)
			must(t, err)
			write(t, dir, "note", "kept")
			var free func()
			if held == "open" {
				f, err := os.Open(filepath.Join(dir, "note"))
				must(t, err)
				free = func() { must(t, f.Close()) }
			} else {
				at := t.TempDir()
				must(t, unix.Mount(dir, at, "", unix.MS_BIND, ""))
				free = func() { must(t, unix.Unmount(at, 0)) }
			}
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			for range 2 {
				if err := p.Remove(ctx, "d"); err == nil || held == "open" && !errors.Is(err, ErrBusy) {
					t.Errorf("removed: %v", err)
				}
			}
			again, err := p.Keep(t.Context(), "d", 1) // on the same file system: never two on one file
			must(t, err)
			wantFile(t, again, "note", "kept")
			free()
			must(t, p.Remove(t.Context(), "d"))
			wantNothing(t, p)
		})
	}
}

func TestRename(t *testing.T) {
	forEach(t, func(t *testing.T, p *Pool, _ error) {
		ctx := t.Context()
		if err := p.Rename(ctx, "d", "d.1"); !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
		dir, err := p.Keep(ctx, "d", 1)
		must(t, err)
		write(t, dir, "note", "kept")
		must(t, p.Rename(ctx, "d", "d.1"))
		other, err := p.Keep(ctx, "d", 1)
		must(t, err)
		if got := entries(t, other); len(got) != 0 {
			t.Errorf("holds %v", got)
		}
		if err := p.Rename(ctx, "d.1", "d"); !errors.Is(err, fs.ErrExist) {
			t.Error(err)
		}
		must(t, p.Remove(ctx, "d"))
		must(t, p.Rename(ctx, "d.1", "d"))
		dir, err = p.Keep(ctx, "d", 1)
		must(t, err)
		wantFile(t, dir, "note", "kept")
		if names, err := p.Names(); err != nil || !slices.Equal(names, []string{"d"}) {
			t.Errorf("names %v, %v", names, err)
		}
	})
}
