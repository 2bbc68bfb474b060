package bench

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"gantry/test/simhosts/simhost"
)

// Bounds of a storm, of 10,000 hosts; see docs/performance.md.
const (
	stormLog    = 50e6 // bytes that all hosts together add to the log
	lostMessage = "host is unreachable"
	logMetric   = "gantry_scheduler_log_unsnapshotted_bytes"
)

// BenchmarkFleetReconnect changes the leader of three schedulers, so that every host of a fleet begins a new session at once. It tells
// how long it took until all were back, what they added to the log, and the most memory that a scheduler had. None may be
// taken for lost. BENCH_HOSTS=10000 is the size that the bounds are for.
func BenchmarkFleetReconnect(b *testing.B) {
	hosts := hostsOf(b, 500)
	p := newPlane(b, 3, "--snapshot-every", "1000000", "--snapshot-bytes", "1073741824") // one would hide what the log grows by
	_, connected := p.settle(simhost.Config{Hosts: hosts})
	b.ReportMetric(float64(hosts)/connected.Seconds(), "first-connects/s")
	p.rests()
	before, sessions := p.logged(), p.hosts.Count().Sessions
	leader := p.leader()
	var used []time.Duration
	for _, m := range p.members {
		used = append(used, m.cpu(b))
	}
	began := time.Now()
	b.Logf("leadership is handed over at %s", began.UTC().Format(time.RFC3339Nano))
	ctx, cancel := context.WithTimeout(context.Background(), clusterLimit)
	defer cancel()
	if err := p.op.TransferLeadership(ctx, ""); err != nil {
		b.Fatal(err)
	}
	back := func(c simhost.Count) bool { return c.Connected == hosts && c.Sessions >= sessions+int64(hosts) }
	if err := p.hosts.Until(ctx, back); err != nil {
		b.Fatal(err)
	}
	took := time.Since(began)
	var spent time.Duration
	for i, m := range p.members {
		spent += m.cpu(b) - used[i]
	}
	if p.leader() == leader {
		b.Fatal("the leader is the one before")
	}
	p.rests()
	added := p.logged() - before
	if added < 0 {
		b.Fatal("a snapshot was made meanwhile: what was added to the log is not known")
	}
	b.ReportMetric(took.Seconds(), "all-back-s")
	b.ReportMetric(added/1e6, "log-MB")
	b.ReportMetric(added/float64(hosts), "log-B/host")
	b.ReportMetric(float64(p.hosts.Count().Sessions-sessions)/float64(hosts), "sessions/host")
	most := 0.0
	for _, m := range p.members {
		most = max(most, m.memory(b, "VmHWM:"))
	}
	b.ReportMetric(most, "peak-rss-MB")
	b.ReportMetric(spent.Seconds(), "schedulers-cpu-s")
	b.Logf("%d hosts were back in %s, of which the schedulers used %s of processors; %.0f bytes of log, %.0f MB at most", hosts, took, spent, added, most)
	if added > stormLog {
		b.Errorf("%d hosts added %.0f bytes to the log", hosts, added)
	}
	if n := p.lost(); n > 0 {
		b.Errorf("%d hosts were taken for lost", n)
	}
	b.ReportMetric(0, "ns/op")
}

// leader returns who leads.
func (p *plane) leader() (id string) {
	p.b.Helper()
	p.until("one leads", func(ctx context.Context) bool {
		c, err := p.op.Cluster(ctx)
		for _, m := range c.Value.Members {
			if m.Leader {
				id = m.ID
			}
		}
		return err == nil && id != ""
	})
	return id
}

// logged is how many bytes the log of a scheduler has since its newest snapshot.
func (p *plane) logged() (n float64) {
	p.b.Helper()
	p.until("a scheduler's metrics", func(ctx context.Context) bool {
		var err error
		n, err = metric(ctx, p.members[0].metrics, logMetric)
		return err == nil
	})
	return n
}

// rests waits until nothing was added to the log for a second.
func (p *plane) rests() {
	p.b.Helper()
	last, since := -1.0, time.Now()
	p.until("the log rests", func(ctx context.Context) bool {
		now, err := metric(ctx, p.members[0].metrics, logMetric)
		if err != nil || now != last {
			last, since = now, time.Now()
		}
		return time.Since(since) > time.Second
	})
}

// metric reads a gauge without labels.
func metric(ctx context.Context, address, name string) (float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	c := &http.Client{Timeout: apiLimit}
	defer c.CloseIdleConnections()
	resp, err := c.Do(req)
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(body)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, fmt.Errorf("no metric %s", name)
}

// lost counts how often a scheduler took a host for lost.
func (p *plane) lost() (n int) {
	p.b.Helper()
	for _, m := range p.members {
		data, err := os.ReadFile(m.dir + ".log")
		if err != nil {
			p.b.Fatal(err)
		}
		for line := range bytes.Lines(data) {
			if bytes.Contains(line, []byte(lostMessage)) {
				n++
				p.b.Logf("%s", line)
			}
		}
	}
	return n
}
