package metrics

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func procOf(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// procWith is a copy of /proc of so many connections, threads and files, of a table of 1000 each.
func procWith(t *testing.T, connections, threads, files int) string {
	t.Helper()
	return procOf(t, map[string]string{
		"sys/net/netfilter/nf_conntrack_count": fmt.Sprintln(connections), "sys/net/netfilter/nf_conntrack_max": "1000\n",
		"loadavg": fmt.Sprintf("0.11 0.22 0.33 2/%d 777\n", threads), "sys/kernel/threads-max": "1000\n", "sys/kernel/pid_max": "4194304\n",
		"sys/fs/file-nr": fmt.Sprintf("%d\t0\t1000\n", files),
	})
}

// TestTheHostTellsOfANearlyFullTable: the scheduler hears of it, and so does who scrapes.
func TestTheHostTellsOfANearlyFullTable(t *testing.T) {
	d := scrapable(t)
	d.tables.Proc = procWith(t, 900, 10, 20)
	want := []string{
		`gantry_host_table_entries{table="connections"} 1000`, `gantry_host_table_entries{table="files"} 1000`, `gantry_host_table_entries{table="threads"} 1000`,
		`gantry_host_table_used_entries{table="connections"} 900`, `gantry_host_table_used_entries{table="files"} 20`,
		`gantry_host_table_used_entries{table="threads"} 10`,
	}
	if got := scrapeOf(t, d, "gantry_host_table"); !slices.Equal(got, want) {
		t.Errorf("metrics are %q", got)
	}
	if got := scrapeOf(t, d, "gantry_host_conditions{code=\"table"); len(got) != 1 {
		t.Errorf("conditions are %q", got)
	}
	d.tables.Proc = procWith(t, 10, 10, 20)
	if got := scrapeOf(t, d, "gantry_host_conditions{code=\"table"); len(got) != 0 {
		t.Errorf("conditions are %q", got)
	}
}
