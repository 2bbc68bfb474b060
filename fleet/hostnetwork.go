package fleet

import "time"

// HostNetwork is what an agent tells of its host's network, for people.
type HostNetwork struct {
	Desired string   `json:"desired"` // text of the desired value, one object a line
	Real    string   `json:"real"`    // the same of what the kernel has
	Steps   []string `json:"steps"`   // that lead from the one to the other, in words; empty: they agree
	// Problems say in sentences what does not work, such as a hosts' tunnel without an answer.
	Problems []string     `json:"problems"`
	Drops    []NetDrop    `json:"drops"`
	Tunnels  []TunnelPeer `json:"tunnels"`
	Tunnel   string       `json:"tunnel"` // kernel, user space, or none
}

// NetDrop counts what a rule dropped since the rules were written last.
type NetDrop struct {
	Why     string `json:"why"` // one of netctl's words, such as spoofed
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// TunnelPeer is the state of the tunnel to one other host.
type TunnelPeer struct {
	Host      HostID    `json:"host"`
	Addr      string    `json:"addr"`
	Endpoint  string    `json:"endpoint"`  // where it was heard last; empty: nowhere yet
	Handshake time.Time `json:"handshake"` // zero: none yet
	Received  int64     `json:"received"`  // bytes
	Sent      int64     `json:"sent"`
	Plain     bool      `json:"plain"` // no tunnel: the underlay is private
}

// Probe is one look from a pod to another.
type Probe struct {
	From    PodID   `json:"from"`
	To      PodID   `json:"to"`
	Addr    string  `json:"addr"`
	Millis  float64 `json:"ms"`      // of the fastest of three; 0 when none was answered
	Problem string  `json:"problem"` // why there was no answer, in a sentence; empty: there was
}
