// Command gantry-net has the parts of a host's network that are processes of their own. The agent starts them; they go on when it
// ends, and have no rights on the host.
package main

import (
	"fmt"
	"os"
)

var version = "dev" // set by the build

const usage = `gantry-net is started by gantry-agent alone:
  dns        answer pods' questions for names
  wireguard  carry pods' frames to other hosts where the kernel has no WireGuard
  version    print the version
`

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	if len(args) == 0 {
		fmt.Fprint(os.Stderr, usage)
		return 2
	}
	switch args[0] {
	case "dns":
		return dns()
	case "wireguard":
		return wireguard()
	case "version", "--version":
		fmt.Println(version)
		return 0
	default:
		fmt.Fprint(os.Stderr, usage)
		return 2
	}
}
