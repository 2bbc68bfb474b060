package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	agecrypt "filippo.io/age"

	"gantry/test/program"
)

// snapshotInfo is what save and inspect print as JSON.
type snapshotInfo struct {
	File, ClusterID, Program string
	Index                    uint64
	Bytes                    int64
	Encrypted                bool
}

func parseInfo(t *testing.T, text string) snapshotInfo {
	t.Helper()
	var out snapshotInfo
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return out
}

// only asserts that a folder holds these files and nothing that was left behind.
func only(t *testing.T, dir string, names ...string) {
	t.Helper()
	all, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range all {
		got = append(got, e.Name())
	}
	if strings.Join(got, " ") != strings.Join(names, " ") {
		t.Errorf("the folder has %q, want %q", got, names)
	}
}

func TestSnapshotsThroughTheRealFace(t *testing.T) {
	s, dir := newSite(t), t.TempDir()
	plain := filepath.Join(dir, "a.snapshot")
	saved := parseInfo(t, s.good("snapshot save "+plain+" -o json"))
	if saved.ClusterID == "" || saved.Bytes == 0 || saved.Encrypted || saved.File != plain {
		t.Errorf("%+v", saved)
	}
	info, err := os.Stat(plain)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	if again := parseInfo(t, s.good("snapshot inspect "+plain+" -o json")); again != saved {
		t.Errorf("saved %+v, inspected %+v", saved, again)
	}
	if out := s.good("snapshot inspect " + plain); !strings.Contains(out, "Cluster:") || !strings.Contains(out, "Encrypted:  no") {
		t.Errorf("%s", out)
	}
	s.bad(exitUsage, "snapshot save "+plain)
	s.good("snapshot save " + plain + " --force")
	only(t, dir, "a.snapshot")

	text, err := os.ReadFile(plain)
	if err != nil {
		t.Fatal(err)
	}
	for name, broken := range map[string][]byte{"cut": text[:len(text)-1], "changed": append(append([]byte{}, text[:len(text)-40]...), append([]byte{text[len(text)-40] ^ 1}, text[len(text)-39:]...)...), "empty": nil} {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, broken, 0o600); err != nil {
			t.Fatal(err)
		}
		s.bad(exitFailed, "snapshot inspect "+path)
	}
}

func TestEncryptedSnapshots(t *testing.T) {
	s, dir := newSite(t), t.TempDir()
	id, err := agecrypt.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	other, err := agecrypt.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	put := func(name, text string) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	key, wrong, words := put("key", id.String()+"\n"), put("wrong", other.String()+"\n"), put("words", "correct horse\n")
	locked, secret := filepath.Join(dir, "for"), filepath.Join(dir, "with")
	if got := parseInfo(t, s.good("snapshot save "+locked+" -o json --recipient "+id.Recipient().String())); !got.Encrypted {
		t.Errorf("%+v", got)
	}
	s.good("snapshot save " + secret + " --passphrase-file " + words)
	for _, path := range []string{locked, secret} {
		text, err := os.ReadFile(path)
		if err != nil || !strings.HasPrefix(string(text), "age-encryption.org/") || strings.Contains(string(text), "planeplane") {
			t.Errorf("%s is not encrypted: %v", path, err)
		}
		s.bad(exitFailed, "snapshot inspect "+path)
		s.bad(exitFailed, "snapshot inspect "+path+" --identity "+wrong)
	}
	if got := parseInfo(t, s.good("snapshot inspect "+locked+" -o json --identity "+key)); !got.Encrypted || got.Bytes == 0 {
		t.Errorf("%+v", got)
	}
	if text, err := os.ReadFile(secret); err != nil || !strings.Contains(string(text), "\n-> scrypt ") {
		t.Errorf("not by a passphrase: %v", err)
	}
	s.good("snapshot save " + filepath.Join(dir, "plain"))
	cheap := byCheapPhrase(t, filepath.Join(dir, "plain"), "correct horse")
	s.bad(exitFailed, "snapshot inspect "+cheap+" --passphrase-file "+put("others", "battery staple\n"))
	s.good("snapshot inspect " + cheap + " --passphrase-file " + words)
}

// byCheapPhrase encrypts a file so that trying a passphrase takes no seconds, and returns the path of what comes out.
func byCheapPhrase(t *testing.T, plain, phrase string) string {
	t.Helper()
	text, err := os.ReadFile(plain)
	if err != nil {
		t.Fatal(err)
	}
	r, err := agecrypt.NewScryptRecipient(phrase)
	if err != nil {
		t.Fatal(err)
	}
	r.SetWorkFactor(10)
	var out bytes.Buffer
	w, err := agecrypt.Encrypt(&out, r)
	if err == nil {
		_, err = w.Write(text)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	cheap := plain + ".age"
	if err := os.WriteFile(cheap, out.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return cheap
}

func TestABrokenSnapshotIsNotKept(t *testing.T) {
	s, dir := newSite(t), t.TempDir()
	file := filepath.Join(dir, "a")
	if err := os.WriteFile(file, []byte("the one before"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.plane.CutSnapshot(100)
	if text := s.bad(exitUnavailable, "snapshot save "+file+" --force"); !strings.Contains(text, "the connection was lost") {
		t.Errorf("%s", text)
	}
	s.plane.SetDown(true)
	s.bad(exitUnavailable, "snapshot save "+filepath.Join(dir, "b"))
	only(t, dir, "a")
	if text, err := os.ReadFile(file); err != nil || string(text) != "the one before" {
		t.Errorf("%q %v", text, err)
	}
	got, _ := gantry(t, setup{api: map[string][]string{"GET /admin/v1/snapshot": {"200 no snapshot"}}}, "snapshot", "save", filepath.Join(dir, "c"))
	if got.Code != exitFailed {
		t.Errorf("%+v", got)
	}
	only(t, dir, "a")
}

// A person knows the name that was given, not the one that the file has until it is whole.
func TestErrorsNameTheSnapshotAsItWasGiven(t *testing.T) {
	s, dir := newSite(t), t.TempDir()
	path := filepath.Join(dir, "none", "a")
	if text := s.bad(exitUsage, "snapshot save "+path); !strings.Contains(text, path+": no such file or directory") {
		t.Errorf("%s", text)
	}
	w, err := newWhole(filepath.Join(dir, "a"), false)
	if err != nil {
		t.Fatal(err)
	}
	w.drop() // a file that can be written no more
	_, err = w.Write([]byte("x"))
	for _, err := range []error{err, w.keep()} {
		if err == nil || strings.Contains(err.Error(), "/.a.") || !strings.Contains(err.Error(), filepath.Join(dir, "a")) {
			t.Errorf("%v", err)
		}
	}
}

// TestRestoreRunsTheScheduler has a program in its place that says what it was given.
func TestRestoreRunsTheScheduler(t *testing.T) {
	bin := t.TempDir()
	const script = "#!/bin/sh\necho \"$*\"\necho beside >&2\nexit 3\n"
	program.Write(t, filepath.Join(bin, "gantry-scheduler"), script)
	env := map[string]string{"PATH": "relative:" + bin, "GANTRY_API": ""}
	args := strings.Fields("snapshot restore f --data-dir d --seal-key s --address h:1")
	for more, want := range map[string]string{"": "", " --name n --identity i": " --name n --identity-file i", " --passphrase-file p": " --passphrase-file p"} {
		got, _ := gantry(t, setup{env: env}, append(args[:len(args):len(args)], strings.Fields(more)...)...)
		if got.Code != 3 || got.Out != "restore f --data-dir d --seal-key s --address h:1"+want+"\n" || got.Err != "beside\n" {
			t.Errorf("%+v", got)
		}
	}
	got, _ := gantry(t, setup{env: map[string]string{"PATH": "/nonexistent"}}, args...)
	if got.Code != exitFailed || !strings.Contains(got.Err, "gantry-scheduler not found") {
		t.Errorf("%+v", got)
	}
}
