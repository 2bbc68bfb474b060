#!/usr/bin/env bash
# Puts together all that shows, on a machine with NVIDIA's driver and nothing else of Gantry, that a container sees exactly its
# GPU: .bin/gpu-check and, to be copied elsewhere, .bin/gpu-check.tar.gz. Then runs it here. With --build it only builds.
#
# Elsewhere, as root:  tar xzf gpu-check.tar.gz && gpu-check/gpucheck
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

runc=v1.5.2
out=.bin/gpu-check
daemon=.bin/containerd-2
jobs=${P:-2}

for file in /usr/include/seccomp.h /bin/busybox "$daemon/containerd" "$daemon/containerd-shim-runc-v2"; do
	if [ ! -e "$file" ]; then
		echo "gpu-check: $file is missing: make setup installs libseccomp-dev and busybox-static, make gpu-check builds containerd" >&2
		exit 1
	fi
done

mkdir -p "$out"
export CGO_CFLAGS='-O2 -g -Wno-deprecated-declarations'
CGO_ENABLED=0 go build -p "$jobs" -trimpath -buildvcs=false -o "$out/" ./test/gpucheck ./cmd/gantry-logger
CGO_ENABLED=1 go build -p "$jobs" -trimpath -buildvcs=false -o "$out/" ./cmd/gantry-gpu
gcc -O2 -Wall -o "$out/cudaprobe" test/gpucheck/probe/cudaprobe.c -ldl
if [ "$("$out/runc" --version 2>/dev/null | head -n 1)" != "runc version ${runc#v}" ]; then
	# Static: the other machine need not have libseccomp.
	CGO_ENABLED=1 GOBIN="$PWD/$out" go install -p "$jobs" -trimpath -tags 'seccomp netgo osusergo' \
		-ldflags '-s -w -linkmode external -extldflags -static' "github.com/opencontainers/runc@$runc"
fi
cp "$daemon/containerd" "$daemon/containerd-shim-runc-v2" /bin/busybox "$out/"
tar -C .bin -czf .bin/gpu-check.tar.gz gpu-check
echo "gpu-check: .bin/gpu-check.tar.gz runs on any machine with NVIDIA's driver, as root: tar xzf gpu-check.tar.gz && gpu-check/gpucheck"

if [ "${1:-}" != --build ]; then
	"$out/gpucheck"
fi
