package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"gantry/api/v2"
	"gantry/client"
)

type clusterCmd struct {
	Create  clusterCreateCmd  `cmd:"" help:"Create a cluster: pods of one shape, each on a host of its own, with a network of their own."`
	List    listCmd           `cmd:"" help:"List your clusters."`
	Get     getCmd            `cmd:"" help:"Show a cluster, and what is wrong with which pod."`
	Rename  clusterRenameCmd  `cmd:"" help:"Give a cluster another name."`
	Restart clusterRestartCmd `cmd:"" help:"Restart all pods of a cluster together."`
	Delete  deleteAskingCmd   `cmd:"" help:"Delete clusters with their pods and networks."`
	Pods    clusterPodsCmd    `cmd:"" help:"List the pods of a cluster by rank."`
	SSH     clusterSSHCmd     `cmd:"" name:"ssh" help:"Open a shell in a pod of a cluster."`
	Exec    clusterExecCmd    `cmd:"" help:"Run a program in a pod of a cluster, or in all."`
	Logs    clusterLogsCmd    `cmd:"" help:"Show the logs of a cluster's pods."`
}

var instantClusters = noun[v2.InstantCluster, v2.ClusterList]{
	kind: "cluster", loss: "its pods and their disks", all: (*client.Client).InstantClusters, one: (*client.Client).InstantCluster, remove: (*client.Client).DeleteCluster,
	items:   func(l v2.ClusterList) []v2.InstantCluster { return l.Clusters },
	thing:   func(c v2.InstantCluster) thing { return thing{c.ID, c.Name} },
	columns: []string{"ID", "NAME", "TYPE", "STATUS", "PODS", "COMPUTE", "~DATA CENTER", "AGE"},
	row: func(c v2.InstantCluster, now time.Time) []string {
		return []string{
			c.ID, c.Name, c.Type, c.Status, fmt.Sprint(c.Compute.PodCount), clusterCompute(c), c.DataCenterID, age(now, c.CreatedAt.Time),
		}
	},
	sheet: clusterSheet,
}

func clusterCompute(c v2.InstantCluster) string {
	return fmt.Sprintf("%d × %s", c.Compute.GPUCountPerPod, c.Compute.GPUTypeID)
}

func clusterSheet(c v2.InstantCluster, _ time.Time) string {
	var by []string
	for _, status := range slices.Sorted(maps.Keys(c.Pods.ByStatus)) {
		by = append(by, fmt.Sprintf("%d %s", c.Pods.ByStatus[status], status))
	}
	fields := [][2]string{
		{"Id", c.ID},
		{"Name", c.Name},
		{"Type", c.Type},
		{"Status", c.Status},
		{"Pods", strings.Join(by, ", ")},
		{"GPUs of a pod", clusterCompute(c)},
		{"Template", string(c.Template)},
		{"Data center", c.DataCenterID},
		{"Network", c.Network.CIDR},
		{"Primary", c.Primary.PodID},
		{"SSH", string(c.Primary.SSHEndpoint)},
		{"On failure", c.OnFailure},
		{"Restarts", fmt.Sprint(c.Restarts)},
		{"Cost", fmt.Sprintf("%.2f USD per hour", c.Cost)},
		{"Created", when(&c.CreatedAt)},
	}
	for _, f := range c.Faults {
		fields = append(fields, [2]string{fmt.Sprintf("Rank %d", f.Rank), fmt.Sprintf("%s on host %s: %s", f.PodID, first(string(f.HostID), "-"), f.Reason)})
		if f.LogTail != "" {
			lines := strings.Split(strings.TrimSpace(string(f.LogTail)), "\n")
			fields = append(fields, [2]string{"", lines[len(lines)-1]})
		}
	}
	return sheet(fields)
}

// clusterRef is a cluster on the command line.
type clusterRef struct {
	Cluster string `arg:"" placeholder:"CLUSTER" help:"Id of the cluster, or its name where only one has it."`
}

type clusterCreateCmd struct {
	Name  string `arg:"" placeholder:"NAME" help:"Name of the cluster; need not be unique."`
	Image string `arg:"" optional:"" placeholder:"IMAGE" help:"Image reference. May be left to --template."`

	Type      string `placeholder:"TYPE" default:"APPLICATION" help:"What its pods are set up for: APPLICATION, TRAINING, SLURM or RAY."`
	Pods      int    `required:"" placeholder:"N" help:"Pods, 2 to 250, each on a host of its own."`
	GPU       string `name:"gpu" required:"" placeholder:"TYPE" help:"GPU type: see gantry catalog gpus."`
	Count     int    `name:"count" default:"1" placeholder:"N" help:"GPUs of each pod."`
	OnFailure string `placeholder:"WHAT" help:"What is done when a pod fails: none (the default), restart all pods, or stop all pods."`
	Template  string `placeholder:"ID" help:"Template for what is not given here: its id, or the name of one of yours."`
	containerFlags
	mountFlags
	DataCenter     []string `sep:"none" placeholder:"ID" help:"Data center to choose one from; any when not given. May be repeated."`
	StartSSH       *bool    `name:"ssh" negatable:"" help:"Give the pods the account's SSH keys, as PUBLIC_KEY."`
	Jupyter        *bool    `name:"jupyter" negatable:"" help:"Give the pods a password for Jupyter, as JUPYTER_PASSWORD."`
	DryRun         bool     `help:"Only say whether there is room; create nothing."`
	IdempotencyKey string   `placeholder:"TEXT" help:"Idempotency key: run again with it within a day, the command creates nothing new."`
}

// Run creates a cluster.
func (cmd clusterCreateCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	settings, err := cmd.read(ctx, a, c)
	if err != nil {
		return err
	}
	body := v2.CreateClusterRequest{
		Name: cmd.Name, Type: cmd.Type, OnFailure: cmd.OnFailure, DataCenterIDs: cmd.DataCenter, StartSSH: cmd.StartSSH, StartJupyter: cmd.Jupyter,
		Compute: v2.ClusterCompute{GPUTypeID: cmd.GPU, GPUCountPerPod: cmd.Count, PodCount: cmd.Pods},
		Args:    settings.Args, Disk: settings.Disk, Ports: settings.Ports, Env: settings.Env, Registry: settings.Registry,
	}
	if cmd.Image != "" {
		body.Image = &cmd.Image
	}
	if body.Mounts, err = cmd.mounts(ctx, c); err != nil {
		return err
	}
	if cmd.Template != "" {
		if body.TemplateID, err = templates.id(ctx, c, cmd.Template); err != nil {
			return err
		}
	}
	if cmd.DryRun {
		plan, err := c.PlanCluster(ctx, body)
		return reply(a, plan, err, func(v2.InstantCluster) string { return "There is room for all pods.\n" })
	}
	made, err := instantClusters.create(a, c, cmd.IdempotencyKey, func(c *client.Client) (client.Answer[v2.InstantCluster], error) {
		return c.CreateCluster(ctx, body)
	})
	return instantClusters.show(a, made, err)
}

type clusterRenameCmd struct {
	clusterRef
	Name string `arg:"" placeholder:"NAME" help:"The new name."`
}

// Run renames a cluster.
func (cmd clusterRenameCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	return instantClusters.on(ctx, c, cmd.Cluster, func(id string) error {
		record, err := c.RenameCluster(ctx, id, cmd.Name)
		return instantClusters.show(a, record, err)
	})
}

type clusterRestartCmd struct{ clusterRef }

// Run restarts a cluster.
func (cmd clusterRestartCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	return instantClusters.on(ctx, c, cmd.Cluster, func(id string) error {
		record, err := c.RestartCluster(ctx, id)
		return instantClusters.show(a, record, err)
	})
}

type clusterPodsCmd struct{ clusterRef }

// Run lists pods.
func (cmd clusterPodsCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	return instantClusters.on(ctx, c, cmd.Cluster, func(id string) error {
		list, err := c.ClusterPods(ctx, id)
		return reply(a, list, err, func(l v2.PodList) string {
			var rows [][]string
			for _, p := range l.Pods {
				rows = append(rows, []string{
					fmt.Sprint(rankOf(p)), p.ID, string(p.Status), first(p.Cluster.Role, "-"), first(p.Cluster.IP, "-"), first(p.Cluster.Fabric, "-"), first(string(p.HostID), "-"),
					first(string(p.StatusReason), "-"),
				})
			}
			return table([]string{"RANK", "ID", "STATUS", "~ROLE", "IP", "~FABRIC", "~HOST", "REASON"}, rows)
		})
	})
}

func rankOf(p v2.Pod) int {
	if p.Cluster == nil || p.Cluster.Rank == nil {
		return 0
	}
	return *p.Cluster.Rank
}

// ranks calls f with the pods of a cluster: with that of one rank or, with rank below 0, with all at once.
func (cmd clusterRef) ranks(ctx context.Context, c *client.Client, rank int, f func(v2.Pod) error) error {
	return instantClusters.on(ctx, c, cmd.Cluster, func(id string) error {
		list, err := c.ClusterPods(ctx, id)
		if err != nil {
			return err
		}
		faults, running := make([]error, len(list.Value.Pods)), sync.WaitGroup{}
		found := false
		for i, p := range list.Value.Pods {
			if rank < 0 || rankOf(p) == rank {
				found = true
				running.Go(func() { faults[i] = f(p) })
			}
		}
		if running.Wait(); !found {
			return fmt.Errorf("the cluster has no pod of rank %d", rank)
		}
		return errors.Join(faults...)
	})
}

type clusterSSHCmd struct {
	clusterRef
	Rank int `placeholder:"N" help:"Rank of the pod; 0 when not given."`
}

// Run opens a shell.
func (cmd clusterSSHCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	return cmd.ranks(ctx, c, max(cmd.Rank, 0), func(p v2.Pod) error {
		return podSSHCmd{podRef: podRef{Pod: p.ID}}.Run(ctx, a, c)
	})
}

type clusterExecCmd struct {
	clusterRef
	Rank    int      `placeholder:"N" help:"Rank of the pod; 0 when not given."`
	All     bool     `help:"Run it in all pods at once; each line begins with the rank."`
	Command []string `arg:"" optional:"" passthrough:"" placeholder:"COMMAND" help:"The program and its arguments; flags before it are gantry's."`
}

// Run runs a program.
func (cmd clusterExecCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	command := append(slices.Clone(cmd.Command), a.rest...)
	if len(command) == 0 {
		return usage("say the program after the cluster, for example: gantry cluster exec trainer --all -- nvidia-smi")
	}
	rank, out := max(cmd.Rank, 0), &sync.Mutex{}
	if cmd.All {
		rank = -1
	}
	return cmd.ranks(ctx, c, rank, func(p v2.Pod) error {
		on := *a
		if cmd.All {
			lines := [2]*rankWriter{{to: a.out, mu: out, rank: rankOf(p)}, {to: a.err, mu: out, rank: rankOf(p)}}
			on.out, on.err = lines[0], lines[1]
			defer lines[0].end()
			defer lines[1].end()
		}
		return named(on.exec(ctx, c, p.ID, v2.ExecRequest{Command: command}), fmt.Sprintf("rank %d", rankOf(p)), 1-min(rank, 0))
	})
}

// rankWriter writes whole lines, each after a rank.
type rankWriter struct {
	to   io.Writer
	mu   *sync.Mutex // of all writers to one terminal
	rank int
	rest []byte
}

// maxRankLine is from how many bytes on a line is written before its end.
const maxRankLine = 64 << 10

func (w *rankWriter) Write(p []byte) (int, error) {
	w.rest = append(w.rest, p...)
	for {
		i := bytes.IndexByte(w.rest, '\n')
		if i < 0 && len(w.rest) < maxRankLine {
			return len(p), nil
		}
		if i < 0 {
			i = len(w.rest) - 1
		}
		if err := w.line(w.rest[:i+1]); err != nil {
			return 0, err
		}
		w.rest = w.rest[i+1:]
	}
}

// line writes one line.
func (w *rankWriter) line(text []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err := fmt.Fprintf(w.to, "[%d] %s\n", w.rank, bytes.TrimSuffix(text, []byte("\n")))
	return err
}

// end writes what has no end of line.
func (w *rankWriter) end() {
	if len(w.rest) > 0 {
		_ = w.line(w.rest)
	}
}

type clusterLogsCmd struct {
	clusterRef
	Rank *int `placeholder:"N" help:"Only of the pod of this rank. Without it, of all; each line begins with the rank."`
	logFlags
}

// Run shows logs.
func (cmd clusterLogsCmd) Run(ctx context.Context, a *app, c *client.Client) error {
	rank, out := -1, &sync.Mutex{}
	if cmd.Rank != nil {
		rank = *cmd.Rank
	}
	return cmd.ranks(ctx, c, rank, func(p v2.Pod) error {
		on := *a
		if cmd.Rank == nil && a.forPeople() {
			lines := &rankWriter{to: a.out, mu: out, rank: rankOf(p)}
			on.out = lines
			defer lines.end()
		}
		return cmd.read(&on, func(q client.LogQuery, events client.LogEvents) error { return c.PodLogs(ctx, p.ID, q, events) })
	})
}
