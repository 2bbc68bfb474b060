package main

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestTheLinkPortIsThatOfTheAddress(t *testing.T) {
	kept, empty := t.TempDir(), t.TempDir()
	if err := writeAddress(kept, "10.0.0.1:9443"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		dir, listen, address, want string
		warns                      bool
	}{
		{empty, "", "", defaultLinkListen, false},
		{empty, "", "127.0.0.1:47543", "0.0.0.0:47543", false},
		{kept, "", "", "0.0.0.0:9443", false},
		{kept, "", "10.0.0.1:9444", "0.0.0.0:9444", false},
		{kept, "10.0.0.1:9443", "", "10.0.0.1:9443", false},
		{kept, "0.0.0.0:8443", "", "0.0.0.0:8443", true},
		{empty, "127.0.0.1:8443", "", "127.0.0.1:8443", false},
	} {
		var log bytes.Buffer
		got, err := linkListen(c.dir, c.listen, c.address, slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil || got != c.want || strings.Contains(log.String(), "different ports") != c.warns {
			t.Errorf("%+v: %s, %v, %s", c, got, err, log.String())
		}
	}
	if _, err := linkListen(empty, "", "nonsense", slog.New(slog.DiscardHandler)); err == nil {
		t.Error("an address without a port is taken")
	}
	if err := os.WriteFile(filepath.Join(kept, joinedFile), []byte("10.0.0.1:8443\nnonsense\n10.0.0.2:8443\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := readJoined(kept); !slices.Equal(got, []string{"10.0.0.1:8443", "10.0.0.2:8443"}) || readJoined(empty) != nil {
		t.Errorf("%q", got)
	}
}
