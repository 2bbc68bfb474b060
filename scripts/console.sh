#!/usr/bin/env bash
# Builds the web console into api/console/dist, from which gantry-scheduler embeds it: its packages as
# console/package-lock.json pins them, types from the API's own document, a check of the types, and the bundle.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if ! cmp -s console/package-lock.json console/node_modules/.installed; then
	(cd console && npm --silent --no-audit --no-fund --ignore-scripts --no-update-notifier ci) || {
		echo "console: npm could not install what console/package-lock.json pins" >&2
		exit 1
	}
	cp console/package-lock.json console/node_modules/.installed
fi
mkdir -p console/gen
CGO_ENABLED=0 go run ./console/openapi >console/gen/openapi.new
if ! cmp -s console/gen/openapi.new console/gen/openapi.json || ! [ -s console/gen/api.d.ts ]; then
	console/node_modules/.bin/openapi-typescript console/gen/openapi.new --default-non-nullable=false --output console/gen/api.d.ts >/dev/null 2>console/gen/log || {
		cat console/gen/log >&2
		exit 1
	}
fi
mv console/gen/openapi.new console/gen/openapi.json
console/node_modules/.bin/tsc --project console
ESBUILD="$PWD/.bin/esbuild" node console/build.mjs
