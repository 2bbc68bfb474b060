package backup_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"filippo.io/age"

	"gantry/scheduler/backup"
)

// state is a state of random bytes, written in odd pieces.
type state []byte

func (s state) WriteTo(w io.Writer) (int64, error) {
	for rest := []byte(s); len(rest) > 0; {
		n, err := w.Write(rest[:min(len(rest), 3<<20+1)])
		if err != nil {
			return 0, err
		}
		rest = rest[n:]
	}
	return int64(len(s)), nil
}

func header() backup.Header {
	return backup.Header{
		ClusterID: "c", Lineage: 7, Level: 1, Index: 99, SavedAt: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Program: "v1",
	}
}

func write(t testing.TB, size int) ([]byte, []byte) {
	t.Helper()
	body := make([]byte, size)
	_, _ = rand.Read(body)
	var out bytes.Buffer
	if err := backup.Write(&out, header(), state(body)); err != nil {
		t.Fatal(err)
	}
	return out.Bytes(), body
}

func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestRoundTrip(t *testing.T) {
	for _, size := range []int{0, 1, 1 << 20, 7<<20 + 3} {
		data, body := write(t, size)
		r, err := backup.Open(bytes.NewReader(data), backup.Keys{})
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		if err != nil || !bytes.Equal(got, body) {
			t.Errorf("%d bytes: %v", size, err)
		}
		want := header()
		want.Version = 1
		if r.Header != want || r.Encrypted {
			t.Errorf("header %+v", r.Header)
		}
		info, err := backup.Inspect(bytes.NewReader(data), backup.Keys{})
		if err != nil || info.Bytes != int64(size) || info.Header != want {
			t.Errorf("%+v %v", info, err)
		}
	}
}

// Whatever happens to a file, it is not taken for a whole one.
func TestDamage(t *testing.T) {
	data, _ := write(t, 1000)
	for i := range data {
		for name, bad := range map[string][]byte{
			"cut":    data[:i],
			"turned": append(append(bytes.Clone(data[:i]), data[i]^0x10), data[i+1:]...),
		} {
			if _, err := backup.Inspect(bytes.NewReader(bad), backup.Keys{}); err == nil {
				t.Fatalf("%s at %d: accepted", name, i)
			}
		}
	}
	if _, err := backup.Inspect(bytes.NewReader(append(bytes.Clone(data), 0)), backup.Keys{}); !errors.Is(err, backup.ErrDamaged) {
		t.Errorf("with a byte more: %v", err)
	}
	if _, err := backup.Open(strings.NewReader("something else entirely"), backup.Keys{}); !errors.Is(err, backup.ErrFormat) {
		t.Error(err)
	}
}

func encrypt(t *testing.T, data []byte, l backup.Locks) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := backup.Encrypt(&out, l)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestEncryption(t *testing.T) {
	data, body := write(t, 200_000)
	id, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	other, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	byKey := encrypt(t, data, backup.Locks{Recipients: []string{other.Recipient().String(), id.Recipient().String()}})
	byPhrase := encrypt(t, data, backup.Locks{PassphraseFile: file(t, "correct horse\n")})
	cheap := byCheapPhrase(t, "correct horse")
	for _, c := range []struct {
		data []byte
		keys backup.Keys
		says string
	}{
		{byKey, backup.Keys{IdentityFile: file(t, "# a comment\n"+id.String()+"\n")}, ""},
		{byPhrase, backup.Keys{PassphraseFile: file(t, "correct horse")}, ""},
		{byKey, backup.Keys{}, "is encrypted"},
		{byKey, backup.Keys{PassphraseFile: file(t, "x")}, "another identity"},
		{cheap, backup.Keys{PassphraseFile: file(t, "wrong")}, "another passphrase"},
		{byPhrase, backup.Keys{PassphraseFile: file(t, "\n")}, "empty"},
		{byKey, backup.Keys{IdentityFile: file(t, "AGE-SECRET-KEY-nonsense")}, "not one of age"},
		{byKey, backup.Keys{IdentityFile: "/nowhere"}, "no such file"},
		{byKey[:len(byKey)-1000], backup.Keys{IdentityFile: file(t, id.String())}, "damaged"},
	} {
		r, err := backup.Open(bytes.NewReader(c.data), c.keys)
		var got []byte
		if err == nil {
			got, err = io.ReadAll(r)
		}
		if c.says == "" {
			if err != nil || !bytes.Equal(got, body) || !r.Encrypted {
				t.Errorf("%+v: %v", c.keys, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v, want %q", c.keys, err, c.says)
		}
	}
	for _, l := range []backup.Locks{{}, {Recipients: []string{"age1nonsense"}}, {Recipients: []string{id.Recipient().String()}, PassphraseFile: "x"}} {
		if _, err := backup.Encrypt(io.Discard, l); err == nil {
			t.Errorf("%+v: accepted", l)
		}
	}
}

// byCheapPhrase encrypts so that trying a passphrase takes no seconds.
func byCheapPhrase(t *testing.T, phrase string) []byte {
	t.Helper()
	r, err := age.NewScryptRecipient(phrase)
	if err != nil {
		t.Fatal(err)
	}
	r.SetWorkFactor(10)
	var out bytes.Buffer
	w, err := age.Encrypt(&out, r)
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func FuzzOpen(f *testing.F) {
	data, _ := write(f, 100)
	f.Add(data)
	f.Add(data[:40])
	f.Add([]byte("age-encryption.org/v1\n-> X25519 a\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		info, err := backup.Inspect(bytes.NewReader(data), backup.Keys{})
		if err == nil && info.Bytes > int64(len(data)) {
			t.Errorf("%d bytes out of %d", info.Bytes, len(data))
		}
	})
}
