#!/usr/bin/env bash
# Rehearses the loss of the whole control plane, with real schedulers and simulated hosts on this machine: makes PODS pods (200) on HOSTS
# hosts (30), makes a back-up as gantry-backup.timer does, makes more pods, kills the scheduler, deletes its data, restores the copy and
# waits until every pod is there again. It prints what was lost (RPO) and how long each step took (RTO), and fails when a pod that was in the copy is not
# running in the end. All is in a temporary folder, on loopback.
#
#   make restore-drill [PODS=1000] [HOSTS=130]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly pods=${PODS:-200} hosts=${HOSTS:-30} since=5

scratch=$(mktemp -d)
scheduler='' simulated=''
leave() {
	status=$?
	for pid in $simulated $scheduler; do
		kill -KILL "$pid" 2>/dev/null || true
		wait "$pid" 2>/dev/null || true
	done
	[ "$status" = 0 ] || tail -n 5 "$scratch"/*.log >&2 || true
	rm -rf "$scratch"
}
trap leave EXIT

die() {
	printf 'restore-drill: FAILED: %s\n' "$*" >&2
	exit 1
}

now() { date +%s.%N; }
took() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.1f s", b - a }'; }

# until_it COMMAND... waits until it succeeds.
until_it() {
	local end=$((SECONDS + 300))
	until "$@" >/dev/null 2>&1; do
		[ "$SECONDS" -lt "$end" ] || die "not within 5 minutes: $*"
		sleep 0.1
	done
}

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

api=127.0.0.1:$(free_port) link=127.0.0.1:$(free_port) data=$scratch/data
operators() { bin/gantry --api "http://$api" --api-key-file "$scratch/keys.json" "$@"; }

start() {
	bin/gantry-scheduler run --data-dir "$data" --listen "$api" --link-listen "$link" --metrics '' \
		--rate-minute 0 --rate-hour 0 --rate-day 0 >>"$scratch/scheduler.log" 2>&1 &
	scheduler=$!
	until_it curl -fsS "http://$api/healthz"
}

running() { operators pod list -o json | jq '[.pods[] | select(.status == "RUNNING")] | length'; }
all_run() { [ "$(running)" = "$1" ]; }

create() {
	local i
	for i in $(seq "$1"); do
		printf '{"name":"%s-%d","image":"busybox:1","gpu":{"id":"%s","count":1}}\n' "$2" "$i" "$gpu"
	done | xargs -d '\n' -P 4 -I{} curl -fsS -o /dev/null -H "Authorization: Bearer $user" -H 'Content-Type: application/json' -d {} "http://$api/v2/pods"
}

umask 077
mkdir "$scratch/copies"
bin/gantry-scheduler init --data-dir "$data" --keys-file "$scratch/keys.json" --address "$link" --data-center dc-1 >/dev/null 2>&1
cp "$data/seal.key" "$scratch/seal.key" # which is kept in another place than the copies
user=$(jq -r .apiKey "$scratch/keys.json")
jq -r .adminKey "$scratch/keys.json" >"$scratch/admin.key"
cat >"$scratch/backup.toml" <<-END
	folder = "$scratch/copies"
	api = "http://$api"
	key-file = "$scratch/keys.json"
END
start
gpu='NVIDIA H100 80GB HBM3'
operators account limits --limit runningPods=100000 --limit pods=100000 --limit gpus=100000 --limit spendPerHour=10000000 >/dev/null
go build -o "$scratch/simhosts" ./test/simhosts
"$scratch/simhosts" --api "http://$api" --key-file "$scratch/admin.key" --scheduler "$link" --hosts "$hosts" >"$scratch/hosts.log" 2>&1 &
simulated=$!
hosts_ready() { [ "$(operators host list -o json | jq '[.hosts[] | select(.state == "ready" and .takesNoPods == null)] | length')" = "$hosts" ]; }
until_it hosts_ready
create "$pods" kept
until_it all_run "$pods"
printf '%d pods run on %d hosts\n' "$pods" "$hosts"

began=$(now)
bin/gantry snapshot keep --config "$scratch/backup.toml" >"$scratch/keep.txt"
saved=$(now)
copy=$(ls "$scratch"/copies/*.snapshot)
printf 'back-up: %s bytes in %s, read back from the disk\n' "$(stat -c %s "$copy")" "$(took "$began" "$saved")"
create "$since" since
until_it all_run $((pods + since))

lost=$(now)
kill -KILL "$scheduler"
wait "$scheduler" 2>/dev/null || true
rm -rf "$data"
printf 'lost: the scheduler and all of its data, %s after the back-up (RPO): %d pods that were made since\n' "$(took "$began" "$lost")" "$since"

bin/gantry snapshot restore "$copy" --data-dir "$data" --seal-key "$scratch/seal.key" --address "$link" >"$scratch/restore.log" 2>&1 || die 'restore'
restored=$(now)
start
answers=$(now)
until_it hosts_ready
compared=$(now)
until_it all_run "$pods"
[ "$(operators pod list -o json | jq '[.pods[] | select(.name | startswith("since"))] | length')" = 0 ] || die 'a pod is there that the copy does not have'
ended=$(now)
kill -0 "$simulated" || die "a host saw what must not be: $(tail -n 1 "$scratch/hosts.log")"
printf 'restored in %s; the API answers after %s; all hosts are compared after %s; all %d pods of the copy run after %s (RTO)\n' \
	"$(took "$lost" "$restored")" "$(took "$lost" "$answers")" "$(took "$lost" "$compared")" "$pods" "$(took "$lost" "$ended")"
