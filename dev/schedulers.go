package dev

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"gantry/api/admin"
	"gantry/client"
)

// link is the link address of a scheduler.
func (d *dev) link(n int) string {
	return net.JoinHostPort(d.linkHost(), strconv.Itoa(d.state.Links[n-1]))
}

// linkHost is where the schedulers listen for agents and for each other.
func (d *dev) linkHost() string {
	if d.island != nil {
		return d.island.Gateway().String()
	}
	return "127.0.0.1"
}

// chooseLinks chooses a link port for each scheduler, or checks that those of before are free. A scheduler
// that is alone may move; several know each other by their addresses.
func (d *dev) chooseLinks() error {
	host := d.linkHost()
	for i := range d.state.Schedulers {
		if i < len(d.state.Links) {
			err := portFree(host, d.state.Links[i])
			switch {
			case err == nil:
				continue
			case d.state.Schedulers > 1:
				return fmt.Errorf("port %d of scheduler %d of this folder cannot be used: %w", d.state.Links[i], i+1, cause(err))
			}
			d.state.Links = d.state.Links[:i]
		}
		port, err := d.freePort(host)
		if err != nil {
			return fmt.Errorf("find a port for the link: %w", err)
		}
		d.state.Links = append(d.state.Links, port)
	}
	return nil
}

// startSchedulers starts those that are members already: they need each other.
func (d *dev) startSchedulers(ctx context.Context) {
	for n := 1; n <= d.state.Schedulers; n++ {
		if p := (part{roleScheduler, n}); n == 1 || d.state.joined(p) {
			d.startScheduler(ctx, p)
		}
	}
}

func (d *dev) startScheduler(ctx context.Context, p part) {
	listen := d.cfg.Listen
	if p.number > 1 {
		listen = strings.TrimPrefix(d.apis[p.number-1], "http://")
	}
	c := d.child(p, d.cfg.Binaries.Scheduler, "run", "--data-dir", d.folder.path(p.name()),
		"--metrics", "", "--listen", listen, "--link-listen", d.link(p.number), "--address", d.link(p.number), "--proxy-domain", ProxyDomain, "--plain-http", "--loopback-webhooks",
		"--rate-minute", strconv.Itoa(ratePerMinute), "--rate-hour", strconv.Itoa(ratePerHour), "--rate-day", strconv.Itoa(ratePerDay))
	if d.cfg.S3 != "" {
		c.args = append(c.args, "--s3-url", d.state.DataCenter+"=http://"+d.cfg.S3)
	}
	if d.cfg.ModelHub != "" {
		c.args = append(c.args, "--model-hub", d.cfg.ModelHub)
	}
	c.args = append(c.args, d.cfg.SchedulerArgs...)
	d.schedulers = append(d.schedulers, c)
	c.start(ctx)
}

// awaitSchedulers waits until the members answer, has those join that have not yet, and waits until all vote.
func (d *dev) awaitSchedulers(ctx context.Context, operator *client.Client) error {
	for n := 1; n <= d.state.Schedulers; n++ {
		p := part{roleScheduler, n}
		if n > 1 && !d.state.joined(p) {
			if err := d.joinScheduler(ctx, operator, p); err != nil {
				return err
			}
			d.startScheduler(ctx, p)
		}
		user, err := client.New(d.apis[n-1], "", "gantry-dev/"+d.cfg.Version)
		if err != nil {
			return err
		}
		name := "the scheduler"
		if d.state.Schedulers > 1 {
			name = "scheduler " + strconv.Itoa(n)
		}
		err = d.await(ctx, d.schedulers[n-1], name, user.Healthy)
		user.Close()
		if err != nil {
			return err
		}
	}
	if d.state.Schedulers == 1 {
		return nil
	}
	return d.await(ctx, d.schedulers[0], "the cluster of schedulers", func(ctx context.Context) error {
		cluster, err := operator.Cluster(ctx)
		if err != nil {
			return err
		}
		voters := 0
		for _, m := range cluster.Value.Members {
			if m.Voter {
				voters++
			}
		}
		if voters != d.state.Schedulers {
			return fmt.Errorf("%d of %d schedulers vote", voters, d.state.Schedulers)
		}
		return nil
	})
}

// joinScheduler makes a member of the cluster, once.
func (d *dev) joinScheduler(ctx context.Context, operator *client.Client, p part) error {
	token, err := operator.CreateMemberToken(ctx, admin.CreateMemberTokenRequest{TTLSeconds: 600})
	if err != nil {
		return fmt.Errorf("make a join token: %w", err)
	}
	err = d.join(ctx, p, token.Value.Token.Secret(), d.cfg.Binaries.Scheduler, "join", "--data-dir", d.folder.path(p.name()),
		"--scheduler", d.link(1), "--address", d.link(p.number), "--name", p.name())
	if err != nil {
		return fmt.Errorf("join scheduler %d: %w", p.number, err)
	}
	return nil
}

const (
	leaderEvery = 500 * time.Millisecond
	leaderLimit = 2 * time.Second // for one answer
	leads       = "this scheduler leads"
)

// watchLeader keeps leader true until ctx ends.
func (d *dev) watchLeader(ctx context.Context) {
	tick := time.NewTicker(leaderEvery)
	defer tick.Stop()
	web := &http.Client{Timeout: leaderLimit}
	defer web.CloseIdleConnections()
	for {
		now := int32(0)
		for i, api := range d.apis {
			if ok, err := leadsAt(ctx, web, api); ok && err == nil {
				now = int32(i + 1) //nolint:gosec // at most 5
			}
		}
		if d.leader.Swap(now) != now {
			d.processesChanged()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// leadsAt asks a scheduler whether it leads.
func leadsAt(ctx context.Context, web *http.Client, api string) (bool, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, api+"/healthz?verbose=true", nil)
	if err != nil {
		return false, err
	}
	res, err := web.Do(req)
	if err != nil {
		return false, err
	}
	defer func() { _ = res.Body.Close() }()
	var report struct {
		Conditions []struct{ Name, Text string }
	}
	if err := json.NewDecoder(io.LimitReader(res.Body, maxFile)).Decode(&report); err != nil {
		return false, errors.Join(err, ctx.Err())
	}
	return slices.Contains(report.Conditions, struct{ Name, Text string }{"leader", leads}), nil
}
