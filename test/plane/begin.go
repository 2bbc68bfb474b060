package plane

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"gantry/internal/pki"
)

// The files that a plane opens; the state has one more beside it.
const (
	sealFile  = "seal.key"
	stateFile = "state.db"
)

// file is one of a plane that nobody has asked anything.
type file struct {
	name string
	text []byte
	size int64 // what is missing of it in text are zeros
}

// begun are the files with which every plane begins. A program makes them once: that takes several times as long as to copy
// them.
var begun struct {
	sync.Mutex
	files []file
}

// begin puts the files with which every plane begins into a folder.
func begin(t testing.TB, dir string) error {
	t.Helper()
	begun.Lock()
	defer begun.Unlock()
	if begun.files == nil {
		var err error
		if begun.files, err = makeFiles(t); err != nil {
			return err
		}
	}
	for _, f := range begun.files {
		path := filepath.Join(dir, f.name)
		if err := os.WriteFile(path, f.text, 0o600); err != nil {
			return err
		}
		if err := os.Truncate(path, f.size); err != nil {
			return err
		}
	}
	return nil
}

// makeFiles returns the files of a plane that was seeded and closed.
func makeFiles(t testing.TB) (out []file, err error) {
	t.Helper()
	dir := t.TempDir()
	if err := pki.NewSealKeyFile(filepath.Join(dir, sealFile)); err != nil {
		return nil, err
	}
	p := open(t, dir)
	p.seed()
	if err := p.store.Close(); err != nil {
		return nil, fmt.Errorf("close state: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		out = append(out, file{name: e.Name(), text: bytes.TrimRight(text, "\x00"), size: int64(len(text))})
	}
	return out, nil
}
