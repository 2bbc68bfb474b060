package cmdline

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/google/go-cmp/cmp"
)

type cli struct {
	Config File   `name:"config"`
	Debug  bool   `name:"debug"`
	Run    runCmd `cmd:""`
}

type runCmd struct {
	Listen    string        `default:"127.0.0.1:8080"`
	Grace     time.Duration `default:"10s"`
	Count     int           `default:"1"`
	Scheduler []string      `required:""`
}

func parse(t *testing.T, text string, args ...string) (cli, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "daemon.toml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var c cli
	k, err := kong.New(&c)
	if err != nil {
		t.Fatal(err)
	}
	_, err = k.Parse(append([]string{"--config", path, "run"}, args...))
	return c, err
}

func TestFileGivesFlags(t *testing.T) {
	c, err := parse(t, "listen = \"0.0.0.0:80\"\ngrace = \"20s\"\ncount = 3\nscheduler = [\"a:1\", \"b:2\"]\ndebug = true\n", "--count", "5")
	if err != nil {
		t.Fatal(err)
	}
	want := runCmd{Listen: "0.0.0.0:80", Grace: 20 * time.Second, Count: 5, Scheduler: []string{"a:1", "b:2"}}
	if d := cmp.Diff(want, c.Run); d != "" || !c.Debug {
		t.Errorf("debug %v, (-want +got):\n%s", c.Debug, d)
	}
}

func TestFileIsRefused(t *testing.T) {
	for name, row := range map[string]struct{ text, want string }{
		"unknown key":  {"lisen = \"x\"\nscheduler = [\"a\"]", "lisen"},
		"not TOML":     {"listen = ", "toml"},
		"a table":      {"[run]\nlisten = \"x\"", "run"},
		"a wrong type": {"count = \"many\"\nscheduler = [\"a\"]", "count"},
		"itself":       {"config = \"x\"\nscheduler = [\"a\"]", "config"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := parse(t, row.text); err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("error %v, want one that names %q", err, row.want)
			}
		})
	}
	var c cli
	k, err := kong.New(&c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.Parse([]string{"--config", "/no/such.toml", "run", "--scheduler", "a"}); err == nil {
		t.Error("a missing file passes")
	}
}

func FuzzParse(f *testing.F) {
	f.Add("a = 1\n[b]\nc = [1, \"x\"]")
	f.Fuzz(func(_ *testing.T, text string) { _, _ = parseTOML([]byte(text)) })
}
