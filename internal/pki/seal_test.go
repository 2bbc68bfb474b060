package pki

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// What the key of 32 bytes 7 makes for the purpose "golden".
const (
	goldenSealed = "01b0cfc7fe8b96f1dd42b47b637de35a1e01737fbfb42db4056d18f25aa57911dae384df449e6cfbd41259353fd8f30c66c9fea027093d01ed19d0318e"
	goldenMAC    = "73d255dfc9773cc5ddc34f105b8e830a035941190056094bdfc4b4f9a00eb8e6"
)

func goldenBytes(t testing.TB) []byte {
	t.Helper()
	sealed, err := hex.DecodeString(goldenSealed)
	if err != nil {
		t.Fatal(err)
	}
	return sealed
}

func newTestSealer(t *testing.T) *Sealer {
	t.Helper()
	path := filepath.Join(t.TempDir(), "seal.key")
	if err := NewSealKeyFile(path); err != nil {
		t.Fatal(err)
	}
	s, err := LoadSealer(path)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSealRoundTrip(t *testing.T) {
	s := newTestSealer(t)
	for _, plain := range [][]byte{nil, {0}, []byte("secret"), bytes.Repeat([]byte("x"), 1<<20)} {
		sealed, err := s.Seal("ca key", plain)
		if err != nil {
			t.Fatal(err)
		}
		if len(sealed) != len(plain)+33 || (len(plain) > 3 && bytes.Contains(sealed, plain)) {
			t.Errorf("%d bytes sealed to %d", len(plain), len(sealed))
		}
		got, err := s.Open("ca key", sealed)
		if err != nil || !bytes.Equal(got, plain) {
			t.Errorf("opened %d bytes, %v; want %d", len(got), err, len(plain))
		}
		again, err := s.Seal("ca key", plain)
		if err != nil || bytes.Equal(again, sealed) {
			t.Errorf("sealing twice gives the same value, %v", err)
		}
	}
}

func TestOpenRefusesTampering(t *testing.T) {
	s := newTestSealer(t)
	sealed, err := s.Seal("env", []byte("value"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range sealed {
		bad := bytes.Clone(sealed)
		bad[i] ^= 1
		if _, err := s.Open("env", bad); !errors.Is(err, ErrSealed) && !errors.Is(err, ErrSealKey) {
			t.Errorf("byte %d changed: %v", i, err)
		}
		if _, err := s.Open("env", sealed[:i]); !errors.Is(err, ErrSealed) {
			t.Errorf("cut to %d bytes: %v", i, err)
		}
	}
	if _, err := s.Open("registry", sealed); !errors.Is(err, ErrSealed) {
		t.Errorf("other purpose: %v", err)
	}
	other := newTestSealer(t)
	if _, err := other.Open("env", sealed); !errors.Is(err, ErrSealKey) {
		t.Errorf("other key: %v", err)
	}
	sealed[0]++ // what follows a version that nobody knows says nothing
	if _, err := other.Open("env", sealed); !errors.Is(err, ErrSealed) {
		t.Errorf("other version: %v", err)
	}
}

func TestMAC(t *testing.T) {
	s := newTestSealer(t)
	mac := func(s *Sealer, purpose, data string) [32]byte {
		sum, err := s.MAC(purpose, []byte(data))
		if err != nil {
			t.Fatal(err)
		}
		return sum
	}
	one := mac(s, "api key", "k1")
	if one != mac(s, "api key", "k1") {
		t.Error("not repeatable")
	}
	if one == mac(s, "api key", "k2") || one == mac(s, "s3 key", "k1") || one == mac(newTestSealer(t), "api key", "k1") {
		t.Error("does not depend on data, purpose and key")
	}
}

// TestSealedValueStaysReadable holds one value of the format that stored state relies on.
func TestSealedValueStaysReadable(t *testing.T) {
	s, err := newSealer(bytes.Repeat([]byte{7}, sealKeySize))
	if err != nil {
		t.Fatal(err)
	}
	got, err := s.Open("golden", goldenBytes(t))
	if err != nil || string(got) != "held since the first release" {
		t.Errorf("Open = %q, %v", got, err)
	}
	sum, err := s.MAC("golden", []byte("data"))
	if err != nil || hex.EncodeToString(sum[:]) != goldenMAC {
		t.Errorf("MAC = %x, %v", sum, err)
	}
}

func TestSealKeyFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "seal.key")
	if err := NewSealKeyFile(path); err != nil {
		t.Fatal(err)
	}
	first, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := NewSealKeyFile(path); !errors.Is(err, fs.ErrExist) {
		t.Errorf("second time: %v", err)
	}
	if again, _ := os.ReadFile(path); !bytes.Equal(again, first) {
		t.Error("the key was replaced")
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("left behind: %v", entries)
	}
	for mode, ok := range map[fs.FileMode]bool{0o600: true, 0o400: true, 0o640: false, 0o604: false, 0o620: false, 0o700: false} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadSealer(path); (err == nil) != ok {
			t.Errorf("mode %#o: %v", mode, err)
		}
	}
}

func TestLoadSealerRefuses(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	paths := map[string]string{"missing": filepath.Join(dir, "none"), "folder": dir, "fifo": fifo}
	for name, text := range map[string]string{
		"empty": "", "short": "gs1_AAAA\n", "no prefix": strings.Repeat("A", 43), "huge": "gs1_" + strings.Repeat("A", maxFile),
	} {
		paths[name] = filepath.Join(dir, name)
		if err := os.WriteFile(paths[name], []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, says := range map[string]string{
		"missing": "no such file", "folder": "not a regular file", "fifo": "not a regular file", "empty": "not a seal key file",
		"short": "not a seal key file", "no prefix": "not a seal key file", "huge": "larger than",
	} {
		if _, err := LoadSealer(paths[name]); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v; want %q in it", name, err, says)
		}
	}
}

func TestASecretOfAnotherUserIsForeign(t *testing.T) {
	for _, tt := range []struct {
		owner, user int
		want        bool
	}{{5, 5, false}, {0, 5, false}, {5, 0, false}, {6, 5, true}} {
		if got := foreign(tt.owner, tt.user); got != tt.want {
			t.Errorf("a file of %d is foreign to %d: %v", tt.owner, tt.user, got)
		}
	}
}

func FuzzOpen(f *testing.F) {
	s, err := newSealer(bytes.Repeat([]byte{7}, sealKeySize))
	if err != nil {
		f.Fatal(err)
	}
	golden := goldenBytes(f)
	f.Add(golden)
	f.Add([]byte{})
	f.Add(golden[:sealHeader])
	f.Fuzz(func(t *testing.T, sealed []byte) {
		if _, err := s.Open("golden", sealed); err == nil && !bytes.Equal(sealed, golden) {
			t.Fatalf("opened a value that was never sealed: %x", sealed)
		}
	})
}

func TestSealKeyOfAnotherScheduler(t *testing.T) {
	dir := t.TempDir()
	first, second := filepath.Join(dir, "first"), filepath.Join(dir, "second")
	if err := NewSealKeyFile(first); err != nil {
		t.Fatal(err)
	}
	a, err := LoadSealer(first)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the same again is no error
		if err := WriteSealKeyFile(second, a.KeyText()); err != nil {
			t.Fatal(err)
		}
	}
	b, err := LoadSealer(second)
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := a.Seal("p", []byte("text"))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := b.Open("p", sealed); err != nil || string(got) != "text" {
		t.Errorf("%q %v", got, err)
	}
	if err := NewSealKeyFile(filepath.Join(dir, "third")); err != nil {
		t.Fatal(err)
	}
	if err := WriteSealKeyFile(filepath.Join(dir, "third"), a.KeyText()); !errors.Is(err, fs.ErrExist) {
		t.Errorf("another key was replaced: %v", err)
	}
	if err := WriteSealKeyFile(filepath.Join(dir, "fourth"), []byte("nonsense")); err == nil {
		t.Error("nonsense was written")
	}
}
