package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"gantry/api/admin"
	"gantry/client"
	"gantry/fleet"
	"gantry/internal/sleep"
)

type imageCmd struct {
	List     imageListCmd     `cmd:"" help:"List the images that hosts have."`
	Prefetch imagePrefetchCmd `cmd:"" help:"Prefetch an image on hosts before a pod needs it."`
}

// imageLook is the longest pause between two looks whether hosts have an image.
const imageLook = 5 * time.Second

type imageListCmd struct {
	Host  []string `placeholder:"HOST" help:"Only this host, by id or name. May be repeated."`
	Image string   `placeholder:"REF" help:"Only this image: which hosts have it."`
}

// Run lists images.
func (cmd imageListCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	hosts, err := hostIDs(ctx, c, cmd.Host)
	if err != nil {
		return err
	}
	list, err := c.Images(ctx, cmd.Image, hosts...)
	return reply(a, list, err, func(list admin.HostImagesList) string {
		var rows [][]string
		for _, h := range list.Hosts {
			if cmd.Image != "" {
				rows = append(rows, []string{h.ID, h.Name, h.DataCenterID, yes(h.Connected), yes(h.Present != nil && *h.Present)})
				continue
			}
			for _, image := range slices.Concat(h.Images, h.Models) {
				rows = append(rows, []string{h.ID, h.Name, image})
			}
		}
		if cmd.Image != "" {
			return table([]string{"HOST", "NAME", "CENTER", "CONNECTED", "PRESENT"}, rows)
		}
		return table([]string{"HOST", "NAME", "IMAGE"}, rows)
	})
}

// hostIDs turns ids and names of hosts into ids.
func hostIDs(ctx context.Context, c *client.Client, refs []string) ([]string, error) {
	var out []string
	for _, ref := range refs {
		err := hosts.on(ctx, c, ref, func(id string) error {
			out = append(out, id)
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

type imagePrefetchCmd struct {
	Image      string        `arg:"" placeholder:"REF" help:"Image reference, such as docker.io/me/train:1. It must be readable without a credential."`
	DataCenter []string      `placeholder:"ID" help:"Only hosts of this data center. May be repeated."`
	Host       []string      `placeholder:"HOST" help:"Only this host, by id or name. May be repeated."`
	Wait       bool          `help:"Wait until all hosts that were asked have the image."`
	Timeout    time.Duration `default:"30m" help:"Stop waiting after this time; the hosts go on."`
}

// Run asks for an image.
func (cmd imagePrefetchCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	hosts, err := hostIDs(ctx, c, cmd.Host)
	if err != nil {
		return err
	}
	before := map[string]bool{} // failures of earlier requests
	if cmd.Wait {
		list, err := c.Hosts(ctx)
		if err != nil {
			return err
		}
		for _, f := range failedPrefetches(list.Value.Hosts) {
			before[f] = true
		}
	}
	asked, err := c.PrefetchImage(ctx, admin.PrefetchRequest{Image: cmd.Image, DataCenterIDs: cmd.DataCenter, HostIDs: hosts})
	if err == nil && cmd.Wait {
		err = a.awaitImage(ctx, c, asked.Value, before, cmd.Timeout)
	}
	return reply(a, asked, err, func(asked admin.Prefetch) string {
		if len(asked.Hosts) == 0 {
			return "no host could be asked\n"
		}
		var rows [][]string
		for _, h := range asked.Hosts {
			rows = append(rows, []string{h.ID, h.Name, yes(h.Present || cmd.Wait)})
		}
		return table([]string{"HOST", "NAME", "PRESENT"}, rows)
	})
}

// awaitImage looks until every host that was asked has the image, and tells how many lack it whenever that changes. A
// short absence of the API is waited through.
func (a *app) awaitImage(ctx context.Context, c *client.Client, asked admin.Prefetch, before map[string]bool, within time.Duration) error {
	var missing []string
	for _, h := range asked.Hosts {
		if !h.Present {
			missing = append(missing, h.ID)
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, within, &exitError{
		exitTimeout, fmt.Errorf("gave up waiting for image %s after %v; the hosts go on", printable(asked.Image), within),
	})
	defer cancel()
	c = c.Once() // this is a loop of its own
	told := ""
	for pause := lookMin; len(missing) > 0; pause = min(pause*3/2, imageLook) {
		list, err := c.Images(ctx, asked.Image)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil && !client.Temporary(err):
			return err
		case err == nil:
			missing = slices.DeleteFunc(missing, func(id string) bool { return hasImage(list.Value.Hosts, id) })
		}
		if err == nil && len(missing) > 0 {
			var failed error
			failed, err = prefetchFailures(ctx, c, asked.Image, missing, before)
			if failed != nil || err != nil && !client.Temporary(err) {
				return errors.Join(failed, err)
			}
		}
		if text := fmt.Sprintf("waiting for %s: %s\n", count(len(missing), "host"), strings.Join(missing, ", ")); text != told && len(missing) > 0 {
			told = text
			_, _ = a.err.Write([]byte(printable(strings.TrimSpace(text)) + "\n"))
		}
		if len(missing) == 0 {
			return nil
		}
		wait := pause
		var problem *client.Problem
		if errors.As(err, &problem) {
			wait = max(wait, min(problem.RetryAfter, time.Minute))
		}
		if err := sleep.For(ctx, wait); err != nil {
			return err
		}
	}
	return nil
}

// failedPrefetches returns what hosts say of images that they could not get.
func failedPrefetches(hosts []admin.Host) []string {
	var out []string
	for _, h := range hosts {
		for _, n := range h.Conditions {
			if n.Code == fleet.ConditionPrefetchFailed {
				out = append(out, fmt.Sprintf("%s (%s): %s", h.Name, h.ID, n.Text))
			}
		}
	}
	return out
}

// prefetchFailures returns, once each host that lacks the image has failed to get it since it was asked, why that was.
func prefetchFailures(ctx context.Context, c *client.Client, image string, missing []string, before map[string]bool) (failed, err error) {
	list, err := c.Hosts(ctx)
	if err != nil {
		return nil, err
	}
	text := ""
	for _, id := range missing {
		at := slices.IndexFunc(list.Value.Hosts, func(h admin.Host) bool { return h.ID == id })
		if at < 0 {
			return nil, nil
		}
		why := slices.DeleteFunc(failedPrefetches(list.Value.Hosts[at:at+1]), func(f string) bool {
			return before[f] || !strings.Contains(f, "image "+image+" was not prefetched")
		})
		if len(why) == 0 {
			return nil, nil
		}
		text += "\n  " + printable(why[0])
	}
	return &exitError{exitFailed, fmt.Errorf("%s cannot get image %s:%s", count(len(missing), "host"), printable(image), text)}, nil
}

// hasImage reports whether a host has the image that was asked for, or is not there to get it any more.
func hasImage(hosts []admin.HostImages, id string) bool {
	i := slices.IndexFunc(hosts, func(h admin.HostImages) bool { return h.ID == id })
	return i < 0 || hosts[i].Present != nil && *hosts[i].Present
}
