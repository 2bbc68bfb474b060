package main

import (
	"gantry/netctl/companion"
	names "gantry/netctl/dns"
)

// dnsID is the user and group that the process for names becomes. It owns nothing.
const dnsID = 0x7FFD0001

// dns answers names, at sockets that it is handed.
func dns() int {
	return companion.Main(companion.Program{Name: names.Command, User: dnsID, Serve: names.Serve})
}
