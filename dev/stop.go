package dev

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// stop takes everything down, whatever was reached: the agent first, so that nothing is started any more, then what
// its pods left, while containerd is still kept running for it, then the rest. The end of ctx cuts nothing short.
func (d *dev) stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*d.cfg.tune.clean)
	defer cancel()
	d.unpublish()
	d.agent.stop()
	err := d.clean(ctx)
	d.containerd.stop()
	d.scheduler.stop()
	if d.containerd != nil {
		err = errors.Join(err, d.sweep(ctx))
	}
	if err != nil {
		return fmt.Errorf("stopped, but something was left behind: %w", err)
	}
	return nil
}

// clean lets the agent take away containers, namespaces, links, rules and mounts of this instance; its ledger keeps
// what ran, so that it runs again next time.
func (d *dev) clean(ctx context.Context) error {
	if _, err := os.Stat(d.folder.path("agent")); err != nil || d.cfg.Containerd == "" && d.containerd == nil {
		return nil // no agent ever ran here, or no containerd that could be asked
	}
	_ = waitFor(ctx, d.cfg.tune.clean/4, func() bool {
		ask, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		return d.containerdAnswers(ask) == nil
	}) // without containerd clean says itself what it could not do
	return runOnce(ctx, d.cfg.tune.clean, d.env, d.folder.path("log", "agent.log"), d.cfg.Binaries.Agent, "clean",
		"--data-dir", d.folder.path("agent"), "--containerd", d.containerdSocket(), "--logger", d.cfg.Binaries.Logger)
}
