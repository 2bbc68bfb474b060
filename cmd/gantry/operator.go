package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"gantry/client"
)

type hostCmd struct {
	List  hostListCmd  `cmd:"" help:"List the hosts and what is used of them."`
	Get   hostGetCmd   `cmd:"" help:"Show a host."`
	Token hostTokenCmd `cmd:"" help:"Make a token with which one new host may join, once."`
}

type hostListCmd struct{}

func (hostListCmd) Help() string {
	return `Example:

    gantry host list`
}

// Run lists hosts.
func (hostListCmd) Run(ctx context.Context, a *app) error {
	c, _, err := a.connect(true)
	if err != nil {
		return err
	}
	defer c.Close()
	list, err := c.Hosts(ctx)
	if err != nil {
		return err
	}
	return a.show(list.Raw, func() string {
		var rows [][]string
		for _, h := range list.Value.Hosts {
			rows = append(rows, []string{
				h.ID, h.Name, h.DataCenterID, h.Cloud, string(h.State), fmt.Sprint(h.Pods),
				share(h.Used.MilliCPU, h.Total.MilliCPU, 1000, "cores"), share(h.Used.MemoryMB, h.Total.MemoryMB, 1000, "GB"),
				share(h.Used.DiskGB, h.Total.DiskGB, 1, "GB"), gpus(h),
			})
		}
		return table([]string{"ID", "NAME", "CENTER", "CLOUD", "STATE", "PODS", "CPU", "MEMORY", "DISK", "GPUS"}, rows)
	})
}

// share shows how much is used of how much, in units of per.
func share(used, total, per int64, unit string) string {
	return fmt.Sprintf("%.4g/%.4g %s", float64(used)/float64(per), float64(total)/float64(per), unit)
}

// gpus shows a host's devices by type, and how many of all are used.
func gpus(h client.Host) string {
	count := map[string]int{}
	for _, g := range h.GPUs {
		name := g.Type
		if g.Simulated {
			name += " (simulated)"
		}
		if g.Sick != "" {
			name += " (sick)"
		}
		count[name]++
	}
	var out []string
	for name, n := range count {
		out = append(out, fmt.Sprintf("%d × %s", n, name))
	}
	if len(out) == 0 {
		return "-"
	}
	slices.Sort(out)
	return fmt.Sprintf("%d/%d used: %s", h.UsedGPUs, len(h.GPUs), strings.Join(out, ", "))
}

type hostGetCmd struct {
	ID string `arg:"" placeholder:"ID" help:"Id of the host."`
}

func (hostGetCmd) Help() string {
	return `Example:

    gantry host get h7p3t9x5c2m6v1`
}

// Run shows a host.
func (cmd hostGetCmd) Run(ctx context.Context, a *app) error {
	c, _, err := a.connect(true)
	if err != nil {
		return err
	}
	defer c.Close()
	host, err := c.Host(ctx, cmd.ID)
	if err != nil {
		return err
	}
	return a.show(host.Raw, func() string {
		h := host.Value
		fields := [][2]string{
			{"Id", h.ID},
			{"Name", h.Name},
			{"Data center", h.DataCenterID},
			{"Cloud", h.Cloud},
			{"State", string(h.State)},
			{"Pods", fmt.Sprint(h.Pods)},
			{"CPU", share(h.Used.MilliCPU, h.Total.MilliCPU, 1000, "cores")},
			{"Memory", share(h.Used.MemoryMB, h.Total.MemoryMB, 1000, "GB")},
			{"Disk", share(h.Used.DiskGB, h.Total.DiskGB, 1, "GB")},
			{"GPUs", gpus(h)},
			{"Driver", h.Driver},
			{"CUDA", h.CUDA},
			{"Kernel", h.Kernel},
			{"Runtime", h.Runtime},
			{"Agent", h.AgentVersion},
			{"Joined", when(&h.JoinedAt)},
			{"State since", when(h.StateSince)},
		}
		text := sheet(fields)
		for _, g := range h.GPUs {
			if g.Sick != "" {
				text += printable(fmt.Sprintf("GPU %s takes no pods: %s", g.UUID, g.Sick)) + "\n"
			}
		}
		return text
	})
}

type hostTokenCmd struct {
	DataCenter string        `required:"" placeholder:"ID" help:"Data center of the new host; made when it is new."`
	Cloud      string        `enum:"SECURE,COMMUNITY" default:"SECURE" help:"Tier of the new host: SECURE or COMMUNITY."`
	TTL        time.Duration `name:"ttl" default:"1h" help:"How long the token may be used."`
}

func (hostTokenCmd) Help() string {
	return `The token goes to standard output, the rest to standard error. On the new host:

    gantry-agent join --scheduler HOST:PORT --token-file FILE

Example:

    gantry host token --data-center EU-RO-1 > token`
}

// Run makes a join token.
func (cmd hostTokenCmd) Run(ctx context.Context, a *app) error {
	if cmd.TTL < time.Second {
		return usage("--ttl must be 1s or more")
	}
	c, _, err := a.connect(true)
	if err != nil {
		return err
	}
	defer c.Close()
	token, err := c.CreateJoinToken(ctx, client.CreateJoinToken{
		DataCenterID: cmd.DataCenter, Cloud: cmd.Cloud, TTLSeconds: int64(cmd.TTL / time.Second),
	})
	if err != nil {
		return err
	}
	about := "The token lets one host join " + printable(cmd.DataCenter)
	if at := when(&token.Value.ExpiresAt); at != "" {
		about += ", until " + at
	}
	return a.showSecret(token.Raw, token.Value.Token.Reveal(), about+".")
}

type accountCmd struct {
	Create accountCreateCmd `cmd:"" help:"Make an account."`
	List   accountListCmd   `cmd:"" help:"List the accounts."`
	Key    accountKeyCmd    `cmd:"" help:"Make a key of an account, for example its first."`
}

type accountCreateCmd struct {
	Name string `arg:"" placeholder:"NAME" help:"Name of the account."`
}

func (accountCreateCmd) Help() string {
	return `Example:

    gantry account create research`
}

// Run makes an account.
func (cmd accountCreateCmd) Run(ctx context.Context, a *app) error {
	c, _, err := a.connect(true)
	if err != nil {
		return err
	}
	defer c.Close()
	account, err := c.CreateAccount(ctx, cmd.Name)
	if err != nil {
		return err
	}
	return a.show(account.Raw, func() string { return accountTable([]client.Account{account.Value}) })
}

type accountListCmd struct{}

func (accountListCmd) Help() string {
	return `Example:

    gantry account list`
}

// Run lists accounts.
func (accountListCmd) Run(ctx context.Context, a *app) error {
	c, _, err := a.connect(true)
	if err != nil {
		return err
	}
	defer c.Close()
	list, err := c.Accounts(ctx)
	if err != nil {
		return err
	}
	return a.show(list.Raw, func() string { return accountTable(list.Value.Accounts) })
}

func accountTable(accounts []client.Account) string {
	var rows [][]string
	for _, acc := range accounts {
		rows = append(rows, []string{acc.ID, acc.Name, when(&acc.CreatedAt)})
	}
	return table([]string{"ID", "NAME", "CREATED"}, rows)
}

type accountKeyCmd struct {
	Account string `arg:"" placeholder:"ACCOUNT" help:"Id of the account."`
	Name    string `default:"first" help:"Name of the key, for people."`
	Preset  string `enum:"all,readOnly,admin" default:"all" help:"What it may do: all, readOnly, or admin, which is an operator's."`
}

func (accountKeyCmd) Help() string {
	return `The key's text goes to standard output and cannot be shown again; the rest goes to standard error.

Example:

    gantry account key r4t8y2u6i1o5p9 > research.key`
}

// Run makes a key of an account.
func (cmd accountKeyCmd) Run(ctx context.Context, a *app) error {
	c, _, err := a.connect(true)
	if err != nil {
		return err
	}
	defer c.Close()
	key, err := c.CreateAccountKey(ctx, cmd.Account, client.CreateKey{Name: cmd.Name, Preset: cmd.Preset})
	if err != nil {
		return err
	}
	return a.showKey(key)
}
