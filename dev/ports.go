package dev

import (
	"fmt"
	"net"
	"strconv"
)

// The host's ports for tcp ports of pods are cut into slots, of which each dev of a machine has one: two agents that
// published the same port would take it from each other. The first port of a slot is never given to a pod: whoever
// listens there, on loopback, has the slot.
const (
	firstPodPort = 30_000
	slotPorts    = 250
	slotCount    = 40
)

// takePorts takes the slot that begins at preferred, or else the first that is free. from is 0, and the listener nil,
// when all are taken.
func takePorts(preferred int) (from int, held net.Listener) {
	starts := []int{}
	if offset := preferred - firstPodPort; offset >= 0 && offset < slotCount*slotPorts && offset%slotPorts == 0 {
		starts = append(starts, preferred)
	}
	for i := range slotCount {
		starts = append(starts, firstPodPort+i*slotPorts)
	}
	for _, start := range starts {
		if l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(start))); err == nil {
			return start, l
		}
	}
	return 0, nil
}

// portRange is the agent's setting for the slot that begins at from.
func portRange(from int) string {
	if from == 0 {
		return "0"
	}
	return fmt.Sprintf("%d-%d", from+1, from+slotPorts-1)
}
