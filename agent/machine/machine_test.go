package machine

import (
	"os"
	"path/filepath"
	"testing"
)

func TestHardwareThatIsAnIdentity(t *testing.T) {
	for text, want := range map[string]bool{
		"4c4c4544-0038-5a10-8053-b4c04f4e3533": true,
		"/7XK2R93/CNFCP0089L00AB/":             true,
		"Default string":                       false,
		"To Be Filled By O.E.M.":               false,
		"00000000-0000-0000-0000-000000000000": false,
		"FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF": false,
		"03000200-0400-0500-0006-000700080009": false,
		"None":                                 false,
		"":                                     false,
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "product_uuid"), []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		id := hardware(dir)
		if (id != "") != want {
			t.Errorf("%q: %q", text, id)
		}
		if err := os.WriteFile(filepath.Join(dir, "board_serial"), []byte("BSN-42177\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if other := hardware(dir); other == "" || want && other != id {
			t.Errorf("%q beside a serial number: %q, was %q", text, other, id)
		}
	}
	if hardware(t.TempDir()) != "" {
		t.Error("nothing is an identity")
	}
}
