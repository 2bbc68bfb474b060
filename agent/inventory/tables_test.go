package inventory

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// procOf writes a copy of /proc with some files.
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

func TestTablesAreRead(t *testing.T) {
	for name, c := range map[string]struct {
		proc string
		want string
	}{
		"all":      {procWith(t, 1, 2, 3), "connections 1/1000, threads 2/1000, files 3/1000, "},
		"nothing":  {procOf(t, nil), ""},
		"pid_max":  {procOf(t, map[string]string{"loadavg": "0 0 0 1/9 9", "sys/kernel/threads-max": "100", "sys/kernel/pid_max": "50"}), "threads 9/50, "},
		"one size": {procOf(t, map[string]string{"loadavg": "0 0 0 1/9 9", "sys/kernel/threads-max": "100"}), ""},
		"garbage":  {procOf(t, map[string]string{"loadavg": "0 0", "sys/fs/file-nr": "a 0 b", "sys/net/netfilter/nf_conntrack_count": "-1", "sys/net/netfilter/nf_conntrack_max": "1"}), ""},
		"a pair":   {procOf(t, map[string]string{"sys/fs/file-nr": "1 0"}), ""},
		"no size":  {procOf(t, map[string]string{"sys/fs/file-nr": "1 0 0"}), ""},
		"no bound": {procOf(t, map[string]string{"sys/fs/file-nr": "1088 0 9223372036854775807"}), "files 1088/9223372036854775807, "},
	} {
		got := ""
		for _, table := range tables {
			if used, size, ok := table.read(c.proc); ok {
				got += fmt.Sprintf("%s %d/%d, ", table.label, used, size)
			}
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	for _, table := range tables[1:] { // connections are tracked where a rule asks for it
		if used, size, ok := table.read("/proc"); !ok || used == 0 || size < used {
			t.Errorf("here: %d of %d %s, %v", used, size, table.what, ok)
		}
	}
}

// TestANearlyFullTableIsSaid in steps: what swings between two numbers is said once.
func TestANearlyFullTableIsSaid(t *testing.T) {
	told := int64(0)
	for _, step := range [][2]int64{
		{0, 0},
		{79, 0},
		{80, 80},
		{84, 80},
		{79, 80},
		{75, 80},
		{80, 80},
		{85, 85},
		{84, 85},
		{80, 85},
		{79, 80},
		{99, 95},
		{100, 100},
		{250, 250},
		{100, 100},
		{96, 100},
		{94, 90},
		{76, 80},
		{74, 0},
		{79, 0},
		{83, 80},
		{0, 0},
	} {
		if told = tableTold(told, step[0]); told != step[1] {
			t.Errorf("at %d %% it says %d, want %d", step[0], told, step[1])
		}
	}
	d := &Tables{}
	for _, step := range []struct {
		connections, threads, files int
		want                        []string
	}{
		{799, 0, 0, nil},
		{801, 0, 999, []string{
			"the kernel's table of tracked connections is about 80 % full: 800 of 1000 are used (net.netfilter.nf_conntrack_max)",
			"the kernel's table of open files is about 95 % full: 950 of 1000 are used (fs.file-max)",
		}},
		{840, 900, 700, []string{
			"the kernel's table of tracked connections is about 80 % full: 800 of 1000 are used (net.netfilter.nf_conntrack_max)",
			"the kernel's table of threads is about 90 % full: 900 of 1000 are used (kernel.threads-max and kernel.pid_max)",
		}},
		{790, 0, 0, []string{
			"the kernel's table of tracked connections is about 80 % full: 800 of 1000 are used (net.netfilter.nf_conntrack_max)",
		}},
		{0, 0, 0, nil},
	} {
		d.Proc = procWith(t, step.connections, step.threads, step.files)
		var got []string
		for _, n := range d.Conditions() {
			if got = append(got, n.Text); n.Code != "table_nearly_full" || n.Severe {
				t.Errorf("the condition is %+v", n)
			}
		}
		if !slices.Equal(got, step.want) {
			t.Errorf("%+v: %q", step, got)
		}
	}
}

// TestAFullTableOfNeighborsIsSaid for ten minutes after the last entry that it refused, and not for those before the first look.
func TestAFullTableOfNeighborsIsSaid(t *testing.T) {
	arp := func(first, second string) string {
		return procOf(t, map[string]string{"net/stat/arp_cache": "entries  allocs   lookups  table_fulls\n" +
			"00000402 00000c2b 00000002 " + first + "\n00000402 00000524 00000006 " + second + "\n"})
	}
	now := time.Unix(0, 0)
	w := &Tables{Now: func() time.Time { return now }}
	for _, step := range []struct {
		proc string
		wait time.Duration
		want bool
	}{
		{arp("0000000f", "00000001"), 0, false},
		{arp("0000000f", "00000001"), time.Minute, false},
		{arp("0000000f", "0000000a"), time.Minute, true},
		{arp("0000000f", "0000000a"), 9 * time.Minute, true},
		{arp("00000010", "0000000a"), 0, true},
		{arp("00000010", "0000000a"), 9 * time.Minute, true},
		{procOf(t, nil), time.Second, true},
		{arp("00000010", "0000000a"), time.Minute, false},
		{arp("zz", "0000000b"), 0, false},
		{procOf(t, map[string]string{"net/stat/arp_cache": "entries\n00000001\n"}), 0, false},
		{procOf(t, map[string]string{"net/stat/arp_cache": "entries table_fulls\n00000001\n"}), 0, false},
		{arp("00000010", "0000000a"), 0, false},
		{arp("-1", "00000020"), 0, false},
		{arp("00000010", "0000000b"), 0, true},
		{procOf(t, map[string]string{"net/stat/arp_cache": "table_fulls entries\n0000001c 00000001\n"}), 11 * time.Minute, true},
	} {
		now, w.Proc = now.Add(step.wait), step.proc
		got := w.Conditions()
		if (len(got) > 0) != step.want || step.want && (len(got) != 1 || got[0].Code != "table_nearly_full") {
			t.Errorf("%+v: %+v", step, got)
		}
	}
	w = &Tables{} // by the clock of the host
	for i, proc := range []string{arp("0000000f", "00000001"), arp("0000000f", "0000000a")} {
		if w.Proc = proc; len(w.Conditions()) != i {
			t.Errorf("without a clock of its own: look %d", i)
		}
	}
	if _, ok := refusedNeighbors("/proc/1"); !ok {
		t.Error("this kernel does not say it")
	}
}

func TestEachTableIsTold(t *testing.T) {
	told := ""
	w := &Tables{Proc: procOf(t, map[string]string{"sys/fs/file-nr": "3 0 1000", "loadavg": "0 0 0 1/9 9", "sys/kernel/threads-max": "100", "sys/kernel/pid_max": "100"})}
	w.Each(func(label string, used, size int64) { told += fmt.Sprintf("%s %d/%d ", label, used, size) })
	if want := "threads 9/100 files 3/1000 "; told != want {
		t.Errorf("%q, want %q", told, want)
	}
	w.Proc = ""
	if w.root() != "/proc" {
		t.Errorf("it reads %s", w.root())
	}
}
