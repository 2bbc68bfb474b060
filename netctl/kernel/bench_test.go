package kernel

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"testing"
)

// BenchmarkPod measures what stands in a pod's start and stop path, on an empty
// host and on one with 200 pods.
func BenchmarkPod(b *testing.B) {
	for _, n := range []int{0, 200} {
		b.Run(fmt.Sprint("among=", n), func(b *testing.B) {
			ctx := context.Background()
			c := start(b, "0a1b")
			must(b, c.Set(ctx, config(b, "0a1b", "10.88.16.0/20", podIDs(n)...)))
			pod := newPod("0a1b", "zulu", netip.MustParseAddr("10.88.31.1"))
			b.Run("add", func(b *testing.B) {
				for b.Loop() {
					must(b, c.AddPod(ctx, pod))
					b.StopTimer()
					must(b, c.RemovePod(ctx, pod.ID))
					b.StartTimer()
				}
			})
			b.Run("remove", func(b *testing.B) {
				for b.Loop() {
					b.StopTimer()
					must(b, c.AddPod(ctx, pod))
					b.StartTimer()
					must(b, c.RemovePod(ctx, pod.ID))
				}
			})
			must(b, c.AddPod(ctx, pod))
			host := pod
			host.IDBase = 0
			b.Run("add-of-host", func(b *testing.B) {
				for b.Loop() {
					must(b, c.AddPod(ctx, host))
					b.StopTimer()
					must(b, c.RemovePod(ctx, host.ID))
					b.StartTimer()
				}
			})
			must(b, c.AddPod(ctx, pod))
			b.Run("again", func(b *testing.B) {
				for b.Loop() {
					must(b, c.AddPod(ctx, pod))
				}
			})
			b.Run("has", func(b *testing.B) {
				for b.Loop() {
					_, err := c.Has(ctx, pod.ID)
					must(b, err)
				}
			})
		})
	}
}

// BenchmarkSet measures a whole host: from nothing, and when nothing is to do.
func BenchmarkSet(b *testing.B) {
	ctx := context.Background()
	c := start(b, "0a1b")
	cfg := config(b, "0a1b", "10.88.16.0/20", podIDs(50)...)
	b.Run("50-from-nothing", func(b *testing.B) {
		for b.Loop() {
			must(b, c.Set(ctx, cfg))
			b.StopTimer()
			must(b, c.Clean(ctx))
			b.StartTimer()
		}
	})
	must(b, c.Set(ctx, cfg))
	b.Run("50-unchanged", func(b *testing.B) {
		for b.Loop() {
			must(b, c.Set(ctx, cfg))
		}
	})
}

// BenchmarkNftProgram is the floor of writing rules through the nft program.
func BenchmarkNftProgram(b *testing.B) {
	for b.Loop() {
		must(b, exec.Command("nft", "list", "tables").Run())
	}
}
