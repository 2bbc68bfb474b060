package main

import (
	"fmt"

	"golang.org/x/sys/unix"

	"gantry/internal/confine"
)

// Hidden commands: the serving process begins as confineCommand and becomes serveCommand.
const (
	confineCommand = "confine-serving"
	serveCommand   = "serve-confined"
)

// Descriptors that the serving process is born with.
const (
	listenFD  = 3
	controlFD = 4
)

// kept are the capabilities that the serving process has over files of the ids in its user namespace: it acts as their
// owner (SETUID, SETGID), also where a mode forbids (DAC_OVERRIDE), and sets their times (FOWNER).
var kept = []uintptr{unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_SETUID, unix.CAP_SETGID}

// servingAs is the serving process. Its listener and its clients' connections are sockets of the host's network: without connect,
// such a socket reaches nobody else there.
func servingAs() confine.As {
	return confine.As{
		Args: []string{"gantry-s3", serveCommand}, Files: controlFD + 1, Capabilities: kept,
		Calls: []uint32{unix.SYS_CONNECT, unix.SYS_BIND, unix.SYS_LISTEN, unix.SYS_SOCKET},
		With: []confine.CallWith{ // which connects
			{Call: unix.SYS_SENDTO, Argument: 3, Bits: unix.MSG_FASTOPEN},
			{Call: unix.SYS_SENDMSG, Argument: 2, Bits: unix.MSG_FASTOPEN},
			{Call: unix.SYS_SENDMMSG, Argument: 3, Bits: unix.MSG_FASTOPEN},
		},
	}
}

// settled says what of the confinement is not as it should be. The serving process asks itself before it serves.
func settled() error {
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("end with the supervisor: %w", err)
	}
	return confine.Settled(kept)
}
