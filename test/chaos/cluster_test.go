package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"gantry/api/admin"
	"gantry/test/chaos/faultdisk"
	"gantry/test/chaos/lab"
	"gantry/test/simhosts/simhost"
)

const (
	apiPort  = ":8080"
	linkPort = ":8443"
	upTime   = 30 * time.Second // for a healthy cluster after any fault
	dataName = "data"

	fewEntries = 300 // that a healthy follower may be behind, by what was heard of it last
)

// member is one scheduler: a process, its machine and its disk.
type member struct {
	name  string
	place *lab.Place
	disk  *faultdisk.Disk
	data  string // folder on the disk
	log   string
	proc  *lab.Proc // nil before the first start
	id    string
}

func (m *member) api() string  { return "http://" + m.place.Addr + apiPort }
func (m *member) link() string { return m.place.Addr + linkPort }

// cluster is schedulers, hosts and who calls them.
type cluster struct {
	name    string
	clients *lab.Place
	web     *web
	keys    struct{ ClusterID, AdminKey, AccountID, APIKey string }
	members []*member
	agents  []*agent

	machines int // for schedulers, ever

	sims     []*simhost.Fleet
	answer   atomic.Pointer[func(place int, job []byte) []byte] // of the simulated hosts' workers; nil: there are none
	simPlace []*lab.Place
	stopSims context.CancelFunc
	simsDone chan struct{}
}

// startCluster makes a cluster of so many schedulers and so many simulated hosts, which stand in three places.
func startCluster(name string, schedulers, hosts int) (*cluster, error) {
	c := &cluster{name: name}
	var err error
	if c.clients, err = suite.lab.Place(name + "-clients"); err != nil {
		return nil, err
	}
	c.web = newWeb(c.clients)
	for range schedulers {
		m, err := c.newMember()
		if err != nil {
			return nil, err
		}
		if len(c.members) == 0 {
			err = c.found(m)
		} else {
			err = c.join(m)
		}
		if err != nil {
			return nil, errors.Join(err, errors.New(readTail(m.log, 2<<10)))
		}
		c.members = append(c.members, m)
	}
	if err := until(upTime, c.whole); err != nil {
		return c, err
	}
	return c, c.startSims(hosts)
}

// newMember makes a machine with a disk.
func (c *cluster) newMember() (*member, error) {
	c.machines++
	m := &member{name: fmt.Sprintf("%s-s%d", c.name, c.machines)}
	dir := filepath.Join(suite.lab.Dir, m.name)
	err := os.Mkdir(dir, 0o700)
	if err != nil {
		return nil, err
	}
	m.log = filepath.Join(dir, "log")
	if m.disk, err = faultdisk.Mount(filepath.Join(dir, "disk"), filepath.Join(dir, "store")); err != nil {
		return nil, err
	}
	suite.lab.Keep(m.disk)
	m.data = filepath.Join(m.disk.Dir, dataName)
	m.place, err = suite.lab.Place(m.name)
	return m, err
}

// tool runs gantry-scheduler to its end on a member's machine.
func (m *member) tool(args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), upTime)
	defer cancel()
	_, errs, err := m.place.Run(ctx, lab.Spec{Path: binary("gantry-scheduler"), Args: args})
	if err != nil {
		return fmt.Errorf("gantry-scheduler %s: %w: %s", args[0], err, errs)
	}
	return nil
}

// found makes the cluster.
func (c *cluster) found(m *member) error {
	keys := filepath.Join(filepath.Dir(m.log), "keys.json")
	if err := m.tool("init", "--data-dir", m.data, "--keys-file", keys, "--address", m.link(), "--name", m.name); err != nil {
		return err
	}
	text, err := os.ReadFile(keys)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, &c.keys); err != nil {
		return err
	}
	return c.begin(m)
}

// join adds a scheduler to the cluster.
func (c *cluster) join(m *member) error {
	token, err := c.memberToken(map[string]any{})
	if err != nil {
		return err
	}
	if err := c.joinWith(m, token); err != nil {
		return err
	}
	return c.begin(m)
}

// memberToken asks for a token with which a scheduler may join.
func (c *cluster) memberToken(body map[string]any) (string, error) {
	var token admin.JoinToken
	err := c.admin(http.MethodPost, "/admin/v1/cluster/tokens", body, &token)
	return token.Token.Reveal(), err
}

func (c *cluster) joinWith(m *member, token string) error {
	file := filepath.Join(filepath.Dir(m.log), "token")
	if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
		return err
	}
	args := []string{"join", "--data-dir", m.data, "--token-file", file, "--address", m.link(), "--name", m.name}
	for _, peer := range c.members {
		args = append(args, "--scheduler", peer.link())
	}
	return m.tool(args...)
}

// begin starts a member's daemon.
func (c *cluster) begin(m *member) error {
	var err error
	m.proc, err = m.place.Start(m.name, lab.Spec{
		Path: binary("gantry-scheduler"), Log: m.log,
		Args: []string{
			"run", "--data-dir", m.data, "--listen", m.place.Addr + apiPort, "--link-listen", m.link(), "--plain-http",
			"--rate-minute", "0", "--rate-hour", "0", "--rate-day", "0", "--rate-failures", "0", "--stop-grace", "1s",
			"--snapshot-every", "2000",
		},
		Watchdog: watchdogTime,
	})
	if err != nil {
		return err
	}
	if m.id == "" {
		id, err := os.ReadFile(filepath.Join(m.data, "node-id"))
		if err != nil {
			return err
		}
		m.id = strings.TrimSpace(string(id))
	}
	return nil
}

// admin makes an operator's call at whatever scheduler answers it.
func (c *cluster) admin(method, path string, body, into any) error {
	return until(upTime, func() error {
		var faults []error
		for _, m := range c.members {
			err := c.adminAt(m, method, path, body, into)
			if err == nil {
				return nil
			}
			faults = append(faults, err)
		}
		return errors.Join(faults...)
	})
}

func (c *cluster) adminAt(m *member, method, path string, body, into any) error {
	return c.web.read(context.Background(), ask{
		base: m.api(), key: c.keys.AdminKey, method: method, path: path, body: body, limit: 8 * time.Second,
	}, into)
}

// view reads how the cluster sees itself, through one member.
func (c *cluster) view(m *member) (admin.Cluster, error) {
	var v admin.Cluster
	err := c.web.read(context.Background(), ask{
		base: m.api(), key: c.keys.AdminKey, method: http.MethodGet, path: "/admin/v1/cluster", limit: 3 * time.Second,
	}, &v)
	return v, err
}

// leader returns the member that leads by what any of some members say; nil: of all.
func (c *cluster) leader(asked ...*member) (*member, error) {
	if asked == nil {
		asked = c.members
	}
	var faults []error
	for _, m := range asked {
		v, err := c.view(m)
		faults = append(faults, err)
		for _, seen := range v.Members {
			if !seen.Leader {
				continue
			}
			for _, found := range c.members {
				if found.id == seen.ID {
					return found, nil
				}
			}
		}
	}
	return nil, errors.Join(append(faults, errors.New("nobody leads"))...)
}

// awaitLeader waits for a leader that some members know.
func (c *cluster) awaitLeader(limit time.Duration, asked ...*member) (*member, error) {
	var found *member
	err := until(limit, func() (err error) { found, err = c.leader(asked...); return err })
	return found, err
}

// whole fails while some member has no vote, does not answer or is behind.
func (c *cluster) whole() error {
	for _, at := range c.members {
		v, err := c.view(at)
		if err != nil {
			return err
		}
		n := 0
		for _, m := range v.Members {
			if m.RemovedAt != nil {
				continue
			}
			if n++; !m.Voter || !m.Leader && (!m.Reachable || m.Lag > fewEntries) {
				return fmt.Errorf("%s sees %s: voter %v, reachable %v, lag %d, %s", at.name, m.Name, m.Voter, m.Reachable, m.Lag, m.Problem)
			}
		}
		if n != len(c.members) {
			return fmt.Errorf("%s sees %d members of %d", at.name, n, len(c.members))
		}
	}
	return nil
}

// heal ends every fault, starts what is dead and waits until all is well again.
func (c *cluster) heal() error {
	if err := suite.lab.HealAll(); err != nil {
		return err
	}
	for _, m := range c.members {
		m.disk.Heal()
		m.proc.Resume()
	}
	return until(upTime, func() error {
		for _, m := range c.members {
			if !m.proc.Alive() {
				if err := c.begin(m); err != nil {
					return err
				}
			}
		}
		return c.whole()
	})
}

// others returns all members but one.
func (c *cluster) others(not ...*member) []*member {
	var out []*member
next:
	for _, m := range c.members {
		for _, n := range not {
			if m == n {
				continue next
			}
		}
		out = append(out, m)
	}
	return out
}

func places(members ...*member) []*lab.Place {
	var out []*lab.Place
	for _, m := range members {
		out = append(out, m.place)
	}
	return out
}

func (c *cluster) links() []string {
	var out []string
	for _, m := range c.members {
		out = append(out, m.link())
	}
	return out
}
