#!/usr/bin/env bash
# Regenerates everything in a copy of the tree and fails unless each file comes out byte for byte as it stands.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/committed"
tar --exclude=./.git --exclude=./bin --exclude=./.bin -cf - . | tar -xf - -C "$scratch/committed"
cp -a "$scratch/committed" "$scratch/generated"

# Without the old output a file that nothing generates any more shows up as a difference too.
find "$scratch/generated" -name '*.pb.go' -delete
(cd "$scratch/generated" && scripts/generate.sh)

if ! (cd "$scratch" && diff -r -u committed generated); then
	echo 'check-generate: generated files differ from the tree: run "make generate"' >&2
	exit 1
fi
echo 'check-generate: every generated file is up to date'
