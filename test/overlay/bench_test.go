package overlay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"testing"
	"time"

	"gantry/netctl/kernel"
)

const (
	rounds     = 5
	streamTime = time.Second
	roundTrips = 2000
)

// road is a way between two network namespaces.
type road struct {
	name     string
	from, to string
	addr     netip.Addr // of to
}

// BenchmarkRoads compares what pods get between each other with a bare pair of links between two namespaces, in turns:
// one TCP stream, and round trips of one byte.
func BenchmarkRoads(b *testing.B) {
	w := start(b)
	w.populate(b, [2][]int{{0, 0, 1}, nil})
	pods := w.users[0].pods
	bare := barePair(b)
	roads := []road{
		bare,
		{"host", namespace(b, pods[0]), namespace(b, pods[1]), address(b, pods[1])},
		{"encrypted", namespace(b, pods[0]), namespace(b, pods[2]), address(b, pods[2])},
	}
	await(b, func() error { return errors.Join(w.allReach(b, w.users[0])) })
	for b.Loop() {
		report(b, measure(b, roads))
	}
	w.makePrivate(b)
	plain := road{"plain", roads[2].from, roads[2].to, roads[2].addr}
	report(b, measure(b, []road{bare, plain}))
}

// barePair makes two network namespaces with nothing between them but a pair of links.
func barePair(b *testing.B) road {
	b.Helper()
	names := [2]string{"gantry-bare-1", "gantry-bare-2"}
	ip := func(args ...string) {
		b.Helper()
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			b.Fatalf("ip %v: %v: %s", args, err, out)
		}
	}
	for _, name := range names {
		ip("netns", "add", name)
		b.Cleanup(func() { ip("netns", "delete", name) })
	}
	ip("link", "add", "bare", "netns", names[0], "type", "veth", "peer", "name", "bare", "netns", names[1])
	for i, name := range names {
		ip("-n", name, "address", "add", fmt.Sprintf("198.51.100.%d/24", i+1), "dev", "bare")
		ip("-n", name, "link", "set", "bare", "up")
	}
	return road{"veth", names[0], names[1], netip.MustParseAddr("198.51.100.2")}
}

// result is what a road gave: bits per second, and the time of a round trip.
type result struct {
	rate float64
	trip time.Duration
}

// measure takes the median of rounds, in each of which every road has its turn.
func measure(b *testing.B, roads []road) map[string]result {
	b.Helper()
	rates, trips := map[string][]float64{}, map[string][]time.Duration{}
	for range rounds {
		for _, r := range roads {
			rates[r.name] = append(rates[r.name], r.stream(b))
			trips[r.name] = append(trips[r.name], r.pingPong(b))
		}
	}
	out := map[string]result{}
	for _, r := range roads {
		slices.Sort(rates[r.name])
		slices.Sort(trips[r.name])
		out[r.name] = result{rates[r.name][rounds/2], trips[r.name][rounds/2]}
	}
	return out
}

func report(b *testing.B, got map[string]result) {
	b.Helper()
	bare := got["veth"]
	for name, r := range got {
		if name != "veth" {
			b.ReportMetric(r.rate/1e6, name+"-Mbit/s")
			b.ReportMetric(r.rate/bare.rate, name+"-of-veth")
			b.ReportMetric(float64(r.trip.Nanoseconds())/1000, name+"-µs")
		}
	}
	b.ReportMetric(bare.rate/1e6, "veth-Mbit/s")
	b.ReportMetric(float64(bare.trip.Nanoseconds())/1000, "veth-µs")
}

// connect returns both ends of a connection over the road.
func (r road) connect(b *testing.B) (near, far net.Conn) {
	b.Helper()
	var listener net.Listener
	err := kernel.Within(r.to, func() (err error) {
		listener, err = net.Listen("tcp4", netip.AddrPortFrom(r.addr, 0).String())
		return err
	})
	must(b, err)
	defer func() { _ = listener.Close() }()
	ctx, cancel := context.WithTimeout(b.Context(), reachTimeout)
	defer cancel()
	err = kernel.Within(r.from, func() (err error) {
		var d net.Dialer
		near, err = d.DialContext(ctx, "tcp4", listener.Addr().String())
		return err
	})
	must(b, err)
	far, err = listener.Accept()
	must(b, err)
	b.Cleanup(func() { _, _ = near.Close(), far.Close() })
	return near, far
}

// stream returns the bits per second of one TCP stream.
func (r road) stream(b *testing.B) float64 {
	b.Helper()
	near, far := r.connect(b)
	must(b, near.SetDeadline(time.Now().Add(streamTime)))
	done := make(chan int64, 1)
	began := time.Now()
	go func() {
		n, _ := io.Copy(io.Discard, far) // until near is closed
		done <- n
	}()
	buf := make([]byte, 1<<18)
	for {
		if _, err := near.Write(buf); err != nil {
			break // its time is over
		}
	}
	must(b, near.Close())
	n := <-done
	return float64(n) * 8 / time.Since(began).Seconds()
}

// pingPong returns the median time of a round trip of one byte.
func (r road) pingPong(b *testing.B) time.Duration {
	b.Helper()
	near, far := r.connect(b)
	go func() { _, _ = io.Copy(far, far) }() // until near is closed
	buf, took := make([]byte, 1), make([]time.Duration, roundTrips)
	for i := range took {
		began := time.Now()
		if _, err := near.Write(buf); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(near, buf); err != nil {
			b.Fatal(err)
		}
		took[i] = time.Since(began)
	}
	must(b, near.Close())
	slices.Sort(took)
	return took[len(took)/2]
}
