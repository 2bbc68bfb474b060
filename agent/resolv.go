package agent

import (
	"bufio"
	"bytes"
	"net/netip"
	"os"
	"strings"
)

// fallbackResolvers serve hosts whose own resolver listens on loopback, where no pod can reach it.
var fallbackResolvers = []string{"1.1.1.1", "8.8.8.8"}

// resolvConf returns the text of the pods' resolv.conf: the host's, without name servers on loopback.
func resolvConf(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		data = nil
	}
	var out strings.Builder
	servers := 0
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 || strings.ContainsAny(fields[0][:1], "#;") {
			continue
		}
		if fields[0] == "nameserver" {
			addr, err := netip.ParseAddr(fields[1])
			if err != nil || addr.IsLoopback() || !addr.Is4() {
				continue
			}
			servers++
		}
		out.WriteString(strings.Join(fields, " ") + "\n")
	}
	if servers == 0 {
		for _, s := range fallbackResolvers {
			out.WriteString("nameserver " + s + "\n")
		}
	}
	return out.String()
}
