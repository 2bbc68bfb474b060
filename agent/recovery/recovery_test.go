package recovery

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gantry/agent/ledger"
	"gantry/agent/orders"
	"gantry/internal/agentrpc"
)

// A host whose ledger is lost follows no lower lineage than before: a scheduler of an old copy, which was not told of a restore,
// would otherwise give it orders that are long past.
func TestALostLedgerKeepsTheLineage(t *testing.T) {
	for name, lose := range map[string]func(path string) error{
		"removed": os.Remove,
		"damaged": func(path string) error { return os.WriteFile(path, []byte("no ledger"), 0o600) },
		"empty":   func(path string) error { return os.Truncate(path, 0) },
		"of before it followed the restored one": func(path string) error {
			old, err := ledger.Open(path + ".old")
			if err != nil {
				return err
			}
			return errors.Join(old.SetLineage(1), old.Close(), os.Rename(path+".old", path))
		},
		"kept": func(string) error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			log := slog.New(slog.NewTextHandler(t.Output(), nil))
			s := orders.New(orders.Config{Log: log})
			open := func() {
				t.Helper()
				book, err := Open(dir, log)
				if err != nil {
					t.Fatal(err)
				}
				s.Ledger, s.Followed = book, func(n uint64) error { return NoteLineage(dir, n) }
			}
			shut := func() {
				t.Helper()
				if err := s.Ledger.Close(); err != nil {
					t.Fatal(err)
				}
			}
			open()
			if err := s.Follow(&agentrpc.Welcome{Lineage: 3}); err != nil {
				t.Fatal(err)
			}
			shut()
			if err := lose(filepath.Join(dir, LedgerFile)); err != nil {
				t.Fatal(err)
			}
			open()
			defer shut()
			for _, lower := range []uint64{0, 2} {
				if err := s.Follow(&agentrpc.Welcome{Lineage: lower}); err == nil {
					t.Errorf("it follows lineage %d after 3", lower)
				}
			}
			for _, higher := range []uint64{3, 4} {
				if err := s.Follow(&agentrpc.Welcome{Lineage: higher}); err != nil || s.Ledger.Lineage() != higher {
					t.Errorf("lineage %d: %v, the ledger has %d", higher, err, s.Ledger.Lineage())
				}
			}
		})
	}
}

// A ledger of a program that wrote no lineage beside it says what the file is to say; a file that nobody can read is not taken for none.
func TestTheLineageIsWrittenBesideTheLedger(t *testing.T) {
	dir := t.TempDir()
	log := slog.New(slog.DiscardHandler)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(dir, lineageFile)
	book, err := ledger.Open(filepath.Join(dir, LedgerFile))
	must(err)
	must(errors.Join(book.SetLineage(5), book.Close()))
	for _, stand := range []string{"", "4\n"} { // "": there is none
		if err := os.WriteFile(file, []byte(stand), 0o600); stand == "" {
			must(os.Remove(file))
		} else {
			must(err)
		}
		book, err = Open(dir, log)
		must(err)
		must(book.Close())
		if text, err := os.ReadFile(file); err != nil || string(text) != "5\n" {
			t.Errorf("after %q it says %q: %v", stand, text, err)
		}
	}
	must(os.WriteFile(file, []byte("five"), 0o600))
	if _, err := Open(dir, log); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a damaged one: %v", err)
	}
	must(os.Remove(file))
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	book, err = Open(dir, log) // the failed one let the ledger go
	must(err)
	must(book.Close())
}
