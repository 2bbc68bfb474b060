package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gantry/api/admin"
	"gantry/api/v2"
	"gantry/client"
	"gantry/fleet"
	"gantry/test/browser"
	"gantry/test/devtest"
	"gantry/test/simhosts/simhost"
)

// three starts a gantry dev of three schedulers beside the one of all tests, and returns a client of its operator.
func three(t *testing.T) (devtest.Info, *client.Client) {
	t.Helper()
	d, err := suite.site.Start(filepath.Join(suite.site.Dir, "three"), "--schedulers", "3")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Stop(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			d.PrintLogs(t.Output())
		}
	})
	info, err := d.Info()
	if err != nil {
		t.Fatal(err)
	}
	api, err := d.Admin()
	if err != nil {
		t.Fatal(err)
	}
	return info, api
}

func clusterOf(t *testing.T, api *client.Client) admin.Cluster {
	t.Helper()
	c, err := api.Cluster(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return c.Value
}

// simulated has hosts join whose hardware is what the test says.
func simulated(t *testing.T, api *client.Client, center string, hosts int, gpus func(i int) []fleet.GPU) []*simhost.Host {
	t.Helper()
	var link []string
	for _, m := range clusterOf(t, api).Members {
		link = append(link, m.Address)
	}
	f := simhost.New(simhost.Config{Schedulers: link, Token: simhost.Operator(api, center), Prefix: "node", Hosts: hosts, Shape: gpus})
	if err := f.Join(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	return f.Hosts()
}

const mapped = "NVIDIA B200" // GPU type of the hosts on the map

// racks puts hosts into racks and pods onto their GPUs, and looks at the map of it.
func racks(t *testing.T, b *browser.Browser, info devtest.Info, api *client.Client, hosts []*simhost.Host) {
	t.Helper()
	user, err := client.New(info.API, fleet.Secret(info.APIKey), "console")
	if err != nil {
		t.Fatal(err)
	}
	for i, h := range hosts {
		if _, err := api.SetHostLabels(t.Context(), string(h.ID()), map[string]*string{"rack": new([]string{"a1", "a2", "b1"}[i*3/len(hosts)])}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := api.CordonGPU(t.Context(), string(hosts[1].ID()), "GPU-1-7", "RMA 4711"); err != nil {
		t.Fatal(err)
	}
	used := 0
	for i, count := range []int{8, 8, 8, 8, 4, 4, 2, 6, 1, 1} {
		body := v2.CreatePodRequest{Name: fmt.Sprintf("train-%d", i), GPU: &v2.CreateGPUConfig{ID: mapped, Count: count}, PodSettings: v2.PodSettings{Image: new("registry.invalid/train:1")}}
		if _, err := user.CreatePod(t.Context(), body); err != nil {
			t.Fatal(err)
		}
		used += count
	}
	visit(b, "/fleet")
	b.Wait(`["dev-1", "dev-1, rack a1", "dev-1, rack a2", "dev-1, rack b1"].every((name) => [...document.querySelectorAll("h2")].some((e) => e.innerText === name))`)
	b.Wait(fmt.Sprintf(`document.querySelectorAll(".racks .used").length === %d && document.querySelectorAll(".racks .cordoned").length === 1 && document.querySelectorAll(".racks .sick").length === 1`, used))
	b.Wait(fmt.Sprintf(`document.querySelectorAll(".racks .cells i").length === %d`, 8+2+8*(len(hosts)-1)))
	shoot(b, "racks")
}

// TestAFleetThatFails looks at a map of racks and presses what a page only has while something is wrong, before real schedulers: a GPU is gone,
// another machine uses the identity of a host. Then another scheduler is made to lead.
func TestAFleetThatFails(t *testing.T) {
	info, api := three(t)
	gpus := []fleet.GPU{{UUID: "GPU-stays", Type: devtest.GPUType, MemoryMB: 81_559, Sick: "XID 79: the GPU fell off the bus"}, {UUID: "GPU-goes", Type: devtest.GPUType, MemoryMB: 81_559}}
	hosts := simulated(t, api, info.DataCenterID, 12, func(i int) (out []fleet.GPU) {
		for n := range 8 {
			out = append(out, fleet.GPU{UUID: fmt.Sprintf("GPU-%d-%d", i, n), Type: mapped, MemoryMB: 183_000})
		}
		if i == 0 {
			return gpus
		}
		return out
	})
	host := hosts[0]
	of := func() admin.Host {
		h, err := api.Host(t.Context(), string(host.ID()))
		if err != nil {
			t.Fatal(err)
		}
		return h.Value
	}
	b := open(t, info.API, info.AdminKey)
	racks(t, b, info, api, hosts)
	visit(b, "/hosts/"+string(host.ID()))
	b.Wait(`document.querySelector("main").innerText.includes("XID 79")`)
	atOnce(b, "GPU-goes", "Cordon")
	b.Wait(`document.querySelector("main").innerText.includes("cordoned: from the console")`)
	host.Swap("", gpus[:1])
	inRow(b, "GPU-goes", "Clear")
	shoot(b, "gone gpu")
	pressAndHear(b, "Clear", "The GPU was forgotten.")
	b.Wait(`!document.querySelector("main").innerText.includes("GPU-goes")`)
	if h := of(); len(h.GoneGPUs) != 0 || len(h.GPUs) != 1 {
		t.Errorf("the host has %+v, and had %+v", h.GPUs, h.GoneGPUs)
	}

	host.Swap("another-machine", gpus[:1])
	b.Wait(`document.querySelector(".note.bad")?.innerText.includes("uses the identity of this host")`)
	shoot(b, "alarm")
	pressAndHear(b, "Acknowledge", "The alarm was acknowledged.")
	b.Wait(`!document.querySelector("main").innerText.includes("uses the identity of this host")`)
	if h := of(); h.Alarm != nil {
		t.Errorf("the host has the alarm %+v", h.Alarm)
	}
	visit(b, "/alerts")
	b.Wait(`["GantryGPUSick", "GantryHostUnreachable"].every((name) => document.querySelector("main").innerText.includes(name))`)
	shoot(b, "alerts")
	handOver(t, b, api)
	quiet(t, b)
}

// handOver makes a scheduler lead that does not, from the page of one that may be any of them.
func handOver(t *testing.T, b *browser.Browser, api *client.Client) {
	t.Helper()
	shown := false
	err := devtest.Until(2*time.Minute, func() error { // on a busy machine, schedulers elect by themselves meanwhile, and the outcome is not known
		members := clusterOf(t, api).Members
		i := slices.IndexFunc(members, func(m admin.Member) bool { return !m.Leader && m.Voter && m.Reachable && m.Problem == "" })
		if i < 0 {
			return fmt.Errorf("no other member may lead: %+v", members)
		}
		visit(b, "/schedulers")
		row := fmt.Sprintf(`[...document.querySelectorAll("tr")].find((r) => r.innerText.includes(%q))`, members[i].ID)
		b.Wait(row + ` && !document.querySelector(".messages div")`)
		if !shown {
			shoot(b, "three schedulers")
			shown = true
		}
		if b.Eval(row+`.querySelector("button") !== null`) != "true" {
			return fmt.Errorf("%s leads already", members[i].ID)
		}
		b.Eval(row + `.querySelector("button").click(); 1`)
		b.Wait(`document.querySelector("dialog[open]")`)
		press(b, "Make it lead")
		b.Wait(`document.querySelector(".messages div")`)
		if said := b.Eval(`document.querySelector(".messages").innerText`); said != `"Leadership was handed over."` {
			return fmt.Errorf("the page says %s", said)
		}
		if now := clusterOf(t, api).Members; !slices.ContainsFunc(now, func(m admin.Member) bool { return m.ID == members[i].ID && m.Leader }) {
			return fmt.Errorf("%s was to lead: %+v", members[i].ID, now)
		}
		b.Wait(row + `?.innerText.includes("leads")`)
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	b.Faults = slices.DeleteFunc(b.Faults, func(fault string) bool { return strings.Contains(fault, "status of 50") }) // while there was no leader
}

// TestStorageOfEachKind fills the form of a backend for each kind that there is.
func TestStorageOfEachKind(t *testing.T) {
	p := newPod(t, "of the host", devtest.Sleeper, nil)
	b := open(t, suite.info.API, suite.info.AdminKey)
	visit(b, "/backends")
	ceph := []string{"Kind", "cephfs", "Monitors", "192.0.2.1:6789, 192.0.2.2:6789", "File system", "shared", "User of all hosts", "hosts", "User that sets quotas", "quotas"}
	local := []string{"Kind", "local", "Path", "/srv/made"}
	for _, row := range []struct {
		id, refused string // empty: it is made
		fields      []string
		like        string
	}{
		{"no-key", "$.key: must be a key of Ceph", append(slices.Clone(ceph), "Its key", "***", "Its key, of storage hosts alone", "AQBsZWdhbA=="), ""},
		{"one-user", "$.cephfs.adminUser: must be the name of another user", append(slices.Clone(ceph), "User that sets quotas", "hosts", "Its key", "AQBsZWdhbA==", "Its key, of storage hosts alone", "AQBsZWdhbA=="), ""},
		{"ceph", "", append(slices.Clone(ceph), "Path", "/volumes", "Its key", "AQBsZWdhbA==", "Its key, of storage hosts alone", "AQBsZWdhbA=="), `"cephfs":{"monitors":["192.0.2.1:6789","192.0.2.2:6789"],"fileSystem":"shared","path":"/volumes","user":"hosts","adminUser":"quotas"}`},
		{"nowhere", "resource not found", append(slices.Clone(local), "Storage host", "nohost00000000"), ""},
		{"root", "must be an absolute path", append(slices.Clone(local), "Path", "/srv/../etc", "Storage host", p.HostID), ""},
		{"folder", "", append(slices.Clone(local), "Storage host", p.HostID), `"local":{"path":"/srv/made"}`},
	} {
		t.Run(row.id, func(t *testing.T) {
			press(b, "New backend")
			b.Wait(fmt.Sprintf(`document.querySelector("dialog[open] select[name=center] option[value='%s']")`, suite.info.DataCenterID))
			fields("Create", append([]string{"Id", row.id, "Data center", suite.info.DataCenterID}, row.fields...)...)(t, b)
			if row.refused != "" {
				b.Wait(fmt.Sprintf(`document.querySelector("dialog[open] [role=alert]")?.innerText.includes(%q)`, row.refused))
				b.Click("dialog[open] header button", "✕")
				b.Wait(`!document.querySelector("dialog")`)
				b.Faults = nil // the refusal
				return
			}
			b.Wait(fmt.Sprintf(`[...document.querySelectorAll("td")].some((e) => e.innerText === %q)`, row.id))
			var made json.RawMessage
			ask(t, suite.info.AdminKey, "GET", "/admin/v1/volume-backends/"+row.id, nil, &made)
			if text := string(made); !strings.Contains(text, row.like) || strings.Contains(text, "AQBs") {
				t.Errorf("the backend is %s, and should have %s", text, row.like)
			}
			deletes(row.id)(t, b)
			b.Wait(fmt.Sprintf(`![...document.querySelectorAll("td")].some((e) => e.innerText === %q)`, row.id))
			quiet(t, b)
		})
	}
}
