package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
)

// traces are what of a machine an installation changes, by kind.
type traces map[string][]string

// look prints it, a kind after the other. What the system itself keeps of what it did (logs, caches, lists of packages) does not count.
const look = `export LC_ALL=C
echo '= files'
find / -xdev \( -path /var/cache -o -path /var/log -o -path /var/lib/apt -o -path /var/lib/dpkg -o -path /var/lib/systemd -o -path /srv/archive -o -path /tmp -o -path /var/tmp -o -path /root/.ansible \) -prune -o -print
echo '= owned'
cat /var/lib/dpkg/info/*.list | sed 's,^/\(s\?bin\|lib\|lib64\)/,/usr/\1/,' | sort -u
echo '= run'
find /run /dev/shm -maxdepth 1 -mindepth 1
echo '= cgroups'
find /sys/fs/cgroup -maxdepth 2 -mindepth 1 -type d -not -path '*.slice/*.s*' -not -path '*.slice/*.mount'
echo '= mounts'
findmnt -rno TARGET | grep -v '^/run/user'
echo '= links'
ip -brief link | cut -d ' ' -f 1
echo '= rules'
ip rule; ip -6 rule; ip route show table all | grep -v 'cache'
echo '= namespaces'
lsns -t net -no NS | wc -l
echo '= tables'
if command -v nft >/dev/null; then nft list tables; fi
echo '= disks'
losetup -a
echo '= processes'
ps -e -o args= | grep -v '^\[' | grep -E 'gantry|containerd-shim|runc' | grep -v grep || true
echo '= units'
systemctl list-units --all --plain --no-legend 'gantry*'; systemctl list-unit-files --no-legend 'gantry*' || true
echo '= users'
cat /etc/passwd /etc/group
echo '= packages'
dpkg-query --show --showformat='${Package}\n'`

// traces looks at a machine.
func (l *lab) traces(ctx context.Context, m *machine) (traces, error) {
	out, err := l.sh(ctx, m, look)
	if err != nil {
		return nil, err
	}
	all, kind := traces{}, ""
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "= "); ok {
			kind = name
			continue
		}
		all[kind] = append(all[kind], line)
	}
	return all, nil
}

func (t traces) save(path string) error {
	text, err := json.Marshal(t)
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o600)
}

func loadTraces(path string) (t traces, err error) {
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &t)
	}
	return t, err
}

// stays is what docs/install.md says that stays after a host has left: containerd, what its package brought, and what the lab itself put there.
var stays = map[string]*regexp.Regexp{
	"files":    regexp.MustCompile(`^(/var/lib/containerd|/opt/containerd|/etc/containerd|/etc/cni|/etc/systemd/system/.*(containerd|nftables)\.service|/etc/apparmor\.d/|/var/lib/lab)`),
	"run":      regexp.MustCompile(`^/run/(containerd|runc|netns)$`),
	"packages": regexp.MustCompile(`^(containerd|runc|nftables|libnftables1|libnftnl11|libjansson4)$`),
}

// beyond tells what is there beside what was there before.
func (t traces) beyond(before traces) error {
	var faults []error
	for kind, lines := range t {
		if kind == "owned" {
			continue
		}
		known := before[kind]
		if kind == "files" {
			known = append(slices.Clone(known), t["owned"]...)
		}
		slices.Sort(known)
		for _, line := range lines {
			if _, ok := slices.BinarySearch(known, line); ok || stays[kind] != nil && stays[kind].MatchString(line) {
				continue
			}
			faults = append(faults, fmt.Errorf("%s: %s", kind, line))
		}
	}
	return errors.Join(faults...)
}
