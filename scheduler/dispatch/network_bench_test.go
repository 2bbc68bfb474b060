package dispatch

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/scheduler/state"
)

const (
	benchHosts   = 1000
	benchMembers = 10_000
)

// bytesCodec leaves messages that are received as they are: what is measured is the scheduler, not the hosts.
type bytesCodec struct{}

func (bytesCodec) Name() string { return "proto" }

func (bytesCodec) Marshal(v any) ([]byte, error) { return proto.Marshal(v.(proto.Message)) }

func (bytesCodec) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = slices.Clone(data)
	return nil
}

// crowd is many hosts that only note how far they were told of an overlay.
type crowd struct {
	*yard
	revs  []atomic.Uint64
	bytes atomic.Int64
}

func (c *crowd) join(i int) {
	c.Helper()
	id := fleet.HostID(fmt.Sprintf("host-%04d", i))
	g := c.yard.join(id)
	ctx, cancel := context.WithCancel(c.ctx)
	stream, err := g.conn.NewStream(ctx, &grpc.StreamDesc{StreamName: "Session", ServerStreams: true, ClientStreams: true},
		agentrpc.Link_Session_FullMethodName, grpc.ForceCodec(bytesCodec{}), grpc.MaxCallRecvMsgSize(64<<20))
	check(c, err)
	check(c, stream.SendMsg(&agentrpc.Up{Kind: &agentrpc.Up_Hello{Hello: &agentrpc.Hello{
		MachineId: "m-" + string(id), BootId: "b", Run: fleet.NewID(), Inventory: &agentrpc.Inventory{
			Total: &agentrpc.Resources{MilliCpu: 64_000, MemoryMb: 64_000, DiskGb: 1000}, Tunnel: g.tunnel,
		},
	}}}))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			var data []byte
			if stream.RecvMsg(&data) != nil {
				return
			}
			c.bytes.Add(int64(len(data)))
			if x := c.server.session(id); x != nil {
				x.lastSeen.Store(time.Now().Add(time.Hour).UnixNano()) // it is never silent
			}
			if overlay, ok := field(data, 10); ok {
				to, _ := field(overlay, 6)
				rev, _ := protowire.ConsumeVarint(to)
				c.revs[i].Store(rev)
			}
		}
	}()
	c.Cleanup(func() { cancel(); <-done })
}

// field finds a field of a message by its number, and returns its value without its length.
func field(msg []byte, number protowire.Number) ([]byte, bool) {
	for len(msg) > 0 {
		num, typ, n := protowire.ConsumeTag(msg)
		if n < 0 {
			return nil, false
		}
		size := protowire.ConsumeFieldValue(num, typ, msg[n:])
		if size < 0 {
			return nil, false
		}
		if value := msg[n : n+size]; num == number {
			if typ == protowire.BytesType {
				value, _ = protowire.ConsumeBytes(value)
			}
			return value, true
		}
		msg = msg[n+size:]
	}
	return nil, false
}

// pods makes pods in one entry, on the hosts in turn.
func (c *crowd) pods(from, to int) {
	c.Helper()
	limits, most := map[string]*int64{}, int64(fleet.MaxLimit)
	for _, l := range fleet.AllLimits() {
		limits[l.String()] = &most
	}
	cmds := append(make([]state.Command, 0, to-from+1), state.SetLimits{Limits: limits})
	for i := from; i < to; i++ {
		cmds = append(cmds, state.CreatePods{Pods: []state.NewPod{{HostEpoch: 1, Pod: fleet.Pod{
			ID: fleet.PodID(fmt.Sprintf("pod%011d", i)), Account: "acme", Host: fleet.HostID(fmt.Sprintf("host-%04d", i%benchHosts)), DataCenter: "dc-1",
			CreatedAt: time.Now(), Need: fleet.Resources{MilliCPU: 1, MemoryMB: 1, DiskGB: 1},
			Spec: fleet.PodSpec{
				Name: fmt.Sprintf("worker-%d", i), Image: "i", Cloud: fleet.CloudSecure, DiskGB: 1, GlobalNetworking: true,
				CPU: &fleet.CPURequest{Flavor: "f", VCPU: 1, MemoryGB: 1},
			},
		}}}})
	}
	res, err := c.Propose(c.ctx, cmds...)
	check(c, err)
	for i := range res {
		if res[i].Err != nil {
			c.Fatal(res[i].Err)
		}
	}
}

// told waits until all hosts were told of all members.
func (c *crowd) told() {
	c.Helper()
	var rev uint64
	check(c, c.store.View(func(v *state.View) error {
		o, _ := v.Overlay("account-acme")
		rev = o.Rev
		return nil
	}))
	c.soon("all hosts are told", func() bool {
		for i := range c.revs {
			if c.revs[i].Load() < rev {
				return false
			}
		}
		return true
	})
}

func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	check(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkOverlayChange adds a pod to an overlay of 10,000 members on 1,000 hosts, over real connections, until every host is
// told. The processor time is that of the scheduler and of the hosts' ends of the connections.
func BenchmarkOverlayChange(b *testing.B) {
	c := &crowd{yard: newYard(b), revs: make([]atomic.Uint64, benchHosts)}
	for i := range benchHosts {
		c.join(i)
	}
	c.soon("all have a session", func() bool {
		for i := range benchHosts {
			if !c.server.Reachable(fleet.HostID(fmt.Sprintf("host-%04d", i))) {
				return false
			}
		}
		return true
	})
	began, cpu := time.Now(), cpuTime(b)
	c.pods(0, benchMembers)
	c.told()
	b.Logf("%d members at once: %s, %s of processor time, %d MB", benchMembers, time.Since(began), cpuTime(b)-cpu, c.bytes.Load()>>20)
	next, bytes := benchMembers, c.bytes.Load()
	cpu = cpuTime(b)
	b.ResetTimer()
	for b.Loop() {
		c.pods(next, next+1)
		c.told()
		next++
	}
	n := float64(b.N)
	b.ReportMetric(float64((cpuTime(b)-cpu).Microseconds())/1000/n, "cpu-ms/pod")
	b.ReportMetric(float64(c.bytes.Load()-bytes)/n, "bytes/pod")
	b.ReportMetric(float64(b.Elapsed().Milliseconds())/n, "ms/pod")
}
