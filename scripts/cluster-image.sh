#!/usr/bin/env bash
# Builds the image of deploy/images/cluster without Docker, of Debian's packages, and prints the path of its OCI archive, whose
# reference is the first argument. It is kept in .bin until what it is made from changes. It needs root and mmdebstrap.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly folder=deploy/images/cluster
ref=${1:-docker.io/library/cluster:1}
made=$(cat "$0" "$folder"/* test/busyboximage/main.go <(echo "$ref") | sha256sum | cut -c1-16)
archive=$PWD/.bin/cluster-image/$made.tar
if [ ! -s "$archive" ]; then
	mkdir -p "${archive%/*}"
	# Others may build it at the same time.
	exec 9>"${archive%/*}/lock"
	flock 9
	rm -f "${archive%/*}"/*.tar
	packages=$(sed -n '/apt-get install/,/rm -rf/p' "$folder/Dockerfile" | grep -oE '^ +[a-z].*' | tr -d '\\' | xargs | tr ' ' ,)
	mmdebstrap --quiet --format=tar --variant=essential --include="$packages" --aptopt='Apt::Install-Recommends "false"' \
		--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
		--customize-hook="copy-in $folder/start /usr/local/bin" --customize-hook='rm -f "$1"/etc/ssh/ssh_host_* "$1"/etc/munge/munge.key' \
		bookworm "$archive.rootfs" >&2
	go run ./test/busyboximage --ref "$ref" --rootfs "$archive.rootfs" --command /usr/local/bin/start "$archive.part" >&2
	rm "$archive.rootfs"
	mv "$archive.part" "$archive"
fi
echo "$archive"
