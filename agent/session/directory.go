package session

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"gantry/internal/atomicfile"
)

const (
	schedulersFile = "schedulers"
	maxSchedulers  = 64
	maxAddress     = 253 + 6 // bytes of a name and a port
)

// Directory knows where schedulers are: those that the operator named, and the members as a scheduler told
// them last. The latter are kept in the agent's data folder, so that a cluster is found again of which
// every member of before was replaced. It is safe for concurrent use.
type Directory struct {
	path  string
	named []string

	mu      sync.Mutex // guards the fields below
	members []string
	prefer  string // is tried next
	turn    int
}

// OpenDirectory reads what is kept in dir. A file that cannot be read counts as none: the named ones are left.
func OpenDirectory(dir string, named []string) (*Directory, error) {
	d := &Directory{path: filepath.Join(dir, schedulersFile), named: named}
	data, err := os.ReadFile(d.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the addresses of schedulers: %w", err)
	}
	d.members = addresses(strings.Fields(string(data)))
	for _, a := range named {
		if !isAddress(a) {
			return nil, fmt.Errorf("%q is no address of a scheduler: it must be HOST:PORT", a)
		}
	}
	if len(d.members)+len(named) == 0 {
		return nil, errors.New("no scheduler's address is known: name one with --scheduler")
	}
	return d, nil
}

// KnownSchedulers returns the addresses of schedulers, as HOST:PORT, that an agent with that data folder knows: those that
// the operator named and those that it was told of last.
func KnownSchedulers(dir string, named []string) []string {
	data, _ := os.ReadFile(filepath.Join(dir, schedulersFile)) // there is none before the first session
	return addresses(append(strings.Fields(string(data)), named...))
}

// addresses returns what of in may be an address, without those that are there twice.
func addresses(in []string) []string {
	var out []string
	for _, a := range in {
		if isAddress(a) && !slices.Contains(out, a) && len(out) < maxSchedulers {
			out = append(out, a)
		}
	}
	return out
}

func isAddress(a string) bool {
	host, port, _ := net.SplitHostPort(a) // empty, both, if it is none
	if host == "" || len(a) > maxAddress || strings.ContainsAny(a, " \t\r\n") {
		return false
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0
}

// learn takes the members from a scheduler; none: it did not tell.
func (d *Directory) learn(members []string) error {
	now := addresses(members)
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(now) == 0 || slices.Equal(now, d.members) {
		return nil
	}
	d.members = now
	if err := atomicfile.Write(d.path, []byte(strings.Join(now, "\n")+"\n"), 0o600); err != nil {
		return fmt.Errorf("keep the addresses of schedulers: %w", err)
	}
	return nil
}

// next returns the address to try now.
func (d *Directory) next() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if a := d.prefer; a != "" {
		d.prefer = ""
		return a
	}
	all := d.all()
	d.turn = (d.turn + 1) % len(all)
	return all[d.turn]
}

// all returns every address that is known. The caller holds mu.
func (d *Directory) all() []string { return addresses(append(slices.Clone(d.members), d.named...)) }

// Known returns every address that is known.
func (d *Directory) Known() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.all()
}

// count tells how many addresses are known, at least 1.
func (d *Directory) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.all())
}

// try has an address be the next one.
func (d *Directory) try(addr string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.prefer = addr
}

// pacing is the growing pause between tries. All schedulers that are known are asked once in reconnectMost, be most
// of them dead: with a pause as long as that after each, one that leads would be found too late.
type pacing struct{ delay time.Duration }

// stood notes how long a session stood: one that outlived the longest pause begins the pauses anew.
func (p *pacing) stood(d time.Duration, known int) {
	if d > reconnectMost/time.Duration(known) {
		p.delay = 0
	}
}

// next returns the pause from now on, for so many schedulers, at least one.
func (p *pacing) next(known int) time.Duration {
	p.delay = min(max(2*p.delay, reconnectLeast), reconnectMost/time.Duration(known))
	return p.delay/2 + rand.N(p.delay/2)
}
