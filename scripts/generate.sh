#!/usr/bin/env bash
# Writes every generated file of the tree that it is called in. The output depends on nothing but the tree and the
# pinned versions: protoc below, the plugins and all else in tools/go.mod.
set -euo pipefail

readonly protoc_version=3.21.12

have=$(protoc --version)
if [ "$have" != "libprotoc $protoc_version" ]; then
	printf 'generate: protoc %s is needed (package protobuf-compiler of Debian 12), here is: %s\n' \
		"$protoc_version" "$have" >&2
	exit 1
fi

mapfile -t protos < <(find . -name '*.proto' -not -path './.*' -not -path '*/testdata/*' -printf '%P\n' | sort)
for proto in "${protos[@]}"; do
	protoc --go_out=. --go_opt=paths=source_relative \
		--go-grpc_out=. --go-grpc_opt=paths=source_relative "$proto"
done

if grep -rqs --include='*.go' --exclude-dir=.bin '^//go:generate ' .; then
	go generate ./...
fi
