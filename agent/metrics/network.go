package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
)

var networkSeries = []seen{
	{"gantry_network_overlays", "Private networks that pods of this host are members of.", nil},
	{"gantry_network_members", "Members of these networks, on all hosts.", nil},
	{"gantry_network_dropped_packets_total", "Packets dropped, by reason, since the rules were last written.", []string{"why"}},
	{"gantry_network_names_answered", "1 while this host serves pod DNS.", nil},
	{"gantry_network_questions_total", "DNS queries from pods, by result, since the name server started.", []string{"result"}},
	{"gantry_network_tunnel_peers", "Peers of the WireGuard tunnel.", nil},
	{"gantry_network_tunnel_silent_peers", "Tunnel peers that are sent packets and had no handshake for 3 minutes.", nil},
	{"gantry_network_tunnel_received_bytes", "Bytes received through the tunnel from its present peers.", nil},
	{"gantry_network_tunnel_sent_bytes", "Bytes sent through the tunnel to its present peers.", nil},
	{"gantry_network_tunnel_oldest_handshake_seconds", "Age of the oldest last handshake among the peers.", nil},
}

// dropReasons are the words for why a packet was dropped.
var dropReasons = []string{
	"spoofed", "flooded", "foreign", "host", "denied", "closed", "scheduler", "unasked", "crowded",
}

// network tells what is known of private networks and names.
func (s *collector) network(out chan<- prometheus.Metric, gauge emit) {
	is := s.Networks()
	counter := func(name string, v uint64, label string) {
		out <- prometheus.MustNewConstMetric(s.descs[name], prometheus.CounterValue, float64(v), label)
	}
	gauge("gantry_network_overlays", float64(is.Overlays))
	gauge("gantry_network_members", float64(is.Members))
	gauge("gantry_network_names_answered", flag(is.Answers))
	gauge("gantry_network_tunnel_peers", float64(is.Peers))
	gauge("gantry_network_tunnel_silent_peers", float64(is.Silent))
	gauge("gantry_network_tunnel_received_bytes", float64(is.Received))
	gauge("gantry_network_tunnel_sent_bytes", float64(is.Sent))
	gauge("gantry_network_tunnel_oldest_handshake_seconds", is.Oldest.Seconds())
	dropped := map[string]uint64{}
	for _, d := range is.Drops {
		dropped[d.Why] = d.Packets
	}
	for _, why := range dropReasons {
		counter("gantry_network_dropped_packets_total", dropped[why], why)
	}
	for result, n := range map[string]uint64{
		"internal": is.Names.Internal, "forwarded": is.Names.Forwarded, "failed": is.Names.Failed, "refused": is.Names.Refused,
		"malformed": is.Names.Malformed, "limited": is.Names.Limited, "busy": is.Names.Busy, "closed": is.Names.Closed,
	} {
		counter("gantry_network_questions_total", n, result)
	}
}
