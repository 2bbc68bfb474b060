package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"gantry/client"
)

// createCommand is how the parser prints the one command that takes arguments after --.
const createCommand = "pod create <name> <image>"

type podCreateCmd struct {
	Name  string `arg:"" placeholder:"NAME" help:"Name of the pod; need not be unique."`
	Image string `arg:"" placeholder:"IMAGE" help:"Image reference, for example docker.io/library/nginx:alpine."`

	CPU   string `name:"cpu" placeholder:"FLAVOR" help:"CPU flavor of a CPU pod: see gantry catalog cpus."`
	VCPU  int    `name:"vcpu" placeholder:"N" help:"vCPUs of a CPU pod, a power of two; 2 when not given."`
	GPU   string `name:"gpu" placeholder:"TYPE" help:"GPU type of a GPU pod: see gantry catalog gpus."`
	Count int    `name:"count" placeholder:"N" help:"GPUs of a GPU pod; 1 when not given."`

	Port       []string `sep:"none" placeholder:"8080/http" help:"Port to expose, with http or tcp; a bare number means http. May be repeated."`
	Env        []string `sep:"none" placeholder:"K=V" help:"Environment variable; K alone takes it from this environment. May be repeated."`
	EnvFile    []string `sep:"none" placeholder:"FILE" help:"File with a K=V in each line; lines that begin with # are left out. May be repeated."`
	Disk       int      `placeholder:"GB" help:"Container disk in GB."`
	DataCenter []string `sep:"none" placeholder:"ID" help:"Data center to choose from; any when not given. May be repeated."`
	Cloud      string   `placeholder:"SECURE" help:"Tier of hosts: SECURE or COMMUNITY."`
	Args       string   `placeholder:"TEXT" help:"Arguments instead of the image's own, split as a shell does. Or give them after --."`

	DryRun bool `help:"Only say whether there is room; create nothing."`
	waiting
}

func (podCreateCmd) Help() string {
	return `The pod is created when this returns: host and GPUs are reserved for it. With --wait it returns when the pod runs, or with
exit status 1, the reason and the last lines of the log when it cannot.

Examples:

    gantry pod create web docker.io/library/nginx:alpine --cpu cpu3c --vcpu 2 --port 80/http --wait
    gantry pod create train docker.io/me/train:1 --gpu "NVIDIA H100 80GB HBM3" --count 8 --env-file train.env
    gantry pod create job docker.io/library/busybox --cpu cpu3c -- sh -c 'echo hello; sleep 60'
    gantry pod create big docker.io/me/train:1 --gpu "NVIDIA B200" --count 8 --dry-run`
}

// Run creates a pod.
func (cmd podCreateCmd) Run(ctx context.Context, a *app) error {
	body, err := cmd.body(a)
	if err != nil {
		return err
	}
	c, conn, err := a.connect(false)
	if err != nil {
		return err
	}
	defer c.Close()
	if cmd.DryRun {
		plan, err := c.PlanPod(ctx, body)
		if err != nil {
			return err
		}
		return a.show(plan.Raw, func() string { return planText(plan.Value) })
	}
	pod, err := c.CreatePod(ctx, body)
	if err != nil {
		return err
	}
	if cmd.Wait {
		// Said before the wait, so that the pod can be found whatever happens now.
		_, _ = fmt.Fprintf(a.err, "created %s\n", printable(pod.Value.ID))
		if pod, err = a.await(ctx, c, pod, untilRunning(), cmd.Timeout); err != nil {
			return err
		}
	}
	return a.show(pod.Raw, func() string {
		out := podTable([]client.Pod{pod.Value}, a.now())
		for _, port := range pod.Value.Ports {
			if address := portAddress(pod.Value.ID, port, conn); address != "" {
				out += address + "\n"
			}
		}
		return out
	})
}

func planText(p client.Pod) string {
	where := orDash(p.DataCenterID)
	if p.HostID != "" {
		where += ", host " + p.HostID
	}
	return fmt.Sprintf("There is room: %s in data center %s, for %s per hour. Nothing was created.\n",
		printable(compute(p)), printable(where), dollars(p.Cost))
}

// body makes the request of the command line. What the API checks is left to it.
func (cmd podCreateCmd) body(a *app) (client.CreatePod, error) {
	body := client.CreatePod{
		Name: cmd.Name, Image: cmd.Image, Disk: cmd.Disk, Cloud: cmd.Cloud, DataCenterIDs: cmd.DataCenter, Args: cmd.Args,
	}
	switch {
	case cmd.CPU == "" && cmd.GPU == "":
		return body, usage("say --cpu FLAVOR or --gpu TYPE: see gantry catalog cpus and gantry catalog gpus")
	case cmd.CPU != "" && cmd.GPU != "":
		return body, usage("--cpu and --gpu exclude each other")
	case cmd.CPU == "" && cmd.VCPU != 0:
		return body, usage("--vcpu goes with --cpu")
	case cmd.GPU == "" && cmd.Count != 0:
		return body, usage("--count goes with --gpu")
	case cmd.Args != "" && len(a.rest) > 0:
		return body, usage("--args and arguments after -- exclude each other")
	case cmd.CPU != "":
		body.CPU = &client.CPU{ID: cmd.CPU, VCPUCount: cmd.VCPU}
		if cmd.VCPU == 0 {
			body.CPU.VCPUCount = 2
		}
	default:
		body.GPU = &client.GPU{ID: cmd.GPU, Count: cmd.Count}
		if cmd.Count == 0 {
			body.GPU.Count = 1
		}
	}
	if len(a.rest) > 0 {
		body.Args = shellJoin(a.rest)
	}
	for _, port := range cmd.Port {
		if !strings.Contains(port, "/") {
			port += "/http"
		}
		body.Ports = append(body.Ports, port)
	}
	env, err := cmd.environment(a)
	body.Env = env
	return body, err
}

// environment merges the files, in order, and then --env, where the later wins.
func (cmd podCreateCmd) environment(a *app) (map[string]string, error) {
	out := map[string]string{}
	for _, path := range cmd.EnvFile {
		if err := readEnvFile(path, out); err != nil {
			return nil, err
		}
	}
	for _, entry := range cmd.Env {
		name, value, given := strings.Cut(entry, "=")
		if name == "" {
			return nil, usage("--env must be K=V, or K alone")
		}
		if !given {
			var there bool
			if value, there = a.env(name); !there {
				return nil, usage("--env %s: there is no such variable in this environment", name)
			}
		}
		out[name] = value
	}
	if len(out) == 0 {
		return nil, nil
	}
	return out, nil
}

const maxEnvFile = 1 << 20 // bytes

func readEnvFile(path string, into map[string]string) error {
	f, err := os.Open(path)
	if err != nil {
		return usage("--env-file: %v", err)
	}
	defer func() { _ = f.Close() }()
	lines := bufio.NewScanner(io.LimitReader(f, maxEnvFile))
	lines.Buffer(nil, maxEnvFile)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSuffix(lines.Text(), "\r")
		if text := strings.TrimSpace(line); text == "" || text[0] == '#' {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		if name = strings.TrimSpace(name); !ok || name == "" {
			return usage("--env-file %s: line %d is not K=V", path, n) // the line itself may hold a secret
		}
		into[name] = value
	}
	if err := lines.Err(); err != nil {
		return usage("--env-file %s: %v", path, err)
	}
	return nil
}

// shellJoin makes one text of words that a POSIX shell splits into the same words.
func shellJoin(words []string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./_-"
	out := make([]string, len(words))
	for i, w := range words {
		if w != "" && strings.Trim(w, plain) == "" {
			out[i] = w
			continue
		}
		out[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
	}
	return strings.Join(out, " ")
}
