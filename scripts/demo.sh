#!/usr/bin/env bash
# Shows Gantry from nothing to a running pod, a job that is answered, and away again: every step with the command that a person would type and
# the time it took. Uses the binaries in bin/, a temporary folder and a free port; needs root. Exit 0 means that every
# step worked and that nothing was left behind.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ "$(id -u)" != 0 ]; then
	command -v sudo >/dev/null || {
		echo 'demo: root is needed, to start containers' >&2
		exit 1
	}
	exec sudo -- env "PATH=$PATH" "HOME=$HOME" scripts/demo.sh "$@"
fi

export PATH="$PWD/bin:$PATH"
unset GANTRY_API GANTRY_API_KEY GANTRY_ADMIN_KEY
work=$(realpath "$(mktemp -d "${TMPDIR:-/tmp}/gantry-demo.XXXXXX")")
export XDG_STATE_HOME="$work/state" XDG_CONFIG_HOME="$work/config" # so that no dev.json and no context of this user is touched
readonly work image=docker.io/library/busybox:demo gpu='NVIDIA H100 80GB HBM3'
# What the daemons name kernel objects and sockets after.
instance=$(printf %s "$work/dev/agent" | sha256sum | cut -c1-4)
rundir=/run/gantry-$(printf %s "$work/dev" | sha256sum | cut -c1-8)
readonly instance rundir
dev_pid='' follow_pid='' finished=''

now_ms() { echo $((${EPOCHREALTIME//[^0-9]/} / 1000)); }
began=$(now_ms)
readonly began

bold() { if [ -t 1 ]; then printf '\033[1m%s\033[0m\n' "$1"; else printf '%s\n' "$1"; fi; }

title() {
	printf '\n'
	bold "$1"
}

# typed shows a command line as a person would type it.
typed() {
	local word line=''
	for word in "$@"; do
		case $word in
		*[!a-zA-Z0-9@%+=:,./_-]* | '') line+=" '${word//\'/\'\\\'\'}'" ;;
		*) line+=" $word" ;;
		esac
	done
	printf '$%s\n' "${line//$work/\$DIR}"
}

# took runs a command and tells how long it took.
took() {
	local from status=0
	from=$(now_ms)
	"$@" || status=$?
	printf '  (%d ms)\n' $(($(now_ms) - from))
	return "$status"
}

step() {
	typed "$@"
	took "$@"
}

# until_true tries a command until it succeeds: until_true SECONDS COMMAND...
until_true() {
	local deadline=$(($(now_ms) + $1 * 1000))
	shift
	until "$@"; do
		[ "$(now_ms)" -lt "$deadline" ] || return 1
		sleep 0.02
	done
}

fail() {
	printf 'demo: %s\n' "$*" >&2
	exit 1
}

stop_dev() {
	[ -n "$dev_pid" ] || return 0
	local pid=$dev_pid
	dev_pid=''
	kill -TERM "$pid" 2>/dev/null || true
	wait "$pid"
}

cleanup() {
	local status=$?
	trap - EXIT
	[ -z "$follow_pid" ] || kill -TERM "$follow_pid" 2>/dev/null || true
	stop_dev || status=1
	if [ -z "$finished" ]; then
		[ "$status" != 0 ] || status=1
		for log in "$work"/dev.out "$work"/dev/log/*.log; do
			[ -s "$log" ] || continue
			printf -- '--- end of %s\n' "${log#"$work"/}" >&2
			tail -n 20 "$log" >&2
		done
	fi
	if ! rm -rf --one-file-system "$work"; then
		printf 'demo: cannot remove %s\n' "$work" >&2
		status=1
	fi
	exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# census lists everything of this demo that the kernel has: one line for each thing.
census() {
	local id entry
	ip netns list | awk -v p="gantry-$instance-" 'index($1, p) == 1 {print "namespace " $1}'
	ip -o link show | awk -F': ' -v p="^g[a-z]$instance" '$2 ~ p {print "link " $2}'
	nft list tables | awk -v t="gantry_$instance" '$3 == t {print "rules " $2 " " $3}'
	awk -v a="$work/" -v b="$rundir/" -v c="/run/gantry-$instance/" \
		'index($5, a) == 1 || index($5, b) == 1 || index($5, c) == 1 {print "mount " $5}' /proc/self/mountinfo
	awk -v p="/run/netns/gantry-$instance-" 'index($5, p) == 1 {print "mount " $5}' /proc/self/mountinfo
	for entry in /proc/[0-9]*; do
		if { tr '\0' ' ' <"$entry/cmdline"; } 2>/dev/null | grep -qF -e "$work/dev" -e "$rundir/" -e "/run/gantry-$instance/"; then
			echo "process ${entry#/proc/} $({ tr '\0' ' ' <"$entry/cmdline"; } 2>/dev/null | cut -c1-120)"
		fi
	done
	for id in "$@"; do
		find /sys/fs/cgroup -type d -name "*$id*" -printf 'cgroup %p\n' 2>/dev/null || true
	done
	for entry in "$rundir" "/run/gantry-$instance"; do
		[ ! -e "$entry" ] || echo "folder $entry"
	done
	losetup -n -O BACK-FILE | awk -v a="$work/" 'index($1, a) == 1 {print "loop device of " $1}'
}

# seen fails unless the census has a thing of that kind now: otherwise finding none of it later would prove nothing.
seen() {
	grep -q "^$1 " <<<"$2" || fail "the census sees no $1 of a running pod: it looks for the wrong names"
}

ready() {
	kill -0 "$dev_pid" 2>/dev/null || fail 'gantry dev ended'
	[ -e "$work/dev/dev.json" ]
}

title 'An image, built offline from this machine'\''s own busybox'
step go run ./test/busyboximage --ref "$image" "$work/busybox.tar"

title 'A whole Gantry on this machine: scheduler, agent, containerd, 8 simulated GPUs'
typed gantry dev --simulate-gpus "$gpu:8" --image-archive "$work/busybox.tar" --sample-worker
gantry dev --sample-worker --data-dir "$work/dev" --listen 127.0.0.1:0 --simulate-gpus "$gpu:8" --image-archive "$work/busybox.tar" \
	>"$work/dev.out" 2>&1 &
dev_pid=$!
took until_true 90 ready || fail 'gantry dev did not come up'
api=$(jq -r .api "$work/dev/dev.json")
port=${api##*:}
readonly api port

title 'What it has'
step gantry host list
step gantry catalog cpus

title 'A CPU pod that serves HTTP'
step gantry pod create web "$image" --cpu cpu3c --vcpu 2 --port 8080/http --wait -- \
	sh -c 'httpd -f -v -p 8080 -h /www & trap "kill $!; exit 0" TERM; echo serving; wait'
web=$(gantry pod get web -o json | jq -r .id)
page="http://$web-8080.proxy.localhost:$port/"

title 'Its page, through the proxy'
fetch() { curl -fsS --resolve "$web-8080.proxy.localhost:$port:127.0.0.1" "$page"; }
typed curl "$page"
# RUNNING means that the process runs; the web server in it may need a moment more to listen.
reply() { fetch >"$work/page" 2>"$work/curl.err"; }
took until_true 10 reply || fail "the page cannot be fetched: $(cat "$work/curl.err")"
cat "$work/page"
grep -q 'Hello from a pod of Gantry' "$work/page" || fail 'the page is not the one of the pod'

title 'Its log, followed while another page is fetched'
typed gantry pod logs web -f
gantry pod logs web -f >"$work/follow" 2>"$work/follow.err" &
follow_pid=$!
lines() { [ "$(grep -c 'response:200' "$work/follow")" -ge "$1" ]; }
until_true 10 lines 1 || fail "the log does not show the first page: $(cat "$work/follow" "$work/follow.err")"
fetch >/dev/null
took until_true 10 lines 2 || fail 'the followed log does not show the second page'
kill -TERM "$follow_pid"
wait "$follow_pid" || [ $? = 130 ] || fail 'following the log ended badly'
follow_pid=''
cat "$work/follow"

title 'Where the time of its start went'
step gantry pod get web -v

title 'A pod on a simulated GPU'
step gantry pod create train "$image" --gpu "$gpu" --count 1 --wait -- sleep 3600
train=$(gantry pod get train -o json | jq -r .id)
step gantry pod list
running=$(census "$web" "$train")
for kind in namespace link rules mount folder process cgroup; do seen "$kind" "$running"; done

title 'Stop, start, delete'
step gantry pod stop web --wait
step gantry pod start web --wait
took until_true 10 reply || fail "the page cannot be fetched after the start: $(cat "$work/curl.err")"
step gantry pod delete web train --wait
step gantry pod list

title 'A serverless endpoint: from zero workers to an answer, and to zero again'
step gantry endpoint create hello localhost/hello-worker:1 --cpu cpu3c --idle-timeout 1s
step gantry job runsync hello --input '{"name": "you"}' | tee "$work/answer"
grep -q 'Hello, you!' "$work/answer" || fail 'the answer is not the one of the worker'
step gantry endpoint workers hello
worker=$(gantry endpoint workers hello -o json 2>/dev/null | jq -r '.workers[0].id')
idle() { [ "$(gantry endpoint workers hello -o json 2>/dev/null | jq .summary.total)" = 0 ]; }
typed gantry endpoint workers hello
took until_true 20 idle || fail 'the worker has not gone'
step gantry endpoint delete hello --yes

title 'Ctrl-C'
took stop_dev || fail "gantry dev did not stop well: $(tail -n 5 "$work/dev.out")"
left=$(census "$web" "$train" "$worker")
[ -z "$left" ] || fail "left behind:
$left"
finished=yes
printf '\n'
bold "Done in $((($(now_ms) - began) / 1000)) s, nothing left behind."
