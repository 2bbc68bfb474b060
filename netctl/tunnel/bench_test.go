package tunnel_test

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"
)

// BenchmarkAgainstBare compares TCP from pod to pod through two processes with TCP from host to host through two bare devices of
// wireguard-go, in turns. Run it with -benchtime 3x or more.
func BenchmarkAgainstBare(b *testing.B) {
	overlay, bare := overlayPath(b), barePath(b)
	for _, streams := range []int{1, 4} {
		b.Run(fmt.Sprint(streams, "-streams"), func(b *testing.B) {
			var fast, plain []float64
			for b.Loop() {
				plain = append(plain, bare.throughput(b, streams, time.Second))
				fast = append(fast, overlay.throughput(b, streams, time.Second))
			}
			b.ReportMetric(median(plain), "bare-Mbit/s")
			b.ReportMetric(median(fast), "overlay-Mbit/s")
			b.ReportMetric(median(fast)/median(plain), "overlay/bare")
		})
	}
	b.Run("latency", func(b *testing.B) {
		var fast, plain []float64
		for b.Loop() {
			plain = append(plain, bare.latency(b, 500))
			fast = append(fast, overlay.latency(b, 500))
		}
		b.ReportMetric(median(plain), "bare-us")
		b.ReportMetric(median(fast), "overlay-us")
	})
}

func median(of []float64) float64 {
	slices.Sort(of)
	return of[len(of)/2]
}

// path is two ends that reach each other.
type path struct {
	from, to *space
	src, dst netip.Addr
}

func (p path) dial(b *testing.B) (near, far net.Conn) {
	b.Helper()
	var l net.Listener
	must(b, p.to.do(func() (err error) {
		l, err = net.Listen("tcp4", netip.AddrPortFrom(p.dst, 0).String())
		return err
	}))
	defer func() { _ = l.Close() }()
	must(b, p.from.do(func() (err error) {
		near, err = net.DialTimeout("tcp4", l.Addr().String(), 5*time.Second)
		return err
	}))
	far, err := l.Accept()
	must(b, err)
	return near, far
}

// throughput is what streams carry together, in 10^6 bits per second.
func (p path) throughput(b *testing.B, streams int, d time.Duration) float64 {
	b.Helper()
	var wait sync.WaitGroup
	var mu sync.Mutex
	total := int64(0)
	for range streams {
		near, far := p.dial(b)
		end := time.Now().Add(d)
		wait.Go(func() {
			buf := make([]byte, 256<<10)
			_ = near.SetDeadline(end)
			for {
				if _, err := near.Write(buf); err != nil {
					break
				}
			}
			_ = near.Close()
		})
		wait.Go(func() {
			_ = far.SetDeadline(end)
			n, _ := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{far}, make([]byte, 256<<10))
			_ = far.Close()
			mu.Lock()
			total += n
			mu.Unlock()
		})
	}
	wait.Wait()
	return float64(total) * 8 / 1e6 / d.Seconds()
}

// latency is the median round trip in microseconds.
func (p path) latency(b *testing.B, n int) float64 {
	b.Helper()
	near, far := p.dial(b)
	defer func() { _ = near.Close() }()
	go func() {
		_, _ = io.Copy(far, far)
		_ = far.Close()
	}()
	var all []float64
	buf := make([]byte, 64)
	for range n {
		began := time.Now()
		_, err := near.Write(buf)
		must(b, err)
		_, err = io.ReadFull(near, buf)
		must(b, err)
		all = append(all, float64(time.Since(began).Microseconds()))
	}
	return median(all)
}

// overlayPath is from pod to pod.
func overlayPath(b *testing.B) path {
	b.Helper()
	w := newWorld(b, 2).withAgents(b)
	one, other := w.hosts[0].newPod(b, red, "10.64.0.2"), w.hosts[1].newPod(b, red, "10.64.0.3")
	w.join(b, red, one, other)
	w.set(b, w.hosts...)
	return path{one.ns, other.ns, one.addr, other.addr}
}

// barePath is from host to host, through two devices of wireguard-go.
func barePath(b *testing.B) path {
	b.Helper()
	w := newWorld(b, 2)
	for _, h := range w.hosts {
		text, err := os.ReadFile(h.keyFile)
		must(b, err)
		peer := w.config(h).Peers[0]
		words := []string{
			"private_key=" + inHex(b, string(text)), fmt.Sprint("listen_port=", wgPort), "public_key=" + inHex(b, peer.PublicKey),
			"endpoint=" + peer.Endpoint.String(), "allowed_ip=" + peer.Addr.String() + "/32", "",
		}
		must(b, h.ns.do(func() error {
			link, err := tun.CreateTUN("wg0", 1420)
			if err != nil {
				return err
			}
			d := device.NewDevice(link, conn.NewStdNetBind(), device.NewLogger(device.LogLevelSilent, ""))
			b.Cleanup(d.Close)
			if err := d.IpcSet(strings.Join(words, "\n")); err != nil {
				return err
			}
			return d.Up()
		}))
		h.ns.addr(b, "wg0", netip.PrefixFrom(h.addr, 16))
		must(b, h.ns.up("wg0"))
	}
	return path{w.hosts[0].ns, w.hosts[1].ns, w.hosts[0].addr, w.hosts[1].addr}
}

func inHex(b *testing.B, key string) string {
	b.Helper()
	raw, err := base64.StdEncoding.DecodeString(strings.TrimSpace(key))
	must(b, err)
	return hex.EncodeToString(raw)
}
