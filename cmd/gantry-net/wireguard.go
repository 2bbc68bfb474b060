package main

import (
	"golang.org/x/sys/unix"

	"gantry/netctl/sidecar"
	"gantry/netctl/tunnel"
	"gantry/netctl/tunnel/userspace"
)

// wireguardID is the user and group that the tunnel's process becomes. It owns nothing.
const wireguardID = 0x7FFD0002

// wireguard is the tunnel of a host whose kernel has none. It opens UDP sockets and is handed a TUN device.
func wireguard() int {
	return sidecar.Main(sidecar.Program{
		Name: tunnel.Command, User: wireguardID,
		Refuse: []uint32{unix.SYS_CONNECT, unix.SYS_LISTEN, unix.SYS_EXECVE},
		Serve:  userspace.Serve,
	})
}
