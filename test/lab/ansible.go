package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// inventory is what Ansible is told of the machines: those of docs/install.md, with the ways to these here. It is JSON, which YAML includes.
func (l *lab) inventory() ([]byte, error) {
	type vars map[string]any
	way := func(m *machine) vars {
		return vars{"ansible_host": "127.0.0.1", "ansible_port": m.SSH}
	}
	control, hosts := l.Machines[0], vars{}
	for _, m := range l.Machines[1:] {
		hosts[m.Name] = way(m)
	}
	scheduler, storage := way(control), way(control)
	scheduler["scheduler_address"] = control.Address + ":8443"
	storage["storage_server"], storage["storage_export_to"] = control.Address, []string{"10.77.0.0/24"}
	return json.MarshalIndent(vars{"all": vars{
		"vars": vars{
			"ansible_user": "root", "ansible_ssh_private_key_file": l.path("key"),
			"ansible_ssh_common_args": "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o ConnectTimeout=30",
			"common_debs_dir":         l.debs(1),
			// There is no network outside, hence no time server and no archive but Debian's own, whose runc is old.
			"common_time_check": "note", "host_runtime": "distribution", "host_runc_old": "note", "host_gpus": "none",
		},
		"children": vars{
			"schedulers": vars{"hosts": vars{control.Name: scheduler}},
			"storage":    vars{"hosts": vars{control.Name: storage}},
			"hosts": vars{"hosts": hosts, "vars": vars{"host_settings": vars{
				// One processor and little memory have to do for the smallest pods that there are. Private networks want GPUs.
				"overcommit": 16, "simulate-gpus": []string{simulatedGPU + ":2"}, "image-archive": []string{remoteArchive},
			}}},
		},
	}}, "", "  ")
}

// debs is the folder with the packages of a build.
func (l *lab) debs(build int) string { return filepath.Join(l.cache, fmt.Sprintf("debs-%d", build)) }

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

// play runs the commands of a step in deploy/ansible, as the document says. more is added to the last one.
func (l *lab) play(ctx context.Context, file, name, more string) (string, error) {
	commands, err := l.documented(file, name)
	if err != nil {
		return "", err
	}
	commands = strings.ReplaceAll(commands, "-i inventory.yml", "-i "+l.path("inventory.json"))
	script := "export ANSIBLE_HOST_KEY_CHECKING=False\n{\n" + commands + more + "\n} 2>&1 | tee " + l.path(name+".log") // to be read while it runs
	return l.local(ctx, commands+more, filepath.Join(l.root, "deploy", "ansible"), "bash", "-euo", "pipefail", "-c", script)
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
