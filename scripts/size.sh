#!/usr/bin/env bash
# Prints how many lines of Go the product has, by room: without tests, generated code and what lies under test/. Then
# tests, generated code, and the plain nouns over all rooms.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

product() { git ls-files "$@" | grep -vE '(_test|\.pb)\.go$|^test/|^tools/' || true; }
count() { xargs -r cat | wc -l; }

printf '%-28s %8s\n' room lines
product '*.go' | cut -d/ -f1 | sort -u | while read -r room; do
	printf '%-28s %8d\n' "$room" "$(product "$room/*.go" | count)"
done
printf '%-28s %8d\n' 'the product' "$(product '*.go' | count)"
printf '%-28s %8d\n' tests "$(git ls-files '*_test.go' 'test/*.go' | sort -u | count)"
printf '%-28s %8d\n' generated "$(git ls-files '*.pb.go' | count)"
echo
# What counts as a line of a noun stands there.
go test -vet=off -count=1 -v -run '^TestPlainNounsAreSmall$' ./test/rules | sed -n 's/^ *nouns_test.go:[0-9]*: //p' || true
