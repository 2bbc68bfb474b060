package main

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"gantry/agent"
	"gantry/agent/pod"
	"gantry/agent/session"
	"gantry/fleet"
	"gantry/internal/agentrpc"
	"gantry/internal/pki"
	"gantry/netctl"
)

const caPath = "/admin/v1/ca"

// caStatus is what the API says of the CA.
type caStatus struct {
	CAs []struct {
		Digest, State string
	}
	Step    string
	Waiting int
	Nodes   []struct {
		Kind, ID, CA, Waits string
		EndsAt              time.Time
	}
}

func (w *world) ca() (s caStatus) {
	w.t.Helper()
	w.admin(http.MethodGet, caPath, nil, &s)
	return s
}

// waits tells for which nodes of the step are waited.
func (s caStatus) waits() (ids []string) {
	for _, n := range s.Nodes {
		if n.Waits != "" {
			ids = append(ids, n.ID)
		}
	}
	slices.Sort(ids)
	return ids
}

// awaitCA waits until a step waits for these nodes alone; no step: until it is over.
func (w *world) awaitCA(step string, ids ...string) (s caStatus) {
	w.t.Helper()
	slices.Sort(ids)
	w.eventually("the CA's replacement is at "+step, func() bool {
		s = w.ca()
		return s.Step == step && slices.Equal(s.waits(), ids)
	}, func() string { return strings.Join(append(s.waits(), "at", s.Step), " ") })
	return s
}

// node is the data folder of a host, whose agent may run in this process.
type node struct {
	w    *world
	dir  string
	id   string
	log  *syncBuffer
	stop context.CancelFunc
	done chan struct{}
}

func (w *world) hostToken() (made struct{ Token string }) {
	w.t.Helper()
	w.admin(http.MethodPost, "/admin/v1/hosts/tokens", map[string]any{"dataCenterId": "dev-1"}, &made)
	return made
}

func (w *world) links() (out []string) {
	for _, m := range w.running() {
		out = append(out, m.link)
	}
	return out
}

// tryHost joins a host with a token.
func (w *world) tryHost(token string) (*node, error) {
	n := &node{w: w, dir: w.t.TempDir(), log: &syncBuffer{}}
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	var err error
	n.id, err = session.JoinCluster(ctx, session.JoinConfig{
		Dir: n.dir, Schedulers: w.links(), Name: "host", Token: token, MachineID: n.dir, Hardware: "board", Dial: session.DialTCP,
	})
	w.t.Cleanup(n.kill)
	return n, err
}

func (w *world) host(token string) *node {
	w.t.Helper()
	n, err := w.tryHost(token)
	if err != nil {
		w.t.Fatal(err)
	}
	return n
}

// start runs the agent.
func (n *node) start() *node {
	n.w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	conf := agent.Config{
		Dir: n.dir, Schedulers: n.w.links(), Dial: session.DialTCP, Instance: "0a1b", Offer: fleet.Resources{MilliCPU: 1000, MemoryMB: 1000, DiskGB: 10},
		MachineID: n.dir, Hardware: "board", BootID: "boot", Version: "test", Containers: none{}, Network: netctl.NewFake(netctl.NewFakeKernel(), "0a1b"),
		PickSubnet: func(context.Context) (netip.Prefix, error) { return netip.MustParsePrefix("10.88.0.0/20"), nil },
		Ready:      func() {}, Log: slog.New(slog.NewTextHandler(n.log, nil)),
	}
	done := make(chan struct{})
	n.stop, n.done = cancel, done
	go func() {
		defer close(done)
		if err := agent.Run(ctx, conf); err != nil {
			n.w.t.Error(err)
		}
	}()
	return n
}

func (n *node) kill() {
	if n.stop != nil {
		n.stop()
		<-n.done
		n.stop = nil
	}
	if n.w.t.Failed() {
		n.w.t.Logf("host %s:\n%s", n.id, n.log)
	}
}

func (n *node) sessions() int { return strings.Count(n.log.String(), "session with the scheduler") }

// renews asks a scheduler for a fresh certificate with the pair in a folder.
func (w *world) renews(dir string) error {
	w.t.Helper()
	certs, err := pki.OpenStore(filepath.Join(dir, "pki"))
	if err != nil {
		w.t.Fatal(err)
	}
	creds, err := agentrpc.HostCredentials(certs)
	if err != nil {
		w.t.Fatal(err)
	}
	conn, err := grpc.NewClient("passthrough:///"+w.leader().link, grpc.WithTransportCredentials(creds))
	if err != nil {
		w.t.Fatal(err)
	}
	defer conn.Close()
	csr, err := certs.Request()
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	_, err = agentrpc.NewJoinClient(conn).Renew(ctx, &agentrpc.RenewRequest{Csr: csr})
	return err
}

// none is a container runtime that has no containers.
type none struct{ pod.Runtime }

func (none) Version(context.Context) (string, error)             { return "none", nil }
func (none) List(context.Context) ([]fleet.PodID, error)         { return nil, nil }
func (none) Images(context.Context) ([]string, error)            { return nil, nil }
func (none) Import(context.Context, io.Reader) ([]string, error) { return nil, nil }
func (none) Clean(context.Context, bool) error                   { return nil }

// TestTheCAIsReplacedInARunningCluster of three schedulers, one of which is killed meanwhile, and of hosts that are there and away.
func TestTheCAIsReplacedInARunningCluster(t *testing.T) {
	binary := build(t, "")
	w := newWorld(t, binary)
	w.join(binary, map[string]any{})
	w.join(binary, map[string]any{})
	w.awaitVoters(3)
	before, unused := w.hostToken().Token, w.hostToken().Token
	there, away := w.host(w.hostToken().Token).start(), w.host(w.hostToken().Token).start()
	w.eventually("both hosts told of their certificates", func() bool {
		s, told := w.ca(), 0
		for _, n := range s.Nodes {
			if n.CA == s.CAs[0].Digest && !n.EndsAt.IsZero() {
				told++
			}
		}
		return told == 5
	})
	away.kill()
	old := w.ca().CAs[0].Digest

	w.admin(http.MethodPost, caPath+"/rotate", nil, nil)
	if status, _, err := w.ask(w.leader(), w.keys.AdminKey, http.MethodPost, caPath+"/rotate", nil); err != nil || status != http.StatusBadRequest {
		t.Errorf("a second replacement was begun: %d %v", status, err)
	}
	s := w.awaitCA("spreads", away.id)
	if len(s.CAs) != 2 || s.CAs[0].Digest != old || s.CAs[0].State != "signs" || s.CAs[1].State != "next" {
		t.Fatalf("%+v", s)
	}
	// A host that joins knows both, and holds the step up until it has said so.
	late := w.host(w.hostToken().Token)
	leader, held := w.leader(), there.sessions()
	leader.kill()
	w.awaitCA("spreads", append([]string{away.id, late.id}, w.id(leader))...)
	leader.start()
	w.awaitCA("spreads", away.id, late.id)
	w.eventually("the host has found the next leader", func() bool { return there.sessions() > held })
	held = there.sessions()
	away.start()
	w.awaitCA("spreads", late.id)
	w.admin(http.MethodPost, caPath+"/finish", map[string]any{"step": "spreads"}, nil)
	s = w.awaitCA("renews", late.id)
	if len(s.CAs) != 2 || s.CAs[1].Digest != old || s.CAs[1].State != "retires" {
		t.Fatalf("%+v", s)
	}
	// Tokens of before and of now are good for hosts and schedulers; the old one by what the old CA said of the new one.
	w.host(before).start()
	w.host(w.hostToken().Token).start()
	copied := filepath.Join(t.TempDir(), "copy")
	if err := exec.Command("cp", "-a", late.dir, copied).Run(); err != nil {
		t.Fatal(err)
	}
	if err := w.renews(copied); err != nil {
		t.Errorf("a certificate of the old CA was refused while that is trusted: %v", err)
	}
	late.start()
	s = w.awaitCA("")
	if len(s.CAs) != 1 || s.CAs[0].Digest == old {
		t.Fatalf("%+v", s)
	}
	for _, n := range s.Nodes {
		if n.CA != s.CAs[0].Digest {
			t.Errorf("%+v has not a certificate of the new CA", n)
		}
	}
	if now := there.sessions(); now != held {
		t.Errorf("a host that was there all the time had %d more sessions", now-held)
	}
	w.eventually("a certificate of the old CA is refused", func() bool { return w.renews(copied) != nil })
	if _, err := w.tryHost(unused); err == nil || !strings.Contains(err.Error(), "make a new token") {
		t.Errorf("a token that names the old CA: %v", err)
	}
	// A member that was killed comes back with what it has on disk, and so does a new one.
	follower := w.all[0]
	if follower == w.leader() {
		follower = w.all[1]
	}
	follower.kill()
	follower.start()
	w.join(binary, map[string]any{})
	w.awaitVoters(4)
	w.eventually("nobody is away", func() bool { return len(w.ca().waits()) == 0 && !strings.Contains(problems(w.view()), "answer") })
}

func problems(c clusterView) (out string) {
	for _, m := range c.Members {
		out += m.Problem
	}
	return out
}
