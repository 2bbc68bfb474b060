package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

type vars map[string]any

// onAll is what Ansible is told of all machines. An inventory is JSON, which YAML includes.
func (l *lab) onAll(more vars) vars {
	all := vars{
		"ansible_user": "root", "ansible_ssh_args": "-F " + l.path("ssh_config"), // over the connections that are there
		// There is no network outside, hence no time server and no archive but the distribution's own.
		"common_time_check": "note", "host_runtime": "distribution", "host_gpus": "none",
	}
	maps.Copy(all, more)
	return all
}

// onHosts is how the lab's hosts differ from those that have GPUs: one processor and little memory have to do for the smallest pods that there
// are, and private networks want GPUs.
func onHosts() vars {
	return vars{"host_settings": vars{"overcommit": 16, "simulate-gpus": []string{simulatedGPU + ":4"}, "image-archive": []string{remoteArchive}}}
}

// onStorage makes a machine the NFS server of all.
func onStorage(m *machine) vars {
	return vars{"storage_server": m.Address, "storage_export_to": []string{"10.77.0.0/24"}}
}

// clusterInventory is that of docs/install.md.
func (l *lab) clusterInventory() vars {
	control, hosts, gateways := l.control(), vars{}, vars{}
	for _, m := range l.Machines {
		switch {
		case m.Pods:
			hosts[m.Name] = vars{}
		case m.Gateway:
			gateways[m.Name] = vars{"gateway_address": m.Address + ":8444"}
		}
	}
	return vars{"all": vars{
		"vars": l.onAll(vars{"common_debs_dir": l.debs(1), "host_runc_old": "note"}), // Debian's runc is old
		"children": vars{
			"schedulers": vars{"hosts": vars{control.Name: vars{"scheduler_address": control.Address + ":8443"}}},
			"gateways":   vars{"hosts": gateways, "vars": vars{"gateway_settings": vars{"proxy-domain": proxyDomain}}},
			"storage":    vars{"hosts": vars{control.Name: onStorage(control)}},
			"hosts":      vars{"hosts": hosts, "vars": onHosts()},
		},
	}}
}

// documented returns the commands of a document that its marker names, word for word.
func (l *lab) documented(file, name string) (string, error) {
	text, err := os.ReadFile(filepath.Join(l.root, "docs", file))
	if err != nil {
		return "", err
	}
	_, rest, ok := strings.Cut(string(text), "<!-- step: "+name+" -->\n```sh\n")
	block, _, ended := strings.Cut(rest, "\n```\n")
	if !ok || !ended {
		return "", fmt.Errorf("docs/%s has no step %s", file, name)
	}
	return block, nil
}

// scheduler runs the commands of a step on the first scheduler, as root.
func (l *lab) scheduler(ctx context.Context, file, name string) (string, error) {
	commands, err := l.documented(file, name)
	if err != nil {
		return "", err
	}
	return l.sh(ctx, l.control(), commands)
}

// play runs the commands of a step in deploy/ansible, as the document says. more is added to the last one; replace has what the document leaves
// open, each followed by what it is here.
func (l *lab) play(ctx context.Context, file, name, more string, replace ...string) (string, error) {
	commands, err := l.documented(file, name)
	if err != nil {
		return "", err
	}
	commands = strings.NewReplacer(append(replace, "-i inventory.yml", "-i "+l.path("inventory.json"))...).Replace(commands)
	timed, err := os.Create(l.path(name + ".log")) // to be read while it runs
	if err != nil {
		return "", err
	}
	stamps := &stamps{to: timed, began: time.Now()}
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", "exec 2>&1\n"+commands+more)
	cmd.Dir = filepath.Join(l.root, "deploy", "ansible")
	wholly(cmd)
	out, err := l.exec(cmd, commands+more, stamps)
	for _, line := range stamps.slowest(8) {
		l.detail("%s", line)
	}
	if err != nil {
		err = fmt.Errorf("%s\n%s", commands, tail(out, 2000))
	}
	return out, errors.Join(err, timed.Close())
}

// awaited returns an error unless a play took each of some tasks, which it may skip where there was nothing to do.
func awaited(out string, tasks ...string) error {
	for _, t := range tasks {
		if !regexp.MustCompile(`TASK \[` + regexp.QuoteMeta(t) + `\] \*+\n(skipping: .*\n)*(included|ok|changed): `).MatchString(out) {
			return fmt.Errorf("the play did not %s", t)
		}
	}
	return nil
}

// stamps writes the lines of a play with the seconds since its beginning, and keeps how long each task took.
type stamps struct {
	to    io.Writer
	began time.Time
	rest  []byte
	tasks []task
}

type task struct {
	name string
	at   time.Duration
}

func (s *stamps) Write(p []byte) (int, error) {
	s.rest = append(s.rest, p...)
	for {
		line, rest, ok := bytes.Cut(s.rest, []byte{'\n'})
		if !ok {
			return len(p), nil
		}
		s.rest = rest
		at := time.Since(s.began)
		if name, ok := bytes.CutPrefix(line, []byte("TASK [")); ok {
			s.tasks = append(s.tasks, task{strings.TrimRight(string(name), "]* "), at})
		}
		if _, err := fmt.Fprintf(s.to, "%6.1f  %s\n", at.Seconds(), line); err != nil {
			return 0, err
		}
	}
}

// slowest names the tasks that took longest.
func (s *stamps) slowest(n int) []string {
	type taken struct {
		name string
		took time.Duration
	}
	var all []taken
	for i, t := range s.tasks {
		end := time.Since(s.began)
		if i+1 < len(s.tasks) {
			end = s.tasks[i+1].at
		}
		all = append(all, taken{t.name, end - t.at})
	}
	slices.SortFunc(all, func(a, b taken) int { return cmp.Compare(b.took, a.took) })
	var lines []string
	for _, t := range all[:min(n, len(all))] {
		lines = append(lines, fmt.Sprintf("%6.1f s  %s", t.took.Seconds(), t.name))
	}
	return lines
}

var changed = regexp.MustCompile(`(?m)^(\S+)\s+:.* changed=(\d+) `)

// unchanged says that a play has changed no machine.
func unchanged(out string, machines int) error {
	found := changed.FindAllStringSubmatch(out, -1)
	if len(found) != machines {
		return fmt.Errorf("the play speaks of %d machines, not of %d", len(found), machines)
	}
	var faults []error
	for _, f := range found {
		if f[2] != "0" {
			faults = append(faults, fmt.Errorf("%s: changed=%s", f[1], f[2]))
		}
	}
	return errors.Join(faults...)
}
