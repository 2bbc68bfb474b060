package kernel

import (
	"bytes"
	"context"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestAPodLeavesTheTableOfNeighborsToOthers has a pod send to each address of its subnet, which are on its own link: the
// kernel has one table of neighbors for all namespaces, and a host whose table is full reaches no new neighbor itself.
func TestAPodLeavesTheTableOfNeighborsToOthers(t *testing.T) {
	newOutside(t)
	c := start(t, "0a1b")
	cfg := config(t, "0a1b", "10.88.16.0/20", "alpha", "beta")
	must(t, c.Set(context.Background(), cfg))
	full := overflows(t)
	var sockets [16]int
	must(t, within(ns("0a1b", "alpha"), func() (err error) {
		for i := range sockets {
			if sockets[i], err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
				return err
			}
		}
		return nil
	}))
	for began, i := time.Now(), 0; time.Since(began) < time.Second; i++ {
		k := 4 + i%4000
		_ = unix.Sendto(sockets[i%len(sockets)], []byte("x"), unix.MSG_DONTWAIT, &unix.SockaddrInet4{Port: 9, Addr: [4]byte{10, 88, byte(16 + k>>8), byte(k)}})
	}
	if n := overflows(t) - full; n != 0 {
		t.Errorf("one pod filled the host's table of neighbors: %d entries were refused", n)
	}
	for _, fd := range sockets {
		must(t, unix.Close(fd))
	}
	reaches(t, ns("0a1b", "alpha"), outsideAddr+":80", uplinkAddr)
	reaches(t, ns("0a1b", "beta"), outsideAddr+":80", uplinkAddr)
}

// overflows returns how often the kernel had no room for a neighbor.
func overflows(t *testing.T) (sum uint64) {
	t.Helper()
	text, err := os.ReadFile("/proc/1/net/stat/arp_cache") // it is shown in the first namespace alone
	must(t, err)
	at := -1
	for line := range bytes.Lines(text) {
		words := strings.Fields(string(line))
		if at < 0 {
			for i, name := range words {
				if name == "table_fulls" {
					at = i
				}
			}
			continue
		}
		n, err := strconv.ParseUint(words[at], 16, 32)
		must(t, err)
		sum += n
	}
	return sum
}
