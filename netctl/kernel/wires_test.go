package kernel

import (
	"fmt"
	"io"
	"net"
	"slices"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sync/errgroup"
)

// connected returns the two ends of a TCP connection from a namespace to an address in another.
func connected(b *testing.B, from, to, addr string) (near, far net.Conn) {
	b.Helper()
	var l net.Listener
	must(b, within(to, func() (err error) {
		l, err = net.Listen("tcp4", addr+":0") //nolint:noctx // of a benchmark
		return err
	}))
	defer func() { _ = l.Close() }()
	must(b, within(from, func() (err error) {
		near, err = net.Dial("tcp4", l.Addr().String()) //nolint:noctx // of a benchmark
		return err
	}))
	far, err := l.Accept()
	must(b, err)
	return near, far
}

// stream returns the bits per second of one TCP stream from a namespace to an address in another.
func stream(b *testing.B, from, to, addr string) float64 {
	b.Helper()
	near, far := connected(b, from, to, addr)
	defer func() { _ = far.Close() }()
	began, chunk := time.Now(), make([]byte, 1<<20)
	must(b, near.SetDeadline(began.Add(10*time.Second)))
	go func() {
		defer func() { _ = near.Close() }()
		for time.Since(began) < time.Second {
			if _, err := near.Write(chunk); err != nil {
				return
			}
		}
	}()
	n, err := io.Copy(io.Discard, far)
	must(b, err)
	return 8 * float64(n) / time.Since(began).Seconds()
}

// wireOf gives the wire between two hosts a size of frames and a rate in Mbit/s, as a network card would have; 0: what the processor can. The
// overlay of the red pods has frames that fit. Rules for routed frames see no bridged ones, as on hosts that the playbooks set up.
func wireOf(b *testing.B, mtu, mbps int, hosts ...*testHost) {
	b.Helper()
	for i, h := range hosts {
		up, err := h.host.LinkByName("up0")
		must(b, err)
		must(b, h.host.LinkSetMTU(up, mtu))
		o := overlayFor(i, red, hosts[0], hosts[1])
		o.MTU = mtu - 130
		must(b, h.SetOverlay(b.Context(), o))
		must(b, within(h.name, func() error { return setBridgeFilter("0") }))
		if mbps > 0 {
			must(b, h.host.QdiscReplace(bucket(up, mbps)))
			b.Cleanup(func() { must(b, h.host.QdiscDel(bucket(up, mbps))) })
		}
	}
}

func median(all []float64) float64 {
	slices.Sort(all)
	return all[len(all)/2]
}

// BenchmarkOverWires compares a pod's overlay on a private underlay with the hosts' own wire, in turns, with usual and with jumbo frames, where
// the processor is the limit, also with a kernel that leads bridged frames through the rules for routed ones, and where the wire is.
func BenchmarkOverWires(b *testing.B) {
	x, y := worldOfTwo(b)
	redA, redC := people[2], people[4]
	for _, mtu := range []int{1500, 9000} {
		for _, c := range []struct {
			name     string
			mbps     int
			filtered string
		}{{"0", 0, "0"}, {"0-br_netfilter", 0, "1"}, {"1000", 1000, "0"}, {"5000", 5000, "0"}} {
			b.Run(fmt.Sprintf("%d/%s", mtu, c.name), func(b *testing.B) {
				wireOf(b, mtu, c.mbps, x, y)
				for _, h := range []*testHost{x, y} {
					must(b, within(h.name, func() error { return setBridgeFilter(c.filtered) }))
				}
				var wire, over, ratio []float64
				for b.Loop() {
					for range 7 {
						one := stream(b, x.name, y.name, y.addr.String())
						two := stream(b, spaceOf(redA.id), spaceOf(redC.id), redC.addr().String())
						wire, over, ratio = append(wire, one), append(over, two), append(ratio, two/one)
					}
				}
				b.ReportMetric(median(over)/1e6, "overlay-Mbit/s")
				b.ReportMetric(median(wire)/1e6, "wire-Mbit/s")
				b.ReportMetric(median(ratio), "overlay-of-wire")
			})
		}
	}
}

const (
	reduced     = 64 << 20 // bytes that each member has of an all-reduce
	reduceChunk = 1 << 20
)

// exchange sends bytes while it receives a number of them, a chunk at a time.
func exchange(conn net.Conn, send []byte, receive func(chunk []byte), want int) error {
	var both errgroup.Group
	both.Go(func() error {
		_, err := conn.Write(send)
		return err
	})
	both.Go(func() error {
		chunk := make([]byte, reduceChunk)
		for ; want > 0; want -= len(chunk) {
			if _, err := io.ReadFull(conn, chunk); err != nil {
				return err
			}
			receive(chunk)
		}
		return nil
	})
	return both.Wait()
}

// floats views bytes as the numbers that they are.
func floats(b []byte) []float32 { return unsafe.Slice((*float32)(unsafe.Pointer(&b[0])), len(b)/4) }

// allReduce is a member's part of a ring of two: it sends one half and adds what it receives to its other half, which both then exchange.
func allReduce(conn net.Conn, rank int, data []byte) error {
	half := len(data) / 2
	mine, other := data[rank*half:(rank+1)*half], data[(1-rank)*half:(2-rank)*half]
	at := 0
	err := exchange(conn, other, func(chunk []byte) {
		to := floats(mine[at : at+len(chunk)])
		for i, v := range floats(chunk) {
			to[i] += v
		}
		at += len(chunk)
	}, half)
	if err != nil {
		return err
	}
	at = 0
	return exchange(conn, mine, func(chunk []byte) { at += copy(other[at:], chunk) }, half)
}

// together runs a member's part at both ends, and returns the bits per second that each end sent.
func together(b *testing.B, near, far net.Conn, part func(conn net.Conn, rank int) error) float64 {
	b.Helper()
	began := time.Now()
	var both errgroup.Group
	for rank, conn := range []net.Conn{near, far} {
		must(b, conn.SetDeadline(began.Add(time.Minute)))
		both.Go(func() error { return part(conn, rank) })
	}
	must(b, both.Wait())
	return 8 * reduced / time.Since(began).Seconds()
}

// BenchmarkAllReduce compares an all-reduce of two members of an overlay with the same bytes in both directions over the same connection, in
// turns.
func BenchmarkAllReduce(b *testing.B) {
	x, y := worldOfTwo(b)
	redA, redC := people[2], people[4]
	var data [2][]byte
	for rank := range data {
		data[rank] = make([]byte, reduced)
	}
	for _, mbps := range []int{0, 1000, 5000} {
		b.Run(fmt.Sprint(mbps), func(b *testing.B) {
			wireOf(b, 1500, mbps, x, y)
			near, far := connected(b, spaceOf(redA.id), spaceOf(redC.id), redC.addr().String())
			defer func() { _, _ = near.Close(), far.Close() }()
			var raw, reduce []float64
			for b.Loop() {
				for range 5 {
					for rank := range data {
						for i := range floats(data[rank]) {
							floats(data[rank])[i] = float32(i%1000 + rank)
						}
					}
					raw = append(raw, together(b, near, far, func(conn net.Conn, rank int) error {
						return exchange(conn, data[rank], func([]byte) {}, reduced)
					}))
					reduce = append(reduce, together(b, near, far, func(conn net.Conn, rank int) error { return allReduce(conn, rank, data[rank]) }))
					for rank := range data {
						for i, v := range floats(data[rank]) {
							if v != float32(2*(i%1000)+1) {
								b.Fatalf("rank %d has %v at %d", rank, v, i)
							}
						}
					}
				}
			}
			b.ReportMetric(median(reduce)/1e6, "allreduce-Mbit/s")
			b.ReportMetric(median(raw)/1e6, "raw-Mbit/s")
			b.ReportMetric(median(reduce)/median(raw), "allreduce-of-raw")
		})
	}
}
