#!/usr/bin/env bash
# Lints and tests the packages that differ from BASE (default: the branch's upstream, else the last commit), committed or
# not, and runs one pod from its creation to its end on real binaries and containerd. `make quick` builds before.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

base=${BASE:-$(git rev-parse --verify --quiet '@{upstream}' || echo HEAD)}
# Suites of their own, which make test runs.
readonly suites='^\./test/(chaos|clients|e2e|hostile|nfslab|overlay|s3clients|sim|survive|volumes)(/|$)'

mapfile -t changed < <(
	{ git diff --name-only "$base" -- '*.go' && git ls-files --others --exclude-standard -- '*.go'; } |
		xargs -r dirname | sort -u | while read -r dir; do [ ! -d "$dir" ] || echo "./${dir#./}"; done
)
if ((${#changed[@]})); then
	.bin/golangci-lint run "${changed[@]}"
	mapfile -t units < <(printf '%s\n' "${changed[@]}" | grep -vE "$suites")
	((${#units[@]} == 0)) || go test -vet=off -race -timeout 10m "${units[@]}"
else
	echo "quick: no Go file differs from $base"
fi
go test -vet=off -race -count=1 -timeout 5m -run '^TestCPUPodServesHTTPThroughItsWholeLife$' ./test/e2e
