package agent

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDirectoryTriesAllItKnowsAndForgetsNothingNamed(t *testing.T) {
	dir := t.TempDir()
	if _, err := openDirectory(dir, nil); err == nil {
		t.Error("a directory without any address was opened")
	}
	for _, bad := range []string{"", "host", "host:", ":80", "host:0", "host:70000", "a b:80", strings.Repeat("a", 300) + ":80"} {
		if _, err := openDirectory(dir, []string{bad}); err == nil {
			t.Errorf("%q was taken for an address", bad)
		}
	}
	d, err := openDirectory(dir, []string{"named:1", "both:1"})
	if err != nil {
		t.Fatal(err)
	}
	round := func(d *directory, n int) []string {
		var out []string
		for range n {
			out = append(out, d.next())
		}
		slices.Sort(out)
		return out
	}
	if err := d.learn([]string{"both:1", "bad", "member:1", "both:1"}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"both:1", "member:1", "named:1"}, round(d, 3)); diff != "" {
		t.Error(diff)
	}
	d.try("elsewhere:1")
	if got := d.next(); got != "elsewhere:1" {
		t.Errorf("next is %s", got)
	}
	if err := d.learn(nil); err != nil { // nobody told
		t.Fatal(err)
	}
	again, err := openDirectory(dir, []string{"new:1"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"both:1", "member:1", "new:1"}, round(again, 3)); diff != "" {
		t.Error(diff)
	}
}

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
		id := hardwareID(dir)
		if (id != "") != want {
			t.Errorf("%q: %q", text, id)
		}
		if err := os.WriteFile(filepath.Join(dir, "board_serial"), []byte("BSN-42177\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if other := hardwareID(dir); other == "" || want && other != id {
			t.Errorf("%q beside a serial number: %q, was %q", text, other, id)
		}
	}
	if hardwareID(t.TempDir()) != "" {
		t.Error("nothing is an identity")
	}
}
