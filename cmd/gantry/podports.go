package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"gantry/api/v2"
	"gantry/client"
)

// httpFlags are settings of http ports.
type httpFlags struct {
	Protect        []int    `sep:"none" placeholder:"PORT" help:"http port that takes no requests but those with a key of the account, or a link of gantry pod link. May be repeated."`
	PortTimeout    []string `sep:"none" placeholder:"PORT=SECONDS" help:"How long a request to an http port may take. May be repeated."`
	NoPortSettings bool     `help:"All http ports are public, without a time limit."`
}

// into puts what is given into a request; on an update it replaces all settings of http ports.
func (f httpFlags) into(body *v2.PodSettings) error {
	given := len(f.Protect) > 0 || len(f.PortTimeout) > 0
	switch {
	case given && f.NoPortSettings:
		return usage("--no-port-settings excludes --protect and --port-timeout")
	case !given && !f.NoPortSettings:
		return nil
	}
	body.PortSettings = []v2.PortSetting{}
	for _, port := range f.Protect {
		body.PortSettings = append(body.PortSettings, v2.PortSetting{Port: port, Access: v2.AccessKey})
	}
	for _, text := range f.PortTimeout {
		port, seconds, ok := strings.Cut(text, "=")
		number, bad := strconv.Atoi(port)
		most, wrong := strconv.Atoi(seconds)
		if !ok || bad != nil || wrong != nil {
			return usage("--port-timeout must be PORT=SECONDS, such as 8888=300")
		}
		i := slices.IndexFunc(body.PortSettings, func(p v2.PortSetting) bool { return p.Port == number })
		if i < 0 {
			i, body.PortSettings = len(body.PortSettings), append(body.PortSettings, v2.PortSetting{Port: number})
		}
		body.PortSettings[i].Timeout = most
	}
	return nil
}

// httpText says which http ports are not public, and which have a time limit.
func httpText(settings []v2.PortSetting) string {
	var out []string
	for _, one := range settings {
		var rules []string
		if one.Access == v2.AccessKey {
			rules = append(rules, "needs a key or a link")
		}
		if one.Timeout > 0 {
			rules = append(rules, fmt.Sprintf("ends requests after %d s", one.Timeout))
		}
		if len(rules) > 0 {
			out = append(out, fmt.Sprintf("%d %s", one.Port, strings.Join(rules, " and ")))
		}
	}
	return strings.Join(out, "; ")
}

type podLinkCmd struct {
	podRef
	Port int           `arg:"" placeholder:"PORT" help:"An http port of the pod."`
	For  time.Duration `default:"1h" placeholder:"1h" help:"For how long the link is good, at most 168h."`
}

// Run prints a link.
func (cmd podLinkCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	id, err := pods.id(ctx, c, cmd.Pod)
	if err != nil {
		return err
	}
	link, err := c.PodLink(ctx, id, cmd.Port, cmd.For)
	return reply(a, link, err, func(l v2.PortLink) string { return l.URL.Reveal() + "\n" })
}
