package main

import (
	"bytes"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestIsolationFlags(t *testing.T) {
	for _, c := range []struct {
		flags isolationFlags
		want  string
	}{
		{isolationFlags{"auto", "runc"}, ""},
		{isolationFlags{"off", "gvisor"}, ""},
		{isolationFlags{"auto", "kata"}, ""},
		{isolationFlags{"on", "runc"}, "--user-namespaces must be"},
		{isolationFlags{"auto", "crun"}, "--runtime-class must be"},
		{isolationFlags{}, "--user-namespaces must be"},
	} {
		err := c.flags.validate()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c.flags, err)
		}
	}
}

func TestIsolation(t *testing.T) {
	dir, addr := t.TempDir(), netip.MustParseAddr("10.88.0.2")
	var said bytes.Buffer
	log := slog.New(slog.NewTextHandler(&said, nil))
	on := isolationFlags{"auto", "runc"}
	if got := on.isolation("0a1b", dir, log); got.idBase == nil || got.idBase(addr) == 0 || got.class != "" || len(got.conditions) > 0 {
		t.Errorf("auto: %+v", got)
	}
	if got := (isolationFlags{"off", "runc"}).isolation("0a1b", dir, log); got.idBase != nil || got.class != "" || len(got.conditions) > 0 {
		t.Errorf("off: %+v", got)
	}
	if got := (isolationFlags{"auto", "gvisor"}).isolation("0a1b", dir, log); got.idBase != nil || got.class != "gvisor" || len(got.conditions) != 1 || !got.conditions[0].Severe {
		t.Errorf("gvisor without its shim: %+v", got)
	}
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "containerd-shim-runsc-v1"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin)
	if got := (isolationFlags{"auto", "gvisor"}).isolation("0a1b", dir, log); got.class != "gvisor" || len(got.conditions) > 0 {
		t.Errorf("gvisor: %+v", got)
	}
	if said.Len() > 0 {
		t.Errorf("said %s", &said)
	}
	got := on.isolation("0a1b", filepath.Join(dir, "none"), log)
	if got.idBase != nil || len(got.conditions) != 1 || got.conditions[0].Code != "userns_unavailable" || !strings.Contains(said.String(), "level=WARN") {
		t.Errorf("where it cannot be: %+v, said %s", got, &said)
	}
}
