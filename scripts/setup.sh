#!/usr/bin/env bash
# Installs what building and testing Gantry needs and this machine lacks: Debian packages through apt, and Go through the module
# proxy when there is none or an older one. Changes nothing when everything is there.
#
#   scripts/setup.sh [GROUP...]     tests, bench, deb, deb-check, lab, each with what a build needs; without one: tests
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# Who is not root has no sbin on the path, and Debian's programs for the system are there.
PATH+=:/usr/local/sbin:/usr/sbin:/sbin

# The Go toolchain that is fetched when the machine's own cannot build this module, and its checksums as the Go
# checksum database has them.
readonly toolchain=go1.26.8
declare -rA toolchain_sum=(
	[amd64]='h1:ZOmGe1OnfREDMIdb1Qi4G9JSuDPBLGExZMQ4nis1RXM='
	[arm64]='h1:sYL/O6MqS68ML0kjsQ36WoYIpJqkw60TxizWUYUKQMc='
)

# command:package, or file:package. A command counts whatever package brought it, so that containerd from elsewhere is left alone.
wanted=(
	jq:jq
	curl:curl
	git:git
	gcc:gcc
	go:golang-go
	/etc/ssl/certs/ca-certificates.crt:ca-certificates
	/usr/include/stdio.h:libc6-dev
)

# tests wants what make test runs.
tests() {
	wanted+=(
		containerd:containerd
		runc:runc
		nft:nftables
		ip:iproute2
		mkfs.ext4:e2fsprogs
		mkfs.btrfs:btrfs-progs
		# The image for clusters is made of Debian's packages.
		mmdebstrap:mmdebstrap
		protoc:protobuf-compiler
		node:nodejs
		npm:npm
		python3:python3
		# The documentation page of the API is searched in a real browser.
		chromium:chromium
		ansible-lint:ansible-lint
		lintian:lintian
		systemd-analyze:systemd
		# Network volumes are tested on real storage.
		ceph:ceph-common
		ceph-mon:ceph-mon
		ceph-mgr:ceph-mgr
		ceph-osd:ceph-osd
		ceph-mds:ceph-mds
		ceph-fuse:ceph-fuse
		radosgw:radosgw
		setfattr:attr
		qemu-system-x86_64:qemu-system-x86
		# Alerts and metrics are tested on the real one.
		prometheus:prometheus
		promtool:prometheus
		# Certificates are ordered by way of a real name server.
		named:bind9
		nsupdate:bind9-dnsutils
		# Clients of S3: Debian's own, whatever else is on the path.
		/usr/bin/aws:awscli
		/usr/bin/s3cmd:s3cmd
		/usr/bin/rclone:rclone
		/usr/bin/s3fs:s3fs
		/usr/include/seccomp.h:libseccomp-dev
	)
}

# bench wants what the benchmarks compare with.
bench() {
	wanted+=(beanstalkd:beanstalkd)
}

# deb wants what builds the console, and the C compiler of the other architecture, for gantry-gpu.
deb() {
	wanted+=(node:nodejs npm:npm)
	local amd64=(
		aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu
		/usr/aarch64-linux-gnu/include/stdio.h:libc6-dev-arm64-cross
	)
	local arm64=(
		x86_64-linux-gnu-gcc:gcc-x86-64-linux-gnu
		/usr/x86_64-linux-gnu/include/stdio.h:libc6-dev-amd64-cross
	)
	case $(uname -m) in
	x86_64) wanted+=("${amd64[@]}") ;;
	aarch64) wanted+=("${arm64[@]}") ;;
	esac
}

deb-check() {
	deb
	wanted+=(
		lintian:lintian
		debootstrap:debootstrap
		systemd-analyze:systemd
	)
}

lab() {
	deb
	wanted+=(
		qemu-system-x86_64:qemu-system-x86
		debootstrap:debootstrap
		mke2fs:e2fsprogs
		dpkg-scanpackages:dpkg-dev
		apt-ftparchive:apt-utils
		gpg:gnupg
		openssl:openssl
		ansible-playbook:ansible-core
		ssh:openssh-client
	)
}

die() {
	printf 'setup: %s\n' "$*" >&2
	exit 1
}

static_busybox() {
	local path
	path=$(command -v busybox) && ! ldd "$path" >/dev/null 2>&1
}

missing_packages() {
	local entry
	for entry in "${wanted[@]}"; do
		case $entry in
		/*) [ -s "${entry%%:*}" ] ;;
		*) command -v "${entry%%:*}" >/dev/null ;;
		esac || echo "${entry##*:}"
	done
	[[ " ${groups[*]} " == *' tests '* ]] || return 0
	static_busybox || echo busybox-static
	/usr/bin/python3 -c 'import boto3' 2>/dev/null || echo python3-boto3
}

as_root() {
	if [ "$(id -u)" = 0 ]; then
		"$@"
	else
		command -v sudo >/dev/null || die "root is needed to run: $*"
		sudo -- "$@"
	fi
}

apt_install() {
	command -v apt-get >/dev/null || die "no apt-get here; install by hand: $*"
	local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 -o DPkg::Use-Pty=0 -o Acquire::Retries=3)
	printf 'setup: installing %s\n' "$*"
	# These would start without a configuration, and nobody here wants them as services.
	local unit
	for unit in beanstalkd.service beanstalkd.socket ceph-crash.service named.service prometheus.service; do
		if [ -d /run/systemd/system ] && ! systemctl cat "$unit" >/dev/null 2>&1; then
			as_root systemctl mask --quiet "$unit"
		fi
	done
	as_root "${apt[@]}" update </dev/null
	as_root "${apt[@]}" -y --no-install-recommends install "$@" </dev/null >/dev/null
}

# go_builds reports whether the go command on PATH is, or fetches by itself, a version that this module accepts.
go_builds() {
	command -v go >/dev/null && go list -m >/dev/null 2>&1
}

# fetch_go downloads the toolchain as the module it is published as, with any older go command, and makes a usable
# tree of it: modules carry no executable bits and no nested go.mod.
fetch_go() {
	local arch sum scratch answer dir
	case $(uname -m) in
	x86_64) arch=amd64 ;;
	aarch64) arch=arm64 ;;
	*) die "no Go toolchain is pinned for $(uname -m); install $toolchain or newer" ;;
	esac
	printf 'setup: fetching %s\n' "$toolchain"
	mkdir -p .bin
	scratch=$(mktemp -d .bin/go.XXXXXX)
	# shellcheck disable=SC2064 # the name of today's scratch folder, not that of later
	trap "rm -rf '$scratch'" EXIT
	# A module of its own: an old go command refuses to work inside one that it cannot read.
	echo 'module bootstrap' >"$scratch/go.mod"
	answer=$(cd "$scratch" && env -u GOFLAGS -u GOROOT GOTOOLCHAIN=local GO111MODULE=on \
		go mod download -json "golang.org/toolchain@v0.0.1-$toolchain.linux-$arch") ||
		die "cannot download $toolchain: $answer"
	sum=$(jq -r .Sum <<<"$answer")
	[ "$sum" = "${toolchain_sum[$arch]}" ] || die "$toolchain has checksum $sum, wanted ${toolchain_sum[$arch]}"
	dir=$(jq -r .Dir <<<"$answer")
	cp -R "$dir" "$scratch/go"
	chmod -R u+w "$scratch/go"
	find "$scratch/go" -name _go.mod -execdir mv {} go.mod \;
	chmod +x "$scratch"/go/bin/* "$scratch"/go/pkg/tool/*/*
	rm -rf .bin/go
	mv "$scratch/go" .bin/go
	hash -r
}

groups=("${@:-tests}")
for group in "${groups[@]}"; do
	case $group in
	tests | bench | deb | deb-check | lab) "$group" ;;
	*) die "no group $group: tests, bench, deb, deb-check, lab" ;;
	esac
done
mapfile -t missing < <(missing_packages | sort -u)
if [ "${#missing[@]}" -gt 0 ]; then
	apt_install "${missing[@]}"
	mapfile -t missing < <(missing_packages | sort -u)
	[ "${#missing[@]}" = 0 ] || die "still missing after the installation: ${missing[*]}"
fi

go_builds || fetch_go
go list -m >/dev/null || die "the go command still cannot build this module"
