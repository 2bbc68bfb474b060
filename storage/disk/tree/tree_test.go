package tree

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestRemoveGoesOnAndFollowsNothing(t *testing.T) {
	base := t.TempDir()
	top, kept := filepath.Join(base, "top"), filepath.Join(base, "kept")
	at := top
	for range 30 {
		at = filepath.Join(at, "d")
		if err := os.MkdirAll(at, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(kept, filepath.Join(at, "link")); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(kept, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Remove(ended, top); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	for range 2 {
		if err := Remove(t.Context(), top); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Lstat(top); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Error(err)
	}
	link := filepath.Join(base, "link")
	if err := os.Symlink(base, link); err != nil {
		t.Fatal(err)
	}
	if err := Remove(t.Context(), link); err == nil {
		t.Error("a link was followed")
	}
}
