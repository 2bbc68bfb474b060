package link

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"gantry/api/proxy"
	"gantry/api/rest"
	"gantry/fleet"
	"gantry/scheduler/dispatch"
)

// door is what a proxy asks of a service, for one pod.
type door struct {
	host *host
	at   *scheduler
}

func (d door) HTTPPort(context.Context, fleet.PodID, int) (fleet.AccountID, fleet.HTTPSetting, error) {
	return "acme", fleet.HTTPSetting{}, nil
}

func (door) OpensPort(context.Context, fleet.PodID, int, fleet.Secret) bool { return false }

func (d door) DialPod(ctx context.Context, pod fleet.PodID, port int) (fleet.Stream, error) {
	return d.at.dispatch.OpenPort(ctx, d.host.id, pod, port)
}

const nginxConf = `daemon off; worker_processes 1; pid %[1]s/pid; error_log stderr crit;
events { worker_connections 1024; }
http { access_log off; client_body_temp_path %[1]s/1; proxy_temp_path %[1]s/2; fastcgi_temp_path %[1]s/3; uwsgi_temp_path %[1]s/4; scgi_temp_path %[1]s/5;
  keepalive_requests 1000000;
  upstream pod { server %[2]s; keepalive 64; }
  server { listen %[3]s; location / { proxy_pass http://pod; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; } } }
`

// nginx proxies a server, with one worker process; it must be on PATH.
func nginx(b *testing.B, server string) (addr string) {
	b.Helper()
	addr = closedPort(b)
	dir := b.TempDir()
	conf := filepath.Join(dir, "conf")
	must(b, os.WriteFile(conf, fmt.Appendf(nil, nginxConf, dir, server, addr), 0o600))
	cmd := exec.Command("nginx", "-p", dir, "-c", conf)
	cmd.Stderr = b.Output()
	must(b, cmd.Start())
	b.Cleanup(func() { _ = cmd.Process.Signal(os.Interrupt); _ = cmd.Wait() })
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			must(b, c.Close())
			return addr
		}
		if time.Now().After(end) {
			b.Fatal(err)
		}
	}
}

// BenchmarkProxy compares the HTTP proxy at a scheduler, through a host's data connection (TLS, agent) to a server on that host, with nginx
// that asks that server itself: a large body, a small one again and again, and small ones of 64 clients. All of it shares this machine.
func BenchmarkProxy(b *testing.B) {
	const large, asks, clients = 512 << 20, 2000, 64
	w := newWorld(b)
	w.log = slog.New(slog.DiscardHandler)
	s := w.newScheduler(loopback, dispatch.Config{})
	s.begin()
	block := make([]byte, 256<<10)
	pod := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/large" {
			_, _ = io.WriteString(w, "hello")
			return
		}
		for range large / len(block) {
			if _, err := w.Write(block); err != nil {
				return
			}
		}
	}), ReadHeaderTimeout: time.Minute}
	ln, err := net.Listen("tcp", "0.0.0.0:0")
	must(b, err)
	go func() { _ = pod.Serve(ln) }()
	b.Cleanup(func() { _ = pod.Close() })
	port := ln.Addr().(*net.TCPAddr).Port
	h := w.podOn([]*scheduler{s}, port)
	through := front(b, door{h, s}, rest.Limits{})
	direct := fmt.Sprintf("127.0.0.1:%d", port)
	ways := []struct{ name, addr string }{{"direct", direct}, {"nginx", nginx(b, direct)}, {"gantry", through}}
	rates, medians, throughputs := map[string][]float64{}, map[string][]float64{}, map[string][]float64{}
	for b.Loop() {
		for _, way := range ways {
			tr := &http.Transport{MaxIdleConnsPerHost: clients, DisableCompression: true}
			get := func(path string) {
				req, err := http.NewRequest(http.MethodGet, "http://"+way.addr+path, nil)
				must(b, err)
				req.Host = fmt.Sprintf("%s-%d.%s", thePod, port, proxy.DefaultDomain)
				resp, err := tr.RoundTrip(req)
				must(b, err)
				_, err = io.Copy(io.Discard, resp.Body)
				must(b, err)
				must(b, resp.Body.Close())
				if resp.StatusCode != http.StatusOK {
					b.Fatal(way.name, resp.Status)
				}
			}
			get("/")
			began := time.Now()
			get("/large")
			rates[way.name] = append(rates[way.name], large/1e6/time.Since(began).Seconds())
			took := make([]float64, asks)
			for i := range took {
				began = time.Now()
				get("/")
				took[i] = time.Since(began).Seconds() * 1e6
			}
			slices.Sort(took)
			medians[way.name] = append(medians[way.name], took[asks/2])
			began = time.Now()
			var all sync.WaitGroup
			for range clients {
				all.Go(func() {
					for range asks / 10 {
						get("/")
					}
				})
			}
			all.Wait()
			throughputs[way.name] = append(throughputs[way.name], clients*asks/10/time.Since(began).Seconds())
			tr.CloseIdleConnections()
		}
	}
	median := func(of []float64) float64 { of = slices.Clone(of); slices.Sort(of); return of[len(of)/2] }
	for _, way := range ways {
		b.ReportMetric(median(rates[way.name]), way.name+"-MB/s")
		b.ReportMetric(median(medians[way.name]), way.name+"-p50-µs")
		b.ReportMetric(median(throughputs[way.name]), way.name+"-req/s")
	}
	b.ReportMetric(0, "ns/op")
}
