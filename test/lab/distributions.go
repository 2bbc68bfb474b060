package main

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	apiName        = "api.lab.test"
	repositoryPort = "8000"
	s3Port         = "9000"
)

// distributionsScenario is three machines of three distributions, each with a scheduler and pods, whose packages come from a repository and whose
// users come by TLS.
func distributionsScenario() *scenario {
	return &scenario{
		name: "distributions",
		machines: []machine{
			{Name: "control-1", System: "bookworm", Pods: true}, {Name: "control-2", System: "trixie", Pods: true}, {Name: "control-3", System: "noble", Pods: true},
		},
		inventory:  (*lab).distributionsInventory,
		api:        "https://" + apiName,
		schedulers: true,
		steps: []step{
			{"repository", "a signed repository of the packages, and a certificate for users", (*lab).repository},
			{"check", "the playbook tells what it would do to bare machines, and does nothing", (*lab).check},
			{"site", "from bare machines to three schedulers, by the playbook", (*lab).siteOfThree},
			{"units", "every daemon runs on each distribution, with no condition but of Debian's old runc", (*lab).units},
			{"pods", "a pod on each, with the limits of cgroup v2", (*lab).podsOfThree},
			{"volume", "all three on one network volume, NFSv4 of the kernels", (*lab).volumeOfThree},
			{"network", "all three reach each other by name through WireGuard of the kernels", (*lab).networkOfThree},
			{"again", "the playbook once more changes nothing, now that there are pods and a volume", (*lab).again},
			{"s3", "a client of S3 writes what a pod reads", (*lab).s3},
			{"leader", "the scheduler that leads stops: another one serves, and no pod notices", (*lab).leader},
			{"leave", "a scheduler leaves, its machine keeps its pod", (*lab).schedulerLeaves},
			{"join", "it comes back, as one that is added to a cluster that runs", (*lab).schedulerJoins},
			{"upgrade", "a second build from the repository, one scheduler and one host at a time", (*lab).upgradeOfThree},
			{"certificate", "users get a new certificate from schedulers that run on", (*lab).certificate},
			{"backup", "a back-up of the state, and the seal key", (*lab).backupWithSeal},
			{"restore", "the cluster is made anew from it, below pods that run", (*lab).restore},
			{"after", "the playbook after that changes nothing", (*lab).again},
		},
	}
}

func (l *lab) distributionsInventory() vars {
	schedulers, hosts := vars{}, vars{}
	for _, m := range l.Machines {
		schedulers[m.Name], hosts[m.Name] = vars{"scheduler_address": m.Address + ":8443"}, vars{}
		if m.System != "noble" { // whose runc has no published way out
			hosts[m.Name] = vars{"host_runc_old": "note"}
		}
	}
	return vars{"all": vars{
		"vars": l.onAll(vars{
			"common_source": "apt", "common_apt_uris": "http://" + l.control().Address + ":" + repositoryPort, "common_apt_signed_by": l.path("repository.asc"),
			"common_api_url": l.plan.api,
		}),
		"children": vars{
			"schedulers": vars{"hosts": schedulers, "vars": vars{
				"scheduler_listen": "0.0.0.0:443", "scheduler_tls": []vars{{"name": "api", "cert": l.path("api.crt"), "key": l.path("api.key")}},
				// An emulated processor is late as the far end of a slow network is.
				"scheduler_settings": vars{"raft-timeout": "2s"},
			}},
			"storage": vars{"hosts": vars{l.control().Name: onStorage(l.control())}, "vars": vars{
				"storage_takes_pods": true, "storage_s3": vars{"listen": "0.0.0.0:" + s3Port},
			}},
			"hosts": vars{"hosts": hosts, "vars": onHosts()},
		},
	}}
}

// operator runs commands of the command line on the machine of a scheduler, with the operator's key.
func (l *lab) operator(ctx context.Context, m *machine, script string) (string, error) {
	return l.sh(ctx, m, "export GANTRY_API="+l.plan.api+" GANTRY_ADMIN_KEY=$(cat /root/gantry-operator.key)\n"+script)
}

// bash runs a script of this machine in a folder of the lab, which is made for it.
func (l *lab) bash(ctx context.Context, folder, what, script string, args ...string) error {
	if err := os.MkdirAll(l.path(folder), 0o700); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "bash", append([]string{"-euo", "pipefail", "-c", script, what}, args...)...)
	cmd.Dir, cmd.Env = l.path(folder), append(os.Environ(), "GNUPGHOME="+l.path("gnupg"))
	wholly(cmd)
	_, err := l.exec(cmd, what, io.Discard)
	return err
}

// publish adds the packages of a build to the repository, which the first machine serves.
func (l *lab) publish(ctx context.Context, build int) error {
	if err := l.packages(ctx, build); err != nil {
		return err
	}
	err := l.bash(ctx, "repository", "make a repository", `mkdir -p pool dists/stable/main/binary-amd64
cp "$1"/*.deb pool
apt-ftparchive packages pool >dists/stable/main/binary-amd64/Packages
apt-ftparchive -o APT::FTPArchive::Release::Suite=stable -o APT::FTPArchive::Release::Components=main -o APT::FTPArchive::Release::Architectures=amd64 release dists/stable >../Release
gpg --batch --yes --clearsign --output dists/stable/InRelease ../Release
gpgconf --kill all`, l.debs(build))
	if err != nil {
		return err
	}
	return l.put(ctx, l.control(), "/srv", l.path("repository"))
}

// issue makes a certificate for users, by a CA of the lab's.
func (l *lab) issue(ctx context.Context) error {
	return l.bash(ctx, ".", "make a certificate", `openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -days 30 -CA ca.crt -CAkey ca.key -keyout api.key -out api.crt \
	-subj "/CN=$1" -addext "subjectAltName=DNS:$1" -addext basicConstraints=critical,CA:FALSE`, apiName)
}

// repository makes ready what an operator of these machines would have: a repository, a name of the API on each machine, a CA that they trust.
func (l *lab) repository(ctx context.Context) error {
	err := l.bash(ctx, "gnupg", "make a key for the repository", `chmod 0700 .
gpg --batch --passphrase '' --quick-generate-key lab@lab.test ed25519 sign never
gpg --armor --export >../repository.asc
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -days 30 -keyout ../ca.key -out ../ca.crt -subj /CN=lab`)
	if err != nil {
		return err
	}
	if err := errors.Join(l.issue(ctx), l.publish(ctx, 1), l.prepare(ctx)); err != nil {
		return err
	}
	_, err = l.sh(ctx, l.control(), "systemd-run --quiet --unit lab-repository python3 -m http.server --bind "+l.control().Address+" --directory /srv/repository "+repositoryPort)
	if err != nil {
		return err
	}
	var all errgroup.Group
	for _, m := range l.Machines {
		all.Go(func() error {
			err := l.put(ctx, m, "/usr/local/share/ca-certificates/lab.crt", l.path("ca.crt"))
			if err != nil {
				return err
			}
			_, err = l.sh(ctx, m, "update-ca-certificates >/dev/null; echo 127.0.0.1 "+apiName+" >>/etc/hosts")
			return err
		})
	}
	return all.Wait()
}

func (l *lab) check(ctx context.Context) error {
	before, err := l.allTraces(ctx)
	if err != nil {
		return err
	}
	if _, err := l.play(ctx, "install.md", "control-site", " --check --diff"); err != nil {
		return err
	}
	after, err := l.allTraces(ctx)
	for i, m := range l.Machines {
		if err == nil {
			err = after[i].beyond(before[i])
		}
		if err != nil {
			return fmt.Errorf("%s: %w", m.Name, err)
		}
	}
	return nil
}

// allTraces looks at all machines.
func (l *lab) allTraces(ctx context.Context) ([]traces, error) {
	found := make([]traces, len(l.Machines))
	var all errgroup.Group
	for i, m := range l.Machines {
		all.Go(func() (err error) {
			found[i], err = l.traces(ctx, m)
			return err
		})
	}
	return found, all.Wait()
}

func (l *lab) siteOfThree(ctx context.Context) error {
	if _, err := l.play(ctx, "install.md", "control-site", ""); err != nil {
		return err
	}
	_, err := l.members(ctx, l.control(), len(l.Machines))
	return err
}

// member is a scheduler as the command line tells.
type member struct {
	Name, Address, Version, Problem string
	Leader, Voter                   bool
	RemovedAt                       string
}

// members asks a scheduler for all of them: so many, which have to be well.
func (l *lab) members(ctx context.Context, m *machine, count int) ([]member, error) {
	out, err := l.operator(ctx, m, "gantry --output json raft members")
	if err != nil {
		return nil, err
	}
	var answer struct{ Members []member }
	if err := json.Unmarshal([]byte(out), &answer); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	well := slices.DeleteFunc(answer.Members, func(m member) bool { return !m.Voter || m.Problem != "" || m.RemovedAt != "" })
	if len(well) != count {
		return well, fmt.Errorf("there should be %d schedulers that vote and are well: %s", count, out)
	}
	return well, nil
}

// podNames are the pods, one on each machine.
var podNames = []string{"one", "two", "three"}

func (l *lab) podsOfThree(ctx context.Context) error {
	script := `pod() {
	gantry pod create "$1" ` + image + ` --gpu "` + simulatedGPU + `" --count 3 --disk 1 --network-volume data:/workspace --global-networking --wait --timeout 5m -- sh -c "$2"
}
gantry volume create data --size 10 --data-center dc-1 --wait --timeout 2m
gantry admin datacenter put dc-1 --global-network
`
	for _, name := range podNames {
		program := "exec sleep 1d"
		if name == "two" {
			program = hears
		}
		script += "pod " + name + " '" + program + "'\n"
	}
	if _, err := l.gantry(ctx, script+"gantry pod list; gantry host list"); err != nil {
		return err
	}
	return l.limited(ctx)
}

func (l *lab) volumeOfThree(ctx context.Context) error {
	for _, name := range podNames {
		out, err := l.gantry(ctx, "gantry pod exec "+name+" -- sh -c 'echo of "+name+" >>/workspace/file; mount | grep /workspace'")
		if err != nil {
			return err
		}
		if !nfs4.MatchString(out) {
			return fmt.Errorf("pod %s has no volume on NFSv4: %s", name, out)
		}
	}
	for _, name := range podNames {
		out, err := l.gantry(ctx, "gantry pod exec "+name+" -- cat /workspace/file")
		if err != nil || out != "of one\nof two\nof three\n" {
			return errors.Join(err, fmt.Errorf("pod %s reads %q", name, out))
		}
	}
	return nil
}

func (l *lab) networkOfThree(ctx context.Context) error {
	for _, from := range podNames {
		for _, to := range podNames {
			if from == to {
				continue
			}
			if _, err := l.gantry(ctx, "gantry pod exec "+from+" -- ping -c 2 -W 5 "+to+".gantry.internal"); err != nil {
				return err
			}
		}
	}
	return l.tunnelled(ctx)
}

// s3 has curl for the client, which signs.
func (l *lab) s3(ctx context.Context) error {
	_, err := l.gantry(ctx, `apt-get -qq -y --no-install-recommends install curl >/dev/null
volume=$(gantry volume list --output json | grep -o '"id": *"[^"]*"' | cut -d '"' -f 4)
secret=$(gantry s3-key create lab 2>/root/s3.access)
access=$(grep -o 'user_[^ ]*' /root/s3.access)
echo "of s3" >/tmp/stored
curl -sSf -K <(echo "user = $access:$secret") --aws-sigv4 aws:amz:dc-1:s3 -H 'x-amz-content-sha256: UNSIGNED-PAYLOAD' \
	-T /tmp/stored http://`+l.control().Address+":"+s3Port+`/$volume/stored`)
	if err != nil {
		return err
	}
	for _, name := range podNames {
		out, err := l.gantry(ctx, "gantry pod exec "+name+" -- cat /workspace/stored")
		if err != nil || out != "of s3\n" {
			return errors.Join(err, fmt.Errorf("pod %s reads %q", name, out))
		}
	}
	return nil
}

// awaitReady waits until a scheduler does what a script, which lists the hosts, wants of it, and every host is ready.
func (l *lab) awaitReady(ctx context.Context, m *machine, script string) error {
	return await(ctx, time.Minute, func(ctx context.Context) error {
		out, err := l.operator(ctx, m, script)
		if err == nil && strings.Count(out, " ready ") != len(l.Machines) {
			err = fmt.Errorf("not every host is ready: %s", out)
		}
		return err
	})
}

// leader stops the scheduler that leads, and looks at the cluster by way of another.
func (l *lab) leader(ctx context.Context) error {
	return l.undisturbed(ctx, func() error {
		members, err := l.members(ctx, l.control(), len(l.Machines))
		if err != nil {
			return err
		}
		var first, other *machine
		for _, m := range members {
			if m.Leader {
				first = l.named(m.Name)
			} else {
				other = l.named(m.Name)
			}
		}
		if first == nil || other == nil {
			return fmt.Errorf("there should be one that leads and others that do not: %+v", members)
		}
		if _, err := l.sh(ctx, first, "systemctl stop gantry-scheduler"); err != nil {
			return err
		}
		if err := l.awaitReady(ctx, other, "gantry --output json raft members; gantry host list; gantry host cordon "+first.Name+"; gantry host uncordon "+first.Name); err != nil {
			return err
		}
		if _, err := l.sh(ctx, first, "systemctl start gantry-scheduler"); err != nil {
			return err
		}
		return l.awaitMembers(ctx, len(l.Machines))
	})
}

// schedulerLeaves takes a scheduler out of the cluster and off its machine, as the document says.
func (l *lab) schedulerLeaves(ctx context.Context) error {
	remove, err := l.documented("install.md", "scheduler-leave")
	if err != nil {
		return err
	}
	purge, err := l.documented("install.md", "machine-leave")
	if err != nil {
		return err
	}
	return l.undisturbed(ctx, func() error {
		if _, err := l.sh(ctx, l.control(), strings.Replace(remove, "http://127.0.0.1:8080", l.plan.api, 1)); err != nil {
			return err
		}
		left := l.named("control-3")
		if _, err := l.sh(ctx, left, purge+`
stays=$(ls -d /etc/gantry/scheduler* /etc/gantry/tls /var/lib/gantry/scheduler* /root/gantry-* 2>/dev/null || true)
[ -z "$stays" ] || { echo "$stays"; exit 1; }`); err != nil {
			return err
		}
		if err := l.awaitReady(ctx, l.control(), "gantry host list"); err != nil {
			return err
		}
		return l.awaitMembers(ctx, len(l.Machines)-1)
	})
}

func (l *lab) schedulerJoins(ctx context.Context) error {
	return l.undisturbed(ctx, func() error { return l.siteOfThree(ctx) })
}

func (l *lab) awaitMembers(ctx context.Context, count int) error {
	return await(ctx, 2*time.Minute, func(ctx context.Context) error {
		_, err := l.members(ctx, l.control(), count)
		return err
	})
}

func (l *lab) upgradeOfThree(ctx context.Context) error {
	if err := l.publish(ctx, 2); err != nil {
		return err
	}
	version, err := l.version(2)
	if err != nil {
		return err
	}
	err = l.heardThrough(ctx, func() error {
		out, err := l.play(ctx, "upgrade.md", "control-upgrade", "")
		return errors.Join(err, awaited(out, "scheduler : Wait until it is well again", "host : Wait until it is connected again"))
	})
	if err != nil {
		return err
	}
	members, err := l.members(ctx, l.control(), len(l.Machines))
	if err != nil {
		return err
	}
	for _, m := range members {
		if m.Version != version {
			return fmt.Errorf("scheduler %s has version %s, not %s", m.Name, m.Version, version)
		}
	}
	hosts, err := l.gantry(ctx, "gantry host list --output json")
	if err == nil && strings.Count(hosts, version) != len(l.Machines) {
		err = fmt.Errorf("not every host has version %s: %s", version, hosts)
	}
	return err
}

// served is the certificate that a scheduler shows to users, and its process.
func (l *lab) served(ctx context.Context, m *machine) (cert, pid string, err error) {
	cert, err = l.sh(ctx, m, `python3 -c 'import ssl; print(ssl.get_server_certificate(("127.0.0.1", 443)))'`)
	if err == nil {
		pid, err = l.sh(ctx, m, "systemctl show -P MainPID gantry-scheduler")
	}
	return cert, pid, err
}

func (l *lab) certificate(ctx context.Context) error {
	pids := make([]string, len(l.Machines))
	for i, m := range l.Machines {
		var err error
		if _, pids[i], err = l.served(ctx, m); err != nil {
			return err
		}
	}
	if err := l.issue(ctx); err != nil {
		return err
	}
	text, err := os.ReadFile(l.path("api.crt"))
	if err != nil {
		return err
	}
	issued, _ := pem.Decode(text)
	if _, err := l.play(ctx, "install.md", "control-certificates", ""); err != nil {
		return err
	}
	for i, m := range l.Machines {
		err := await(ctx, time.Minute, func(ctx context.Context) error {
			cert, pid, err := l.served(ctx, m)
			if err != nil {
				return err
			}
			if got, _ := pem.Decode([]byte(cert)); got == nil || issued == nil || !slices.Equal(got.Bytes, issued.Bytes) || pid != pids[i] {
				return fmt.Errorf("%s serves %s as process %s; it was %s", m.Name, cert, pid, pids[i])
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	_, err = l.gantry(ctx, "gantry pod list")
	return err
}

func (l *lab) backupWithSeal(ctx context.Context) error {
	_, err := l.play(ctx, "install.md", "control-backup", " -e backup_to="+l.path("backup")+" -e backup_seal_key="+l.path("seal.key"))
	return err
}

// restore makes the cluster anew from the back-up. A pod that was made since is gone then; the others do not notice.
func (l *lab) restore(ctx context.Context) error {
	saved, err := filepath.Glob(filepath.Join(l.path("backup"), "gantry-*.snapshot"))
	if err != nil || len(saved) != 1 {
		return errors.Join(err, fmt.Errorf("there should be one back-up: %q", saved))
	}
	return l.undisturbed(ctx, func() error {
		if _, err := l.gantry(ctx, "gantry pod create later "+image+" --cpu cpu3c --wait --timeout 3m -- sleep 1d"); err != nil {
			return err
		}
		if _, err := l.play(ctx, "install.md", "control-restore", "", "snapshot=FILE", "snapshot="+saved[0], "seal_key=FILE", "seal_key="+l.path("seal.key")); err != nil {
			return err
		}
		if err := l.awaitMembers(ctx, len(l.Machines)); err != nil {
			return err
		}
		return await(ctx, 2*time.Minute, func(ctx context.Context) error {
			out, err := l.gantry(ctx, "gantry pod list; gantry host list")
			if err == nil && (strings.Contains(out, "later") || strings.Count(out, "RUNNING") != len(podNames) || strings.Count(out, " ready ") != len(l.Machines)) {
				err = fmt.Errorf("pods and hosts are not those of the copy: %s", out)
			}
			for _, m := range l.Machines {
				if err == nil {
					_, err = l.sh(ctx, m, "set -- /sys/fs/cgroup/gantry/gantry-*/*/; [ $# = 1 ]; ls -d /var/lib/gantry/scheduler.before-*")
				}
			}
			return err
		})
	})
}
