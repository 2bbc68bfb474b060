package dev

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// stop takes everything down, whatever was reached: the agent first, so that nothing is started any more, then what
// its pods left, while containerd is still kept running for it, then the rest. The end of ctx cuts nothing short.
func (d *dev) stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*d.cfg.tune.clean)
	defer cancel()
	d.unpublish()
	d.s3.stop()
	stopAll(d.agents)
	err := d.clean(ctx)
	d.containerd.stop()
	stopAll(d.gateways)
	stopAll(d.schedulers)
	err = errors.Join(err, d.leaveIsland(ctx))
	if d.containerd != nil {
		err = errors.Join(err, d.sweep(ctx))
	}
	if err != nil {
		return fmt.Errorf("stopped, but something was left behind: %w", err)
	}
	return nil
}

// stopAll stops children side by side.
func stopAll(children []*child) {
	var all sync.WaitGroup
	for _, c := range children {
		all.Go(c.stop)
	}
	all.Wait()
}

// clean lets the agents take away containers, namespaces, links, rules and mounts of this instance; their ledgers keep
// what ran, so that it runs again next time.
func (d *dev) clean(ctx context.Context) error {
	var faults []error
	for n := d.state.Agents; n >= 1; n-- { // the first one last: it has the disks of the others' network volumes
		faults = append(faults, d.cleanAgent(ctx, part{roleAgent, n}))
	}
	return errors.Join(faults...)
}

func (d *dev) cleanAgent(ctx context.Context, p part) error {
	if _, err := os.Stat(d.folder.path(p.name())); err != nil || d.cfg.Containerd == "" && d.containerd == nil {
		return nil // no agent ever ran here, or no containerd that could be asked
	}
	_ = waitFor(ctx, d.cfg.tune.clean/4, func() bool {
		ask, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		return d.containerdAnswers(ask) == nil
	}) // without containerd clean says itself what it could not do
	shot := d.oneShot(p)
	shot.limit = d.cfg.tune.clean
	return shot.run(ctx, d.cfg.Binaries.Agent, "clean",
		"--data-dir", d.folder.path(p.name()), "--containerd", d.containerdSocket(), "--logger", d.cfg.Binaries.Logger,
		"--net", d.cfg.Binaries.Net)
}
