package bench

import (
	"bytes"
	"context"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// leads returns the member that leads, asked at any of them.
func (p *jobPlane) leads() (at *process) {
	p.b.Helper()
	p.until("one leads", func(ctx context.Context) bool {
		c, err := p.op.Cluster(ctx)
		for _, m := range c.Value.Members {
			for _, one := range p.members {
				if err == nil && m.Leader && m.Address == one.link {
					at = one
				}
			}
		}
		return at != nil
	})
	return at
}

// sure runs a job to its end, asking again where a member is away, and returns whether it was accepted and whether it was done.
func (p *jobPlane) sure(n int, limit context.Context) (accepted, done bool) {
	var endpoint string
	var j benchJob
	for limit.Err() == nil && !done {
		if !accepted {
			var err error
			endpoint, j, err = p.submit(n)
			accepted = err == nil
			continue
		}
		if p.ask("GET", endpoint+"/status-sync/"+j.ID, "", &j) == nil {
			done = j.Status == "COMPLETED"
		}
	}
	return accepted, done
}

// BenchmarkJobLeaderKilled kills the leader of three while jobs come as fast as 64 callers make them: for how long none ended, and how
// many that were accepted had no end.
func BenchmarkJobLeaderKilled(b *testing.B) {
	const callers, each = 64, 300
	p := newJobPlane(b, 3, 4, jobEndpoints, echo)
	limit, cancel := context.WithTimeout(b.Context(), clusterLimit)
	defer cancel()
	var mu sync.Mutex
	var ended []time.Time
	var lost, next atomic.Int64
	var group sync.WaitGroup
	began := time.Now()
	for range callers {
		group.Go(func() {
			for next.Add(1) <= callers*each {
				accepted, done := p.sure(int(next.Load()), limit)
				if accepted && !done {
					lost.Add(1)
				}
				mu.Lock()
				ended = append(ended, time.Now())
				mu.Unlock()
			}
		})
	}
	p.until("the load is there", func(context.Context) bool { mu.Lock(); defer mu.Unlock(); return len(ended) > callers*each/3 })
	_ = p.leads().cmd.Process.Kill() // callers that ask it from now on ask another
	killed := time.Now()
	group.Wait()
	slices.SortFunc(ended, time.Time.Compare)
	gap := time.Duration(0)
	for i := 1; i < len(ended); i++ {
		if ended[i].After(killed.Add(-time.Second)) {
			gap = max(gap, ended[i].Sub(ended[i-1]))
		}
	}
	b.ReportMetric(float64(gap.Milliseconds()), "gap-ms")
	b.ReportMetric(float64(lost.Load()), "lost")
	b.ReportMetric(float64(len(ended))/time.Since(began).Seconds(), "cycles/s")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkJobLargeResults has 100 jobs, or BENCH_JOBS, answered with 20 MB each by three schedulers, and compares what one caller's small writes to the
// control plane take meanwhile with what they take alone. The floor is the disk's: the same bytes, written and synced by a few lines, and
// beside them small writes as a commit makes them.
func BenchmarkJobLargeResults(b *testing.B) {
	const size = 20_000_000 - 1000
	jobs := howMany(b, 100)
	large := []byte(`"` + strings.Repeat("x", size) + `"`)
	p := newJobPlane(b, 3, 1, 16, func(job []byte) []byte { return bytes.Clone(large) })
	write := func(took samples) {
		began := time.Now()
		if err := p.ask("PUT", "secrets/BENCH", `{"value":"`+began.String()+`"}`, nil); err != nil {
			b.Error(err)
		}
		took.add("took", time.Since(began))
	}
	alone, beside := samples{}, samples{}
	for range 500 {
		write(alone)
	}
	done := make(chan float64, 1)
	go func() {
		done <- many(b, 8, jobs, func(n int) error {
			endpoint, j, err := p.submit(n)
			for err == nil && j.Status != "COMPLETED" {
				err = p.ask("GET", endpoint+"/status-sync/"+j.ID, "", &j)
			}
			return err
		})
	}()
	var rate float64
	for rate == 0 {
		write(beside)
		select {
		case rate = <-done:
		default:
		}
	}
	b.ReportMetric(rate*20, "MB/s")
	b.ReportMetric(alone.at("took", 0.99), "alone-p99-ms")
	b.ReportMetric(beside.at("took", 0.99), "beside-p99-ms")
	b.ReportMetric(beside.at("took", 0.99)/alone.at("took", 0.99), "ratio")
	quiet, busy := diskFloor(b, 0), diskFloor(b, rate*20)
	b.ReportMetric(quiet.at("took", 0.99), "floor-alone-p99-ms")
	b.ReportMetric(busy.at("took", 0.99), "floor-beside-p99-ms")
	b.ReportMetric(busy.at("took", 0.99)/quiet.at("took", 0.99), "floor-ratio")
	b.ReportMetric(0, "ns/op")
}

// diskFloor makes 500 small commits, each of two syncs at a leader and then two at a follower, while three members write so many MB a second
// to a log, synced every 512 KiB, and to a file of bodies that is not.
func diskFloor(b *testing.B, rate float64) samples {
	b.Helper()
	const part = 512 << 10
	open := func() *os.File {
		f, err := os.CreateTemp(b.TempDir(), "")
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = f.Close() })
		return f
	}
	write := func(f *os.File, data []byte, at int64, synced bool) {
		_, err := f.WriteAt(data, at)
		if err == nil && synced {
			err = f.Sync()
		}
		if err != nil {
			b.Error(err)
		}
	}
	stop := make(chan struct{})
	var group sync.WaitGroup
	for n := 0; rate > 0 && n < 3; n++ {
		log, bodies := open(), open()
		group.Go(func() {
			tick := time.NewTicker(time.Duration(part / rate / 1e6 * float64(time.Second)))
			defer tick.Stop()
			data := make([]byte, part)
			for at := int64(0); ; at += part {
				select {
				case <-tick.C:
				case <-stop:
					return
				}
				write(log, data, at, true)
				write(bodies, data, at, false)
			}
		})
	}
	took := samples{}
	small, page := []*os.File{open(), open()}, make([]byte, 4<<10)
	for i := range int64(500) {
		began := time.Now()
		for _, f := range small {
			write(f, page, 4<<10*(i+1), true)
			write(f, page, 0, true)
		}
		took.add("took", time.Since(began))
	}
	close(stop)
	group.Wait()
	return took
}
