package inventory

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"gantry/fleet"
)

// number says where in /proc a number is: in a file, as which of its words.
type number struct {
	file string
	word int
}

// table is one that all pods of a host share, and the host with them. Pods have bounds of their own; many pods together may
// still fill it.
type table struct {
	label   string // of metrics
	what    string // it holds
	setting string // of the kernel, that bounds it
	used    number
	sizes   []number // the least counts
}

// tables are those that are watched by their use. The table of neighbors is not among them: its count includes the permanent
// entries of private networks, which its bound does not concern. Its refusals are watched instead.
var tables = []table{
	{
		"connections", "tracked connections", "net.netfilter.nf_conntrack_max",
		number{"sys/net/netfilter/nf_conntrack_count", 0},
		[]number{{"sys/net/netfilter/nf_conntrack_max", 0}},
	},
	{
		"threads", "threads", "kernel.threads-max and kernel.pid_max",
		number{"loadavg", 4},
		[]number{{"sys/kernel/threads-max", 0}, {"sys/kernel/pid_max", 0}},
	},
	{"files", "open files", "fs.file-max", number{"sys/fs/file-nr", 0}, []number{{"sys/fs/file-nr", 2}}},
}

// read returns the number below a copy of /proc; false: there is none, as while a module of the kernel is not loaded.
func (n number) read(proc string) (int64, bool) {
	text, _ := os.ReadFile(filepath.Join(proc, n.file)) // what cannot be read has no words
	words := strings.FieldsFunc(string(text), func(r rune) bool { return strings.ContainsRune(" \t\n/", r) })
	if n.word >= len(words) {
		return 0, false
	}
	v, err := strconv.ParseInt(words[n.word], 10, 64)
	return v, err == nil && v >= 0
}

// read returns how many entries the table has, and how many fit.
func (t table) read(proc string) (used, size int64, ok bool) {
	used, ok = t.used.read(proc)
	for _, n := range t.sizes {
		v, there := n.read(proc)
		if ok = ok && there && v > 0; size == 0 || v < size {
			size = v
		}
	}
	return used, size, ok
}

// Percent of a table.
const (
	tableFull  = 80 // the host says so from here on
	tableStep  = 5  // in which it says how full
	tableSlack = 5  // by which the use must fall before it says less
)

// Tables says which tables are nearly full. It is safe for concurrent use.
type Tables struct {
	Proc string           // empty: /proc
	Now  func() time.Time // nil: time.Now

	mu      sync.Mutex       // guards the fields below
	told    map[string]int64 // percent, by label
	refused int64            // neighbors so far
	full    time.Time        // when the table of neighbors was seen to refuse one; zero: never
	looked  bool             // at the neighbors
}

// neighborsTold is how long a full table of neighbors is told after the last refusal.
const neighborsTold = 10 * time.Minute

func (w *Tables) root() string {
	if w.Proc == "" {
		return "/proc"
	}
	return w.Proc
}

// Conditions tells each table that is nearly full. The scheduler keeps conditions in its log, so that they change in steps.
func (w *Tables) Conditions() []fleet.Condition {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []fleet.Condition
	for _, t := range tables {
		used, size, ok := t.read(w.root())
		percent := int64(0)
		if ok {
			percent = int64(100 * float64(used) / float64(size))
		}
		told := tableTold(w.told[t.label], percent)
		if w.told == nil {
			w.told = map[string]int64{}
		}
		if w.told[t.label] = told; told == 0 {
			continue
		}
		out = append(out, fleet.Condition{Code: "table_nearly_full", Text: fmt.Sprintf(
			"the kernel's table of %s is about %d %% full: %d of %d are used (%s)", t.what, told, size/100*told+size%100*told/100, size, t.setting)})
	}
	if w.neighborsFull() {
		out = append(out, fleet.Condition{Code: "table_nearly_full", Text: "the kernel's table of neighbors was full within the last " +
			"10 minutes: it refused entries (net.ipv4.neigh.default.gc_thresh3)"})
	}
	return out
}

// neighborsFull reports whether the table of neighbors refused an entry lately. The caller holds mu.
func (w *Tables) neighborsFull() bool {
	now := time.Now
	if w.Now != nil {
		now = w.Now
	}
	n, ok := refusedNeighbors(w.root())
	if ok {
		if w.looked && n > w.refused {
			w.full = now()
		}
		w.refused, w.looked = n, true
	}
	return !w.full.IsZero() && now().Sub(w.full) < neighborsTold
}

// refusedNeighbors counts the entries for which the kernel's table of neighbors had no room, since the host was booted; false: the kernel does not
// say it.
func refusedNeighbors(proc string) (sum int64, ok bool) {
	text, _ := os.ReadFile(filepath.Join(proc, "net/stat/arp_cache")) // what cannot be read has no lines
	lines := strings.Split(string(text), "\n")
	at := slices.Index(strings.Fields(lines[0]), "table_fulls")
	for _, line := range lines[1:] { // one for each processor
		words := strings.Fields(line)
		if at < 0 || at >= len(words) {
			continue
		}
		n, err := strconv.ParseInt(words[at], 16, 64)
		if err != nil || n < 0 {
			return 0, false
		}
		sum, ok = sum+n, true
	}
	return sum, ok
}

// tableTold returns how full a table is said to be, from what was said before; 0: nothing is.
func tableTold(told, percent int64) int64 {
	switch {
	case percent >= max(tableFull, told+tableStep):
		return percent / tableStep * tableStep
	case percent < tableFull-tableSlack:
		return 0
	case percent < told-tableSlack:
		return max(tableFull, percent/tableStep*tableStep)
	}
	return told
}

// Each tells of every table that can be read how many entries it has, and how many fit.
func (w *Tables) Each(f func(label string, used, size int64)) {
	for _, t := range tables {
		if used, size, ok := t.read(w.root()); ok {
			f(t.label, used, size)
		}
	}
}
