package pod

import (
	"bytes"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"gantry/fleet"
)

func TestEnvironmentOfAPod(t *testing.T) {
	m := &machine{Deps: Deps{
		PublicIP: func() string { return "203.0.113.7" }, GPUName: func(string) string { return "NVIDIA H100 80GB HBM3" },
	}}
	got := m.environment(Assignment{
		Pod: "pod00000000001", DataCenter: "EU-RO-1", GPUs: []string{"GPU-1", "GPU-2"},
		Limits:   fleet.Resources{MilliCPU: 3500, MemoryMB: 16_000},
		Mappings: []fleet.PortMapping{{Private: 22, Public: 30_001}, {Private: 70_001, Public: 30_002}},
		Env: map[string]string{
			"A": "1", "NVIDIA_VISIBLE_DEVICES": "all", "RUNPOD_POD_ID": "other", "GANTRY_API_KEY": "gk_x", "RUNPOD_API_KEY": "gk_x",
			"RUNPOD_VOLUME_ID": "v", "GANTRY_VOLUME_ID": "v",
		},
	})
	want := map[string]string{"A": "1"}
	for name, value := range map[string]string{
		"POD_ID": "pod00000000001", "DC_ID": "EU-RO-1", "POD_HOSTNAME": "pod00000000001", "GPU_COUNT": "2",
		"GPU_NAME": "NVIDIA H100 80GB HBM3", "CPU_COUNT": "4", "MEM_GB": "16", "PUBLIC_IP": "203.0.113.7",
		"TCP_PORT_22": "30001", "TCP_PORT_70001": "30002", "API_KEY": "gk_x", "VOLUME_ID": "v",
	} {
		want["RUNPOD_"+name], want["GANTRY_"+name] = value, value
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// shells are those of this machine that read /etc/profile.
func shells() [][]string {
	out := [][]string{{"sh"}}
	for _, shell := range [][]string{{"dash"}, {"bash"}, {"busybox", "sh"}} {
		if _, err := exec.LookPath(shell[0]); err == nil {
			out = append(out, shell)
		}
	}
	return out
}

// sourced returns the environment of a shell that has read a profile.
func sourced(t *testing.T, shell []string, profile string) map[string]string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), shell[0], append(shell[1:], "-c", `. "$1" && env -0`, "sh", profile)...)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=/root"}
	var fault bytes.Buffer
	cmd.Stderr = &fault
	text, err := cmd.Output()
	if err != nil || fault.Len() > 0 {
		t.Fatalf("%q: %v: %s", shell, err, fault.String())
	}
	out := map[string]string{}
	for entry := range strings.SplitSeq(strings.TrimSuffix(string(text), "\x00"), "\x00") {
		name, value, _ := strings.Cut(entry, "=")
		out[name] = value
	}
	return out
}

func TestAProfileGivesLoginShellsThePodsVariables(t *testing.T) {
	env := map[string]string{
		"PLAIN": "x", "EMPTY": "", "QUOTES": `it's "so" '' '\'' \`, "LINES": "a\n b\r\n\n", "CODE": "$(id) `id` ${HOME} !! ; exit 1 # x",
		"BYTES": "\xff\xfe\x01\x1b[31m", "UNICODE": "čau €", "_own": "y", "RUNPOD_API_KEY": "gk_x",
		"HOME": "/elsewhere", "USER": "me", "TERM": "dumb", "UID": "5", "PPID": "1", "IFS": "x", "OPTIND": "none", "SHELLOPTS": "x",
		"BASHOPTS": "x", "ENV": "/x", "BASH_ENV": "/x", "GROUPS": "1", "LINENO": "x", "EUID": "1", "BASH_VERSINFO": "x",
		"not-a-name": "x", "1x": "x", "a b": "x", "x;id": "x", "": "x", "NUL": "a\x00b",
	}
	path, err := (&machine{}).writeProfile(t.TempDir(), env, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, shell := range shells() {
		got := sourced(t, shell, path)
		for _, name := range []string{"PLAIN", "EMPTY", "QUOTES", "LINES", "CODE", "BYTES", "UNICODE", "_own", "RUNPOD_API_KEY"} {
			if value, ok := got[name]; !ok || value != env[name] {
				t.Errorf("%q: %s is %q", shell, name, value)
			}
		}
		for _, name := range []string{"NUL", "not-a-name", "1x", "a b", "ENV", "BASH_ENV", "USER", "gantry_path"} {
			if _, ok := got[name]; ok {
				t.Errorf("%q: has %s", shell, name)
			}
		}
		if got["HOME"] != "/root" || !strings.HasSuffix(got["PATH"], "/usr/bin:/bin") {
			t.Errorf("%q: HOME is %q, PATH is %q", shell, got["HOME"], got["PATH"])
		}
	}
	path, err = (&machine{}).writeProfile(filepath.Dir(path), map[string]string{"PATH": "/own"}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "export PATH='/own'\n" {
		t.Errorf("the owner's PATH: %q, %v", text, err)
	}
}

func TestAProfileIsForTheContainersRootAlone(t *testing.T) {
	dir := t.TempDir()
	for _, base := range []uint32{0, 1_000_000, 2_000_000} { // the next one takes the place of that before
		path, err := (&machine{}).writeProfile(dir, map[string]string{"A": "1"}, base)
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if st := info.Sys().(*syscall.Stat_t); info.Mode() != 0o400 || st.Uid != base || st.Gid != base {
			t.Errorf("mode %s of %d:%d", info.Mode(), st.Uid, st.Gid)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("left are %v, %v", entries, err)
	}
}

func FuzzProfileQuotesEveryValue(f *testing.F) {
	for _, value := range []string{"", "'", `\`, "'\n'", "$(exit 1)", "\xff'\\''", "a'b'c", "\r\n"} {
		f.Add(value)
	}
	f.Fuzz(func(t *testing.T, value string) {
		if strings.ContainsRune(value, 0) || len(value) > 32<<10 {
			return
		}
		path, err := (&machine{}).writeProfile(t.TempDir(), map[string]string{"VALUE": value, "PATH": "/usr/bin:/bin"}, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := sourced(t, []string{"sh"}, path)["VALUE"]; got != value {
			t.Errorf("%q became %q", value, got)
		}
	})
}
