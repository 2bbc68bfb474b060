package bench

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"gantry/api/admin"
	"gantry/test/simhosts/simhost"
)

const (
	fleetAccounts = 80
	lookFor       = 20 * time.Second
)

// hostsOf reads how many hosts a fleet is to have; make bench takes sizes that end in a minute.
func hostsOf(b *testing.B, otherwise int) int {
	b.Helper()
	text := os.Getenv("BENCH_HOSTS")
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		b.Fatalf("BENCH_HOSTS: %v", err)
	}
	return n
}

// onGPU is the body that creates a pod with one GPU.
const onGPU = `{"name":"bench","image":"registry.example/library/busybox:1.36","gpu":{"id":"` + simhost.DefaultGPU + `","count":1},"args":"sleep 3600"}`

// fill creates a pod for every GPU, waits until all run, and tells how fast both were.
func (p *plane) fill(submitters, pods int, accounts []string) {
	b := p.b
	b.Helper()
	began := time.Now()
	took, rate := load(b, submitters, pods, http.StatusCreated, p.poster(accounts, onGPU))
	ctx, cancel := context.WithTimeout(context.Background(), clusterLimit)
	defer cancel()
	if err := p.hosts.Until(ctx, func(c simhost.Count) bool { return c.Running == pods }); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(rate, "placed/s")
	b.ReportMetric(float64(pods)/time.Since(began).Seconds(), "running/s")
	b.ReportMetric(took.median("took"), "create-p50-ms")
	b.ReportMetric(took.at("took", 0.99), "create-p99-ms")
	for _, fault := range p.hosts.Faults() {
		b.Error(fault)
	}
	gpus := map[string]bool{}
	for _, r := range p.hosts.Runs() {
		for _, uuid := range r.GPUs {
			if gpus[uuid] {
				b.Errorf("GPU %s has two pods", uuid)
			}
			gpus[uuid] = true
		}
	}
	if len(gpus) != pods {
		b.Errorf("%d GPUs are used by %d pods", len(gpus), pods)
	}
}

// BenchmarkFleet80k fills a fleet of simulated hosts, eight GPUs and a session each, with pods of one GPU through
// the API of one scheduler that syncs its log; then it looks at what the state with all those pods costs.
// BENCH_HOSTS=10000 is the size of the name. The floors are a bare Raft and a bare HTTP server.
func BenchmarkFleet80k(b *testing.B) {
	hosts := hostsOf(b, 1000)
	p := newPlane(b, 1)
	joined, connected := p.settle(simhost.Config{Hosts: hosts})
	accounts := p.accounts(fleetAccounts)
	leader := p.members[0]
	used := leader.cpu(b)
	began := time.Now()
	p.fill(64, 8*hosts, accounts)
	spent := leader.cpu(b) - used
	b.ReportMetric(spent.Seconds()/time.Since(began).Seconds(), "leader-cores")
	b.ReportMetric(float64(spent.Microseconds())/float64(8*hosts), "leader-us/pod")
	b.ReportMetric(float64(hosts)/joined.Seconds(), "joins/s")
	b.ReportMetric(float64(hosts)/connected.Seconds(), "connects/s")
	p.look(accounts)
	p.floors()
	b.ReportMetric(0, "ns/op")
}

// look measures reading while the state is large: one pod, and the pods of an account.
func (p *plane) look(accounts []string) {
	b := p.b
	b.Helper()
	m := p.members[0]
	get := func(path string) func() (*http.Request, error) {
		return func() (*http.Request, error) {
			req, err := http.NewRequest(http.MethodGet, "http://"+m.api+path, nil)
			if err == nil {
				req.Header.Set("Authorization", "Bearer "+accounts[0])
			}
			return req, err
		}
	}
	pod := string(p.hosts.Runs()[0].Pod)
	for _, r := range p.hosts.Runs() {
		if one(get("/v2/pods/" + string(r.Pod))) {
			pod = string(r.Pod)
			break
		}
	}
	took, rate := load(b, 16, 10_000, http.StatusOK, get("/v2/pods/"+pod))
	b.ReportMetric(rate, "gets/s")
	b.ReportMetric(took.at("took", 0.99), "get-p99-ms")
	took, _ = load(b, 1, 20, http.StatusOK, get("/v2/pods"))
	b.ReportMetric(took.median("took"), "list-p50-ms")
	b.ReportMetric(m.rss(b), "rss-MB")
}

// one reports whether a request is answered with 200.
func one(next func() (*http.Request, error)) bool {
	c := &http.Client{Timeout: apiLimit}
	defer c.CloseIdleConnections()
	return once(c, http.StatusOK, next) == nil
}

// floors measures what the parts below can do on this machine now.
func (p *plane) floors() {
	b := p.b
	b.Helper()
	_, rate := commit(b, bareRaft(b), make([]byte, 600))
	b.ReportMetric(rate, "bare-raft/s")
	base := bare(b, []byte(onGPU))
	_, rate = load(b, 64, createRequests, http.StatusOK, func() (*http.Request, error) {
		return http.NewRequest(http.MethodPost, base, strings.NewReader(onGPU))
	})
	b.ReportMetric(rate, "bare-http/s")
}

// BenchmarkFleetOfThree is a cluster of three schedulers with 200 hosts, to which 16 submitters give pods of one
// GPU through all three: accepted, placed and running.
func BenchmarkFleetOfThree(b *testing.B) {
	hosts := hostsOf(b, 200)
	p := newPlane(b, 3)
	p.settle(simhost.Config{Hosts: hosts})
	p.fill(16, 8*hosts, p.accounts(16))
	b.ReportMetric(0, "ns/op")
}

// BenchmarkFleetHeartbeats has hosts that beat and do nothing else: what that costs the leader, alone and with two others, with which
// the hosts have their sessions then. BENCH_IDLE (20s) is for how long: the garbage of their arrival goes within some minutes.
func BenchmarkFleetHeartbeats(b *testing.B) {
	for _, members := range []int{1, 3} {
		b.Run(fmt.Sprintf("schedulers=%d", members), func(b *testing.B) { beat(b, members) })
	}
}

func beat(b *testing.B, members int) {
	hosts := hostsOf(b, 1000)
	p := newPlane(b, members)
	p.settle(simhost.Config{Hosts: hosts})
	leader := p.members[p.leading()]
	p.until("the hosts beat", func(context.Context) bool { return p.hosts.Count().Heartbeats > int64(hosts) })
	p.until("few hosts have sessions with the leader", func(ctx context.Context) bool {
		n, err := metric(ctx, leader.metrics, `gantry_scheduler_host_sessions{way="direct"}`)
		return members == 1 || err == nil && n < float64(hosts)/100
	})
	used := make([]time.Duration, members)
	for i, m := range p.members {
		used[i] = m.cpu(b)
	}
	idle := lookFor
	if d, err := time.ParseDuration(os.Getenv("BENCH_IDLE")); err == nil {
		idle = d
	}
	began, beats := time.Now(), p.hosts.Count().Heartbeats
	time.Sleep(idle)
	took := time.Since(began).Seconds()
	for i, m := range p.members {
		who := "leader"
		if m != leader {
			who = fmt.Sprintf("follower%d", i)
		}
		b.ReportMetric((m.cpu(b)-used[i]).Seconds()/took, who+"-cores")
		b.ReportMetric(m.rss(b), who+"-rss-MB")
		b.ReportMetric(m.memory(b, "RssFile:"), who+"-mapped-MB")
	}
	b.ReportMetric(float64(p.hosts.Count().Heartbeats-beats)/took, "heartbeats/s")
	if c := p.hosts.Count(); c.Connected != hosts {
		b.Errorf("%d of %d hosts are connected, after %d sessions", c.Connected, hosts, c.Sessions)
	}
	b.ReportMetric(0, "ns/op")
}

// leading returns which of the schedulers leads.
func (p *plane) leading() (at int) {
	p.b.Helper()
	id := p.leader()
	p.until("the leader's own word", func(ctx context.Context) bool {
		c, err := p.op.Cluster(ctx)
		at = slices.IndexFunc(p.members, func(m *process) bool {
			return slices.ContainsFunc(c.Value.Members, func(r admin.Member) bool { return r.ID == id && r.Address == m.link })
		})
		return err == nil && at >= 0
	})
	return at
}

// BenchmarkAgentLoss takes one host after the other away, by turns so that its connection breaks and so that it
// falls silent, and waits until the API says that it is unreachable.
func BenchmarkAgentLoss(b *testing.B) {
	const hosts = 20
	p := newPlane(b, 1)
	p.settle(simhost.Config{Hosts: hosts})
	took := samples{}
	for i := range min(b.N, hosts) {
		h, how := p.hosts.Host(i), "broken"
		began := time.Now()
		if i%2 == 0 {
			h.Cut()
		} else {
			how = "silent"
			h.Mute()
		}
		p.until("the loss shows", func(ctx context.Context) bool {
			a, err := p.op.Host(ctx, string(h.ID()))
			return err == nil && a.Value.State == "unreachable"
		})
		took.add(how, time.Since(began))
	}
	for how := range took {
		b.ReportMetric(took.median(how), how+"-p50-ms")
		b.ReportMetric(took.at(how, 1), how+"-max-ms")
	}
	b.ReportMetric(0, "ns/op")
}
