package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"gantry/api/admin"
	"gantry/api/v2"
	"gantry/client"
	"gantry/fleet"
	"gantry/test/simhosts/simhost"
)

const clusterLimit = 5 * time.Minute

// plane is a control plane of real processes on loopback, without limits to how often it may be asked.
type plane struct {
	flags   []string // of each scheduler, beside those that all have
	b       *testing.B
	dir     string
	members []*process
	op      *client.Client // with the operator's key
	hosts   *simhost.Fleet
}

// process is one gantry-scheduler.
type process struct {
	dir, api, link string
	metrics        string
	cmd            *exec.Cmd
	done           chan struct{}
	log            *os.File
}

// keys is what gantry-scheduler init writes.
type keys struct {
	AdminKey string `json:"adminKey"`
	APIKey   string `json:"apiKey"`
}

// binDir is where the programs are that make build makes.
func binDir() string {
	if dir := os.Getenv("BENCH_BIN"); dir != "" {
		return dir
	}
	return filepath.Join("..", "..", "bin")
}

// newPlane starts a number of schedulers and waits until all have a vote.
func newPlane(b *testing.B, members int, flags ...string) *plane {
	// The load and the hosts share the cores with what is measured: their own garbage is not the question.
	before := debug.SetGCPercent(400)
	b.Cleanup(func() { debug.SetGCPercent(before) })
	b.Helper()
	p := &plane{b: b, dir: b.TempDir(), flags: flags}
	for i := range members {
		m := &process{dir: filepath.Join(p.dir, fmt.Sprintf("scheduler-%d", i)), api: freePort(b), link: freePort(b), metrics: freePort(b)}
		p.members = append(p.members, m)
		if i == 0 {
			p.init(m)
		} else {
			p.join(m)
		}
		p.start(m)
	}
	p.until("every scheduler votes", func(ctx context.Context) bool {
		c, err := p.op.Cluster(ctx)
		voters, leads := 0, false
		for _, m := range c.Value.Members {
			leads = leads || m.Leader
			if m.Voter {
				voters++
			}
		}
		return err == nil && voters == members && leads
	})
	return p
}

// freePort returns an address of loopback on which nobody listens.
func freePort(b *testing.B) string {
	b.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	return ln.Addr().String()
}

func (p *plane) do(args ...string) {
	p.b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join(binDir(), "gantry-scheduler"), args...).CombinedOutput()
	if err != nil {
		p.b.Fatalf("gantry-scheduler %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// init makes the cluster.
func (p *plane) init(m *process) {
	p.b.Helper()
	file := filepath.Join(p.dir, "keys.json")
	p.do("init", "--data-dir", m.dir, "--keys-file", file, "--address", m.link)
	data, err := os.ReadFile(file)
	if err != nil {
		p.b.Fatal(err)
	}
	var k keys
	if err := json.Unmarshal(data, &k); err != nil {
		p.b.Fatal(err)
	}
	if p.op, err = client.New("http://"+m.api, fleet.Secret(k.AdminKey), "bench"); err != nil {
		p.b.Fatal(err)
	}
	p.b.Cleanup(p.op.Close)
}

// join makes another member.
func (p *plane) join(m *process) {
	p.b.Helper()
	var token string
	p.until("a token for a scheduler", func(ctx context.Context) bool {
		a, err := p.op.CreateMemberToken(ctx, admin.CreateMemberTokenRequest{})
		token = a.Value.Token.Reveal()
		return err == nil
	})
	file := m.dir + ".token"
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		p.b.Fatal(err)
	}
	p.do("join", "--data-dir", m.dir, "--scheduler", p.members[0].link, "--token-file", file, "--address", m.link)
}

// start runs a member until the benchmark ends. It dies with this process: the kernel ties that to the thread that
// starts it, which is kept.
func (p *plane) start(m *process) {
	p.b.Helper()
	m.cmd = exec.Command(filepath.Join(binDir(), "gantry-scheduler"), append([]string{
		"run", "--data-dir", m.dir, "--listen", m.api, "--link-listen", m.link, "--metrics", m.metrics,
		"--rate-minute", "0", "--rate-hour", "0", "--rate-day", "0",
	}, p.flags...)...)
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var err error
	if m.log, err = os.Create(m.dir + ".log"); err != nil {
		p.b.Fatal(err)
	}
	m.cmd.Stdout, m.cmd.Stderr = m.log, m.log
	m.done = make(chan struct{})
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(m.done)
		err := m.cmd.Start()
		started <- err
		if err == nil {
			_ = m.cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		p.b.Fatal(err)
	}
	p.b.Cleanup(func() { p.stop(m) })
	p.until("the API answers", func(ctx context.Context) bool {
		c, err := client.New("http://"+m.api, "", "bench")
		if err != nil {
			return false
		}
		defer c.Close()
		return c.Healthy(ctx) == nil
	})
}

// stop ends a member, and shows the end of its log when the benchmark has failed.
func (p *plane) stop(m *process) {
	_ = m.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-m.done:
	case <-time.After(30 * time.Second):
		_ = m.cmd.Process.Kill()
		<-m.done
	}
	_ = m.log.Close()
	if data, err := os.ReadFile(m.dir + ".log"); err == nil && p.b.Failed() {
		p.b.Logf("%s", data[max(0, len(data)-4000):])
	}
}

// until waits for a condition.
func (p *plane) until(what string, done func(context.Context) bool) {
	p.b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), clusterLimit)
	defer cancel()
	for !done(ctx) {
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			p.b.Fatalf("%s: not within %s", what, clusterLimit)
		}
	}
}

// settle has a number of simulated hosts join and connect, and returns how long each of the two took.
func (p *plane) settle(conf simhost.Config) (joined, connected time.Duration) {
	p.b.Helper()
	for _, m := range p.members {
		conf.Schedulers = append(conf.Schedulers, m.link)
	}
	conf.Token = simhost.Operator(p.op, "dc-1")
	p.hosts = simhost.New(conf)
	ctx, cancel := context.WithTimeout(context.Background(), clusterLimit)
	defer cancel()
	began := time.Now()
	if err := p.hosts.Join(ctx); err != nil {
		p.b.Fatal(err)
	}
	joined = time.Since(began)
	run, end := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = p.hosts.Run(run) }() // its error is that run has ended
	p.b.Cleanup(func() { end(); <-done })
	began = time.Now()
	if err := p.hosts.Until(ctx, func(c simhost.Count) bool { return c.Connected == conf.Hosts }); err != nil {
		p.b.Fatal(err)
	}
	return joined, time.Since(began)
}

// accounts makes accounts with a key each, and returns the keys.
func (p *plane) accounts(n int) []string {
	p.b.Helper()
	out := make([]string, n)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var none admin.LimitChanges
	if text, err := json.Marshal(boundless()); err != nil || json.Unmarshal(text, &none) != nil {
		p.b.Fatal("the limits cannot be read")
	}
	if _, err := p.op.SetLimits(ctx, none); err != nil {
		p.b.Fatal(err)
	}
	for i := range out {
		a, err := p.op.CreateAccount(ctx, fmt.Sprintf("bench-%d", i))
		if err != nil {
			p.b.Fatal(err)
		}
		k, err := p.op.CreateAccountKey(ctx, a.Value.ID, admin.CreateAccountKeyRequest{KeyFields: v2.KeyFields{Name: "bench"}, Preset: "all"})
		if err != nil {
			p.b.Fatal(err)
		}
		out[i] = k.Value.Text.Reveal()
	}
	return out
}

// poster returns what makes requests that create pods, for the accounts in turns and through the members in turns.
func (p *plane) poster(accounts []string, body string) func() (*http.Request, error) {
	var mu sync.Mutex
	n := 0
	return func() (*http.Request, error) {
		mu.Lock()
		i := n
		n++
		mu.Unlock()
		at := p.members[i%len(p.members)]
		req, err := http.NewRequest(http.MethodPost, "http://"+at.api+"/v2/pods", strings.NewReader(body))
		if err == nil {
			req.Header.Set("Authorization", "Bearer "+accounts[i%len(accounts)])
			req.Header.Set("Content-Type", jsonTypes)
		}
		return req, err
	}
}

// rss is how much memory a process has, in MB.
func (m *process) rss(b *testing.B) float64 {
	b.Helper()
	return m.memory(b, "VmRSS:")
}

// memory reads a line of the process's status, in MB.
func (m *process) memory(b *testing.B, name string) float64 {
	b.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", m.cmd.Process.Pid))
	if err != nil {
		b.Fatal(err)
	}
	for line := range bytes.Lines(data) {
		if f := strings.Fields(string(line)); len(f) == 3 && f[0] == name {
			kb, err := strconv.ParseFloat(f[1], 64)
			if err != nil {
				b.Fatal(err)
			}
			return kb / 1024
		}
	}
	b.Fatalf("no %s", name)
	return 0
}

// cpu is the processor time that a process has used.
func (m *process) cpu(b *testing.B) time.Duration {
	b.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", m.cmd.Process.Pid))
	if err != nil {
		b.Fatal(err)
	}
	// The name, in brackets, may hold blanks; of what follows, the 12th and the 13th are user's and system's ticks.
	f := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	ticks := 0.0
	for _, text := range f[11:13] {
		n, err := strconv.ParseFloat(text, 64)
		if err != nil {
			b.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks * float64(time.Second) / 100)
}
