package main

import (
	names "gantry/netctl/dns"
	"gantry/netctl/sidecar"
)

// dnsID is the user and group that the process for names becomes. It owns nothing.
const dnsID = 0x7FFD0001

// dns answers names, at sockets that it is handed.
func dns() int {
	return sidecar.Main(sidecar.Program{Name: names.Command, User: dnsID, Serve: names.Serve})
}
