#!/usr/bin/env bash
# Runs every fuzz target of the module for FUZZTIME (default 10s), one after the other.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

found=0
while IFS=: read -r file line; do
	name=${line#func }
	name=${name%%(*}
	echo "fuzz: $name in ${file%/*}"
	go test -run '^$' -fuzz "^$name\$" -fuzztime "${FUZZTIME:-10s}" "${file%/*}"
	found=$((found + 1))
done < <(grep -rE --include='*_test.go' --exclude-dir=.bin '^func Fuzz[A-Z0-9_][A-Za-z0-9_]*\(' . | sort)

[ "$found" -gt 0 ] || {
	echo 'fuzz: no fuzz target found' >&2
	exit 1
}
echo "fuzz: $found targets passed"
