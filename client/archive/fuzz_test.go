package archive

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// FuzzUnpackStream unpacks any bytes.
func FuzzUnpackStream(f *testing.F) {
	f.Add(stream(f, entry{name: "d/", kind: "dir", mode: 0o755}, entry{name: "d/a", text: "1"}, entry{name: "d/l", kind: "link", text: "../../outside"}))
	f.Add(stream(f, entry{name: "../x", text: "1"}))
	f.Add([]byte("no tar at all"))
	f.Fuzz(func(t *testing.T, data []byte) {
		base := t.TempDir()
		check := guard(t, base)
		_, _ = unpack(filepath.Join(base, "in"), "d", data)
		check()
	})
}

// FuzzUnpackEntries unpacks well-formed streams of entries whose names, kinds and targets are drawn from words that
// are dangerous together.
func FuzzUnpackEntries(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9})
	f.Add([]byte{2, 0, 0x01, 0x21, 2, 0x12, 0x01, 0x03, 0, 0x53, 0x02, 0})
	f.Fuzz(func(t *testing.T, script []byte) {
		base := t.TempDir()
		check := guard(t, base)
		if err := os.Symlink("../outside", filepath.Join(base, "in", "old")); err != nil {
			t.Fatal(err)
		}
		as := "d"
		if len(script) > 0 && script[0]&1 == 1 {
			as = "."
		}
		_, _ = unpack(filepath.Join(base, "in"), as, stream(t, scripted(script)...))
		_ = os.Remove(filepath.Join(base, "in", "old"))
		check()
	})
}

// scripted makes entries of bytes: each takes three.
func scripted(script []byte) []entry {
	words := []string{"a", "l", "..", ".", "outside", "secret", "old", "d"}
	kinds := []string{"file", "dir", "link", "hard", "link", "file", "link", "dir"}
	join := func(b byte) string {
		return words[b&7] + "/" + words[b>>3&7]
	}
	out := []entry{{name: "d/", kind: "dir", mode: 0o755}}
	for len(script) >= 3 && len(out) < 20 {
		e := entry{kind: kinds[script[0]&7], name: "d/" + join(script[1]), mode: 0o755}
		if script[1]&0x80 != 0 {
			e.name = "d/" + words[script[1]&7]
		}
		switch target := script[2]; {
		case e.kind == "hard":
			e.text = "d/" + join(target)
		case target&0x40 != 0:
			e.text = "../" + join(target)
		case target&0x80 != 0:
			e.text = "/" + join(target)
		default:
			e.text = join(target)
		}
		if e.kind == "dir" {
			e.name, e.text = e.name+"/", ""
		}
		out, script = append(out, e), script[3:]
	}
	return out
}

func TestScriptedStreamsAreTars(t *testing.T) {
	if _, err := NewReader(bytes.NewReader(stream(t, scripted(bytes.Repeat([]byte{2, 9, 0x42}, 5))...))); err != nil {
		t.Fatal(err)
	}
}
