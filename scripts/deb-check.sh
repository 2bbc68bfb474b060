#!/usr/bin/env bash
# Checks the packages of scripts/deb.sh for this machine's architecture: lintian, the units, and in a Debian of its own below a
# temporary folder, where no daemon is ever started: install, upgrade, remove, install again, purge. Nothing is installed on the machine.
#
#   scripts/deb-check.sh [FOLDER]       of the packages; without it they are built
#   scripts/deb-check.sh --quick        builds them for this alone; lintian and the units, nothing that needs root
#
# It needs root, debootstrap and lintian. The Debian is kept in .bin/deb-check; SUITE (bookworm) says which.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export LC_ALL=C PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"

readonly packages=(gantry gantry-scheduler gantry-agent gantry-s3)
# Of `systemd-analyze security`, in tenths: no unit may become worse than this.
declare -rA exposure=([gantry-scheduler]=16 [gantry-gateway]=16 [gantry-backup]=22 [gantry-agent]=73 [gantry-s3]=37)
readonly agent=/var/lib/gantry/agent scheduler=/var/lib/gantry/scheduler
suite=${SUITE:-bookworm}
mirror=${MIRROR:-http://deb.debian.org/debian}

die() {
	printf 'deb-check: FAILED: %s\n' "$*" >&2
	exit 1
}

say() { printf 'deb-check: %s\n' "$*"; }

# ---- outside

analyse() {
	local unit
	lintian --allow-root --tag-display-limit 0 --fail-on error,warning "$1"/*_"$arch".deb || die 'lintian'
	say 'lintian has nothing to say'
	for unit in "${!exposure[@]}"; do
		systemd-analyze security --offline=true --no-pager --threshold="${exposure[$unit]}" "systemd/$unit.service" |
			tail -n 1 | sed 's/^/deb-check: /' || die "$unit is more exposed than it was"
	done
}

# base makes a Debian with all that the packages depend on, once for each set of dependencies.
base() {
	local wanted key dir tar
	wanted=$(for name in "${packages[@]}"; do dpkg-deb -f "$1/${name}_"*"_$arch.deb" Depends | tr ',' '\n'; done |
		sed 's/|.*//; s/(.*//; s/ //g' | grep -vE '^(gantry.*|libc6|)$' | sort -u)
	key=$(printf '%s\n' "$suite" "$mirror" "$wanted" | sha256sum | cut -c1-12)
	tar=.bin/deb-check/$suite-$key.tar
	if [ ! -e "$tar" ]; then
		say "making a Debian $suite with: ${wanted//$'\n'/ }" >&2
		mkdir -p .bin/deb-check
		dir=$scratch/base
		debootstrap --variant=minbase --include=systemd,ca-certificates "$suite" "$dir" "$mirror" >"$scratch/log" 2>&1 || die "debootstrap: $(tail -n 5 "$scratch/log")"
		printf '#!/bin/sh\nexit 101\n' >"$dir/usr/sbin/policy-rc.d"
		chmod 0755 "$dir/usr/sbin/policy-rc.d"
		cp /etc/resolv.conf "$dir/etc/resolv.conf"
		# shellcheck disable=SC2086 # a list
		DEBIAN_FRONTEND=noninteractive chroot "$dir" apt-get -qq -o Acquire::Retries=3 -y --no-install-recommends install $wanted \
			>"$scratch/log" 2>&1 || die "install what the packages depend on: $(tail -n 5 "$scratch/log")"
		rm -rf "$dir"/var/cache/apt/archives/*.deb
		tar -C "$dir" --numeric-owner -cf "$tar.new" .
		rm -rf "$dir"
		mv "$tar.new" "$tar"
	fi
	printf '%s\n' "$tar"
}

# next makes the packages of a later version, with other settings by default.
next() {
	local deb root name
	mkdir -p "$2"
	for deb in "$1"/*_"$arch".deb; do
		name=$(dpkg-deb -f "$deb" Package)
		root=$scratch/next/$name
		mkdir -p "$root"
		dpkg-deb -R "$deb" "$root"
		sed -i 's/^Version: .*/&+next/' "$root/DEBIAN/control"
		for file in "$root"/etc/gantry/*.toml; do
			[ ! -e "$file" ] || echo '# of the next version' >>"$file"
		done
		dpkg-deb --root-owner-group -Znone --build "$root" "$2/$name.deb" >/dev/null
		rm -rf "$root"
	done
}

needs() {
	local name
	for name in "$@"; do
		command -v "$name" >/dev/null || die "$name is missing: scripts/setup.sh deb-check"
	done
}

quick() {
	local arch
	arch=$(dpkg --print-architecture)
	needs lintian systemd-analyze
	DEB_OUT=$scratch DEB_XZ=0 scripts/deb.sh "$arch"
	analyse "$scratch"
}

outside() {
	local debs=${1:-} arch tar name
	arch=$(dpkg --print-architecture)
	[ "$(id -u)" = 0 ] || die 'root is needed, for debootstrap and chroot'
	needs debootstrap lintian systemd-analyze
	if [ -z "$debs" ]; then
		debs=bin/deb
		scripts/deb.sh "$arch"
	fi
	analyse "$debs"
	tar=$(base "$debs")
	mkdir "$scratch/root" "$scratch/root/debs" "$scratch/root/debs/1"
	tar -C "$scratch/root" --numeric-owner -xf "$tar"
	for name in "${packages[@]}"; do
		cp "$debs/${name}_"*"_$arch.deb" "$scratch/root/debs/1/$name.deb"
	done
	next "$debs" "$scratch/root/debs/2"
	install -m 0755 scripts/deb-check.sh "$scratch/root/debs/check"
	# Namespaces of its own: nothing that is mounted inside stays, and nothing inside sees a process of the machine.
	# shellcheck disable=SC2016 # $1 is the inner shell's
	unshare --mount --pid --fork --kill-child --ipc --net bash -euc '
		mount --make-rprivate /
		mount -t proc proc "$1/proc"
		exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C HOME=/root DEBIAN_FRONTEND=noninteractive \
			chroot "$1" bash /debs/check --inside
	' _ "$scratch/root"
}

# ---- inside

apt() {
	apt-get -qq -y --no-install-recommends --allow-downgrades -o Dpkg::Use-Pty=0 -o "DPkg::Path=$PATH" -o Dpkg::Options::=--force-confold "$@" \
		>/tmp/apt.log 2>&1 || die "apt-get $*: $(cat /tmp/apt.log)"
}

install_all() { apt install "/debs/$1/gantry.deb" "/debs/$1/gantry-scheduler.deb" "/debs/$1/gantry-agent.deb" "/debs/$1/gantry-s3.deb"; }

# listing is every file with its kind, mode and owner; of those that matter here also what is in them.
listing() {
	find / -xdev \( -path /proc -o -path /debs -o -path /tmp -o -path /var/cache -o -path /var/log -o -path /var/lib/apt \
		-o -path /var/lib/dpkg -o -path /run -o -path '/etc/*-' \) -prune -o -printf '%p %y %m %u:%g\n' | sort
	find /run/gantry* -printf '%p %y\n' 2>/dev/null | sort || true
	find /etc/gantry /etc/systemd /var/lib/gantry -type f -exec md5sum {} + 2>/dev/null | sort || true
}

there() { for path in "$@"; do [ -e "$path" ] || [ -L "$path" ] || die "$path is not there"; done; }

gone() { for path in "$@"; do if [ -e "$path" ] || [ -L "$path" ]; then die "$path is there still"; fi; done; }

is() { [ "$(stat -c '%a %U:%G' "$1")" = "$2" ] || die "$1 is $(stat -c '%a %U:%G' "$1"), not $2"; }

said() { grep -qF -- "$1" /tmp/apt.log || die "nobody said: $1; but $(cat /tmp/apt.log)"; }

unsaid() { ! grep -qF -- "$1" /tmp/apt.log || die "somebody said: $1"; }

installed() {
	local name
	for name in gantry gantry-scheduler gantry-agent gantry-s3; do
		"$name" --help >/dev/null || die "$name does not run"
		find "/usr/share/doc/$name" -name 'third-party-conditions.gz' -size +3k | grep -q . || die "$name says nothing of whose code is in it"
	done
	for name in gantry-scheduler gantry-agent gantry-s3; do
		[ "$("$name" check-config --config "/etc/gantry/${name#gantry-}.toml")" = 'the configuration is fine' ] || die "$name: check-config"
	done
	# The agent finds its helpers beside itself.
	[ "$(dirname "$(readlink -f /usr/bin/gantry-agent)")" = /usr/libexec/gantry ] || die 'the agent is elsewhere'
	there /usr/libexec/gantry/gantry-{logger,net,gpu}
	! grep -q 'not found' <(ldd /usr/libexec/gantry/gantry-gpu) || die 'gantry-gpu lacks a library'
	is /var/lib/gantry '755 root:root'
	is "$scheduler" '700 gantry-scheduler:gantry-scheduler'
	getent passwd gantry-s3 | grep -q nologin || die 'there is no user gantry-s3'
	there /etc/systemd/system/multi-user.target.wants/gantry-{scheduler,gateway,agent}.service
	gone /etc/systemd/system/multi-user.target.wants/gantry-s3.service /etc/systemd/system/timers.target.wants/gantry-backup.timer
	[ "$(gantry snapshot keep --check)" = 'the settings are fine' ] || die 'the settings of back-ups'
	systemd-analyze verify --man=no /usr/lib/systemd/system/gantry-{scheduler,gateway,agent,s3,backup}.service /usr/lib/systemd/system/gantry-backup.timer /usr/lib/systemd/system/gantry.slice 2>/tmp/verify || die "verify: $(cat /tmp/verify)"
	[ ! -s /tmp/verify ] || die "verify: $(cat /tmp/verify)"
}

# use makes what daemons would have made by now, and a cluster as root makes it.
use() {
	gantry-scheduler init --data-dir "$scheduler" --keys-file /root/keys.json >/dev/null 2>/tmp/init || die "init: $(cat /tmp/init)"
	# What the unit does at the start, for whom the files are.
	bash -c "$(sed -n 's/^ExecStartPre=+//p' /usr/lib/systemd/system/gantry-scheduler.service)"
	[ -z "$(find "$scheduler" ! -user gantry-scheduler)" ] || die 'the scheduler does not own its data'
	setpriv --reuid=gantry-scheduler --regid=gantry-scheduler --clear-groups cat "$scheduler/seal.key" >/dev/null || die 'the scheduler cannot read its key'
	mkdir -p "$agent"/{pki,roots/p1,disks,logs,persistent/p1/data,persistent/.loop} /run/gantry-56f8/volumes
	echo precious >"$agent/persistent/p1/data/file"
	echo precious >"$agent/persistent/.loop/p2"
	templates
	touch "$agent/ledger.db"
	echo key >/etc/gantry/s3.key
}

# templates are what the agent leaves of disks, also when no pod has one.
templates() {
	mkdir -p "$agent/persistent/.loop" "$agent/disks/.loop"
	touch "$agent"/{persistent,disks}/.loop/{.template-21474836480,.new-template-~}
}

idempotent() {
	local name
	listing >/tmp/one
	for name in gantry-scheduler gantry-agent gantry-s3; do
		for _ in 1 2; do
			DPKG_MAINTSCRIPT_PACKAGE=$name DPKG_MAINTSCRIPT_NAME=postinst "/var/lib/dpkg/info/$name.postinst" configure 0.0 >/dev/null
		done
	done
	listing | diff /tmp/one - || die 'a second configuration changes something'
}

upgrade() {
	local before
	before=$(sha256sum "$scheduler/seal.key")
	echo 'overcommit = 2' >>/etc/gantry/agent.toml
	install_all 2
	grep -q 'overcommit = 2' /etc/gantry/agent.toml || die 'an upgrade changed settings'
	there /etc/gantry/agent.toml.dpkg-dist
	grep -q 'of the next version' /etc/gantry/scheduler.toml || die 'settings that nobody changed are old'
	[ "$before" = "$(sha256sum "$scheduler/seal.key")" ] || die 'an upgrade changed data'
	installed
	idempotent
}

remove() {
	apt remove "${packages[@]}"
	gone /usr/bin/gantry{,-scheduler,-agent,-s3} /usr/libexec/gantry /usr/lib/systemd/system/gantry{-scheduler.service,-gateway.service,-backup.service,-backup.timer,-agent.service,-s3.service,.slice}
	there /etc/gantry/{scheduler,agent,s3}.toml "$scheduler/seal.key" "$agent/ledger.db" "$agent/persistent/p1/data/file"
	install_all 2
	installed
	grep -q 'overcommit = 2' /etc/gantry/agent.toml || die 'settings were lost'
	there "$scheduler/seal.key" "$agent/ledger.db"
}

# purge_in_use shows that a purge beside pods that run takes nothing, and nothing that is mounted ever.
purge_in_use() {
	local at
	for at in "$agent/roots/p1" /run/gantry-56f8/volumes "$scheduler/raft"; do
		mount -t tmpfs tmpfs "$at"
		echo precious >"$at/file"
	done
	apt purge "${packages[@]}"
	said 'pods of this host go on'
	said 'nothing of /var/lib/gantry/agent was removed'
	said 'nothing of /var/lib/gantry/scheduler was removed'
	there "$agent/ledger.db" "$agent/persistent/p1/data/file" "$scheduler/seal.key"
	for at in "$agent/roots/p1" /run/gantry-56f8/volumes "$scheduler/raft"; do
		[ "$(cat "$at/file")" = precious ] || die "$at: what was mounted is lost"
		umount "$at"
	done
	install_all 1
	installed
}

# purge leaves the pods' persistent data and what the operator put there.
purge() {
	apt purge "${packages[@]}"
	unsaid 'nothing of'
	said "persistent data of pods is left in $agent/persistent"
	[ "$(find /var/lib/gantry -type f | sort | xargs)" = "$agent/persistent/.loop/p2 $agent/persistent/p1/data/file" ] || die "left: $(find /var/lib/gantry)"
	[ "$(find /etc/gantry -type f)" = /etc/gantry/s3.key ] || die "left: $(find /etc/gantry)"
	gone /run/gantry-56f8
	rm -r /var/lib/gantry /etc/gantry /root/keys.json
}

# clean compares the machine with what it was before the first installation.
clean() {
	listing | diff /tmp/before - || die 'a purge leaves something'
	! dpkg -l 'gantry*' 2>/dev/null | grep -q '^[a-z]' || die 'dpkg knows the packages still'
	diff <(sed '/^gantry-/d' /etc/passwd) /tmp/passwd || die 'other users'
}

# booted shows what the scripts ask of a systemd that runs. It is not one: it writes down what it is asked.
booted() {
	rm /usr/sbin/policy-rc.d
	mkdir -p /run/systemd/system
	cat >/usr/local/sbin/systemctl <<-'EOF'
		#!/bin/sh
		echo "$*" >>/tmp/asked
	EOF
	chmod 0755 /usr/local/sbin/systemctl
	: >/tmp/asked
	install_all 1
	! grep -vE '^(--system daemon-reload|--root=/ .* preset gantry-(scheduler|agent)\.service|try-restart gantry-(scheduler\.service|backup\.timer|agent\.service|s3\.service))$' /tmp/asked || die 'an installation starts something'
	: >/tmp/asked
	install_all 2
	! grep -vE '^(--system daemon-reload|--root=/ .* preset gantry-(scheduler|agent)\.service|try-restart gantry-(scheduler\.service|backup\.timer|agent\.service|s3\.service))$' /tmp/asked || die 'an upgrade asks for more than new daemons in place of those that run'
	[ "$(grep -c '^try-restart' /tmp/asked)" = 4 ] || die "an upgrade leaves an old daemon: $(cat /tmp/asked)"
	: >/tmp/asked
	apt remove "${packages[@]}"
	[ "$(grep -c '^stop gantry-' /tmp/asked)" = 4 ] || die "a removal leaves a daemon: $(cat /tmp/asked)"
	apt purge "${packages[@]}"
	rm -r /usr/local/sbin/systemctl /run/systemd/system
}

inside() {
	umask 022
	listing >/tmp/before
	cp /etc/passwd /tmp/passwd
	step() {
		"$@"
		say "${*//_/ }: fine"
	}
	install_all 1
	step installed
	use
	step idempotent
	step upgrade
	step remove
	step purge_in_use
	step purge
	step clean
	install_all 2
	installed
	templates
	apt purge "${packages[@]}"
	unsaid 'persistent data'
	step clean
	policy=$(cat /usr/sbin/policy-rc.d)
	step booted
	printf '%s\n' "$policy" >/usr/sbin/policy-rc.d
	chmod 0755 /usr/sbin/policy-rc.d
	step clean
	say 'all is well'
}

if [ "${1:-}" = --inside ]; then
	inside
	exit
fi
scratch=$(mktemp -d)
trap 'rm -rf --one-file-system "$scratch"' EXIT
case ${1:-} in
--quick) quick ;;
*) outside "$@" ;;
esac
