package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"gantry/internal/sleep"
)

const (
	simulatedGPU  = "NVIDIA H100 80GB HBM3"
	image         = "docker.io/library/busybox:latest" // that of the documents, which the hosts have without any network
	remoteArchive = "/var/lib/lab/busybox.tar"
	proxyDomain   = "pods.lab"
)

// clusterScenario is the cluster of the documents, with their names: the first machine has the scheduler and the storage, the others run pods.
func clusterScenario() *scenario {
	return &scenario{
		name:      "cluster",
		machines:  []machine{{Name: "control-1", System: "bookworm"}, {Name: "gpu-01", System: "bookworm", Pods: true}, {Name: "gpu-02", System: "bookworm", Pods: true}, {Name: "edge-1", System: "bookworm", Gateway: true}},
		inventory: (*lab).clusterInventory,
		api:       "http://127.0.0.1:8080",
		steps: []step{
			{"site", "from bare machines to a cluster, by the playbook", (*lab).site},
			{"units", "every daemon runs, with no condition but of the old runc", (*lab).units},
			{"look", "the first look and the first pod, as in docs/install.md", (*lab).look},
			{"pods", "a pod on each host, with the limits of cgroup v2", (*lab).pods},
			{"gateway", "a request to a pod through the gateway of another machine, also while there is no scheduler", (*lab).gateway},
			{"volume", "both pods on one network volume, NFSv4 of the kernel on both sides", (*lab).volume},
			{"network", "pods reach each other by name through WireGuard of the kernel", (*lab).network},
			{"again", "the playbook once more changes nothing, now that there are pods and a volume", (*lab).again},
			{"restart", "neither a restart of the scheduler nor an agent that is killed disturbs a pod", (*lab).restart},
			{"upgrade", "a second build everywhere, while pods run, write and hear each other", (*lab).upgrade},
			{"certificates", "all certificates are good; they are replaced, with their CA, and no pod notices", (*lab).certificates},
			{"drain", "a host is emptied: its pod goes on elsewhere, on the same volume and under the same name", (*lab).drain},
			{"boot", "the other host boots, while the next steps are taken", (*lab).bootHost},
			{"backup", "a back-up of the state", (*lab).backup},
			{"remove", "the empty host leaves, and nothing is left on its machine", (*lab).remove},
			{"booted", "the host that has booted has its pods again", (*lab).booted},
			{"add", "the machine comes back as a host, and gets a pod", (*lab).add},
		},
	}
}

func (l *lab) control() *machine { return l.Machines[0] }

// hosts are the machines that run pods.
func (l *lab) hosts() (all []*machine) {
	for _, m := range l.Machines {
		if m.Pods {
			all = append(all, m)
		}
	}
	return all
}

// gantry runs commands of the command line on the scheduler's machine, with the user's and the operator's key.
func (l *lab) gantry(ctx context.Context, script string) (string, error) {
	return l.sh(ctx, l.control(), "export GANTRY_API="+l.plan.api+" GANTRY_API_KEY=$(cat /root/gantry-user.key) GANTRY_ADMIN_KEY=$(cat /root/gantry-operator.key)\n"+script)
}

// await tries something until it is so.
func await(ctx context.Context, limit time.Duration, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		if sleep.For(ctx, time.Second) != nil {
			return fmt.Errorf("not within %v: %w", limit, err)
		}
	}
}

func (l *lab) site(ctx context.Context) error {
	if err := l.packages(ctx, 1); err != nil {
		return err
	}
	bare, err := l.traces(ctx, l.named("gpu-02"))
	if err != nil {
		return err
	}
	if err := bare.save(l.path("bare.json")); err != nil {
		return err
	}
	if err := l.prepare(ctx); err != nil {
		return err
	}
	_, err = l.play(ctx, "install.md", "control-site", "")
	return err
}

// prepare writes the inventory, and brings the image of the documents to the machines that run pods.
func (l *lab) prepare(ctx context.Context) error {
	text, err := json.MarshalIndent(l.plan.inventory(l), "", "  ")
	if err == nil {
		err = os.WriteFile(l.path("inventory.json"), text, 0o600)
	}
	if err != nil {
		return err
	}
	archive := l.path("busybox.tar")
	if _, err := l.local(ctx, "make an image", l.root, "go", "run", "./test/busyboximage", "--ref", image, archive); err != nil {
		return err
	}
	var all errgroup.Group
	for _, m := range l.hosts() {
		all.Go(func() error {
			_, err := l.sh(ctx, m, "mkdir -p /var/lib/lab")
			return errors.Join(err, l.put(ctx, m, remoteArchive, archive))
		})
	}
	return all.Wait()
}

func (l *lab) again(ctx context.Context) error {
	out, err := l.play(ctx, "install.md", "control-again", "")
	if err != nil {
		return err
	}
	return unchanged(out, len(l.Machines))
}

func (l *lab) units(ctx context.Context) error {
	for _, m := range l.Machines {
		units := "containerd gantry-agent"
		if m.Gateway {
			units = "gantry-gateway"
		}
		if m == l.control() {
			units += " nfs-server"
		}
		if m == l.control() || l.plan.schedulers {
			units += " gantry-scheduler"
		}
		if out, err := l.sh(ctx, m, "systemctl is-active "+units+"; systemctl is-system-running; systemctl --failed --no-legend"); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		if m.Gateway {
			continue
		}
		out, err := l.gantry(ctx, "gantry host get "+m.Name)
		if err != nil {
			return err
		}
		for line := range strings.Lines(out) {
			if strings.HasPrefix(line, "Condition") && !strings.Contains(line, "runc_old: ") {
				return fmt.Errorf("%s: %s", m.Name, line)
			}
		}
	}
	return nil
}

// look executes what the document says that a first look is, and a first pod.
func (l *lab) look(ctx context.Context) error {
	out, err := l.scheduler(ctx, "install.md", "scheduler-look")
	if err != nil {
		return err
	}
	if n := strings.Count(out, " ready "); n != 2 || strings.Count(out, " cordoned ") != 1 {
		return fmt.Errorf("there should be two hosts that are ready, and a cordoned one: %s", out)
	}
	_, err = l.scheduler(ctx, "install.md", "scheduler-pod")
	return err
}

// hears is a program that says on the volume, again and again, whether the other pod answers.
const hears = `while sleep 1; do if ping -c 1 -W 3 one.gantry.internal >/dev/null 2>&1; then echo "$(date +%s) yes"; else echo "$(date +%s) no"; fi >>/workspace/heard; done`

func (l *lab) pods(ctx context.Context) error {
	// Which host gets which pod is settled by what may take none.
	const create = `pod() {
	gantry pod create "$1" ` + image + ` --gpu "` + simulatedGPU + `" --count 2 --disk 1 --network-volume data:/workspace --global-networking --movable --wait --timeout 3m -- sh -c "$2"
}
gantry volume create data --size 10 --data-center dc-1 --wait --timeout 2m
gantry admin datacenter put dc-1 --global-network
gantry host cordon gpu-02
pod one 'exec sleep 1d'
gantry host uncordon gpu-02
gantry host cordon gpu-01
pod two '` + hears + `'
gantry host uncordon gpu-01
gantry pod list; gantry host list`
	if _, err := l.gantry(ctx, create); err != nil {
		return err
	}
	return l.limited(ctx)
}

// limited says that each host has one pod, with limits.
func (l *lab) limited(ctx context.Context) error {
	for _, m := range l.hosts() {
		out, err := l.sh(ctx, m, `cd /sys/fs/cgroup/gantry/gantry-*
set -- */
[ $# = 1 ]
head -n 3 $1/cgroup.procs $1/memory.max $1/cpu.max $1/pids.max $1/memory.swap.max
grep . /sys/fs/cgroup/gantry.slice/memory.min`)
		if err != nil {
			return err
		}
		if strings.Contains(out, "max\n") {
			return fmt.Errorf("the pod of %s lacks a limit: %s", m.Name, out)
		}
	}
	return nil
}

// answers asks the gateway for a page of a pod, which says its host's name.
const answers = `[ "$(python3 -c 'import sys, urllib.request
print(urllib.request.urlopen(urllib.request.Request("http://127.0.0.1:8081/", headers={"Host": sys.argv[1]}), timeout=20).read().decode().strip())' "$HOST")" = "$WANT" ]`

// gateway makes a pod with a page of its own and asks for it at the gateway, with and without a scheduler.
func (l *lab) gateway(ctx context.Context) error {
	id, err := l.gantry(ctx, `gantry pod create page `+image+` --cpu cpu3c --disk 1 --port 80/http -q --wait --timeout 3m -- sh -c 'mkdir /www; hostname >/www/index.html; exec httpd -f -h /www'`)
	if err != nil {
		return err
	}
	name, err := l.gantry(ctx, "gantry pod exec page -- hostname")
	if err != nil {
		return err
	}
	ask := "HOST=" + strings.TrimSpace(id) + "-80." + proxyDomain + " WANT=" + strings.TrimSpace(name) + "\n" + answers
	asked := func() error {
		return await(ctx, time.Minute, func(ctx context.Context) error {
			_, err := l.sh(ctx, l.named("edge-1"), ask)
			return err
		})
	}
	if err := asked(); err != nil {
		return err
	}
	_, err = l.sh(ctx, l.control(), "systemctl stop gantry-scheduler")
	if err == nil {
		err = asked()
	}
	_, started := l.sh(ctx, l.control(), "systemctl start gantry-scheduler")
	if err := errors.Join(err, started); err != nil {
		return err
	}
	return await(ctx, time.Minute, func(ctx context.Context) error {
		_, err := l.gantry(ctx, "gantry pod delete page")
		return err
	})
}

var nfs4 = regexp.MustCompile(`(control-1|10\.77\.0\.11):\S+ on /workspace type nfs4 \(\S*vers=4\.2`)

func (l *lab) volume(ctx context.Context) error {
	out, err := l.gantry(ctx, `gantry pod exec one -- sh -c 'echo of one >/workspace/file; mount | grep /workspace; df -h /workspace'
gantry pod exec two -- sh -c 'cat /workspace/file; echo of two >>/workspace/file; mount | grep /workspace'
gantry pod exec one -- cat /workspace/file`)
	if err != nil {
		return err
	}
	if !nfs4.MatchString(out) || !strings.HasSuffix(out, "of one\nof two\n") {
		return fmt.Errorf("the pods do not share a volume on NFSv4: %s", out)
	}
	return nil
}

func (l *lab) network(ctx context.Context) error {
	_, err := l.gantry(ctx, `gantry pod exec one -- ping -c 3 -W 5 two.gantry.internal
gantry pod exec two -- ping -c 3 -W 5 one.gantry.internal`)
	if err != nil {
		return err
	}
	return l.tunnelled(ctx)
}

// tunnelled says that the hosts' tunnels are the kernel's, and as they should be.
func (l *lab) tunnelled(ctx context.Context) error {
	script := "gantry net check\n"
	for _, m := range l.hosts() {
		script += "gantry net show " + m.Name + "\n"
	}
	out, err := l.gantry(ctx, script)
	if err != nil {
		return err
	}
	if n := len(l.hosts()); strings.Count(out, "WireGuard of the kernel") != n || strings.Count(out, "as it should be") != n {
		return fmt.Errorf("the tunnels are not as they should be: %s", out)
	}
	for _, m := range l.hosts() {
		if _, err := l.sh(ctx, m, "grep -q '^wireguard ' /proc/modules; ! pgrep -f '[g]antry-net wireguard'"); err != nil {
			return err
		}
	}
	return nil
}
