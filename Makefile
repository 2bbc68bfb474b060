# Gantry: build, check, test. `make help` lists the targets.
# Nothing here needs more network than Debian's packages, the Go module proxy and the npm registry.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# The order of prerequisites is the order of work; the parallelism is inside the go command.
.NOTPARALLEL:

# Pinned tools and, where the machine's own Go is too old, the toolchain that setup fetched come first.
export PATH := $(CURDIR)/.bin/go/bin:$(CURDIR)/.bin:$(PATH):/usr/local/go/bin:/usr/local/sbin:/usr/sbin:/sbin
unexport GOROOT
# The same flags everywhere, so that what one target has compiled serves the others.
export GOFLAGS := -trimpath -buildvcs=false
# NVML marks some of what it declares as deprecated.
export CGO_CFLAGS := -O2 -g -Wno-deprecated-declarations

# Packages built and tested at a time.
P ?= 2
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
FUZZTIME ?= 10s
BENCH ?= .

TOOLS := .bin/.tools-stamp
CONSOLE := api/console/dist/index.html
# The daemons beside Debian's that agent/ctrd is tested with; each is pinned by tools/NAME/go.mod.
CONTAINERDS ?= containerd-2
# A run that hangs ends then, with a trace of what it waits for; packages take far less, also on a busy machine.
WITHIN := -timeout 25m
# What go vet finds, lint finds.
GO_TEST_FLAGS := -vet=off -race -count=1 -p $(P)
GO_TEST := go test $(GO_TEST_FLAGS)
# For suites in real time: what failed runs once more, and FLAKES names the file that then tells of it.
GO_TEST_AGAIN := .bin/gotestsum --format pkgname --rerun-fails=1 --rerun-fails-max-failures=10 $(if $(FLAKES),--rerun-fails-report=$(FLAKES))

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## Install what is missing on this machine: Debian packages, Go
	@scripts/setup.sh

# A change of the API changes the types against which the console is checked.
$(CONSOLE): $(TOOLS) scripts/console.sh docs/alerts.md $(shell find console -name node_modules -prune -o -name gen -prune -o -type f -print) \
		$(shell find api/rest api/v2 api/admin fleet -name '*.go' ! -name '*_test.go')
	scripts/console.sh

.PHONY: console
console: $(CONSOLE) ## Build the web console, which gantry-scheduler embeds

.PHONY: build
build: $(CONSOLE) ## Build all binaries into bin/
	CGO_ENABLED=0 go build -p $(P) -ldflags '-X main.version=$(VERSION)' -o bin/ ./cmd/...
	CGO_ENABLED=1 go build -p $(P) -ldflags '-X main.version=$(VERSION)' -o bin/ ./cmd/gantry-gpu

.PHONY: deb
deb: $(CONSOLE) ## Build Debian packages into bin/deb
	@scripts/setup.sh deb
	P=$(P) scripts/deb.sh

.PHONY: deb-lint
deb-lint: $(CONSOLE) ## Build the packages of this architecture, and let lintian and systemd-analyze look at them
	P=$(P) scripts/deb-check.sh --quick

.PHONY: deb-check
deb-check: $(CONSOLE) ## Check the packages: lintian, units, install, upgrade, remove and purge in a Debian of its own; the same bytes when built again
	@scripts/setup.sh deb-check
	P=$(P) scripts/deb-check.sh
	P=$(P) scripts/deb-repro.sh

$(TOOLS): tools/go.mod tools/go.sum
	cd tools && CGO_ENABLED=0 GOBIN=$(CURDIR)/.bin go install -p $(P) tool
	touch $@

.PHONY: tools
tools: $(TOOLS) ## Build the pinned tools of tools/go.mod into .bin/

.PHONY: generate
generate: $(TOOLS) ## Regenerate all generated code
	scripts/generate.sh

.PHONY: check-generate
check-generate: $(TOOLS) ## Fail unless the generated code is what the sources give, byte for byte
	scripts/check-generate.sh

.PHONY: fmt
fmt: $(TOOLS) ## Format the Go code
	.bin/golangci-lint fmt ./...

.PHONY: lint
lint: $(TOOLS) ## Run the linters, after checking their configuration
	.bin/golangci-lint config verify
	CGO_ENABLED=0 .bin/golangci-lint run ./...
	.bin/golangci-lint run ./agent/gpu/nvml ./cmd/gantry-gpu
	CGO_ENABLED=0 .bin/golangci-lint run --build-tags faultpoints ./internal/faultpoint

.PHONY: ansible-lint
ansible-lint: ## Lint the playbooks of deploy/ansible
	cd deploy/ansible && ansible-lint -q --nocolor

.PHONY: unit
unit: $(TOOLS) ## Run all tests but those of the targets below, with the race detector
	$(GO_TEST_AGAIN) --packages="$$(go list ./... | grep -vE '^gantry/(agent/ctrd$$|test/(chaos|clients|console|e2e|hostile|nfslab|overlay|s3clients|sim|survive|volumes)(/|$$))' | tr '\n' ' ')" \
		-- $(GO_TEST_FLAGS) $(WITHIN)
	$(GO_TEST) -tags faultpoints ./internal/faultpoint

$(CONTAINERDS:%=.bin/%/.stamp) .bin/nats/.stamp: .bin/%/.stamp: tools/%/go.mod tools/%/go.sum
	cd tools/$* && CGO_ENABLED=0 GOBIN=$(CURDIR)/.bin/$* go install -p $(P) tool
	touch $@

.bin/dex/.stamp: tools/dex/main.go tools/dex/go.mod tools/dex/go.sum
	cd tools/dex && CGO_ENABLED=0 go build -p $(P) -o $(CURDIR)/.bin/dex/dex .
	touch $@

.PHONY: runtimes
runtimes: $(CONTAINERDS:%=.bin/%/.stamp) ## Build the containerd releases that the runtime is tested with

.PHONY: test-containerd
test-containerd: $(TOOLS) $(CONTAINERDS:%=.bin/%/.stamp) ## Run the runtime's tests against Debian's containerd and 2.x, built here; CONTAINERDS='containerd-1.7 containerd-2' adds 1.7
	printf '%s\n' debian $(CONTAINERDS) | xargs -P 2 -I{} bash -o pipefail -c 'export TMPDIR=$$(mktemp -d /tmp/gXXX) && chmod 711 $$TMPDIR && \
		if [ {} != debian ]; then export GANTRY_TEST_CONTAINERD_DIR=$(CURDIR)/.bin/{}; fi && \
		$(GO_TEST_AGAIN:.flakes=-{}.flakes) --packages=./agent/ctrd -- $(GO_TEST_FLAGS) $(WITHIN) 2>&1 | sed "s/^/{}: /" && rmdir $$TMPDIR'

.PHONY: gpu-check
gpu-check: .bin/containerd-2/.stamp ## Show on this machine's NVIDIA GPU that a container sees exactly its GPU; fails where there is none
	P=$(P) scripts/gpu-check.sh

# Hours of the simulation's time, for which the race detector takes minutes of ours; with SEEDS it sees them, too.
SIM_LONG := ^(TestSeededClocks|TestAHostThatIsCutOffForHoursKeepsItsPods|TestChargesAreTheSameAcrossCrashes|TestAHostRenewsItsCertificateBeforeItEnds)$$

.PHONY: sim
sim: ## Run the simulation of a cluster, with the race detector, and 50 seeds without it; SEEDS=1000 runs so many seeds, with it
	SEEDS=$(or $(SEEDS),6) $(GO_TEST) -timeout $(if $(SEEDS),12h,25m) $(if $(SEEDS),,-skip '$(SIM_LONG)') ./test/sim/...
	$(if $(SEEDS),,CGO_ENABLED=0 go test -vet=off -count=1 $(WITHIN) -run '^TestSeededFaults$$|$(SIM_LONG)' ./test/sim)

.PHONY: hostile
hostile: ## Run images and processes that want out of their container, or more than their share
	$(GO_TEST) $(WITHIN) ./test/hostile/...

.PHONY: survive
survive: $(TOOLS) .bin/containerd-2/.stamp ## Kill the agent at every point, containerd, shims; reboot, upgrade, starve the host
	$(GO_TEST_AGAIN) --packages='./test/survive/...' -- $(GO_TEST_FLAGS) $(WITHIN)

.PHONY: nfs
nfs: ## Run the tests that need a kernel with NFS or project quotas, in a virtual machine
	$(GO_TEST) $(WITHIN) ./test/nfslab

.PHONY: volumes
volumes: build ## Run network volumes on a real Ceph cluster, and real S3 clients
	$(GO_TEST) $(WITHIN) ./test/volumes/... ./test/s3clients/...

.PHONY: networks
networks: $(TOOLS) build ## Run private networks on three hosts: who reaches whom, what is on the wire, what attackers get
	$(GO_TEST_AGAIN) --packages='./test/overlay' -- $(GO_TEST_FLAGS) $(WITHIN)

.PHONY: chaos-short
chaos-short: $(TOOLS) ## Break real schedulers, agents, networks and disks, a few seconds for each kind of fault
	$(GO_TEST_AGAIN) --packages='./test/chaos/...' -- $(GO_TEST_FLAGS) $(WITHIN)

.PHONY: chaos
chaos: setup ## The same with faults that last minutes
	CHAOS=long $(GO_TEST) -timeout 3h -v ./test/chaos

.PHONY: lab
lab: ## Boot three whole machines under QEMU, install the packages with the playbooks and use the cluster; LAB_KEEP=1 leaves them up
	@scripts/setup.sh lab
	go run ./test/lab

.PHONY: lab-distributions
lab-distributions: ## The same with a scheduler and pods on each of Debian 12, Debian 13 and Ubuntu 24.04, a repository, TLS, and the restore of a back-up
	@scripts/setup.sh lab
	go run ./test/lab distributions

.PHONY: restore-drill
restore-drill: build ## Lose a control plane with PODS (200) pods on HOSTS (30) simulated hosts, restore it from a back-up, and say how long it took
	PODS=$(or $(PODS),200) HOSTS=$(or $(HOSTS),30) scripts/restore-drill.sh

.PHONY: e2e
e2e: $(TOOLS) build ## Run the end-to-end tests: real binaries, real containerd
	$(GO_TEST_AGAIN) --packages='./test/e2e/...' -- $(GO_TEST_FLAGS) $(WITHIN)

.PHONY: clients
clients: $(TOOLS) build ## Install the public clients of test/clients and drive real servers with them
	scripts/clients.sh
	$(GO_TEST_AGAIN) --packages='./test/clients/...' -- $(GO_TEST_FLAGS) $(WITHIN)

.PHONY: console-test
console-test: $(TOOLS) build .bin/dex/.stamp ## Use the web console in a real browser; GANTRY_SHOTS names a folder for screenshots
	$(GO_TEST_AGAIN) --packages='./test/console' -- $(GO_TEST_FLAGS) $(WITHIN)

.PHONY: test
test: setup ## Everything that a change must pass
	scripts/test.sh

.PHONY: quick
quick: $(TOOLS) build ## Build, then lint and test the packages changed since BASE (origin's main, or the last commit), and one whole run of a pod
	scripts/quick.sh

.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME (10s)
	FUZZTIME=$(FUZZTIME) scripts/fuzz.sh

.PHONY: fuzz-decoders
fuzz-decoders: ## Run the fuzz targets of what reads requests, names' questions and frames, with 5000 inputs each
	FUZZTIME=5000x scripts/fuzz.sh ./api ./storage/s3 ./netctl ./internal/ipc

# Packages whose rules keep users' work and data safe.
MUTATE ?= ./agent ./agent/pod ./agent/ledger ./scheduler/dispatch ./scheduler/replica ./scheduler/state \
	./scheduler/state/table ./api/auth ./api/limit ./internal/agentrpc ./internal/pki ./storage/s3
SAMPLE ?= 100

.PHONY: mutate
mutate: ## Break the code of packages in small ways and tell which breaks no test conditions; MUTATE names packages, SAMPLE=0 tries all
	go run ./test/mutate -sample $(SAMPLE) $(MUTATE)

.PHONY: size
size: ## Print how many lines of Go the product has, by room
	@scripts/size.sh

.PHONY: bench
bench: setup build .bin/nats/.stamp ## Run the benchmarks beside their floors; BENCH selects by regular expression, BENCH_HOSTS sets the size of fleets
	@scripts/setup.sh bench
	go test -run '^$$' -bench '$(BENCH)' -skip '^Benchmark(Fleet|JobIdle|JobQueue)' -benchtime 20x -count=1 -p 1 -timeout 30m ./test/bench ./agent/ctrd ./netctl/kernel ./cmd/gantry-logger
	go test -run '^$$' -bench '$(BENCH)' -skip '^Benchmark([^FJ]|Job[^IQ])' -benchtime 1x -count=1 -p 1 -timeout 60m ./test/bench
	go test -run '^$$' -bench '$(BENCH)' -benchtime 20x -count=1 -p 1 -timeout 30m ./test/s3clients
	go test -run '^$$' -bench '$(BENCH)' -benchtime 5x -count=1 -p 1 -timeout 30m ./netctl/tunnel
	go test -run '^$$' -bench '$(BENCH)' -benchtime 1x -count=1 -p 1 -timeout 30m ./test/volumes
	go test -run '^$$' -bench '$(BENCH)' -benchmem -count=1 -p 1 -timeout 30m ./scheduler/... ./serverless/... ./api/... ./agent/logs ./netctl/dns ./test/serverless

.PHONY: bench-once
bench-once: ## Run the benchmarks of single packages once each, to see that they run
	CGO_ENABLED=0 go test -run '^$$' -bench . -skip '^BenchmarkStart$$' -benchtime 1x -count=1 -p 1 $(WITHIN) ./scheduler/... ./serverless/... ./api/... ./agent/logs ./netctl/dns

.PHONY: demo
demo: setup build ## Show it: from nothing to a running pod, and away again
	@scripts/demo.sh

.PHONY: clean
clean: ## Remove what was built; pinned tools and a fetched Go stay
	rm -rf bin coverage coverage.* console/gen api/console/dist/assets api/console/dist/index.html*

.PHONY: distclean
distclean: clean ## Remove the pinned tools and a fetched Go as well
	rm -rf .bin
