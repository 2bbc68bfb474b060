#!/usr/bin/env bash
# Runs every fuzz target of the module, or of the folders that are named, for FUZZTIME (default 10s) each, one after
# the other.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

found=0
while IFS=: read -r file line; do
	name=${line#func }
	name=${name%%(*}
	echo "fuzz: $name in ${file%/*}"
	go test -vet=off -run '^$' -fuzz "^$name\$" -fuzztime "${FUZZTIME:-10s}" "${file%/*}"
	found=$((found + 1))
done < <(grep -rE --include='*_test.go' --exclude-dir=.bin '^func Fuzz[A-Z0-9_][A-Za-z0-9_]*\(' "${@:-.}" | sed 's|^\([^./]\)|./\1|' | sort)

[ "$found" -gt 0 ] || {
	echo 'fuzz: no fuzz target found' >&2
	exit 1
}
echo "fuzz: $found targets passed"
