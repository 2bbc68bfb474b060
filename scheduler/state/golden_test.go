package state

import (
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gantry/fleet"
)

var update = flag.Bool("update", false, "write the golden files of commands that have none")

// firstSamples holds the commands of the first version, with the fields that they had then.
func firstSamples() []Command {
	code := 3
	pod := podOn("pod00000000001", "host0000000001", 0)
	pod.Spec.CPU = &fleet.CPURequest{Flavor: "cpu3c", VCPU: 2, MemoryGB: 4}
	pod.Spec.Args, pod.Spec.Centers = "sleep 1", []fleet.DataCenterID{"dc-1"}
	pod.Spec.Ports = []fleet.Port{{Number: 80, Protocol: "http"}}
	pod.Status, pod.Goal, pod.Incarnation, pod.Rev, pod.Generation = fleet.StatusRunning, fleet.GoalRun, 1, 2, 3
	pod.DataCenter, pod.Held, pod.Locked, pod.Reason, pod.ExitCode = "dc-1", true, true, "reason", &code
	pod.LogTail, pod.Digest, pod.StartedAt, pod.EndedAt, pod.TerminatedAt = "tail", "sha256:1", at(1), at(2), at(3)
	pod.Steps = firstStep(at(4))
	inv := firstInventory("host0000000001")
	inv.GPUs[0].NUMA, inv.GPUs[0].Island, inv.GPUs[0].Simulated, inv.GPUs[0].Sick = 1, 2, true, "XID 79"
	inv.CUDA, inv.Driver, inv.Kernel, inv.Runtime = "12.8", "570", "6.1", "containerd 1.6.20, runc 1.1.5"
	host := fleet.Host{
		ID: "host0000000001", Name: "n", DataCenter: "dc-1", Cloud: fleet.CloudSecure, State: fleet.HostReady, MachineID: "m",
		BootID: "b", Epoch: 1, Rev: 2, Generation: 3, Inventory: inv, JoinedAt: at(5), SeenAt: at(6),
	}
	cat := catalog()
	cat.GPUs[0].Pool, cat.GPUs[0].Community, cat.GPUs[0].Serverless = "ADA_80_PRO", 1, 2
	cat.CPUs[0].Group, cat.CPUs[0].DiskPerVCPU, cat.CPUs[0].SecureVCPU, cat.CPUs[0].Serverless = "g", 10, 3, 4
	return []Command{
		Bootstrap{ClusterID: "c", CA: []byte("ca"), SealedCAKey: []byte("key"), Catalog: cat, At: at(0)},
		PutDataCenter{fleet.DataCenter{ID: "dc-1", Name: "One", Region: "EU", GlobalNetwork: true}},
		PutCatalog{cat},
		PutAccount{fleet.Account{ID: "acme", Name: "Acme", CreatedAt: at(0)}},
		PutKey{fleet.Key{
			ID: "k1", Account: "acme", Name: "ci", Hint: "gk_abcdef", Hash: []byte("h"), CreatedAt: at(0), ExpiresAt: at(9),
			Can: map[fleet.Group]fleet.Access{fleet.GroupPods: fleet.AccessWrite, fleet.GroupAccount: fleet.AccessRead},
		}},
		DeleteKey{Account: "acme", Key: "k1"},
		PutToken{Token: token("t1"), At: at(0)},
		JoinHost{Token: "t1", Hash: []byte("h"), Host: host, At: at(1)},
		ConnectHost{Host: host.ID, MachineID: "m", BootID: "b", Generation: 7, Inventory: inv, At: at(2)},
		SetHostState{Host: host.ID, Epoch: 1, State: fleet.HostUnreachable, At: at(3)},
		CreatePods{Pods: []NewPod{{Pod: pod, HostEpoch: 1}}},
		ActPod{Account: "acme", Pod: pod.ID, Rev: 4, Action: fleet.ActionStart, At: at(5), Bind: &Binding{
			Host: host.ID, HostEpoch: 1, GPUs: []string{"g"}, HourlyRate: 8,
		}},
		ReportPods{Host: host.ID, Epoch: 1, At: at(6), Reports: []PodReport{{
			Pod: pod.ID, Incarnation: 1, Event: fleet.EventFailed, Reason: "r", ExitCode: &code, At: at(7),
			Steps: firstStep(at(8)), LogTail: "tail", Digest: "sha256:1",
		}}},
		PurgePods{Pods: []fleet.PodID{pod.ID}, Before: at(9)},
	}
}

// commandName returns by what name a command's golden files are known: PutSecret is that of Put[fleet.AccountSecret].
func commandName(cmd Command) string {
	name := strings.TrimPrefix(fmt.Sprintf("%T", cmd), "state.")
	verb, of, generic := strings.Cut(strings.TrimSuffix(name, "]"), "[")
	if !generic {
		return name
	}
	return verb + strings.TrimPrefix(of[strings.LastIndex(of, ".")+1:], "Account")
}

// Old logs stay readable: what a released version wrote is read as what it meant, and written the
// same. A golden file is never changed; a command that gets a field gets a second file.
func TestGoldenEncodings(t *testing.T) {
	seen := map[uint64]bool{}
	for _, s := range named() {
		cmd := s.cmd
		name := fmt.Sprintf("%02d-%s%s", cmd.number(), commandName(cmd), s.suffix)
		seen[cmd.number()] = true
		t.Run(name, func(t *testing.T) {
			got, err := Encode(cmd)
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join("testdata", "golden", name+".hex")
			if _, err := os.Stat(path); *update && os.IsNotExist(err) {
				if err := os.WriteFile(path, []byte(wrap(hex.EncodeToString(got))), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			want, err := hex.DecodeString(strings.ReplaceAll(string(text), "\n", ""))
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(wrap(hex.EncodeToString(want)), wrap(hex.EncodeToString(got))); d != "" {
				t.Errorf("written differently than by an earlier version:\n%s", d)
			}
			cmds, err := Decode(want)
			if err != nil || len(cmds) != 1 {
				t.Fatalf("got %v, %v", cmds, err)
			}
			if d := cmp.Diff(cmd, cmds[0], byValue()); d != "" {
				t.Error(d)
			}
		})
	}
	for _, cmd := range commandTypes() {
		if !seen[cmd.number()] {
			t.Errorf("%T has no sample", cmd)
		}
	}
}

// Samples that leave a field empty would not notice its number changing.
func TestSamplesSetEveryField(t *testing.T) {
	set := map[reflect.Type]map[string]bool{}
	for _, cmd := range samples() {
		noteFields(set, reflect.ValueOf(cmd))
	}
	for kind, fields := range set {
		for i := range kind.NumField() {
			if f := kind.Field(i); !fields[f.Name] && f.Tag.Get("cbor") != "-" {
				t.Errorf("%s.%s is empty in all samples", kind, f.Name)
			}
		}
	}
}

// noteFields notes which fields are set in a value and in all that is in it, by type.
func noteFields(set map[reflect.Type]map[string]bool, v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			noteFields(set, v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			noteFields(set, v.Index(i))
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			noteFields(set, v.MapIndex(key))
		}
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() || v.Type().PkgPath() == "net/netip" {
			return
		}
		fields := set[v.Type()]
		if fields == nil {
			fields = map[string]bool{}
			set[v.Type()] = fields
		}
		for i := range v.NumField() {
			if !v.Field(i).IsZero() {
				fields[v.Type().Field(i).Name] = true
			}
			noteFields(set, v.Field(i))
		}
	}
}

// wrap breaks hexadecimal text into lines of 32 bytes.
func wrap(text string) string {
	var out strings.Builder
	for len(text) > 64 {
		out.WriteString(text[:64] + "\n")
		text = text[64:]
	}
	return out.String() + text + "\n"
}
