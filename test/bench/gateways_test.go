package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gantry/fleet"
	"gantry/test/devtest"
)

const (
	gatewayShare   = 10 // percent of a processor that each gateway may use, so that the rest of the machine is no limit
	gatewayCallers = 16
	gatewayTime    = 5 * time.Second
	gatewayBody    = 1 << 20
)

// BenchmarkTwoGateways has callers read bodies of a pod through one gateway, and as many through two. Each gateway is a process whose
// processor time its cgroup bounds: what one machine does then is what two more machines would do.
func BenchmarkTwoGateways(b *testing.B) {
	w := newWorldOf(b, "--gateways", "2")
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(b.N+1)*4*waitLimit)
	defer cancel()
	body := devtest.CPUPod("web", fmt.Sprintf("mkdir /w; head -c %d /dev/zero >/w/body; exec httpd -f -p 8080 -h /w", gatewayBody))
	body.Ports = []string{"8080/http"}
	pod, _, err := w.create(ctx, body, pollEvery)
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := w.delete(ctx, pod.ID); err != nil {
			b.Error(err)
		}
	}()
	info, err := w.dev.Info()
	if err != nil {
		b.Fatal(err)
	}
	var doors []*pages
	for _, p := range info.Processes {
		if p.Role == "gateway" {
			bound(b, p.PID)
			doors = append(doors, &pages{url: p.API + "/body", host: pod.ID + "-8080." + info.ProxyDomain})
		}
	}
	if len(doors) != 2 {
		b.Fatalf("processes: %+v", info.Processes)
	}
	for _, d := range doors {
		if err := devtest.Until(waitLimit, func() error { _, err := d.read(ctx); return err }); err != nil {
			b.Fatal(err)
		}
	}
	var one, two float64 // bytes a second
	for range b.N {
		for _, turn := range []struct {
			through []*pages
			sum     *float64
		}{{doors[:1], &one}, {doors, &two}} {
			got, err := readAll(ctx, turn.through)
			if err != nil {
				b.Fatal(err)
			}
			*turn.sum += got
		}
	}
	b.ReportMetric(one/float64(b.N)/float64(fleet.MB), "one-MB/s")
	b.ReportMetric(two/float64(b.N)/float64(fleet.MB), "two-MB/s")
	b.ReportMetric(two/one, "two-of-one")
	b.ReportMetric(0, "ns/op")
}

var gatewayClient = &http.Client{Timeout: waitLimit, Transport: &http.Transport{MaxIdleConnsPerHost: gatewayCallers}}

// pages is a pod's body behind a gateway.
type pages struct{ url, host string }

func (p *pages) read(ctx context.Context) (int64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url, http.NoBody)
	if err != nil {
		return 0, err
	}
	req.Host = p.host
	res, err := gatewayClient.Do(req)
	if err != nil {
		return 0, err
	}
	n, err := io.Copy(io.Discard, res.Body)
	if err == nil && (res.StatusCode != http.StatusOK || n != gatewayBody) {
		err = fmt.Errorf("status %d, %d bytes", res.StatusCode, n)
	}
	return n, errors.Join(err, res.Body.Close())
}

// readAll has all callers read for a while, and returns the bytes a second.
func readAll(ctx context.Context, through []*pages) (float64, error) {
	var sum atomic.Int64
	var all sync.WaitGroup
	faults := make(chan error, gatewayCallers)
	began := time.Now()
	for i := range gatewayCallers {
		all.Go(func() {
			for time.Since(began) < gatewayTime {
				n, err := through[i%len(through)].read(ctx)
				if err != nil {
					faults <- err
					return
				}
				sum.Add(n)
			}
		})
	}
	all.Wait()
	took := time.Since(began).Seconds()
	select {
	case err := <-faults:
		return 0, err
	default:
		return float64(sum.Load()) / took, nil
	}
}

// bound puts a process into a cgroup of its own that may use gatewayShare of a processor, until the bench ends.
func bound(b *testing.B, pid int) {
	b.Helper()
	const period = 100_000 // µs
	root, file, text := "/sys/fs/cgroup", "cpu.max", fmt.Sprintf("%d %d", period*gatewayShare/100, period)
	if _, err := os.Stat("/sys/fs/cgroup/cpu/cgroup.procs"); err == nil { // version 1
		root, file, text = "/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", strconv.Itoa(period*gatewayShare/100)
	}
	dir := filepath.Join(root, fmt.Sprintf("gantry-bench-%d", pid))
	err := os.Mkdir(dir, 0o755)
	b.Cleanup(func() {
		err := os.WriteFile(filepath.Join(root, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o600)
		if err = errors.Join(err, os.Remove(dir)); err != nil {
			b.Error(err)
		}
	})
	err = errors.Join(err, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600), os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o600))
	if err != nil {
		b.Fatal(err)
	}
}
