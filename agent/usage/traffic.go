package usage

import (
	"bufio"
	"io"
	"os"
	"strconv"
	"strings"
)

// devices tells the counters of every link of the host. It is that of the calling thread: others may be in
// another network namespace for a moment.
const devices = "/proc/thread-self/net/dev"

// Traffic is what went through a pod's link since it was made, in bytes, as the pod sees it.
type Traffic struct{ Received, Sent uint64 }

// readTraffic reads the counters of all links at once; nil when they cannot be read. The host's end of a link
// receives what the pod sends.
func readTraffic() map[string]Traffic {
	f, err := os.Open(devices)
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	return parseTraffic(f)
}

func parseTraffic(r io.Reader) map[string]Traffic {
	const sentAt = 8 // fields after the name: 8 of what the host's end receives, then those of what it sends
	out := map[string]Traffic{}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		name, rest, _ := strings.Cut(lines.Text(), ":")
		fields := strings.Fields(rest)
		if len(fields) <= sentAt {
			continue
		}
		in, err1 := strconv.ParseUint(fields[0], 10, 64)
		got, err2 := strconv.ParseUint(fields[sentAt], 10, 64)
		if err1 == nil && err2 == nil {
			out[strings.TrimSpace(name)] = Traffic{Received: got, Sent: in}
		}
	}
	return out
}
