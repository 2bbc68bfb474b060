package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gantry/test/devtest"
)

const (
	echoPort, webPort = 7000, 8080
	pathRounds        = 3
	pathAsks          = 300
	pathBytes         = 256 << 20
	pathTimeout       = time.Minute
)

// BenchmarkAgentPaths compares the ways into a pod: its published tcp port with a direct connection to its own
// address, and the proxy with direct HTTP. Latency is that of one byte there and back, or of one request, on a
// connection that stands; throughput is one stream out of the pod. Servers and clients are this process.
func BenchmarkAgentPaths(b *testing.B) {
	w := newWorldOf(b)
	body := devtest.CPUPod("bench", devtest.Sleeper)
	body.Ports = []string{strconv.Itoa(echoPort) + "/tcp", strconv.Itoa(webPort) + "/http"}
	ctx, cancel := context.WithTimeout(context.Background(), 4*waitLimit)
	defer cancel()
	pod, _, err := w.create(ctx, body, pollEvery)
	if err != nil {
		b.Fatal(err)
	}
	public := ""
	for _, p := range pod.Runtime.Ports {
		if p.Private == echoPort && p.Public != nil && p.IP != "" {
			public = net.JoinHostPort(string(p.IP), strconv.Itoa(*p.Public))
		}
	}
	if public == "" {
		b.Fatalf("port %d is not published: %+v", echoPort, pod.Runtime.Ports)
	}
	addr, stop, err := servePod(pod.ID)
	if err != nil {
		b.Fatal(err)
	}
	defer stop()
	info, err := w.dev.Info()
	if err != nil {
		b.Fatal(err)
	}
	got := samples{}
	direct := net.JoinHostPort(addr, strconv.Itoa(echoPort))
	page := "http://" + net.JoinHostPort(addr, strconv.Itoa(webPort))
	host := fmt.Sprintf("%s-%d.%s", pod.ID, webPort, info.ProxyDomain)
	for range pathRounds {
		err := errors.Join(tcpPath(got, "tcp-direct", direct), tcpPath(got, "tcp-published", public),
			httpPath(got, "http-direct", page, ""), httpPath(got, "http-proxy", info.API, host))
		if err != nil {
			b.Fatal(err)
		}
	}
	for _, name := range []string{"tcp-direct", "tcp-published", "http-direct", "http-proxy"} {
		b.ReportMetric(1000*got.median(name), name+"-p50-µs")
		b.ReportMetric(1000*got.at(name, 0.99), name+"-p99-µs")
		b.ReportMetric(got.median(name+" MB/s"), name+"-MB/s")
	}
	b.ReportMetric(got.median("tcp-published MB/s")/got.median("tcp-direct MB/s"), "tcp-MB/s-ratio")
	b.ReportMetric(got.median("http-proxy MB/s")/got.median("http-direct MB/s"), "http-MB/s-ratio")
	b.ReportMetric(0, "ns/op")
	if err := w.delete(ctx, pod.ID); err != nil {
		b.Fatal(err)
	}
}

// servePod serves from within a pod's network namespace, and tells the pod's address: on one port bytes that come are
// sent back, but after an 's' a stream is sent; on the other GET / is a short page and GET /stream a long one.
func servePod(id string) (addr string, stop func(), err error) {
	found, err := filepath.Glob("/run/netns/gantry-*-" + id)
	if err != nil || len(found) != 1 {
		return "", nil, errors.Join(err, fmt.Errorf("network namespaces of the pod: %q", found))
	}
	var listeners [2]net.Listener
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread is in the namespace, and ends with this goroutine
		done <- func() error {
			ns, err := os.Open(found[0])
			if err != nil {
				return err
			}
			defer func() { _ = ns.Close() }()
			if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
				return err
			}
			addrs, err := net.InterfaceAddrs()
			if err != nil {
				return err
			}
			for _, a := range addrs {
				if ip, ok := a.(*net.IPNet); ok && !ip.IP.IsLoopback() && ip.IP.To4() != nil {
					addr = ip.IP.String()
				}
			}
			for i, port := range []int{echoPort, webPort} {
				if listeners[i], err = net.Listen("tcp4", net.JoinHostPort(addr, strconv.Itoa(port))); err != nil {
					return err
				}
			}
			return nil
		}()
	}()
	if err := <-done; err != nil {
		return "", nil, err
	}
	go serveBytes(listeners[0])
	block := make([]byte, 256<<10)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })
	mux.HandleFunc("GET /stream", func(w http.ResponseWriter, _ *http.Request) {
		for range pathBytes / len(block) {
			if _, err := w.Write(block); err != nil {
				return
			}
		}
	})
	web := &http.Server{Handler: mux, ReadHeaderTimeout: pathTimeout}
	go func() { _ = web.Serve(listeners[1]) }()
	return addr, func() { _, _ = listeners[0].Close(), web.Close() }, nil
}

func serveBytes(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer func() { _ = c.Close() }()
			one := make([]byte, 1)
			for {
				if _, err := io.ReadFull(c, one); err != nil {
					return
				}
				if one[0] == 's' {
					block := make([]byte, 256<<10)
					for range pathBytes / len(block) {
						if _, err := c.Write(block); err != nil {
							return
						}
					}
					return
				}
				if _, err := c.Write(one); err != nil {
					return
				}
			}
		}()
	}
}

// tcpPath asks for a byte again and again, then for a stream.
func tcpPath(s samples, name, addr string) error {
	c, err := net.DialTimeout("tcp", addr, pathTimeout)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	if err := c.SetDeadline(time.Now().Add(pathTimeout)); err != nil {
		return err
	}
	one := []byte{'e'}
	for range pathAsks {
		began := time.Now()
		if _, err := c.Write(one); err != nil {
			return err
		}
		if _, err := io.ReadFull(c, one); err != nil {
			return err
		}
		s.add(name, time.Since(began))
	}
	if _, err := c.Write([]byte{'s'}); err != nil {
		return err
	}
	return s.stream(name, c)
}

// stream reads a whole stream and notes how fast it came.
func (s samples) stream(name string, r io.Reader) error {
	began := time.Now()
	n, err := io.Copy(io.Discard, r)
	if err == nil && n != pathBytes {
		err = fmt.Errorf("%s: %d bytes of %d", name, n, pathBytes)
	}
	s[name+" MB/s"] = append(s[name+" MB/s"], float64(n)/1e6/time.Since(began).Seconds())
	return err
}

// httpPath asks for a short page again and again, then for a long one. host is what the proxy is asked for.
func httpPath(s samples, name, base, host string) error {
	client := &http.Client{Timeout: pathTimeout}
	defer client.CloseIdleConnections()
	get := func(path string) (*http.Response, error) {
		req, err := http.NewRequest(http.MethodGet, strings.TrimSuffix(base, "/")+path, nil)
		if err != nil {
			return nil, err
		}
		req.Host = host
		res, err := client.Do(req)
		if err == nil && res.StatusCode != http.StatusOK {
			err = errors.Join(fmt.Errorf("%s: %s", name, res.Status), res.Body.Close())
		}
		return res, err
	}
	for range pathAsks {
		began := time.Now()
		res, err := get("/")
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, res.Body)
		if err := errors.Join(err, res.Body.Close()); err != nil {
			return err
		}
		s.add(name, time.Since(began))
	}
	res, err := get("/stream")
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	return s.stream(name, res.Body)
}
