package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gantry/scheduler/state"
)

// copies is a folder of back-ups, with the settings beside it.
type copies struct {
	*site
	dir, config string
}

func newCopies(t *testing.T, more string) *copies {
	t.Helper()
	c := &copies{site: newSite(t), dir: t.TempDir(), config: filepath.Join(t.TempDir(), "backup.toml")}
	c.settings(more)
	return c
}

func (c *copies) settings(more string) {
	c.t.Helper()
	if err := os.WriteFile(c.config, fmt.Appendf(nil, "folder = %q\n%s\n", c.dir, more), 0o600); err != nil {
		c.t.Fatal(err)
	}
}

// noted is when the cluster has its newest back-up.
func (c *copies) noted() (at time.Time) {
	c.plane.View(func(v *state.View) { at = v.Counts(c.plane.Now()).BackupAt })
	return at
}

func (c *copies) lay(names ...string) {
	c.t.Helper()
	for _, name := range names {
		if err := os.WriteFile(filepath.Join(c.dir, name), nil, 0o600); err != nil {
			c.t.Fatal(err)
		}
	}
}

func TestABackUpIsSavedCheckedAndTold(t *testing.T) {
	c := newCopies(t, "")
	made := parseInfo(t, c.good("snapshot keep -o json --config "+c.config))
	name := c.plane.Now().UTC().Format(keptForm)
	only(t, c.dir, name)
	info, err := os.Stat(filepath.Join(c.dir, name))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
	if again := parseInfo(t, c.good("snapshot inspect -o json "+filepath.Join(c.dir, name))); again != made {
		t.Errorf("made %+v, there is %+v", made, again)
	}
	if at := c.noted(); !at.Equal(c.plane.Now()) {
		t.Errorf("the cluster knows of one of %v, now is %v", at, c.plane.Now())
	}
	if out := c.good("snapshot keep --check --config " + c.config); out != "the settings are fine\n" {
		t.Error(out)
	}
}

func TestOldBackUpsGoOnceANewOneIsWhole(t *testing.T) {
	c := newCopies(t, "keep = 3\nkeep-days = 2")
	day := func(ago int) string { return c.plane.Now().UTC().AddDate(0, 0, -ago).Format(keptForm) }
	others := []string{"gantry-notes.snapshot", "notes", "seal.key"}
	half := "." + day(9) + ".12345"
	c.lay(append([]string{day(1), day(4), day(5), day(6), half}, others...)...)
	c.plane.SetDown(true)
	before := []string{half, day(6), day(5), day(4), day(1), "gantry-notes.snapshot", "notes", "seal.key"}
	if code, text := c.run(t.Context(), os.Stderr, "snapshot keep --config "+c.config); code == 0 {
		t.Error(text)
	}
	only(t, c.dir, before...) // nothing is removed for one that did not come
	c.plane.SetDown(false)
	c.good("snapshot keep --config " + c.config)
	only(t, c.dir, slices.Concat([]string{day(4), day(1), day(0)}, others)...)

	c.settings("keep = 1\nkeep-days = 2")
	yesterday, today := day(1), day(0)
	c.plane.Advance(time.Second)
	c.good("snapshot keep --config " + c.config)
	only(t, c.dir, slices.Concat([]string{yesterday, today, day(0)}, others)...)
}

func TestTheOffSiteCommandGetsThePathAndNoShell(t *testing.T) {
	c := newCopies(t, "")
	away := filepath.Join(t.TempDir(), "a copy; touch x")
	c.settings(fmt.Sprintf(`off-site = ["/bin/cp", "{file}", %q]`, away))
	c.good("snapshot keep --config " + c.config)
	sent, err := os.ReadFile(away)
	if err != nil {
		t.Fatal(err)
	}
	here, err := os.ReadFile(filepath.Join(c.dir, c.plane.Now().UTC().Format(keptForm)))
	if err != nil || string(here) != string(sent) {
		t.Errorf("%d bytes were sent of %d: %v", len(sent), len(here), err)
	}
}

func TestTheOffSiteCommandGetsNoKey(t *testing.T) {
	t.Setenv("GANTRY_ADMIN_KEY", "secret")
	c := newCopies(t, `off-site = ["/bin/sh", "-c", "test -z \"$GANTRY_ADMIN_KEY\"", "{file}"]`)
	c.good("snapshot keep --config " + c.config)
}

func TestABackUpThatCannotBeSentIsAFailure(t *testing.T) {
	for command, want := range map[string]string{
		`["/bin/false", "{file}"]`: "exit status 1",
		`["/usr/bin/tail", "-f", "{file}"]` + "\noff-site-timeout = \"20ms\"": "it takes more than 20ms",
		`["/no/such/program", "{file}"]`:                                      "no such file",
	} {
		c := newCopies(t, "off-site = "+command)
		if text := c.bad(exitFailed, "snapshot keep --config "+c.config); !strings.Contains(text, "off-site") || !strings.Contains(text, want) {
			t.Errorf("%s: %s", command, text)
		}
		if at := c.noted(); !at.IsZero() {
			t.Errorf("%s: the cluster takes it for a good one", command)
		}
		only(t, c.dir, c.plane.Now().UTC().Format(keptForm)) // the copy itself stays
	}
}

func TestOneBackUpAtATime(t *testing.T) {
	c := newCopies(t, "")
	free, err := lockFolder(c.dir)
	if err != nil {
		t.Fatal(err)
	}
	if text := c.bad(exitFailed, "snapshot keep --config "+c.config); !strings.Contains(text, "another back-up into") {
		t.Error(text)
	}
	free()
	c.good("snapshot keep --config " + c.config)
}

func TestSettingsOfBackUpsThatAreRefused(t *testing.T) {
	c := newCopies(t, "")
	for text, want := range map[string]string{
		"folder = \"here\"":                                 "folder must be an absolute path",
		"keep = 0":                                          "keep must be 1 or more",
		"keep-days = -1":                                    "keep-days must be 0 or more",
		"keeps = 1":                                         "keeps is no setting",
		"off-site = [\"cp\", \"{file}\"]":                   "absolute path of a program",
		"off-site = [\"/bin/cp\", \"file\"]":                "must have {file}",
		"off-site-timeout = \"soon\"":                       "off-site-timeout must be",
		"off-site = \"/bin/cp {file} /mnt\"":                "backup.toml",
		"recipients = [\"age1\"]\npassphrase-file = \"/p\"": "exclude each other",
	} {
		full := text
		if !strings.HasPrefix(text, "folder") {
			full = "folder = \"/srv/backup\"\n" + text
		}
		if err := os.WriteFile(c.config, []byte(full), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := c.bad(exitUsage, "snapshot keep --check --config "+c.config); !strings.Contains(got, want) {
			t.Errorf("%s: %s", text, got)
		}
	}
	c.bad(exitUsage, "snapshot keep --config /no/such/file")
	c.settings("")
	if err := os.Remove(c.dir); err != nil { // as where a file system is not mounted
		t.Fatal(err)
	}
	if text := c.bad(exitUsage, "snapshot keep --config "+c.config); !strings.Contains(text, "the folder of copies") {
		t.Error(text)
	}
}
