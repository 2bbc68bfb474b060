#!/usr/bin/env bash
# Shows that packages do not depend on where, when and with which cache they are built: two copies of the working tree, in folders
# of different depth, zone, language and mask, the second with an empty build cache. Fails unless all packages are the same, byte for byte.
#
#   scripts/deb-repro.sh [amd64] [arm64]      without one: both
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

VERSION=$(git describe --tags --always --dirty)
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
DEB_VERSION=${DEB_VERSION:-$(scripts/deb.sh --version)}
export VERSION DEB_VERSION SOURCE_DATE_EPOCH

scratch=$(mktemp -d)
# Go's caches are read-only to their owner.
trap 'chmod -R u+w "$scratch"; rm -rf "$scratch"' EXIT
one=$scratch/one two=$scratch/two/and/deeper
mkdir -p "$one" "$two"
git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' file; do
	if [ -e "$file" ] || [ -L "$file" ]; then printf '%s\0' "$file"; fi
done | tar -c --null --no-recursion -T - | tee >(tar -x -C "$one") | tar -x -C "$two"
(
	cd "$one"
	TZ=Pacific/Kiritimati LC_ALL=C.UTF-8 DEB_OUT=$scratch/debs-1 scripts/deb.sh "$@"
)
(
	cd "$two"
	umask 077
	TZ=America/Anchorage GOCACHE=$scratch/cache DEB_OUT=$scratch/debs-2 scripts/deb.sh "$@"
)
diff -r "$scratch/debs-1" "$scratch/debs-2"
(cd "$scratch/debs-1" && sha256sum -- *.deb)
echo 'deb-repro: built twice, and the same'
