package replica

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/scheduler/entry"
	"gantry/scheduler/state"
)

// startMegabytes is the size of the state in BenchmarkStart; GANTRY_START_MB sets another one.
const startMegabytes = 1024

// bigState installs a replica whose state is about that large, and returns its folder.
func bigState(b *testing.B, megabytes int) string {
	b.Helper()
	const perPod = 8 << 10
	from, dir := b.TempDir(), b.TempDir()
	store, err := state.Open(filepath.Join(from, StateFile), state.Options{})
	if err != nil {
		b.Fatal(err)
	}
	index := uint64(0)
	apply := func(cmds ...state.Command) {
		index++
		data, err := state.Encode(cmds...)
		if err != nil {
			b.Fatal(err)
		}
		results, err := store.Apply([]entry.Entry{{Index: index, Term: 1, Data: data}})
		if err != nil {
			b.Fatal(err)
		}
		for _, r := range results[0] {
			if r.Err != nil {
				b.Fatal(r.Err)
			}
		}
	}
	hash := []byte("h")
	apply(state.PutAccount{Account: fleet.Account{ID: "acme"}}, boundless())
	for i := range int64(benchHosts) {
		id := benchHost(i)
		tok := fleet.JoinToken{ID: fleet.TokenID(id), Hash: hash, DataCenter: "d", Cloud: fleet.CloudSecure, ExpiresAt: time.Unix(9, 0)}
		apply(state.PutToken{Token: tok, At: time.Unix(1, 0)},
			state.JoinHost{Token: tok.ID, Hash: hash, Host: fleet.Host{ID: id, MachineID: string(id)}, At: time.Unix(1, 0)},
			state.ConnectHost{Host: id, MachineID: string(id), BootID: "boot"})
	}
	for i := range int64(megabytes) << 20 / perPod / 32 {
		var cmds []state.Command
		for j := range int64(32) {
			c := podCommand(i*32 + j)
			c.Pods[0].Pod.Spec.Env = map[string]string{"PUBLIC_KEY": strings.Repeat("k", perPod)}
			cmds = append(cmds, c)
		}
		apply(cmds...)
	}
	snap, err := store.Snapshot()
	if err != nil {
		b.Fatal(err)
	}
	r, w := io.Pipe()
	go func() {
		_, err := snap.WriteTo(w)
		_ = w.CloseWithError(err)
	}()
	if err := Install(dir, Member{ID: "a", Address: "127.0.0.1:1"}, r); err != nil {
		b.Fatal(err)
	}
	if err := snap.Release(); err != nil {
		b.Fatal(err)
	}
	if err := store.Close(); err != nil {
		b.Fatal(err)
	}
	return dir
}

// BenchmarkStart opens a state of 1 GB that was closed cleanly, until it leads and answers. Run it with
// -benchtime 3x.
func BenchmarkStart(b *testing.B) {
	size := startMegabytes
	if s := os.Getenv("GANTRY_START_MB"); s != "" {
		var err error
		if size, err = strconv.Atoi(s); err != nil {
			b.Fatal(err)
		}
	}
	dir := bigState(b, size)
	open := func() *member {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		m, err := tryStart(b, dir, "a", l, nil)
		if err != nil {
			b.Fatal(err)
		}
		m.ready(b)
		return m
	}
	open().stop(b) // the state comes from the snapshot once
	runtime.GC()
	b.ResetTimer()
	for range b.N {
		m := open()
		b.StopTimer()
		b.ReportMetric(rss(b), "MB-RSS")
		m.stop(b)
		b.StartTimer()
	}
	b.StopTimer()
	info, err := os.Stat(filepath.Join(dir, StateFile))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(info.Size()>>20), "MB-state")
}

// rss is the process's resident memory in megabytes.
func rss(b *testing.B) float64 {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		b.Fatal(err)
	}
	fields := strings.Fields(string(text))
	pages, err := strconv.Atoi(fields[1])
	if err != nil {
		b.Fatal(err)
	}
	return float64(pages*os.Getpagesize()) / (1 << 20)
}
