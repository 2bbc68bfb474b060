package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/test/simhosts/simhost"
)

const (
	// jobEndpoints is how many endpoints share the load: each has a limit of requests of its own.
	jobEndpoints = 256
	jobCallers   = 128
	jobRound     = 4000 // cycles
	jobMachine   = `"cpu":[{"id":"cpu3c","vcpuCount":2}]`
	jobInput     = `{"input":{"prompt":"0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"}}`
)

// jobPlane is a control plane with queue endpoints, whose workers do each job at once.
type jobPlane struct {
	*plane
	key       string
	endpoints []string
	client    *http.Client
	next      atomic.Int64
}

// newJobPlane makes endpoints with a worker each, on simulated hosts, and waits until all workers are idle.
func newJobPlane(b *testing.B, members, hosts, endpoints int, answer func([]byte) []byte) *jobPlane {
	b.Helper()
	p := newJobHosts(b, members, hosts, answer)
	p.addEndpoints(endpoints, 1)
	return p
}

// newJobHosts makes the hosts alone, of which there may be none.
func newJobHosts(b *testing.B, members, hosts int, answer func([]byte) []byte) *jobPlane {
	b.Helper()
	p := &jobPlane{plane: newPlane(b, members)}
	if hosts > 0 {
		p.settle(simhost.Config{
			Hosts: hosts, GPUs: -1, Total: fleet.Resources{MilliCPU: 1 << 40, MemoryMB: 1 << 40, DiskGB: 1 << 40}, Answer: answer, Slots: 100,
		})
	}
	p.key = p.accounts(1)[0]
	transport := &http.Transport{MaxIdleConnsPerHost: jobCallers, DisableCompression: true}
	b.Cleanup(transport.CloseIdleConnections)
	p.client = &http.Client{Transport: transport, Timeout: apiLimit}
	return p
}

// addEndpoints makes endpoints that have so many workers all the time.
func (p *jobPlane) addEndpoints(n, each int) {
	p.b.Helper()
	p.declare(n, jobMachine, each, each)
	for _, id := range p.endpoints {
		p.until("all workers are idle", func(context.Context) bool {
			var health struct{ Workers struct{ Idle int } }
			return p.ask("GET", id+"/health", "", &health) == nil && health.Workers.Idle == each
		})
	}
}

// declare makes endpoints whose workers run on the machine, a part of an endpoint in JSON.
func (p *jobPlane) declare(n int, machine string, least, most int) {
	p.b.Helper()
	for range n {
		var made struct{ ID string }
		if err := p.ask("POST", "serverless", fmt.Sprintf(`{"name":"bench","type":"QUEUE","image":"registry.example/library/worker:1",
			%s,"scaling":{"type":"QUEUE_DELAY","queueDelay":1},"workers":{"min":%d,"max":%d,"idleTimeout":3600}}`,
			machine, least, most), &made); err != nil {
			p.b.Fatal(err)
		}
		p.endpoints = append(p.endpoints, made.ID)
	}
}

// ask makes a request of the account through one of the members, in turns.
func (p *jobPlane) ask(method, path, body string, into any) error {
	at := p.members[int(p.next.Add(1))%len(p.members)]
	req, err := http.NewRequest(method, "http://"+at.api+"/v2/"+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+p.key)
	req.Header.Set("Content-Type", jsonTypes)
	res, err := p.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode >= http.StatusBadRequest {
		err = fmt.Errorf("%s %s: %d %s", method, path, res.StatusCode, text[:min(len(text), 500)])
	}
	if err == nil && into != nil {
		err = json.Unmarshal(text, into)
	}
	return err
}

type benchJob struct{ ID, Status string }

// submit submits a job to one of the endpoints, in turns.
func (p *jobPlane) submit(n int) (endpoint string, j benchJob, err error) {
	endpoint = p.endpoints[n%len(p.endpoints)]
	return endpoint, j, p.ask("POST", endpoint+"/run", jobInput, &j)
}

// cycle has a job done: it is submitted, taken and answered, and its submitter has seen that.
func (p *jobPlane) cycle(n int) error {
	endpoint, j, err := p.submit(n)
	if err == nil {
		err = p.ask("GET", endpoint+"/status-sync/"+j.ID, "", &j)
	}
	if err == nil && j.Status != "COMPLETED" {
		err = fmt.Errorf("the job is %s", j.Status)
	}
	return err
}

// echo answers a job with what it was.
func echo(job []byte) []byte { return bytes.Clone(job) }

// many calls fn for 0 to n-1, by a number of callers, and returns how often in a second.
func many(b *testing.B, callers, n int, fn func(n int) error) (rate float64) {
	b.Helper()
	var next atomic.Int64
	var group sync.WaitGroup
	began := time.Now()
	for range callers {
		group.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if err := fn(i); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
	return float64(n) / time.Since(began).Seconds()
}

// BenchmarkJobCycles takes turns: jobs through schedulers as processes, over HTTP, by workers on a simulated host that do nothing; and
// messages that are published, taken and acknowledged at NATS JetStream and at beanstalkd, each of which syncs as well. Those keep no
// results.
func BenchmarkJobCycles(b *testing.B) {
	for _, members := range []int{1, 3} {
		b.Run(fmt.Sprintf("members=%d", members), func(b *testing.B) {
			p := newJobPlane(b, members, 4, jobEndpoints, echo)
			others := newBrokers(b, members)
			rates := samples{}
			used := 0.0
			for range max(1, b.N/8) {
				before := p.used()
				rates["gantry"] = append(rates["gantry"], many(b, jobCallers, jobRound, p.cycle))
				used += p.used() - before
				for _, other := range others {
					rates[other.name] = append(rates[other.name], other.round(b, jobCallers, jobRound))
				}
			}
			b.ReportMetric(rates.median("gantry"), "cycles/s")
			b.ReportMetric(used/float64(max(1, b.N/8)*jobRound)*1e6, "schedulers-cpu-µs/cycle")
			for _, other := range others {
				b.ReportMetric(rates.median(other.name), other.name+"/s")
				b.ReportMetric(rates.median("gantry")/rates.median(other.name), "of-"+other.name)
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// used is the processor time that all members have used, in seconds.
func (p *jobPlane) used() (all float64) {
	for _, m := range p.members {
		all += m.cpu(p.b).Seconds()
	}
	return all
}

// BenchmarkJobSubmit takes turns: jobs submitted to three schedulers, over HTTP, with nobody to do them; and messages published to as many
// NATS servers.
func BenchmarkJobSubmit(b *testing.B) {
	p := newJobHosts(b, 3, 0, nil)
	p.declare(jobEndpoints, jobMachine, 0, 10)
	others := newBrokers(b, 3)
	rates := samples{}
	for range max(1, b.N/8) {
		rates["gantry"] = append(rates["gantry"], many(b, jobCallers, jobRound, func(n int) error {
			_, _, err := p.submit(n)
			return err
		}))
		for _, other := range others {
			rates[other.name] = append(rates[other.name], other.publish(b, jobCallers, jobRound))
		}
	}
	b.ReportMetric(rates.median("gantry"), "submits/s")
	for _, other := range others {
		b.ReportMetric(rates.median(other.name), other.name+"/s")
		b.ReportMetric(rates.median("gantry")/rates.median(other.name), "of-"+other.name)
	}
	b.ReportMetric(0, "ns/op")
}

// BenchmarkJobRunSync has one caller run a job at a time, on endpoints with an idle worker each that does it at once: what a call takes is
// what Gantry takes, HTTP included.
func BenchmarkJobRunSync(b *testing.B) {
	for _, members := range []int{1, 3} {
		b.Run(fmt.Sprintf("members=%d", members), func(b *testing.B) {
			p := newJobPlane(b, members, 1, 64, echo)
			took := samples{}
			for n := range 200 * max(1, b.N/4) {
				var j benchJob
				began := time.Now()
				if err := p.ask("POST", p.endpoints[n%len(p.endpoints)]+"/runsync", jobInput, &j); err != nil || j.Status != "COMPLETED" {
					b.Fatal(j, err)
				}
				took.add("took", time.Since(began))
			}
			b.ReportMetric(took.at("took", 0.5), "p50-ms")
			b.ReportMetric(took.at("took", 0.99), "p99-ms")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// howMany is how many jobs there are: BENCH_JOBS, or else usual.
func howMany(b *testing.B, usual int) int {
	b.Helper()
	text := os.Getenv("BENCH_JOBS")
	if text == "" {
		return usual
	}
	jobs, err := strconv.Atoi(text)
	if err != nil {
		b.Fatal(err)
	}
	return jobs
}

// BenchmarkJobQueueFull compares one scheduler with an empty queue, and the same one with a million jobs, or BENCH_JOBS, that wait: how
// many it takes in a second, how many it has done by workers of other endpoints, with the processor time of each, and its memory, apart from what of it is mapped files.
func BenchmarkJobQueueFull(b *testing.B) {
	jobs := howMany(b, 1_000_000)
	p := newJobPlane(b, 1, 4, jobEndpoints, echo)
	work := p.endpoints
	p.endpoints = nil
	p.declare(jobEndpoints, `"gpu":{"pools":["ADA_80_PRO"]}`, 0, 1000) // no host has one
	wait := p.endpoints
	submit := func(n int) error {
		_, _, err := p.submit(n)
		return err
	}
	round := func(name string, fn func(int) error) {
		before := p.used()
		b.ReportMetric(many(b, jobCallers, jobRound, fn), name)
		b.ReportMetric((p.used()-before)/jobRound*1e6, "cpu-µs-of-"+name)
	}
	look := func(what string) {
		p.endpoints = work
		round("cycles/s-"+what, p.cycle)
		p.endpoints = wait
		round("submits/s-"+what, submit)
		b.ReportMetric(p.members[0].memory(b, "RssAnon:"), "MB-"+what)
		b.ReportMetric(p.members[0].memory(b, "RssFile:"), "MB-mapped-"+what) // the program and the logs: the page cache
	}
	look("empty")
	many(b, jobCallers, max(0, jobs-2*jobRound), submit)
	look("full")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkJobIdleWorkers compares a leader's processor and memory while there are 1,000 hosts, or BENCH_HOSTS, a multiple of ten, and then
// with ten idle workers on each.
func BenchmarkJobIdleWorkers(b *testing.B) {
	const each, watched = 100, 20 * time.Second
	hosts := hostsOf(b, 1000)
	p := newJobHosts(b, 1, hosts, echo)
	leader := p.members[0]
	look := func() (cores, mb float64) {
		before := leader.cpu(b)
		time.Sleep(watched) // what is measured is the time in which nothing happens
		return (leader.cpu(b) - before).Seconds() / watched.Seconds(), leader.rss(b)
	}
	without, mbWithout := look()
	p.addEndpoints(hosts*10/each, each)
	with, mbWith := look()
	b.ReportMetric(with, "cores")
	b.ReportMetric(without, "cores-without")
	b.ReportMetric(with/without, "ratio")
	b.ReportMetric(mbWith, "MB")
	b.ReportMetric(mbWithout, "MB-without")
	b.ReportMetric(0, "ns/op")
}
