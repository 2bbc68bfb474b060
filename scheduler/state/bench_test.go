package state

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/scheduler/entry"
	"gantry/scheduler/place"
)

// boundless lets each account have as much as there is.
func boundless() SetLimits {
	limits := map[string]*int64{}
	for _, l := range fleet.AllLimits() {
		limits[l.String()] = ptr(int64(fleet.MaxLimit))
	}
	return SetLimits{Limits: limits}
}

// benchWorld has 1,000 ready hosts of 4 GPUs, and accounts without limits.
func benchWorld(b *testing.B) *world {
	w := newWorld(b).settle()
	w.must(boundless())
	var cmds []Command
	for i := range 998 {
		id := fleet.HostID(fmt.Sprintf("host-%06d", i))
		tok := token(fleet.TokenID("t-" + id))
		cmds = append(cmds, PutToken{tok, at(0)},
			JoinHost{Token: tok.ID, Hash: tok.Hash, Host: fleet.Host{ID: id, MachineID: string(id)}, At: at(0)},
			ConnectHost{Host: id, MachineID: string(id), BootID: "boot", Inventory: inventory(id), At: at(0)})
	}
	if _, err := w.s.Apply([]entry.Entry{w.entry(cmds...)}); err != nil {
		b.Fatal(err)
	}
	return w
}

// BenchmarkApply creates and at once releases pods, in batches of entries of one command.
func BenchmarkApply(b *testing.B) {
	for _, size := range []int{1, 16, 128} {
		b.Run(fmt.Sprintf("batch=%d", size), func(b *testing.B) {
			w := benchWorld(b)
			var batches [][]entry.Entry
			for n := 0; n < b.N; n += size {
				var batch []entry.Entry
				for i := n; i < n+size; i++ {
					id, host := fleet.PodID(fmt.Sprintf("pod-%09d", i)), fleet.HostID(fmt.Sprintf("host-%06d", i%998))
					p := podOn(id, host)
					p.Need = fleet.Resources{}
					batch = append(batch, w.entry(CreatePods{Pods: []NewPod{{Pod: p, HostEpoch: 1}}}))
				}
				batches = append(batches, batch)
			}
			b.ReportAllocs()
			b.ResetTimer()
			for _, batch := range batches {
				res, err := w.s.Apply(batch)
				if err != nil || res[0][0].Err != nil {
					b.Fatal(err, res)
				}
			}
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "commands/s")
		})
	}
}

// BenchmarkCreatePods creates sets of pods, each in an entry of its own.
func BenchmarkCreatePods(b *testing.B) {
	for _, size := range []int{1, MaxPods} {
		b.Run(fmt.Sprintf("pods=%d", size), func(b *testing.B) {
			w, bytes := benchWorld(b), 0
			var entries []entry.Entry
			for n := range b.N {
				var c CreatePods
				for i := range size {
					p := podOn(fleet.PodID(fmt.Sprintf("pod-%06d-%03d", n, i)), fleet.HostID(fmt.Sprintf("host-%06d", (n*size+i)%998)))
					p.Need, p.Owner = fleet.Resources{}, aCluster
					c.Pods = append(c.Pods, NewPod{Pod: p, HostEpoch: 1})
				}
				entries = append(entries, w.entry(c))
				bytes += len(entries[n].Data)
			}
			b.ReportAllocs()
			b.ResetTimer()
			for _, e := range entries {
				res, err := w.s.Apply([]entry.Entry{e})
				if err != nil || res[0][0].Err != nil {
					b.Fatal(err, res)
				}
			}
			b.ReportMetric(float64(bytes)/float64(b.N*size), "log-bytes/pod")
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*size), "us/pod")
		})
	}
}

// BenchmarkApplyBesideReads applies single commands to 100,000 pods, alone and while somebody lists all of them, counts what there is
// and looks for what can be purged, without a pause: the reads must not hold up Apply.
func BenchmarkApplyBesideReads(b *testing.B) {
	w := benchWorld(b)
	pod := func(n int) CreatePods {
		p := podOn(fleet.PodID(fmt.Sprintf("pod-%09d", n)), fleet.HostID(fmt.Sprintf("host-%06d", n%998)))
		p.Need = fleet.Resources{}
		return CreatePods{Pods: []NewPod{{Pod: p, HostEpoch: 1}}}
	}
	made := 0
	for made < 100_000 {
		var cmds []Command
		for range 128 {
			cmds = append(cmds, pod(made))
			made++
		}
		res, err := w.s.Apply([]entry.Entry{w.entry(cmds...)})
		if err != nil {
			b.Fatal(err)
		}
		for _, r := range res[0] {
			if r.Err != nil {
				b.Fatal(r.Err)
			}
		}
	}
	reads := func(v *View) {
		v.Counts(at(0))
		v.TerminatedRows()
		v.HostRows()
		v.PodRows("acme")
	}
	for _, beside := range []bool{false, true} {
		b.Run(map[bool]string{false: "alone", true: "beside"}[beside], func(b *testing.B) {
			stop, done := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(done)
				for beside {
					select {
					case <-stop:
						return
					default:
						_ = w.s.View(func(v *View) error { reads(v); return nil })
					}
				}
			}()
			var took []time.Duration
			for range b.N {
				one := w.entry(pod(made))
				made++
				begun := time.Now()
				if res, err := w.s.Apply([]entry.Entry{one}); err != nil || res[0][0].Err != nil {
					b.Fatal(err, res)
				}
				took = append(took, time.Since(begun))
			}
			close(stop)
			<-done
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-us")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-us")
		})
	}
}

// BenchmarkStorage is what 10,000 volumes of which one is to be enlarged cost: a create, and what is to be done.
func BenchmarkStorage(b *testing.B) {
	const volumes = 10_000
	w := newWorld(b).settle().furnish()
	w.must(boundless())
	w.inTxn(at(3), func(tx *txn) {
		for i := range volumes {
			v := newVolume(fleet.VolumeID(fmt.Sprintf("v-%05d", i)), "b-fast")
			v.IDBase, v.State, v.ProvisionedGB = fleet.VolumeIDsFirst+uint32(i+1)*fleet.VolumeIDs, fleet.VolumeReady, 10
			tx.putVolume(&v)
		}
	})
	w.must(UpdateVolume{Account: "acme", Volume: "v-00007", SizeGB: ptr(20), At: at(4)})
	b.Run("create", func(b *testing.B) {
		w.inTxn(at(5), func(tx *txn) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := (CreateVolume{Volume: newVolume("new", "b-fast")}).apply(tx); err != nil {
					b.Fatal(err)
				}
				tx.Discard()
			}
		})
	})
	b.Run("work", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			err := w.s.View(func(v *View) error {
				if n := len(v.StorageWork("b-fast")); n != 1 {
					return fmt.Errorf("%d volumes", n)
				}
				return nil
			})
			if err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkViewPod(b *testing.B) {
	w := benchWorld(b)
	w.create("pod-1", "host-a", 0, 1)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			_ = w.s.View(func(v *View) error {
				if _, ok := v.Pod("pod-1"); !ok {
					b.Fail()
				}
				return nil
			})
		}
	})
}

// BenchmarkPlace is what a create costs before the log: a view of 1,000 hosts, of which one changed
// since the last, and a pick.
func BenchmarkPlace(b *testing.B) {
	w := benchWorld(b)
	req := place.Request{
		GPU: &fleet.GPURequest{Type: h100, Count: 2}, Cloud: fleet.CloudSecure, Image: "alpine",
		Need: fleet.Resources{MilliCPU: 1000, MemoryMB: 1000, DiskGB: 10},
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		err := w.s.View(func(v *View) error {
			v.tb.touched[fleet.HostID(fmt.Sprintf("host-%06d", i%998))] = struct{}{}
			_, err := v.Fleet().Pick(req, nil)
			return err
		})
		if err != nil {
			b.Fatal(err)
		}
	}
}
