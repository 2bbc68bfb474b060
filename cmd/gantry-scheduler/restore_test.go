package main

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func (w *world) save() string {
	w.t.Helper()
	status, out, err := w.ask(w.all[len(w.all)-1], w.keys.AdminKey, http.MethodGet, "/admin/v1/snapshot", nil)
	if err != nil || status != http.StatusOK {
		w.t.Fatal(status, err, string(out))
	}
	file := filepath.Join(w.t.TempDir(), "snapshot")
	if err := os.WriteFile(file, out, 0o600); err != nil {
		w.t.Fatal(err)
	}
	return file
}

// A snapshot, taken through a follower, becomes a cluster of its own with everything that was acknowledged.
func TestASnapshotIsRestored(t *testing.T) {
	bin := build(t, "")
	w := newWorld(t, bin)
	w.join(bin, map[string]any{})
	w.awaitVoters(2)
	if err := w.account(w.all[1], "before the snapshot"); err != nil {
		t.Fatal(err)
	}
	file := w.save()
	old := w.view()
	if err := w.account(w.all[0], "after the snapshot"); err != nil {
		t.Fatal(err)
	}

	m := newMachine(t, bin)
	seal := filepath.Join(w.all[0].dir, "seal.key")
	restore := func(file, seal string) (string, error) {
		return m.does("restore", file, "--data-dir", m.dir, "--seal-key", seal, "--address", m.link)
	}
	// What is damaged, and a key of another cluster, are refused, and a later try succeeds.
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	bad := filepath.Join(t.TempDir(), "damaged")
	data[len(data)/2] ^= 1
	if err := os.WriteFile(bad, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := restore(bad, seal); err == nil {
		t.Errorf("a damaged snapshot was restored: %s", out)
	}
	if left, err := os.ReadDir(m.dir); err != nil || len(left) > 0 {
		t.Errorf("a restore that failed left %v, %v", left, err)
	}
	// One that was killed leaves its mark.
	if err := errors.Join(makeFolders(m.dir), os.WriteFile(filepath.Join(m.dir, markRestore), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	m.start()
	if err := m.ended(); err == nil || !strings.Contains(m.log.String(), "restore has not finished") {
		t.Errorf("a run on an unfinished restore: %v %s", err, m.log)
	}
	m.kill()
	other := newMachine(t, bin)
	other.must("init", "--data-dir", other.dir, "--keys-file", filepath.Join(t.TempDir(), "keys.json"))
	if out, err := restore(file, filepath.Join(other.dir, "seal.key")); err == nil || !strings.Contains(out, "seal key does not fit") {
		t.Errorf("restored with another key: %v %s", err, out)
	}
	if out, err := restore(file, seal); err != nil {
		t.Fatal(err, out)
	}
	if out, err := restore(file, seal); err == nil || !strings.Contains(out, "not empty") {
		t.Errorf("restored over a restored one: %v %s", err, out)
	}

	m.start()
	r := &world{t: t, keys: w.keys, all: []*machine{m}}
	c := r.awaitVoters(1)
	if c.ID == old.ID || c.Lineage <= old.Lineage {
		t.Errorf("identity after the restore: %+v, before: %+v", c, old)
	}
	have := r.accounts(m)
	if !strings.Contains(have, "before the snapshot") || strings.Contains(have, "after the snapshot") {
		t.Error(have)
	}
	r.join(bin, map[string]any{})
	r.awaitVoters(2)
}

// The last of three makes a cluster of its own; those that were lost are refused when they come back.
func TestOneOfThreeRecovers(t *testing.T) {
	w := three(t)
	if err := w.account(w.all[0], "kept"); err != nil {
		t.Fatal(err)
	}
	for _, m := range w.all {
		w.eventually("every member has it", func() bool { return strings.Contains(w.accounts(m), "kept") })
	}
	lead := w.leader()
	if lead != w.all[2] {
		w.admin(http.MethodPost, transferPath, map[string]any{"memberId": w.id(w.all[2])}, nil)
		w.eventually("the one that is to survive leads", func() bool { return w.leader() == w.all[2] })
	}
	for _, m := range w.all[:2] {
		m.kill()
	}
	left := w.all[2]
	w.eventually("nobody leads", func() bool {
		status, c := w.health(left)
		return status == http.StatusServiceUnavailable && c["leader"] == "no leader is known"
	})
	left.stop()
	left.must("recover", "--data-dir", left.dir, "--yes")
	left.start()
	w.awaitVoters(1)
	if got := w.accounts(left); !strings.Contains(got, "kept") {
		t.Error(got)
	}
	if status, out, err := w.ask(left, "", http.MethodGet, "/healthz?verbose", nil); err != nil || status != http.StatusOK || !strings.Contains(string(out), "the log ends at") {
		t.Errorf("its log is not told of: %d %v %s", status, err, out)
	}
	back := w.all[0]
	back.start()
	w.eventually("a lost member that comes back is told", func() bool {
		_, c := w.health(back)
		return c["member"] == "this scheduler was removed from the cluster"
	})
	status, out, err := w.ask(back, w.keys.AdminKey, http.MethodGet, clusterPath, nil)
	if err != nil || status != http.StatusServiceUnavailable || !strings.Contains(string(out), "was removed from the cluster") {
		t.Errorf("a client of a lost member that came back: %d %v %s", status, err, out)
	}
}
